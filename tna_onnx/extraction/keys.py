"""What features depend on: the digests of a model and of samples. Equal keys mean equal features."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Source
from tna_onnx.data.digest import stream_sha256
from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.load import Model

__all__ = ["N_LABELS", "data_key", "labels_digest", "model_key"]

N_LABELS = "n_labels"
"""Entry of a key: how many labels each sample has, where those are 0 or 1 for each; without it a sample has a class."""


def model_key(model: Model) -> dict[str, Any]:
    """Return the digests (SHA-256, hex) of a model's file and of its external data.

    Raises:
        UnsupportedModel: external data cannot be read.
    """
    digests = {}
    try:
        # the weights may lie there, and not in the file
        for location in model.external_files:
            with model.open_data(location) as stream:
                digests[location] = stream_sha256(stream).hex()
    except OSError as error:
        raise UnsupportedModel(f"{model.name}: external data cannot be read: {error}") from error
    return {"model_sha256": model.sha256, "external_sha256": digests}


def data_key(source: Source) -> dict[str, Any]:
    """Return the digests (SHA-256, hex) of samples and labels, the preprocessing recipe, and the labels of a sample."""
    key = {
        "data_sha256": source.digest(),
        "labels_sha256": labels_digest(source.labels),
        "recipe": source.recipe(),
    }
    if source.labels.ndim == 2:
        key[N_LABELS] = source.labels.shape[1]
    return key


def labels_digest(labels: NDArray[Any]) -> str:
    """Return SHA-256 (hex) of labels."""
    # little-endian on every machine: a store may be moved
    return hashlib.sha256(np.ascontiguousarray(labels, "<i8").data).hexdigest()
