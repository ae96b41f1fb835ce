"""Keys of features: digests of files and samples, equal only where the features are."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.conftest import Small
from tests.data.samples import spec
from tna_onnx.data import Source, open_source
from tna_onnx.errors import UnsupportedModel
from tna_onnx.extraction.store import data_key, model_key
from tna_onnx.graph.load import load_model


def test_external_data_count(small: Small, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    weights = tmp_path / "weights.bin"
    onnx.save_model(onnx.load(small.model), path, save_as_external_data=True, location=weights.name, size_threshold=0)
    model = load_model(path)
    assert model_key(model) == {
        "model_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "external_sha256": {weights.name: hashlib.sha256(weights.read_bytes()).hexdigest()},
    }
    weights.unlink()
    with pytest.raises(UnsupportedModel, match=r"model\.onnx: external data .weights\.bin. is missing"):
        model_key(model)


def samples(path: Path, x: np.ndarray, labels: np.ndarray) -> Source:
    np.savez(path, x=x, labels=labels)
    return open_source(path, [spec()], 3)


def test_samples_and_labels_have_digests_of_their_own(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    labels = np.array([0, 1, 2, 0, 1, 2])
    first = data_key(samples(tmp_path / "first.npz", x, labels))
    assert data_key(samples(tmp_path / "moved.npz", x, labels)) == first
    other_x = data_key(samples(tmp_path / "x.npz", x + 1, labels))
    other_labels = data_key(samples(tmp_path / "labels.npz", x, labels[::-1]))
    assert other_x["data_sha256"] != first["data_sha256"]
    assert other_x["labels_sha256"] == first["labels_sha256"] != other_labels["labels_sha256"]
    assert first["recipe"] is None
