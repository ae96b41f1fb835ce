"""Every exit code of the command line, and one family of errors whose classes own them.

    0  done                      4  DataError
    1  CheckFailed               5  DeviceError
    2  UsageError                6  ResultError
    3  UnsupportedModel         70  INTERNAL_ERROR, 130 INTERRUPTED: ends that no error class stands for

A message says what was expected, what was found, where, and what to do. Nothing is imported here.
"""

__all__ = [
    "INTERNAL_ERROR",
    "INTERRUPTED",
    "CheckFailed",
    "DataError",
    "DeviceError",
    "ResultError",
    "TnaError",
    "TrackingError",
    "UnsupportedModel",
    "UsageError",
]

# EX_SOFTWARE of sysexits.h. Python's own 1 would look like a missed gate.
INTERNAL_ERROR = 70

# What a shell reports for a process that Ctrl-C ended: 128 + SIGINT.
INTERRUPTED = 130


class TnaError(Exception):
    """Base of every error that tna-onnx raises on purpose."""

    exit_code = 1


class CheckFailed(TnaError):
    """A check on the result failed: verification, or the result is worse than the input."""

    exit_code = 1


class UsageError(TnaError):
    """A path, flag or argument that cannot be used as given."""

    exit_code = 2


class UnsupportedModel(TnaError):
    """The model file cannot be read, or has no linear head that can be replaced safely."""

    exit_code = 3


class DataError(TnaError):
    """Samples or labels that do not fit the model, or cannot be used."""

    exit_code = 4


class DeviceError(TnaError):
    """ONNX Runtime, a library, the device or the cluster is not available, or the machine has too little memory."""

    exit_code = 5


class ResultError(TnaError):
    """A result could not be written or logged, after the work itself succeeded."""

    exit_code = 6


class TrackingError(ResultError):
    """The run could not be logged; the files it wrote are kept."""
