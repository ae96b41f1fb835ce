"""What tests of decisions share."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tna_onnx
from tests.conftest import Small
from tests.support import outputs_of, with_options
from tna_onnx.results.outcomes import Guard


def guard(model: Path, calib: Any, output: Path | None = None, **words: Any) -> Guard:
    """Guard a model on the CPU; without an output, nothing is written."""
    return with_options(tna_onnx.guard, model, calib, output=output, dry_run=output is None, device="cpu", **words)


def run(path: Path, x: np.ndarray) -> dict[str, np.ndarray]:
    """Run a file on its input `x`; output -> values."""
    return outputs_of(path, {"x": x})


@pytest.fixture(scope="session")
def data(small: Small) -> dict[str, np.ndarray]:
    """Return inputs and labels of the small model: `x` and `y` to calibrate, `new` and `new_y` to test."""
    with np.load(small.calib) as calib, np.load(small.test) as test:
        return {"x": calib["x"], "y": calib["labels"], "new": test["x"], "new_y": test["labels"]}
