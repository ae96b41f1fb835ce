r"""Files of which nobody knows what they are, and files that must be there whole or not at all; text fit to be shown.

What is new goes into a temporary beside its place, reaches the disk, and takes the name in one step. A temporary is
locked while its owner lives; the next to write there removes those of the dead, and of other machines after a day.
Control characters in foreign text are shown as escapes: `\x1b`, `\u202e`.
"""

import contextlib
import errno
import functools
import os
import platform
import re
import stat
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

_TEMPORARY = re.compile(r"\.tna-onnx-([0-9a-f]{8})-[0-9a-f]{16}\.tmp")
_OLD = 86400.0  # seconds: no run holds a temporary for a day

# A folder that is read-only, or a file that another file system is mounted on: it can be written, not replaced.
_CANNOT_REPLACE = (errno.EACCES, errno.EBUSY, errno.EPERM, errno.EROFS)

# Seconds to wait for another process that is renaming files in the same folder, and between two looks.
_PATIENCE = 60.0
_PAUSE = 0.05

# Windows has neither of the first two, and needs the last for bytes as they are.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)  # two letters at least: C: is a drive

_SHOWN = 60  # characters of a name that is too long to be shown


def model_file(path: Path) -> Path:
    """Return the model in a folder as the Hub keeps it, `model.onnx` or `onnx/model.onnx`; any other path as it is."""
    try:
        files = [path / name for name in ("model.onnx", "onnx/model.onnx") if path.is_dir() and (path / name).is_file()]
    except (OSError, ValueError):  # no name of a file
        return path
    if files:
        return files[0]
    return path


def model_folders(model: Path) -> tuple[Path, ...]:
    """Return the folders in which files about a model lie; on the Hub, beside the folder `onnx` of its model."""
    if model.parent.name == "onnx":
        return model.parent, model.parent.parent
    return (model.parent,)


def is_url(text: str) -> bool:
    """Tell whether a path is a URL.

    >>> is_url("s3://bucket/calib.npz"), is_url("C:/calib.npz"), is_url("data/a:b.npz")
    (True, False, False)
    """
    return _SCHEME.match(text) is not None


def local_path(url: str) -> str:
    """Return the path in a `file://` URL; anything else unchanged.

    >>> local_path("file:///data/calib.npz"), local_path("s3://bucket/calib.npz")
    ('/data/calib.npz', 's3://bucket/calib.npz')
    """
    for scheme in ("file://", "local://"):
        if url.lower().startswith(scheme):
            return url[len(scheme) :]
    return url


def name_problem(name: str | Path) -> str:
    """Return why no file can have a path, whether there is one or not; empty where one can.

    A part of it, or all of it, is longer than the system allows, it holds a NUL, or its links go round in a circle: the
    first look at it would raise.
    """
    text = str(name)
    try:
        os.lstat(text)
        os.stat(text)  # noqa: PTH116 - follows links
    except ValueError as error:
        return f"{text[:_SHOWN]!r}: is no name of a file ({error})"
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return f"{text[:_SHOWN]}...: has {len(text):,} characters, which is too long for the name of a file here"
        if error.errno == errno.ELOOP:
            return f"{text}: is a link that leads back to itself; expected a file or a folder"
    return ""


def model_name_problem(name: str | Path) -> str:
    """Return why no model can be read from a path, or written to it; empty where one can."""
    try:
        str(Path(name).absolute()).encode()
    except UnicodeEncodeError:  # bytes that are no text; ONNX and its runtime take text alone
        return f"{name}: its path, with all folders, is not UTF-8, which a model needs; rename what is not"
    if str(name).lower().endswith(".ort"):
        return f"{name}: ONNX Runtime takes a file of this ending for its own format; expected one that ends in .onnx"
    return name_problem(name)


def resolved(path: str | Path) -> Path:
    """Return the path behind all links. Of links that go round in a circle one is left, which cannot be opened."""
    return Path(os.path.realpath(path))


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; its last part is no link.

    Raises OSError: there is no such file, it cannot be opened, or it is a folder, a pipe, a device or a link.
    """
    # Looked at before it is opened, which by itself may block or make a device do something.
    _require_regular(path, path.lstat())
    stream = os.fdopen(os.open(path, _READ), "rb")
    try:
        _require_regular(path, os.fstat(stream.fileno()))  # another one may have taken its place
    except OSError:
        stream.close()
        raise
    return stream


def _require_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(0, "not a regular file", str(path))


def write_file(path: Path, content: bytes) -> None:
    """Write a file in one step: the old content stays until the new one is on disk. The mode of an old file is kept.

    A link stays a link, to a new file. Pipes and devices are written to as they are: they have no content to lose. So
    is a file in a folder where nothing can be renamed, as it is mounted into a container.

    Raises OSError: the file cannot be written.
    """
    if not is_replaced(path):
        with path.open("wb") as stream:
            stream.write(content)
        return
    try:
        _replace(resolved(path), content)
    except OSError as error:
        if error.errno not in _CANNOT_REPLACE or not os.access(path, os.W_OK):
            raise
        path.write_bytes(content)


def _replace(target: Path, content: bytes) -> None:
    remove_leftovers(target.parent)
    temporary, lock = _claim(target.parent, _create)
    try:
        with os.fdopen(lock, "wb") as stream:
            _write_through(stream, content)
            keep_mode(temporary, target)
            # Before the lock is given back, or another process could take the file for a leftover.
            temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def is_replaced(path: Path) -> bool:
    """Whether `write_file` puts a new file in the place of an old one, where the folder lets it.

    Pipes and devices stay, and so does what /dev/stdout and /dev/fd/3 stand for: a file that someone has open.
    """
    return (path.is_file() or not path.exists()) and path.absolute().parts[1:2] not in (("dev",), ("proc",))


def write_new(path: Path, *content: bytes | memoryview) -> None:
    """Write a file that is not there yet, one piece after the other, down to the disk.

    Raises OSError: it is there, or cannot be written.
    """
    with path.open("xb") as stream:
        _write_through(stream, *content)


def _write_through(stream: BinaryIO, *content: bytes | memoryview) -> None:
    stream.writelines(content)
    stream.flush()
    os.fsync(stream.fileno())  # a rename may reach the disk before the data do


def keep_mode(new: Path, old: Path) -> None:
    """Give a file the mode of the one that it is about to replace, if there is one."""
    if old.is_file():
        new.chmod(stat.S_IMODE(old.stat().st_mode))


def sync_folder(folder: Path) -> None:
    """Bring renames in a folder to the disk, on systems that can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def temporary_folder(parent: Path | None) -> Iterator[Path]:
    """Give a new folder below another one, or below the system's for temporary files; it is gone after the block.

    Raises OSError: it cannot be made.
    """
    import tempfile  # noqa: PLC0415 - it loads much, and most commands need no such folder

    parent = parent or Path(tempfile.gettempdir())
    remove_leftovers(parent)
    folder, lock = _claim(parent, _make_folder)
    try:
        yield folder
    finally:
        os.close(lock)  # first: removing takes a descriptor, and there may be no other
        _remove_folder(folder)


