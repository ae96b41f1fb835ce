"""Files of a feature store: opened without following links, readable and writable by their user alone.

A cache may have been unpacked from an archive, or lie where others can write. A link in it in place of `features.bin`
would make a run overwrite whatever it points to.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import IO

from tna_onnx.errors import UsageError

__all__ = ["make_folder", "open_own"]

_FOLDER_MODE = 0o700
_FILE_MODE = 0o600

# Windows has none of these flags, and asks for privileges before it makes a link.
_FLAGS = os.O_RDWR | os.O_CREAT
for _name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
    _FLAGS |= getattr(os, _name, 0)


def make_folder(folder: Path) -> None:
    """Make the folder of a store, or check the one that is there.

    Raises:
        OSError: it cannot be made or listed.
        UsageError: it belongs to another user, or is a link, or has something other than plain files in it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(_FOLDER_MODE)
    except FileExistsError:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise _refused(folder, "is no folder, or a link to one") from None
        _check_user(folder, status)
        with os.scandir(folder) as entries:
            for entry in entries:
                # another run may have just renamed or removed it
                with contextlib.suppress(FileNotFoundError):
                    _check_file(folder / entry.name, entry.stat(follow_symlinks=False))


def open_own(path: Path) -> IO[bytes]:
    """Open a file of a store for reading and writing, and make it if it is missing.

    Raises:
        OSError: it cannot be opened; it is a link, for example.
        UsageError: it is no plain file, has another name too, or belongs to another user.
    """
    handle = os.open(path, _FLAGS, _FILE_MODE)
    try:
        _check_file(path, os.fstat(handle))
        return os.fdopen(handle, "r+b")
    except BaseException:
        os.close(handle)
        raise


def _check_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _refused(path, "is a link, or no regular file")
    # What is written under this name would change under the other one too.
    if status.st_nlink > 1:
        raise _refused(path, "has another name too (a hard link)")
    _check_user(path, status)


def _check_user(path: Path, status: os.stat_result) -> None:
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise _refused(path, "belongs to another user")


def _refused(path: Path, why: str) -> UsageError:
    return UsageError(f"{path}: {why}, so this feature store is not used; remove it, or choose another --cache")
