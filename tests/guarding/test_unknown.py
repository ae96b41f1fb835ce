"""Samples that a model should not know: of one kind, of any classes, or without labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import spec
from tna_onnx.data.options import Data
from tna_onnx.pipeline.classifier import open_unknown

X = np.random.default_rng(0).random((6, 4), np.float32)


@pytest.mark.parametrize("labels", [None, np.full(6, -1), np.array(["fish"] * 6)])
def test_labels_do_not_matter(tmp_path: Path, labels: np.ndarray | None) -> None:
    arrays = {"x": X} if labels is None else {"x": X, "labels": labels}
    np.savez(tmp_path / "unknown.npz", **arrays)
    known = Data({"x": X, "labels": np.arange(6) % 2}).open([spec("x", (None, 4))], 2, None)
    source = open_unknown(Data(tmp_path / "unknown.npz"), [spec("x", (None, 4))], known)
    assert len(source) == 6
    np.testing.assert_array_equal(next(source.batches(6))["x"], X)
