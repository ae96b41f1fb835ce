"""One family of errors; each class owns the exit code of the command line.

A message says what was expected, what was found, where, and what to do. Nothing is imported here.
"""

__all__ = ["CheckFailed", "DataError", "DeviceError", "TnaError", "UnsupportedModel", "UsageError"]


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
    """ONNX Runtime or the device that was asked for is not available."""

    exit_code = 5
