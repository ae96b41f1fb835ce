"""Models as onnxruntime.quantization writes them, end to end: searched in QDQ form, or left closed behind a map."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

import tna_onnx
from tests.builders import small_model, tensor_info
from tna_onnx.errors import UnsupportedModel

quantization = pytest.importorskip("onnxruntime.quantization")

Array = NDArray[Any]
N, FEATURES, HIDDEN, CLASSES = 500, 10, 24, 4
FORMS = ("dynamic", "dynamic per channel", "operators", "operators per channel", "QDQ", "4 bits")
INTEGERS = {"MatMulInteger", "QLinearMatMul", "MatMulNBits"}


def samples(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=N)
    centres = np.random.default_rng(9).standard_normal((CLASSES, FEATURES))
    x = (centres[labels] + 1.2 * rng.standard_normal((N, FEATURES))).astype(np.float32)
    return {"x": x, "labels": labels}


def plain(folder: Path) -> Path:
    """Random hidden features, and an overconfident layer fitted to them by least squares."""
    rng = np.random.default_rng(1)
    first = rng.standard_normal((FEATURES, HIDDEN)).astype(np.float32) / 2
    data = samples(0)
    hidden = np.maximum(data["x"] @ first, 0)
    weight, *_ = np.linalg.lstsq(hidden, 12 * np.eye(CLASSES)[data["labels"]], rcond=None)
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["z"], name="first"),
        helper.make_node("Relu", ["z"], ["h"], name="relu"),
        helper.make_node("MatMul", ["h", "w"], ["s"], name="head"),
        helper.make_node("Add", ["s", "b"], ["logits"], name="bias"),
    ]
    tensors = {"first": first, "w": weight.astype(np.float32), "b": np.linspace(-1, 1, CLASSES, dtype=np.float32)}
    proto = small_model(
        nodes, [tensor_info("x", ["N", FEATURES])], [tensor_info("logits", ["N", CLASSES])], tensors=tensors
    )
    onnx.save(proto, folder / "plain.onnx")
    return folder / "plain.onnx"


def quantized(form: str, folder: Path) -> Path:
    source, target = plain(folder), folder / "model.onnx"
    per_channel = "per channel" in form
    if form.startswith("dynamic"):
        quantization.quantize_dynamic(source, target, per_channel=per_channel)
        return target
    if form == "4 bits":
        tools = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")
        tool = tools.MatMulNBitsQuantizer(onnx.load(source), block_size=16, is_symmetric=True)
        tool.process()
        onnx.save(tool.model.model, target)
        return target
    batches = iter(np.split(samples(2)["x"], 5))

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, Array] | None:
            batch = next(batches, None)
            return None if batch is None else {"x": batch}

    way = quantization.QuantFormat.QDQ if form == "QDQ" else quantization.QuantFormat.QOperator
    quantization.quantize_static(source, target, Reader(), quant_format=way, per_channel=per_channel)
    return target


def calibrated(path: Path, **settings: Any) -> tuple[Path, tna_onnx.Report]:
    target = path.with_name("new.onnx")
    report = tna_onnx.calibrate(
        path, samples(3), eval=samples(4), output=target, fail_if_worse=False, overwrite=True, **settings
    )
    assert report.verification is not None
    assert report.verification.max_difference <= report.verification.bound
    assert tna_onnx.verify(path, target).intact
    return target, report


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize("form", FORMS)
def test_the_head_is_searched(form: str, tmp_path: Path) -> None:
    path = quantized(form, tmp_path)
    written, report = calibrated(path, method="tna")
    assert report.comparison.after.nll < report.comparison.before.nll
    # One MatMul is left of the integers: that of the first layer.
    assert sum(kind in INTEGERS for kind in operators(written)) == sum(k in INTEGERS for k in operators(path)) - (
        form != "QDQ"
    )
    assert any("QDQ form" in note for note in report.notes) == (form != "QDQ")


@pytest.mark.parametrize("form", FORMS)
def test_a_kept_float_weight_is_a_float_product(form: str, tmp_path: Path) -> None:
    written, report = calibrated(quantized(form, tmp_path), method="tna", quantized_head="float", fold=False)
    proto = onnx.load(written)
    assert report.comparison.after.nll < report.comparison.before.nll
    if report.angle > 0 and form != "4 bits":
        assert "tna_onnx/weight" in {tensor.name for tensor in proto.graph.initializer}


@pytest.mark.parametrize("form", FORMS)
def test_a_map_alone_leaves_the_integers_closed(form: str, tmp_path: Path) -> None:
    path = quantized(form, tmp_path)
    written, report = calibrated(path, search="none", map="ts")
    assert report.comparison.after.nll < report.comparison.before.nll
    if form != "QDQ":  # there, a temperature may go into the weight
        assert [kind for kind in operators(written) if kind in INTEGERS] == [
            kind for kind in operators(path) if kind in INTEGERS
        ]


def test_a_map_of_features_reads_the_dequantised_ones(tmp_path: Path) -> None:
    written, report = calibrated(quantized("dynamic", tmp_path), search="none", map="aar")
    assert report.comparison.after.nll < report.comparison.before.nll
    assert "DequantizeLinear" in operators(written)


def test_a_linear_map_behind_a_closed_head_is_no_head(tmp_path: Path) -> None:
    path = quantized("operators", tmp_path)
    written, _ = calibrated(path, search="none", map="sms")
    assert operators(written)[: len(operators(path)) - 1] == operators(path)[:-1]


def test_the_head_is_chosen_by_its_own_name(tmp_path: Path) -> None:
    path = quantized("operators", tmp_path)
    (head,) = tna_onnx.inspect(path).heads
    assert head.op_type == "QLinearMatMul"
    assert head.weight_type == "int8"
    _, report = calibrated(path, method="tna", head=head.node)
    assert report.comparison.after.nll < report.comparison.before.nll


def test_a_form_that_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    path = quantized("4 bits", tmp_path)
    proto = onnx.load(path)
    node = next(node for node in reversed(proto.graph.node) if node.op_type == "MatMulNBits")
    node.op_type = "MatMulBnb4"
    onnx.save(proto, path)
    with pytest.raises(
        UnsupportedModel, match=r"a MatMulBnb4, whose quantised weight.*--search none --output-kind logits"
    ):
        tna_onnx.calibrate(path, samples(3), method="tna", dry_run=True)


def test_a_feature_store_compares_the_two_forms(tmp_path: Path) -> None:
    path = quantized("operators", tmp_path)
    store = tna_onnx.features(path, samples(3), cache=tmp_path / "store")
    assert any("moves a probability by at most" in note for note in store.notes)
    report = tna_onnx.calibrate(path, tmp_path / "store", method="tna", output=tmp_path / "new.onnx")
    assert any("were not compared here" in note for note in report.notes)


def test_an_output_of_maps_is_compared(tmp_path: Path) -> None:
    """ZipMap: ONNX Runtime gives maps from label to probability."""
    path = quantized("operators", tmp_path)
    proto = onnx.load(path)
    labels = [7, 3, 5, 1]
    proto.graph.node.append(helper.make_node("Softmax", ["logits"], ["p"], axis=-1))
    proto.graph.node.append(helper.make_node("ZipMap", ["p"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=labels))
    element = helper.make_map_type_proto(onnx.TensorProto.INT64, helper.make_tensor_type_proto(1, []))
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_value_info("maps", helper.make_sequence_type_proto(element)))
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    onnx.save(proto, path)
    data = {
        name: {"x": each["x"], "labels": np.array(labels)[each["labels"]]}
        for name, each in (("calib", samples(3)), ("eval", samples(4)))
    }
    report = tna_onnx.calibrate(
        path,
        data["calib"],
        eval=data["eval"],
        method="tna",
        output=tmp_path / "new.onnx",
        fail_if_worse=False,
    )
    assert any("moves a probability by at most" in note for note in report.notes)
