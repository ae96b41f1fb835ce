"""A linear head and features."""

from typing import Any

import numpy as np
import pytest

from tna_onnx.extraction.collect import FeatureTable

N, FEATURES, CLASSES = 1500, 16, 7


@pytest.fixture(scope="module")
def problem() -> tuple[FeatureTable, Any, Any]:
    """Return a table, and the weight and bias of a head; labels are drawn at about temperature 2."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((CLASSES, FEATURES)).astype(np.float32)
    features = rng.standard_normal((N, FEATURES)).astype(np.float32)
    labels = np.argmax(features @ weight.T / 2 + rng.gumbel(size=(N, CLASSES)), axis=1)
    features.setflags(write=False)  # as a mapped file gives them
    return FeatureTable(features, labels), weight, rng.standard_normal(CLASSES).astype(np.float32) / 10
