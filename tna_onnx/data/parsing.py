"""The boundary around parsers of foreign bytes: whatever they raise becomes an error that names the place."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError, TnaError

__all__ = ["parse_json", "parsing", "reason", "text_lines", "whole_numbers"]

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
        DataError: it is not JSON, is nested too deeply, holds a number of more digits than Python converts, or a key
            twice in one object.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise DataError(f"{where}: the key {twice[:80]!r} occurs twice in one object; write it once")
        return found

    with parsing(where, "is not JSON", advice):
        return json.loads(text, object_pairs_hook=once)


def text_lines(text: str) -> list[str]:
    r"""Return the lines of a text as files have them: other signs at which Unicode breaks lines stay in their line.

    >>> text_lines("a\u2028b\r\nc\n")
    ['a\u2028b', 'c']
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def whole_numbers(values: Sequence[int]) -> NDArray[Any]:
    """Return Python's integers as int64, or uint64, or as float64 where they fit into neither.

    >>> whole_numbers([2**63]).dtype, whole_numbers([2**63, -1]).dtype
    (dtype('uint64'), dtype('float64'))
    """
    for dtype in (np.int64, np.uint64):
        bounds = np.iinfo(dtype)
        if all(bounds.min <= value <= bounds.max for value in values):
            return np.array(values, dtype)
    # an integer of hundreds of digits has no float
    return np.array([float(value) if abs(value) < 2**1000 else np.inf for value in values])


def reason(error: BaseException) -> str:
    """Return the first line of an error's message, cut.

    >>> reason(KeyError("a")), reason(EOFError())
    ("'a'", 'EOFError')
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if len(lines[0]) > _MAX_REASON:
        return f"{lines[0][:_MAX_REASON]}..."
    return lines[0]
