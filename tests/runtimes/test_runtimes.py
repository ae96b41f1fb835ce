"""Every written file gives the same probabilities in every runtime, and survives later conversions.

Tools that are not installed are skipped by name; `docs/compatibility.md` says which there are and what was measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, numpy_helper

import tna_onnx
from tests.runtimes.matrix import CONVERSIONS, FILES, LIMITS, RUNTIMES, Drift, Matrix
from tests.runtimes.tools import DoesNotRun

# Largest |p - p'| between two runtimes that both compute in float32. Isotonic functions have steps, up to some twenty
# steep, that magnify the rounding of p.
BOUND, ISOTONIC_BOUND = 1e-5, 1e-4

# Files that do not wait for `-m slow`.
QUICK = ["digits ts tilted", "small isotonic", "binary ets tilted"]
NAMES = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow, id=name) for name in FILES]


def pairs(tools: Iterable[str]) -> Any:
    """Return each tool with a third of the files, each file with a third of the tools, and what is known not to work.

    `benchmarks/runtimes.py` measures all of them.
    """
    return pytest.mark.parametrize(
        ("tool", "name"),
        [
            pytest.param(tool, name, marks=[] if name in QUICK else pytest.mark.slow, id=f"{tool}-{name}")
            for k, tool in enumerate(tools)
            for j, name in enumerate(FILES)
            if name in QUICK or (tool, name) in LIMITS or (j - k) % 3 == 0
        ],
    )


@pytest.fixture(scope="session")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    """Return the files, written on first use."""
    return Matrix(tmp_path_factory.mktemp("runtimes"))


def needs(matrix: Matrix, name: str, tool: object = None) -> Path:
    """Return the path of a file; skip if the tool, or torch for a model that it exports, is not installed."""
    if tool is not None and (missing := tool.missing()):
        pytest.skip(missing)
    if name.startswith("cnn"):
        pytest.importorskip("torch")
    return matrix.file(name)


def bound(name: str) -> float:
    """Return the bound on differences in float32."""
    return ISOTONIC_BOUND if "isotonic" in name else BOUND


@pytest.mark.parametrize("name", NAMES)
def test_files_are_valid_and_differ_from_their_source(matrix: Matrix, name: str) -> None:
    path = needs(matrix, name)
    onnx.checker.check_model(str(path), full_check=True)
    written, source = onnx.load(path), onnx.load(matrix.source(name).model)
    inferred = onnx.shape_inference.infer_shapes(written, check_type=True, strict_mode=True, data_prop=True)
    known = {value.name for value in inferred.graph.value_info}
    for node in inferred.graph.node:
        assert known.issuperset(set(node.output) - {inferred.graph.output[0].name})
    assert (written.graph.input, written.graph.output) == (source.graph.input, source.graph.output)
    assert written.opset_import == source.opset_import
    # else the comparisons below would say nothing
    change = Drift.between(matrix.expected(name, path), matrix.expected(name, matrix.source(name).model))
    assert change.largest > 0.01


@pairs(RUNTIMES)
def test_runtimes_give_the_same_probabilities(matrix: Matrix, tool: str, name: str) -> None:
    runtime = RUNTIMES[tool]
    path = needs(matrix, name, runtime)
    try:
        matrix.ran(runtime, name, matrix.source(name).model)
    except DoesNotRun as error:
        pytest.skip(f"{tool} does not run the original model: {error}")
    try:
        found = matrix.ran(runtime, name, path)
    except DoesNotRun:
        if (tool, name) in LIMITS:
            pytest.xfail(LIMITS[tool, name])
        raise
    assert found.largest < bound(name)


@pairs(k for k, v in CONVERSIONS.items() if v.exact)
def test_conversions_that_keep_float32_keep_the_probabilities(matrix: Matrix, tool: str, name: str) -> None:
    path = needs(matrix, name, CONVERSIONS[tool])
    assert matrix.converted(CONVERSIONS[tool], name, path).largest < bound(name)


@pairs(k for k, v in CONVERSIONS.items() if not v.exact)
def test_coarser_conversions_hurt_the_file_no_more_than_its_source(matrix: Matrix, tool: str, name: str) -> None:
    path = needs(matrix, name, CONVERSIONS[tool])
    of_source = matrix.converted(CONVERSIONS[tool], name, matrix.source(name).model)
    found = matrix.converted(CONVERSIONS[tool], name, path)
    if (tool, name) in LIMITS:
        pytest.xfail(LIMITS[tool, name])
    assert found.agreement >= of_source.agreement - 0.02
    assert found.mean <= 2 * of_source.mean + 1e-3
    if "isotonic" not in name:  # a steep ramp magnifies what the conversion does to p
        assert found.largest <= 2 * of_source.largest + 1e-3


@pytest.mark.parametrize(
    ("tool", "kind", "spared"),
    [("float16 by onnxconverter-common", TensorProto.FLOAT16, False), ("dynamic int8", TensorProto.INT8, True)],
)
def test_left_out_nodes_stay_float32(matrix: Matrix, tmp_path: Path, tool: str, kind: int, spared: bool) -> None:
    """The products of aar are spared by dynamic quantisation in any case."""
    path = needs(matrix, "digits aar", CONVERSIONS[tool])
    for name, left_out in ((tool, False), (f"{tool}, map left out", True)):
        CONVERSIONS[name].run(path, tmp_path / "o.onnx")
        constants = onnx.load(tmp_path / "o.onnx").graph.initializer
        assert any(tensor.data_type == kind for tensor in constants), "nothing was converted"
        kinds = {tensor.data_type for tensor in constants if tensor.name.startswith("tna_onnx")}
        assert (kinds == {TensorProto.FLOAT}) == (left_out or spared)


def test_a_model_converted_to_float16_first_can_be_recalibrated(matrix: Matrix, tmp_path: Path) -> None:
    conversion = CONVERSIONS["float16 by onnxconverter-common"]
    needs(matrix, "small isotonic", conversion)
    source = matrix.source("small isotonic")
    conversion.run(source.model, tmp_path / "half.onnx")
    report = tna_onnx.calibrate(
        tmp_path / "half.onnx", source.calib, eval=source.test, map="isotonic", search="none", device="cpu"
    )
    assert report.comparison.after.ece < 0.5 * report.comparison.before.ece


@pytest.mark.parametrize(("name", "by"), [("digits ts tilted", 1e-3), ("small isotonic", 1e-3)])
def test_a_file_that_is_slightly_wrong_is_noticed(matrix: Matrix, tmp_path: Path, name: str, by: float) -> None:
    proto = onnx.load(matrix.file(name))
    bias = next(tensor for tensor in proto.graph.initializer if tensor.name in ("bias", "head.bias"))
    value = numpy_helper.to_array(bias).copy()
    value[0] += by
    bias.CopyFrom(numpy_helper.from_array(value, bias.name))
    onnx.save(proto, tmp_path / "wrong.onnx")
    wrong = Drift.between(matrix.expected(name, tmp_path / "wrong.onnx"), matrix.expected(name, matrix.file(name)))
    assert wrong.largest > bound(name)
