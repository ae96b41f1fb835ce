"""A hostile file makes the process use no more than a stated multiple of what it is, or may stand for."""

import sys

import pytest

from tests.faults.memory import DATA, FLOOR, MODELS, growth
from tna_onnx.data.choices import DEFAULT_LIMITS
from tna_onnx.data.images.decode import WORKERS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak of memory from /proc"),
]

# The promises of SECURITY.md.
MODEL_FLOOR = 2**30
MODEL_MULTIPLE = 100
DATA_MULTIPLE = 4
PIXEL_BYTES = 8


@pytest.mark.parametrize("name", MODELS)
def test_a_model(name: str) -> None:
    found = growth(name)
    assert found.grown <= max(MODEL_FLOOR, MODEL_MULTIPLE * found.size), found
    # the measure can fail: what is within the limits does take memory
    assert name != "ConstantOfShape, allowed" or found.grown > 2**27


@pytest.mark.parametrize("name", DATA)
def test_data(name: str) -> None:
    found = growth(name)
    allowed = DATA_MULTIPLE * max(FLOOR, DEFAULT_LIMITS.expansion * found.size)
    if "image" in name:
        allowed = max(allowed, WORKERS * PIXEL_BYTES * DEFAULT_LIMITS.image_pixels)
    assert found.grown <= allowed, found
    # files that claim more than is allowed are not read at all
    if name in ("npz", "npz, lying", "parquet", "image"):
        assert found.end.startswith("refused"), found
        assert found.grown < FLOOR, found
    if name.endswith("allowed"):
        assert found.end == "read", found
    assert name != "npz, allowed" or found.grown > FLOOR // 2
