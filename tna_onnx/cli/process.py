"""What a command has to do with the terminal and the machine: output, signals, log, shortage, and paths of results.

While modules load, Ctrl-C ends the process at once; after that every signal ends a command like an error.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from tna_onnx.errors import DeviceError, ResultError, UsageError
from tna_onnx.files import is_replaced, name_problem, printable, resolved

if TYPE_CHECKING:
    import click


@contextlib.contextmanager
def standard_output() -> Iterator[None]:
    """Print in this block. It is no error if the reader, such as `head`, has left early."""
    try:
        yield
        # a full disk shows here and not at exit, where no message could follow
        if sys.stdout is not None:  # None where a program runs without a console
            sys.stdout.flush()
    except BrokenPipeError:
        drop(sys.stdout)
    except OSError as error:
        drop(sys.stdout)
        raise ResultError(f"standard output: cannot be written: {error.strerror}") from error


def print_error(message: str) -> None:
    """Print a message on standard error, escaped. Where that is closed, only the exit code is left to tell."""
    import click  # a click that is missing is an error to report, not one to start with

    try:
        click.echo(printable(message, lines=True), err=True)
    except OSError:
        drop(sys.stderr)


def drop(stream: TextIO) -> None:
    """Discard what a stream still holds.

    Without this Python would try to write it once more at exit, fail, and end with exit code 120.
    """
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


_taken: dict[int, Any] = {}  # the handlers in whose place ours stand, by signal


class Stopped(KeyboardInterrupt):
    """A signal while a command runs: it unwinds the stack, so that files half written are removed.

    Attributes:
        exit_code: 128 + the number of the signal, which is what a shell shows.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


def loading() -> None:
    """Let Ctrl-C end the process by the signal itself, and SIGTERM and SIGHUP end it like an error.

    Only in the place of Python's own handlers: what a program has set stays, and so do signals that the parent has told
    us to ignore (`nohup`, jobs in the background).
    """
    # Python lets only the main thread set handlers; a program that calls `main` in another one keeps its own.
    if threading.current_thread() is not threading.main_thread():
        return
    _take(signal.SIGINT, signal.default_int_handler, signal.SIG_DFL)
    _take(signal.SIGTERM, signal.SIG_DFL, _leave)
    if sys.platform != "win32":
        _take(signal.SIGHUP, signal.SIG_DFL, _leave)


def _take(number: int, before: Any, handler: Any) -> None:
    if signal.getsignal(number) is before:
        _taken[number] = before
        signal.signal(number, handler)


def loaded() -> None:
    """Make every signal that `loading` has taken an interrupt, which a command reports in one line."""
    if threading.current_thread() is threading.main_thread():
        for number in _taken:
            signal.signal(number, _stop)


def ended() -> None:
    """Put Python's handlers back."""
    if threading.current_thread() is not threading.main_thread():
        return
    while _taken:
        signal.signal(*_taken.popitem())


def _leave(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)  # an interrupt that no command is there to report would be a traceback


def _stop(number: int, _: FrameType | None) -> None:
    """Raise what ends the command, unless it is on its way: what it removes must be removed to the end."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, Stopped):
        error = error.__context__
    if error is None:
        raise Stopped(number)


@contextlib.contextmanager
def show_log(verbose: int = 1) -> Iterator[None]:
    """Print the records of the logger `tna_onnx`, from INFO on, or from DEBUG on, while the block runs."""
    import logging

    class StandardError(logging.Handler):
        """Looks standard error up for every record: progress bars replace it while they show."""

        def emit(self, record: logging.LogRecord) -> None:
            print_error(self.format(record))

    logger = logging.getLogger("tna_onnx")
    level = logger.level
    handler = StandardError()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbose > 1 else logging.INFO)
    try:
        yield
    finally:
        # A program that calls the command line in its own process keeps its logging as it was.
        logger.setLevel(level)
        logger.removeHandler(handler)


_MEMORY = "not enough memory; use a smaller --batch-size, fewer samples or a machine with more memory"
_FILES = "too many open files; raise the limit of open files, for example with `ulimit -n`"
_DISK = "no room on the disk, or for files of this size; free some, or set TMPDIR to another disk"
_THREADS = "no thread can be started; raise the limits of threads and memory, for example with `ulimit`"
_TEMPORARY = "no folder for temporary files can be written; set TMPDIR to one that can"

_OF_NUMBER = {
    getattr(errno, name): text
    for name, text in {
        "ENOMEM": _MEMORY,
        "EMFILE": _FILES,
        "ENFILE": _FILES,
        "ENOSPC": _DISK,
        "EDQUOT": _DISK,  # Windows has none
        "EFBIG": _DISK,
    }.items()
    if hasattr(errno, name)
}

# Errors that have neither a class nor a number of their own, by what Python says in them.
_OF_TEXT = {
    "can't start new thread": _THREADS,
    "No usable temporary directory": _TEMPORARY,
    # of a library that is loaded when it is needed
    "failed to map segment": _MEMORY,
    "annot allocate memory": _MEMORY,
    # SystemError of CPython, where no memory was left for the exception itself
    "error return without exception set": _MEMORY,
    "without setting an exception": _MEMORY,
    "Failed to serialize proto": _MEMORY,  # of protobuf
}

# What `import` calls the libraries that every installation has.
_REQUIRED = (
    "array_api_compat", "click", "filelock", "google", "jinja2", "numpy", "onnx", "psutil", "rich", "scipy",
)  # fmt: skip


def resource_error(error: BaseException) -> DeviceError | None:
    """Return an error that says what is missing and what to do, or None if the machine lacks nothing."""
    text = next((text for fragment, text in _OF_TEXT.items() if fragment in str(error)), None)
    if isinstance(error, MemoryError):
        text = _MEMORY
    elif text is None and isinstance(error, ImportError):
        text = _missing_library(error)
    elif isinstance(error, OSError):
        text = _OF_NUMBER.get(error.errno or 0, text)
    if text is None:
        return None
    return DeviceError(text)


def _missing_library(error: ImportError) -> str | None:
    """Tell a required library that is not there, or is broken, from a bug in an import."""
    library = (error.name or "").partition(".")[0]
    if library not in _REQUIRED:
        return None
    reason = str(error).strip().partition("\n")[0]
    return f"{library}, which tna-onnx needs, cannot be imported ({reason}); install tna-onnx again"


def interruption(ctx: click.Context) -> str:
    """Say that a command was interrupted, and what it keeps; a file that it writes is whole, or not there."""
    if ctx.meta.get(CACHE):
        return "Interrupted. The features computed so far are kept in the cache."
    return "Interrupted."


CACHE = "tna_onnx.cache"
"""The folder of feature stores, in the `meta` of a command's context."""

