"""Safe access to foreign files: regular, small enough, within the folder of the data or `--data-root`, never unpickled.

Arrays of other libraries become NumPy's, errors of parsers name the file (`parsing`), and optional libraries are
imported when a source needs them (`optional`).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import numbers
import os
import stat
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.choices import Limits
from tna_onnx.errors import DataError, TnaError, UsageError

# Windows has no such flags, and no pipes among its files.
_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def open_foreign(path: Path) -> BinaryIO:
    """Open a regular file for reading, without waiting for anybody.

    Raises OSError: it cannot be opened.
    """
    # Checked before it is opened: opening a device may already have an effect.
    _check_regular(path, path.stat())
    handle = os.open(path, os.O_RDONLY | _FLAGS)
    try:
        _check_regular(path, os.fstat(handle))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_text(path: Path, limits: Limits | None = None, encoding: str = "utf-8-sig") -> str:
    """Return the text of a regular file.

    The default encoding drops a byte order mark, which spreadsheets put in front.
    """
    max_bytes = (limits or Limits()).text_bytes
    try:
        with open_foreign(path) as stream:
            content = b""
            too_long = os.fstat(stream.fileno()).st_size > max_bytes
            if not too_long:
                content = stream.read(int(max_bytes) + 1)
        # A file may be longer than it says, under /proc for example.
        if too_long or len(content) > max_bytes:
            raise DataError(
                f"{path}: expected a text of at most {max_bytes:,} bytes, found more; if it is one, raise "
                "--limit text-bytes=NUMBER"
            )
        return content.decode(encoding)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text ({error}); write it again") from error


def outside(folder: Path, names: Iterable[str], data_root: str | Path | None = None) -> list[str]:
    """Return the paths among `names`, relative to `folder`, that lead out of both it and `data_root`."""
    roots = [os.path.join(os.path.realpath(root), "") for root in (folder, data_root) if root is not None]  # noqa: PTH118
    # Resolved once a folder: a data set has many files in few of them.
    resolved: dict[str, str] = {}
    escaping = []
    for name in names:
        if "\0" in name:
            escaping.append(name)
            continue
        parent, base = os.path.split(os.path.join(folder, name))  # noqa: PTH118
        if parent not in resolved:
            resolved[parent] = os.path.realpath(parent)
        place = os.path.join(resolved[parent], base)  # noqa: PTH118
        if base in ("", ".", "..") or os.path.islink(place):  # noqa: PTH114
            place = os.path.realpath(place)
        if not any(os.path.join(place, "").startswith(root) for root in roots):  # noqa: PTH118
            escaping.append(name)
    return escaping


def check_inside(folder: Path, names: Sequence[str], where: str, data_root: str | Path | None = None) -> None:
    """Check that files that the data name lie in the folder of the data, or in `data_root`.

    `data_root`: a further folder that the user allows; None for none.
    """
    escaping = outside(folder, names, data_root)
    if escaping:
        raise DataError(
            f"{where}: {len(escaping):,} of {len(names):,} files lie outside {folder}, or are links that lead out of "
            f"it ({escaping[0][:200]!r} first); if you trust these data, name a folder that holds the files with "
            "--data-root"
        )


def _check_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path}: expected a regular file, found a folder, a pipe or a device; give the path of a file")


_MAX_REASON = 200  # characters of a foreign message: some quote the whole file


@contextlib.contextmanager
def parsing(where: str, problem: str, advice: str) -> Iterator[None]:
    """Run a parser in this block.

    `problem`: what messages say that it could not be read as or why, e.g. "cannot be read as Parquet".
    """
    try:
        yield
    except TnaError:
        raise
    except (AssertionError, AttributeError, LookupError, NameError, TypeError) as error:
        if _is_ours(error):
            raise
        raise DataError(f"{where}: {problem} ({reason(error)}); {advice}") from error
    except MemoryError as error:
        raise DataError(f"{where}: does not fit in memory; give a smaller file, or free some memory") from error
    # Parsers of foreign bytes raise nearly anything, TokenError and OverflowError included.
    except Exception as error:
        raise DataError(f"{where}: {problem} ({reason(error)}); {advice}") from error


def _is_ours(error: Exception) -> bool:
    """Tell whether the error was raised by a line of this package, not by a library that it called."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == __package__.partition(".")[0]


# What no index, size or identifier needs more than; NumPy has no larger integers.
_MAX_INTEGER = 2**64
_MAX_DIGITS = 20


