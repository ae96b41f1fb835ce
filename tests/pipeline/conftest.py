"""The small model, opened once for all tests of this folder that only look at it."""

import pytest

from tests.conftest import Small
from tests.pipeline.samples import opened
from tna_onnx.pipeline.job import Task


@pytest.fixture(scope="session")
def task(small: Small) -> Task:
    """Open the small model with its calibration data."""
    return opened(small)
