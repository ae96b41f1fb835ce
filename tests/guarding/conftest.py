"""What tests of decisions share."""

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Small
from tests.support import outputs_of


def run(path: Path, x: np.ndarray) -> dict[str, np.ndarray]:
    """Run a file on its input `x`; output -> values."""
    return outputs_of(path, {"x": x})


@pytest.fixture(scope="session")
def data(small: Small) -> dict[str, np.ndarray]:
    """Return inputs and labels of the small model: `x` and `y` to calibrate, `new` and `new_y` to test."""
    with np.load(small.calib) as calib, np.load(small.test) as test:
        return {"x": calib["x"], "y": calib["labels"], "new": test["x"], "new_y": test["labels"]}