def _remove_folder(folder: Path) -> None:
    """Remove a folder; an error here would hide the one that matters."""
    with contextlib.suppress(OSError):
        for path in list(folder.iterdir()):
            path.unlink()
        folder.rmdir()
    import shutil  # noqa: PLC0415 - as above

    # what has folders in it; this takes more descriptors
    shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files and folders of processes that no longer live."""
    with contextlib.suppress(OSError):
        for path in [Path(entry.path) for entry in os.scandir(folder)]:
            _remove_leftover(path)


def _remove_leftover(path: Path) -> None:
    match = _TEMPORARY.fullmatch(path.name)
    if match is None:
        return
    with contextlib.suppress(OSError):
        import shutil  # noqa: PLC0415 - as above

        lock = os.open(path, _READ)
        try:
            on_this_machine = match[1] == _machine()
            if not (on_this_machine or time.time() - os.fstat(lock).st_mtime > _OLD) or not _lock(lock):
                return
            if stat.S_ISDIR(os.fstat(lock).st_mode):
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        finally:
            os.close(lock)


@functools.cache
def _machine() -> str:
    return f"{zlib.crc32(platform.node().encode()):08x}"


_ATTEMPTS = 100  # to make a temporary; another process takes one away at most once in a while


def _claim(parent: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """Make a temporary and lock it; returns it and the descriptor that holds the lock."""
    attempts = 0
    while True:
        attempts += 1
        path = parent / f".tna-onnx-{_machine()}-{os.urandom(8).hex()}.tmp"
        try:
            lock = make(path)
        except FileNotFoundError:
            if attempts > _ATTEMPTS or not parent.is_dir():  # some folders, like /proc, never hold what is made
                raise
            continue  # another process has taken it for a leftover before it was opened
        locked = _lock(lock)
        # Between making and locking, another process may have taken it for a leftover.
        if locked is not False and path.exists():
            return path, lock
        os.close(lock)


def _create(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)


def _make_folder(path: Path) -> int:
    path.mkdir(mode=0o700)
    return os.open(path if sys.platform != "win32" else os.devnull, os.O_RDONLY)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[bool]:
    """Let one process at a time into a block that renames and removes files of a folder.

    Gives whether it is the only one. It is not after a minute in which another program keeps the folder locked, which
    may be the one that waits for this.

    Raises OSError: the folder cannot be opened.
    """
    if sys.platform == "win32":
        yield True
        return
    lock = os.open(folder, os.O_RDONLY)
    try:
        end = time.monotonic() + _PATIENCE
        alone = _lock(lock) is not False
        while not alone and time.monotonic() < end:
            time.sleep(_PAUSE)
            alone = _lock(lock) is not False
        yield alone
    finally:
        os.close(lock)


if sys.platform == "win32":

    def _lock(descriptor: int) -> bool | None:  # noqa: ARG001
        """Lock nothing: folders have no locks there."""
        return None

else:
    import fcntl

    def _lock(descriptor: int) -> bool | None:
        """Lock a file or folder. False: someone else has; None: the file system has no locks."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return None
        return True


_CONTROLS = (
    "\x00-\x1f\x7f-\x9f"  # C0, DEL and C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # changes of the writing direction
    "\u2028\u2029"  # ends of lines and paragraphs
    "\ud800-\udfff"  # bytes of a path that is not UTF-8
)
_ALL = re.compile(f"[{_CONTROLS}]")
_BUT_LINES = re.compile(f"(?!\n)[{_CONTROLS}]")


def printable(text: str, *, lines: bool = False) -> str:
    r"""Return a text without characters that act on a terminal or on the order of a line.

    >>> printable("he\x1b[31mad\n")
    'he\\x1b[31mad\\n'
    """
    return (_BUT_LINES if lines else _ALL).sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return repr(match[0])[1:-1]