def foreign_json(text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Return the value of a JSON text that somebody else has written.

    A whole number beyond 64 bits becomes a float, as in most parsers of JSON, and infinite beyond the range of these:
    no later line meets an integer that has no float.

    Raises ValueError, RecursionError: it is not JSON, or nested too deeply.

    >>> foreign_json("[7, 1" + 400 * "0" + "]")
    [7, inf]
    """
    return json.loads(text, parse_int=_integer, object_pairs_hook=pairs)


def _integer(digits: str) -> int | float:
    if len(digits) <= _MAX_DIGITS + 1 and abs(int(digits)) < _MAX_INTEGER:
        return int(digits)
    return float(digits)


def parse_json(text: str, where: str, advice: str = "write it again") -> Any:
    """Return the value of a JSON text; see `foreign_json`."""

    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            twice = repeated(name for name, _ in pairs)[0]
            raise DataError(f"{where}: the key {twice[:80]!r} occurs twice in one object; write it once")
        return mapping

    with parsing(where, "is not JSON", advice):
        return foreign_json(text, without_repeats)


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that are there more than once.

    >>> repeated(["a", "b", "a"])
    ['a']
    """
    return [name for name, count in Counter(names).items() if count > 1]


# Version 3 has names of fields in UTF-8: it is for structured arrays only.
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_npy(path: Path) -> NDArray[Any]:
    """Return the array in a `.npy` file."""
    advice = "objects are never unpickled. Write it with numpy.save"
    with parsing(str(path), "cannot be read as an array of numbers", advice), open_foreign(path) as stream:
        claimed_bytes(stream, os.fstat(stream.fileno()).st_size)
        stream.seek(0)
        return np.lib.format.read_array(stream, allow_pickle=False)


def claimed_bytes(stream: IO[bytes], size: int) -> int:
    """Return the size of the array whose header `stream` is at, if header and array fit into `size` bytes."""
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of the format is not read")
    shape, _, dtype = _HEADERS[version](stream)
    if dtype.hasobject:
        raise ValueError("it holds objects")
    if any(isinstance(length, bool) or length < 0 for length in shape):
        raise ValueError(f"its header says shape {shape}")
    claimed = math.prod(shape) * dtype.itemsize
    available = size - stream.tell()
    if claimed > available:
        raise ValueError(f"its header says {claimed:,} bytes of values, and {available:,} are there")
    return claimed


def text_lines(text: str) -> list[str]:
    r"""Split a text at line feeds and carriage returns only, not at Unicode's other line separators.

    >>> text_lines("a\u2028b\r\nc\n")
    ['a\u2028b', 'c']
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if lines[-1]:
        return lines
    return lines[:-1]


def whole_numbers(values: Sequence[int]) -> NDArray[Any]:
    """Convert Python integers to int64, else uint64, else float64 if they fit into neither.

    >>> whole_numbers([2**63]).dtype, whole_numbers([2**63, -1]).dtype
    (dtype('uint64'), dtype('float64'))
    """
    for dtype in (np.int64, np.uint64):
        bounds = np.iinfo(dtype)
        if bounds.min <= min(values) and max(values) <= bounds.max:
            return np.array(values, dtype)
    # an integer of hundreds of digits has no float
    return np.array([float(value) if abs(value) < 2**1000 else np.inf for value in values])


def cell_array(values: Sequence[Any]) -> NDArray[Any]:
    """Return values as an array of objects (N,), one for each, lists too."""
    return np.array([*values, None], object)[:-1]  # None keeps NumPy from making axes of nested lists


def any_array(values: Any) -> NDArray[Any]:
    """Return an array of what NumPy, torch, SciPy, pandas, polars or pyarrow call one; masked values are None in it."""
    if hasattr(values, "detach") and hasattr(values, "cpu"):  # files have the former too
        values = values.detach().cpu().to_dense()
        if str(values.dtype) == "torch.bfloat16":  # NumPy has no such type, and float32 holds its values
            values = values.float()
    elif hasattr(values, "toarray"):  # a sparse matrix
        values = values.toarray()
    elif np.ma.is_masked(values):
        values = np.where(np.ma.getmaskarray(values), np.array(None, object), np.ma.getdata(values))
    elif hasattr(values, "to_numpy") and not hasattr(values, "to_pylist"):
        # of lists, pandas and polars give objects, one a row; pyarrow refuses what it has to copy
        values = values.to_numpy()
    try:
        return np.asarray(values)
    except ValueError:  # lists that differ in length
        return cell_array(values)


# What libraries put where a value is missing, by the names of the types: none of them need be installed.
MISSING = ("NoneType", "NAType", "NaTType")


def plain_column(values: Any) -> NDArray[Any]:
    """Return values as an array (N,) or (N, ...) of numbers where all are numbers or missing, else of objects."""
    array = np.asarray(values)
    if array.dtype.kind == "U":
        return array.astype(object)
    if array.dtype.kind != "O" or array.ndim != 1:
        return array
    cells = array.tolist()
    kinds = {*map(type, cells)}
    missing = {kind for kind in kinds if kind.__name__ in MISSING}
    if kinds == missing or not all(issubclass(kind, numbers.Real) for kind in kinds - missing):
        return array
    if all(issubclass(kind, bool) for kind in kinds):
        return array.astype(bool)
    if not missing and all(issubclass(kind, numbers.Integral) for kind in kinds):
        return whole_numbers([int(cell) for cell in cells])
    return np.array([np.nan if type(cell) in missing else float(cell) for cell in cells])


def reason(error: BaseException) -> str:
    """Return the first line of an error's message, shortened.

    >>> reason(KeyError("a")), reason(EOFError())
    ("'a'", 'EOFError')
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if len(lines[0]) > _MAX_REASON:
        return f"{lines[0][:_MAX_REASON]}..."
    return lines[0]


def optional(module: str, extra: str, purpose: str) -> Any:
    """Import an optional library."""
    try:
        return importlib.import_module(module)
    except ImportError as error:  # also of a broken installation, so the message carries the cause
        if "failed to map segment" in str(error) or "annot allocate memory" in str(error):  # says the loader
            raise MemoryError(str(error)) from error
        raise UsageError(
            f"{purpose} needs {module.partition('.')[0]}, which cannot be imported ({error}); run pip install "
            f"'tna-onnx[{extra}]'"
        ) from error


def file_system(url: str) -> tuple[Any, str]:
    """Return the file system of fsspec behind a URL, and the path in it, without a slash at its end."""
    if url.lower().startswith(("http:", "https:")):
        raise UsageError(f"{url}: web servers are not read; fetch the file first: curl -LO '{url}'")
    fsspec = optional("fsspec", "remote", f"reading {url}")
    try:
        system, root = fsspec.core.url_to_fs(url)
    except Exception as error:  # what a URL may look like is the business of many libraries
        raise UsageError(
            f"{url}: cannot be opened ({reason(error)}); check the URL, and install the library that it needs"
        ) from error
    return system, str(root).rstrip("/")