# Frequencies that may be a file; what a command writes besides a model, and folders in which results may lie.
_PRIORS = ("target_prior", "source_prior")
_RESULTS = {"json_file", "out", "output", "cache", "data_root"}


def default_output(model: str, suffix: str = ".tna.onnx") -> Path | None:
    """Return the path beside the model that a command writes to; None where the model's path names no file."""
    path = Path(model)
    if not path.name:
        return None
    return path.with_suffix(suffix)


def named_files(arguments: Mapping[str, Any], ending: str | None = None) -> list[str | None]:
    """Return the files that a command reads or writes besides its results, as far as its options name them.

    `ending`: of the model that it writes where no --output is given; None for commands that write no model.
    """
    import click

    paths = {param.name for param in click.get_current_context().command.params if isinstance(param.type, click.Path)}
    files = [arguments[name] for name in arguments if name in {*paths, *_PRIORS} - _RESULTS]
    models = arguments.get("models", ())
    output = arguments.get("output")
    if not output and ending is not None:
        default = default_output(arguments["model"], ending)
        output = None if default is None else str(default)
    return [*(file for file in files if isinstance(file, str) and file != "uniform"), *models, output]


def check_result_file(path: str | None, *files: str | None, kind: str = "JSON") -> None:
    """Check that a result can be written to `path`. `path`: of the result; None is not checked."""
    if path is None:
        return
    if path == "-" and kind == "JSON":
        return
    # A page is not for a terminal, and a file of this name is hard to remove.
    if path == "-":
        raise UsageError(f"-: expected the name of a file for the {kind}")
    if problem := name_problem(path):
        raise UsageError(problem)
    file = Path(path).absolute()
    if not file.parent.is_dir():
        raise UsageError(f"{path}: folder {file.parent} does not exist; create it or choose another")
    if file.is_dir() or (file.exists() and not os.access(file, os.W_OK)):
        raise UsageError(f"{path}: cannot be written; expected the name of a file for the {kind}")
    # A new file needs the right to the folder, behind a link too; one that is there can be written as it is.
    if is_replaced(file) and not file.exists() and not os.access(resolved(file).parent, os.W_OK):
        raise UsageError(f"{path}: cannot be written: the folder {resolved(file).parent} is not writable")
    if _is_one_of(file, files):
        raise UsageError(f"{path}: is one of the other files of this command; choose another name for the {kind} file")
    if file.suffix.lower() == ".onnx":
        raise UsageError(f"{path}: is the name of a model; expected the name of a file for the {kind}")


def check_figure_folder(path: str, *files: str | None) -> None:
    """Check that figures can be written into a folder, which need not exist yet."""
    if problem := name_problem(path):
        raise UsageError(problem)
    folder = Path(path).absolute()
    if _is_one_of(folder, files):
        raise UsageError(f"{path}: is one of the other files of this command; choose another folder for the figures")
    # the folder need not exist: the nearest one above decides whether it can be made
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise UsageError(f"{path}: cannot be written; expected the name of a folder for the figures")


def _is_one_of(path: Path, files: tuple[str | None, ...]) -> bool:
    return any(file is not None and resolved(path) == resolved(file) for file in files)
