"""Guarded files decide in other runtimes as they do in ONNX Runtime, as far as the runtimes take them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tna_onnx
from tests.runtimes.decisions import GUARDED, write_guarded
from tests.runtimes.matrix import ORT_LEVELS, Matrix, Source
from tests.runtimes.matrix import small as small_source
from tests.runtimes.tools import TOOLS, disagreements, ort_session, outputs_in, quiet

# Scores of features are differences of large numbers.
BOUND = 1e-4


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    """Return the models and their data."""
    return Matrix(tmp_path_factory.mktemp("guarded"))


def _pairs() -> Iterator[tuple[str, str]]:
    """Each other tool with a third of the files, and each file with a third of the tools."""
    for k, tool in enumerate(tool for tool in TOOLS if tool != "ONNX Runtime"):
        for j, name in enumerate(GUARDED):
            if (j - k) % 3 == 0 or tool == "onnx reference evaluator":
                yield tool, name


@pytest.mark.parametrize(("tool", "name"), [*_pairs()])
def test_runtimes_decide_the_same(matrix: Matrix, tool: str, name: str) -> None:
    if why := TOOLS[tool].missing():
        pytest.skip(why)
    path = write_guarded(name, matrix.source("small"), matrix.folder)
    x = matrix.samples("small")
    if tool == "onnx2torch" and name in ("set (aps)", "set (raps)"):
        pytest.skip("onnx2torch cannot sort")
    largest, others = disagreements(outputs_in(tool, path, x), outputs_in("ONNX Runtime", path, x))
    assert largest < BOUND
    assert others == 0


def _behind_softmax(path: Path) -> onnx.ModelProto:
    """Return a model whose output are the probabilities, in an opset whose quantisation the reference evaluator has."""
    model = onnx.load(path)
    (scores,) = model.graph.output
    model.opset_import[0].version = 21
    model.ir_version = 10
    model.graph.node.append(helper.make_node("Softmax", [scores.name], ["p"], axis=1))
    model.graph.output.pop()
    model.graph.output.append(helper.make_tensor_value_info("p", TensorProto.FLOAT, ["N", 5]))
    return model


def _converted(form: str, source: Source, folder: Path) -> Source:
    """Return a model of float16 with float16 outputs, or of 8 bits with quantised outputs."""
    folder = folder / "converted"
    folder.mkdir()
    whole = folder / "whole.onnx"
    onnx.save(_behind_softmax(source.model), whole)
    with np.load(source.calib) as calib, np.load(source.test) as test:
        kind = np.float16 if form == "float16" else np.float32
        for name, data in (("calib", calib), ("test", test)):
            np.savez(folder / f"{name}.npz", x=data["x"].astype(kind), labels=data["labels"])
        batches = [{"x": calib["x"][k : k + 50]} for k in range(0, 200, 50)]
    with quiet():
        from onnxruntime.quantization import QuantFormat, quantize_dynamic, quantize_static
        from onnxruntime.quantization.calibrate import CalibrationDataReader
        from onnxruntime.transformers.float16 import convert_float_to_float16

        class Reader(CalibrationDataReader):  # type: ignore[misc, unused-ignore]  # no types
            def get_next(self) -> Any:
                return batches.pop() if batches else None

        if form == "float16":
            onnx.save(convert_float_to_float16(onnx.load(whole)), folder / "m.onnx")
        elif form == "static int8":
            quantize_static(whole, folder / "m.onnx", Reader(), quant_format=QuantFormat.QDQ)
        else:
            quantize_dynamic(whole, folder / "m.onnx")
    return Source(folder / "m.onnx", folder / "calib.npz", folder / "test.npz")


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("float16", "decision (one class)"),
        ("static int8", "decision (all classes)"),
        ("dynamic int8", "decision (or none)"),
        ("dynamic int8", "decision (all classes)"),
    ],
)
def test_files_of_few_bits_decide_the_same(form: str, name: str, tmp_path: Path) -> None:
    """At all levels of optimisation, in the reference evaluator and OpenVINO."""
    source = _converted(form, small_source(tmp_path), tmp_path)
    path = write_guarded(name, source, tmp_path)
    assert tna_onnx.verify(source.model, path).intact
    with np.load(source.test) as test:
        x = test["x"][:200]
    expected = outputs_in("ONNX Runtime", path, x)["decision"]
    for level in ORT_LEVELS:
        (found,) = ort_session(path, level).run(["decision"], {"x": x})
        np.testing.assert_array_equal(found, expected)
    for tool in ("onnx reference evaluator", "OpenVINO"):
        if not TOOLS[tool].missing():
            np.testing.assert_array_equal(outputs_in(tool, path, x)["decision"].reshape(-1), expected)


@pytest.mark.parametrize("form", ["float16", "static int8", "dynamic int8"])
def test_files_of_few_bits_rule_classes_out(form: str, tmp_path: Path) -> None:
    source = _converted(form, small_source(tmp_path), tmp_path)
    result = tna_onnx.shift(
        source.model,
        source.calib,
        output=tmp_path / "o.onnx",
        device="cpu",
        settings=tna_onnx.ShiftSettings(only=["1", "2", "4"]),
    )
    assert tna_onnx.verify(source.model, result.output).intact
    with np.load(source.test) as test:
        x = test["x"][:200]
    for tool in ("ONNX Runtime", "onnx reference evaluator", "OpenVINO"):
        if not TOOLS[tool].missing():
            p = outputs_in(tool, Path(result.output), x)["p"].astype(np.float64)
            assert not p[:, [0, 3]].any()
            np.testing.assert_allclose(p.sum(axis=1), 1, atol=0.01)
