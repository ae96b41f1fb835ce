"""What tests of decisions share."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.conftest import Small


def run(path: Path, x: np.ndarray, **dials: Any) -> dict[str, np.ndarray]:
    """Run a file on its input `x`, with levels if they are given; output -> values."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    feeds = {"x": x, **{name: np.array(value, np.float32) for name, value in dials.items()}}
    return dict(zip(names, session.run(names, feeds), strict=True))


@pytest.fixture(scope="session")
def data(small: Small) -> dict[str, np.ndarray]:
    """Return inputs and labels of the small model: `x` and `y` to calibrate, `new` and `new_y` to test."""
    with np.load(small.calib) as calib, np.load(small.test) as test:
        return {"x": calib["x"], "y": calib["labels"], "new": test["x"], "new_y": test["labels"]}
