"""Files that a path names: regular ones only, of a bounded size, and within the folders that they may lie in.

A pipe, a socket or a device would block the process, or feed it without end. Whoever writes a manifest, or packs a
folder, must not make the process read what lies elsewhere: a name that leads out of the folder of the data, by `..`, as
an absolute path or through a link, is refused unless `--data-root` names a folder that holds the target.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tna_onnx.data.limits import Limits
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["check_inside", "open_regular", "outside", "read_text", "regular_size"]

# Windows has no such flags, and no pipes among its files.
_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISLNK, "a link"),
)


def open_regular(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading, without waiting for anybody.

    Args:
        path: the file.
        follow: whether the path itself may be a link.

    Raises:
        OSError: it cannot be opened.
        DataError: it is not a regular file.
    """
    # Asked first: opening a device may already do something.
    _check_regular(path, path.stat(follow_symlinks=follow))
    handle = os.open(path, os.O_RDONLY | _FLAGS | (0 if follow else _NO_FOLLOW))
    try:
        _check_regular(path, os.fstat(handle))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def regular_size(path: Path) -> int:
    """Return the size in bytes of a regular file, for libraries that open it by themselves.

    Raises:
        DataError: it cannot be opened, or is not a regular file.
    """
    try:
        with open_regular(path) as stream:
            return os.fstat(stream.fileno()).st_size
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); check the path") from error


def read_text(path: Path, limits: Limits | None = None, encoding: str = "utf-8-sig") -> str:
    """Return the text of a regular file.

    The default encoding drops a byte order mark, which spreadsheets put in front.

    Raises:
        DataError: it cannot be read, is not UTF-8, is not a regular file, or is too large.
    """
    max_bytes = (limits or Limits()).text_bytes
    try:
        with open_regular(path) as stream:
            content = stream.read(int(max_bytes) + 1) if os.fstat(stream.fileno()).st_size <= max_bytes else None
        # A file may be longer than it says, under /proc for example.
        if content is None or len(content) > max_bytes:
            raise DataError(
                f"{path}: expected a text of at most {max_bytes:,} bytes, found more; if it is one, raise "
                "--data-limit text-bytes=NUMBER"
            )
        return content.decode(encoding)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text ({error}); write it again") from error


def outside(folder: Path, names: Iterable[str], data_root: Path | None = None) -> list[str]:
    """Return those of `names`, paths that count from `folder`, that lead out of it and of `data_root`."""
    roots = [os.path.join(os.path.realpath(root), "") for root in (folder, data_root) if root is not None]  # noqa: PTH118
    # Resolved once a folder: a data set has many files in few of them.
    resolved: dict[str, str] = {}
    found = []
    for name in names:
        if "\0" in name:
            found.append(name)
            continue
        parent, base = os.path.split(os.path.join(folder, name))  # noqa: PTH118
        if parent not in resolved:
            resolved[parent] = os.path.realpath(parent)
        place = os.path.join(resolved[parent], base)  # noqa: PTH118
        if base in ("", ".", "..") or os.path.islink(place):  # noqa: PTH114
            place = os.path.realpath(place)
        if not any(os.path.join(place, "").startswith(root) for root in roots):  # noqa: PTH118
            found.append(name)
    return found


def check_inside(folder: Path, names: Sequence[str], where: str, data_root: Path | None = None) -> None:
    """Check that files that data name lie in the folder of the data, or in `data_root`.

    Args:
        folder: that paths count from.
        names: the paths.
        where: what the message starts with.
        data_root: a further folder that the user allows; None for none.

    Raises:
        DataError: some lead elsewhere.
    """
    found = outside(folder, names, data_root)
    if found:
        raise DataError(
            f"{where}: {len(found):,} of {len(names):,} files lie outside {folder}, or are links that lead out of it "
            f"({found[0][:200]!r} first); if you trust these data, name a folder that holds the files with --data-root"
        )


def _check_regular(path: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    kind = next((word for test, word in _KINDS if test(status.st_mode)), "something else")
    raise DataError(f"{path}: expected a regular file, found {kind}; give the path of a file")
