"""The boundary around parsers of foreign bytes: whatever they raise becomes an error that names the place."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from tna_onnx.errors import DataError, TnaError

__all__ = ["parse_json", "parsing", "reason"]

_MAX_REASON = 200  # characters of a foreign message: some quote the whole file


@contextlib.contextmanager
def parsing(where: str, what: str, advice: str) -> Iterator[None]:
    """Run a parser in this block.

    Args:
        where: the file, and the place in it.
        what: what messages say that it could not be read as or why, e.g. "cannot be read as HDF5".
        advice: what to do.

    Raises:
        DataError: the parser raised anything but an error of this package.
    """
    try:
        yield
    except TnaError:
        raise
    except MemoryError as error:
        raise DataError(f"{where}: does not fit in memory; give a smaller file, or free some memory") from error
    # Parsers of foreign bytes raise nearly anything, TokenError and OverflowError included.
    except Exception as error:
        raise DataError(f"{where}: {what} ({reason(error)}); {advice}") from error


def parse_json(text: str, where: str, advice: str = "write it again") -> Any:
    """Return the value of a JSON text.

    Raises:
        DataError: it is not JSON, is nested too deeply, or holds a number of more digits than Python converts.
    """
    with parsing(where, "is not JSON", advice):
        return json.loads(text)


def reason(error: BaseException) -> str:
    """Return the first line of an error's message, cut.

    >>> reason(KeyError("a")), reason(EOFError())
    ("'a'", 'EOFError')
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if len(lines[0]) > _MAX_REASON:
        return f"{lines[0][:_MAX_REASON]}..."
    return lines[0]
