"""What the machine has run out of or lacks, where an error of the system says so: that is no bug of this program."""

from __future__ import annotations

import errno

from tna_onnx.errors import DeviceError

__all__ = ["shortage"]

_MEMORY = "not enough memory; use a smaller --batch-size, fewer samples or a machine with more memory"
_FILES = "too many open files; raise the limit of open files, for example with `ulimit -n`"
_DISK = "no room on the disk, or for files of this size; free some, or set TMPDIR to another disk"
_THREADS = "no thread can be started; raise the limits of threads and memory, for example with `ulimit`"
_TEMPORARY = "no folder for temporary files can be written; set TMPDIR to one that can"

_NUMBERS = {
    "ENOMEM": _MEMORY,
    "EMFILE": _FILES,
    "ENFILE": _FILES,
    "ENOSPC": _DISK,
    "EDQUOT": _DISK,  # Windows has none
    "EFBIG": _DISK,
}
_OF_NUMBER = {getattr(errno, name): text for name, text in _NUMBERS.items() if hasattr(errno, name)}

# Errors that have neither a class nor a number of their own, by what Python says in them.
_OF_TEXT = {
    "can't start new thread": _THREADS,
    "No usable temporary directory": _TEMPORARY,
    # of a library that is loaded when it is needed
    "failed to map segment": _MEMORY,
    "annot allocate memory": _MEMORY,
}

# What `import` calls the libraries that every installation has.
_REQUIRED = (
    "array_api_compat", "click", "filelock", "google", "jinja2", "numpy", "onnx", "psutil", "rich", "scipy", "tomli",
)  # fmt: skip


def shortage(error: BaseException) -> DeviceError | None:
    """Return an error that says what is missing and what to do, or None if the machine lacks nothing."""
    text = next((text for said, text in _OF_TEXT.items() if said in str(error)), None)
    if isinstance(error, MemoryError):
        text = _MEMORY
    elif text is None and isinstance(error, ImportError):
        text = _missing_library(error)
    elif isinstance(error, OSError):
        text = _OF_NUMBER.get(error.errno or 0, text)
    return None if text is None else DeviceError(text)


def _missing_library(error: ImportError) -> str | None:
    """Tell a required library that is not there, or is broken, from a bug in an import."""
    library = (error.name or "").partition(".")[0]
    if library not in _REQUIRED:
        return None
    reason = str(error).strip().partition("\n")[0]
    return f"{library}, which tna-onnx needs, cannot be imported ({reason}); install tna-onnx again"
