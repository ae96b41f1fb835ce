"""Models as onnxruntime.quantization writes them, end to end: a map goes behind heads of integers."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper

import tna_onnx
from tests.builders import nodes_of, small_model, tensor_info
from tests.support import with_options
from tna_onnx.errors import UnsupportedModel
from tna_onnx.extraction import head_check

quantization = pytest.importorskip("onnxruntime.quantization")

Array = NDArray[Any]
N, FEATURES, HIDDEN, CLASSES = 500, 10, 24, 4
FORMS = ("dynamic", "operators per channel", "QDQ", "4 bits")
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
    nodes = nodes_of(
        "MatMul x first > z name=first; Relu z > h name=relu; MatMul h w > s name=head; Add s b > logits name=bias"
    )
    tensors = {"first": first, "w": weight.astype(np.float32), "b": np.linspace(-1, 1, CLASSES, dtype=np.float32)}
    proto = small_model(nodes, {"x": ["N", FEATURES]}, {"logits": ["N", CLASSES]}, tensors=tensors)
    onnx.save(proto, folder / "plain.onnx")
    return folder / "plain.onnx"


def statically_quantized(source: Path, target: Path, x: Array, *, qdq: bool, per_channel: bool = False) -> Path:
    batches = iter(np.split(x, 5))

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, Array] | None:
            batch = next(batches, None)
            return None if batch is None else {"x": batch}

    form = quantization.QuantFormat.QDQ if qdq else quantization.QuantFormat.QOperator
    quantization.quantize_static(source, target, Reader(), quant_format=form, per_channel=per_channel)
    return target


def quantized(form: str, folder: Path) -> Path:
    source, target = plain(folder), folder / "model.onnx"
    per_channel = "per channel" in form
    if form.startswith("dynamic"):
        # `reduce_range`: no overflow on any CPU
        quantization.quantize_dynamic(source, target, per_channel=per_channel, reduce_range=True)
        return target
    if form == "4 bits":
        tools = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")
        tool = tools.MatMulNBitsQuantizer(onnx.load(source), block_size=16, is_symmetric=True)
        tool.process()
        onnx.save(tool.model.model, target)
        return target
    return statically_quantized(source, target, samples(2)["x"], qdq=form == "QDQ", per_channel=per_channel)


def calibrated(path: Path, **settings: Any) -> tuple[Path, tna_onnx.Report]:
    target = path.with_name("new.onnx")
    words = {"output": target, "require": "nothing", "overwrite": True, **settings}
    report = with_options(tna_onnx.calibrate, path, samples(3), eval=samples(4), **words)
    assert report.verification.max_difference <= report.verification.bound
    assert tna_onnx.verify(path, target).intact
    return target, report


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_map_goes_behind_a_head_of_integers(form: str, tmp_path: Path) -> None:
    path = quantized(form, tmp_path)
    written, report = calibrated(path)
    assert report.comparison.after.nll < report.comparison.before.nll
    if form == "QDQ":  # a float layer: a temperature may go into the weight
        return
    assert [kind for kind in operators(written) if kind in INTEGERS] == [
        kind for kind in operators(path) if kind in INTEGERS
    ]
    assert any("computes with integers" in note for note in report.notes)


@pytest.mark.parametrize("form", ["dynamic", "4 bits"])
def test_a_search_of_integers_is_refused(form: str, tmp_path: Path) -> None:
    path = quantized(form, tmp_path)
    with pytest.raises(UnsupportedModel, match="search none"):
        tna_onnx.calibrate(path, samples(3), dry_run=True, settings=tna_onnx.Settings(method="tna"))


def test_probabilities_in_integers_are_no_logits(tmp_path: Path) -> None:
    """QLinearSoftmax gives probabilities in 256 steps."""
    path = quantized("operators", tmp_path)
    proto = onnx.load(path)
    last = proto.graph.node.pop()  # DequantizeLinear
    scale, zero = helper.make_tensor("ps", 1, [], [1 / 256]), helper.make_tensor("pz", 3, [], [-128])
    proto.graph.initializer.extend([scale, zero])
    words = {"axis": -1, "opset": 13, "domain": "com.microsoft"}
    proto.graph.node.append(helper.make_node("QLinearSoftmax", [*last.input, "ps", "pz"], ["pq"], **words))
    proto.graph.node.append(helper.make_node("DequantizeLinear", ["pq", "ps", "pz"], ["logits"]))
    if all(each.domain != "com.microsoft" for each in proto.opset_import):
        proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(proto, path)
    written, report = calibrated(path, search="none", map="ts")
    assert report.comparison.before.ece < 0.15  # read as logits, they would be far too uncertain
    d = report.resolution  # a step, shared by the classes
    assert d == 1 / 256 / report.classes
    feeds = {"x": samples(3)["x"]}
    (p,), (new,) = (onnxruntime.InferenceSession(str(each)).run(None, feeds) for each in (path, written))
    assert np.abs(p.sum(axis=1) - 1).max() > 1e-3
    scaled = (p + d) ** (1 / report.parameters["temperature"])
    np.testing.assert_allclose(new, scaled / scaled.sum(axis=1, keepdims=True), atol=1e-5)


@pytest.fixture
def four_bits(tmp_path: Path) -> Path:
    """A head whose weight comes from blocks of 4 bits, behind DequantizeLinear."""
    tools = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")
    proto = onnx.load(plain(tmp_path))
    proto.opset_import[0].version, proto.ir_version = 21, 10
    config = tools.DefaultWeightOnlyQuantConfig(block_size=16, quant_format=quantization.QuantFormat.QDQ)
    tool = tools.MatMulNBitsQuantizer(proto, algo_config=config, nodes_to_exclude=["first"])
    tool.process()
    onnx.save(tool.model.model, tmp_path / "model.onnx")
    assert "DequantizeLinear" in operators(tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.mark.parametrize("settings", [{}, {"search": "none", "map": "refit"}])
def test_a_weight_of_four_bits_stays(four_bits: Path, settings: dict[str, Any]) -> None:
    written, report = calibrated(four_bits, **settings)
    assert report.comparison.after.nll < report.comparison.before.nll
    assert any("stays as it is" in note for note in report.notes)
    assert operators(written)[:4] == operators(four_bits)[:4]
    names = {each.name for each in onnx.load(written).graph.initializer}
    assert "tna_onnx/weight" not in names  # in float it would be eight times as large


@pytest.mark.parametrize(("name", "folds"), [("ts", True), ("ets", False)])
def test_a_weight_of_four_bits_is_written_in_float_where_that_is_asked_for(
    four_bits: Path, name: str, *, folds: bool
) -> None:
    written, report = calibrated(four_bits, search="none", map=name, quantized_head="float")
    assert report.folded == folds
    assert ("tna_onnx/weight" in {each.name for each in onnx.load(written).graph.initializer}) == folds
    assert any("a float tensor of its own" in note for note in report.notes) == folds


def test_a_map_goes_behind_logits_that_the_weight_does_not_give(tmp_path: Path, monkeypatch: Any) -> None:
    """As on CPUs where 8-bit products overflow, which the one of this test may not be."""
    path = quantized("QDQ", tmp_path)

    def differs(*_: Any, **__: Any) -> None:
        raise head_check.HeadDiffers(f"{path}: other logits")

    monkeypatch.setattr(head_check.Tail, "check", differs)
    monkeypatch.setattr(head_check, "_check_linear", differs)
    _, report = calibrated(path)
    assert (report.head, report.folded) == ("", False)
    assert report.comparison.after.nll < report.comparison.before.nll
    assert any("other logits" in note for note in report.notes)
    with pytest.raises(UnsupportedModel, match="other logits"):
        tna_onnx.calibrate(path, samples(3), dry_run=True, settings=tna_onnx.Settings(method="tna"))


LABELS = 3


def label_samples(seed: int) -> dict[str, Array]:
    """Labels by themselves, from logits eight times those of the model."""
    rng = np.random.default_rng(seed)
    weight = np.random.default_rng(4).standard_normal((FEATURES, LABELS))
    x = rng.standard_normal((N, FEATURES)).astype(np.float32)
    return {"x": x, "labels": (rng.random((N, LABELS)) < 1 / (1 + np.exp(-x @ weight))).astype(np.int64)}


@pytest.fixture(params=["QDQ", "QOperator", "QDQ, logits too"])
def label_model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A model of labels that is far too unsure, so that the ranges of its quantised probabilities are narrow."""
    weight = np.random.default_rng(4).standard_normal((FEATURES, LABELS)).astype(np.float32) / 8
    nodes = nodes_of("MatMul x w > s name=head; Add s b > logits name=bias; Sigmoid logits > p")
    outputs = ["logits", "p"] if "too" in request.param else ["p"]
    infos = [tensor_info(name, ["N", LABELS]) for name in outputs]
    tensors = {"w": weight, "b": np.zeros(LABELS, np.float32)}
    onnx.save(small_model(nodes, {"x": ["N", FEATURES]}, infos, tensors=tensors), tmp_path / "float.onnx")
    target, x = tmp_path / "model.onnx", label_samples(2)["x"]
    return statically_quantized(tmp_path / "float.onnx", target, x, qdq=request.param != "QOperator")


@pytest.mark.slow
def test_quantised_probabilities_of_labels_reach_from_0_to_1(label_model: Path) -> None:
    target = label_model.with_name("new.onnx")
    report = tna_onnx.calibrate(label_model, label_samples(0), eval=label_samples(1), output=target)
    assert report.comparison.after.nll < report.comparison.before.nll - 0.1
    assert tna_onnx.verify(label_model, target).intact
    session = onnxruntime.InferenceSession(target)
    *logits, p = session.run(None, {"x": label_samples(3)["x"]})
    assert p.max() > 0.95  # before, 0.8 at most
    rounds = any("rounds its probabilities" in note for note in report.notes)
    assert rounds == ("Sigmoid" in operators(label_model) and not logits)
    if logits:
        np.testing.assert_allclose(p, 1 / (1 + np.exp(-logits[0])), atol=0.6 / 255)  # half a step of 8 bits
