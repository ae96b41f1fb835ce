"""What tests of pages, figures and model cards share."""

from typing import Any

import pytest

import tna_onnx
from tests.conftest import Small
from tests.support import WALKED, with_options
from tna_onnx.results.report import Report

# A search whose steps and members there is something to draw and say of.
SEARCHED: dict[str, Any] = WALKED | {"objective": "ece", "angle_step": 2.0, "ensemble_size": 64}


@pytest.fixture(scope="session")
def report(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return the report, with details, of a run that wrote a file."""
    output = tmp_path_factory.mktemp("report") / "small.tna.onnx"
    return with_options(
        tna_onnx.calibrate, small.model, small.calib, eval=small.test, output=output, details=True, **SEARCHED
    )
