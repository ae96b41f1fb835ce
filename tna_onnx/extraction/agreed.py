"""What a worker and the process that sent it must agree on: versions of libraries, the model, the samples."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from tna_onnx._version import __version__
from tna_onnx.data import Source
from tna_onnx.errors import DataError, DeviceError, UsageError
from tna_onnx.extraction.keys import labels_digest, model_key
from tna_onnx.extraction.manifest import as_json
from tna_onnx.graph.load import Model
from tna_onnx.runtime import runtime_version

__all__ = ["require_model", "require_provider", "require_samples_of", "require_versions", "samples_key", "versions"]

# Libraries that decide on the values of samples and features.
_LIBRARIES = ("h5py", "numpy", "pillow", "pyarrow", "tokenizers")


def versions() -> dict[str, str]:
    """Return the versions that have to be the same everywhere, by name; of libraries only those that are there."""
    found = {"tna-onnx": __version__, "onnxruntime": runtime_version()}
    for name in _LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def samples_key(source: Source) -> dict[str, Any]:
    """Return what tells one list of samples from another without reading them: labels and recipe, JSON-able."""
    return as_json({"labels_sha256": labels_digest(source.labels), "recipe": source.recipe()})


def require_versions(wanted: Mapping[str, str]) -> None:
    """Check the versions here against those of the driver.

    Raises:
        DeviceError: one is another.
    """
    here = versions()
    for name in sorted({*here, *wanted}):
        own, other = here.get(name, "none"), wanted.get(name, "none")
        if own != other:
            raise DeviceError(f"a worker has {name} {own}, the driver {other}; install the same on all machines")


def require_model(model: Model, key: Mapping[str, Any]) -> None:
    """Check the file of a model against the digests of the driver's (`model_key`), among others in a key.

    Raises:
        UsageError: it is another file.
    """
    # bytes that were sent are those of the driver
    if model.path and not model_key(model).items() <= key.items():
        raise UsageError(f"{model.name}: is another file on a worker than on the driver; give all the same one")


def require_samples_of(source: Source, key: Mapping[str, Any]) -> None:
    """Check samples against those of the driver (`samples_key`), among others in a key.

    Raises:
        DataError: they are others.
    """
    # a digest of all data would take as long as the work; these two tell another list of samples
    if not samples_key(source).items() <= key.items():
        raise DataError(f"{source.describe()}: are other samples on a worker than on the driver; give all the same")


def require_provider(provider: str, wanted: str) -> None:
    """Check the execution provider of a worker against the driver's.

    Raises:
        DeviceError: it is another.
    """
    if provider != wanted:
        raise DeviceError(f"a worker runs the model on {provider}, the driver on {wanted}; use machines of one kind")
