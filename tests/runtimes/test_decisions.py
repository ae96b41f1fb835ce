"""Guarded files decide in other runtimes as they do in ONNX Runtime, as far as the runtimes take them."""

from __future__ import annotations

import pytest

from tests.runtimes.decisions import DECIDERS, GUARDED, decided, disagreements, missing, write_guarded
from tests.runtimes.matrix import DoesNotRun, Matrix

# Scores of features are differences of large numbers.
BOUND = 1e-4

# Where an input with an initializer is a constant, or is none of the inputs that can be given.
NO_TURNING = (
    "OpenVINO",
    "OpenCV new engine",
    "ONNX Runtime for Node.js",
    "ONNX Runtime Web (WASM)",
    "TVM",
    "tract",
    "onnx2torch",
)


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    """Return the models and their data."""
    return Matrix(tmp_path_factory.mktemp("guarded"))


@pytest.mark.parametrize("name", GUARDED)
@pytest.mark.parametrize("tool", [tool for tool in DECIDERS if tool != "ONNX Runtime"])
def test_runtimes_decide_the_same(matrix: Matrix, tool: str, name: str) -> None:
    if why := missing(tool):
        pytest.skip(why)
    refused = "turned" in name and tool in NO_TURNING
    if "dials" in name and "classic" in tool:
        pytest.skip("OpenCV's classic engine ends the process on a scalar input")
    path = write_guarded(name, matrix.source("small"), matrix.folder)
    x = matrix.samples("small")
    if tool == "onnx2torch" and name in ("set (aps)", "set (raps)"):
        pytest.skip("onnx2torch cannot sort")
    if refused:
        with pytest.raises(DoesNotRun, match=r"coverage|risk|class_prior"):
            decided(tool, name, path, x)
        return
    largest, others = disagreements(decided(tool, name, path, x), decided("ONNX Runtime", name, path, x))
    assert largest < BOUND
    assert others == 0
