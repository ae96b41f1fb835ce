"""Forms of JAX and TensorFlow: the only column of a Sigmoid's results, an expanded bias, a checked maximum."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import open_source
from tests.graph.rewriting import unexpected
from tests.graph.samples import CLASSES, FEATURES, Builder, Sample, run
from tna_onnx.errors import UnsupportedModel
from tna_onnx.extraction.classifier import OpenModel
from tna_onnx.extraction.head_check import check_readout
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.readers import can_scale, require_no_other_readers
from tna_onnx.graph.rewrite import rewrite
from tna_onnx.graph.scores import choose_head, find_readout
from tna_onnx.graph.walk.patterns import written_out
from tna_onnx.runtime import Device

_STORED = {"zero": 0, "one": 1, "last": -1, "origin": [0, 0], "row": [1, 0], "axes": [0, 1], "dropped": [1]}
_END = 2**31 - 1
_STORED |= {"ends": [_END, 1], "first": [1, 1]}
_SLICED = "Slice p origin ends axes > column; Squeeze column dropped > y"
# behind the results `p` of a Sigmoid
COLUMNS = {
    "gathered": "Gather p zero > y axis=1",
    "gathered from the end": "Gather p last > y axis=-1",
    "jax2onnx": "Transpose p > turned perm=[1,0]; Gather turned zero > y axis=0",
    "tf2onnx": _SLICED,
    "up to opset 9": f"Slice p > column axes=[0,1] starts=[0,0] ends=[{_END},1]; Squeeze column > y axes=[1]",
}
OTHER_CHOICES = {
    "second": "Gather p one > y axis=1",
    "first sample": "Gather p zero > y axis=0",
    "first rows": _SLICED.replace("ends", "first"),
    "later rows": _SLICED.replace("origin", "row"),
}


def _sigmoid(then: str, classes: int = CLASSES, opset: int = 17) -> Sample:
    b = Builder(classes=classes, opset=opset)
    b.linear("scores")
    b.text(f"Sigmoid scores > p; {then}", **_STORED)
    return b.sample({"y": "sigmoid"}, bias_scale=1.0, logits="scores")


@pytest.mark.parametrize("name", COLUMNS)
def test_the_only_column_of_sigmoids_is_the_output_of_a_binary_model(name: str, tmp_path: Path) -> None:
    sample = _sigmoid(COLUMNS[name], classes=1, opset=9 if name == "up to opset 9" else 17)
    model = sample.write(tmp_path)
    head, x = choose_head(model), sample.inputs(9)
    assert (head.binary, head.activation, head.logits, head.linear) == (True, "sigmoid", "scores", True)
    np.testing.assert_allclose(head.weight[1] - head.weight[0], sample.weight[0], rtol=1e-6)

    twice = rewrite(model, head, head.weight * 2, bias_factor=2.0, metadata={})
    assert unexpected(model, twice, twice.proto) == []
    p, sharper = run(model.path, ["y"], x)[0], run(twice.proto, ["y"], x)[0]
    assert p.shape == sharper.shape == (9,)
    odds = (p / (1 - p)).astype(np.float64)
    # odds of twice the logit are squared; their rounding is that of a float32 probability next to 1
    np.testing.assert_allclose(sharper, odds**2 / (1 + odds**2), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["gathered", "jax2onnx", "tf2onnx"])
def test_one_column_of_several_labels_is_no_classifier(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="the output is one column of 3 probabilities"):
        choose_head(_sigmoid(COLUMNS[name]).write(tmp_path))


@pytest.mark.parametrize("choice", OTHER_CHOICES.values(), ids=OTHER_CHOICES)
def test_other_choices_of_probabilities_stay_refused(choice: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="result of Sigmoid is scaled, shifted or changed"):
        choose_head(_sigmoid(choice, classes=1).write(tmp_path))


def _expanded(shape_of: str) -> Sample:
    """Scores, and a bias that is brought to the shape of a tensor of data, as jnp.broadcast_to is written."""
    b = Builder()
    b.product("product")
    target = f"Shape {shape_of} > shape; Gather shape first > samples axis=0; Concat samples classes > target axis=0"
    stored = {"first": [0], "classes": [CLASSES], "bias": b.bias, "row": [1, CLASSES]}
    b.text(f"{target}; Reshape bias row > wide; Expand wide target > expanded; Add product expanded > y", **stored)
    return b.sample(bias_scale=1.0)


@pytest.mark.parametrize("shape_of", ["product", "x"])
def test_an_expanded_bias_is_a_bias(shape_of: str, tmp_path: Path) -> None:
    sample = _expanded(shape_of)
    model = sample.write(tmp_path)
    head, x = choose_head(model), sample.inputs(9)
    np.testing.assert_allclose(head.weight, sample.weight, rtol=1e-6)
    assert head.bias is not None
    np.testing.assert_allclose(head.bias, sample.bias, rtol=1e-6)
    assert head.linear
    assert can_scale(model, head)

    halved = rewrite(model, head, head.weight / 2, bias_factor=0.5, metadata={})
    assert unexpected(model, halved, halved.proto) == []
    np.testing.assert_array_equal(run(halved.proto, ["y"], x)[0], run(model.path, ["y"], x)[0] / 2)


def test_scores_that_are_read_in_front_of_an_expanded_bias_are_not_scaled(tmp_path: Path) -> None:
    sample = _expanded("x")
    model = sample.write(tmp_path)
    extra = model.proto.graph.output.add()
    extra.name = "product"
    model.path.write_bytes(model.proto.SerializeToString())
    model = load_model(model.path)
    assert not can_scale(model, choose_head(model, output="y"))


# a shift of scores: the maximum, or 0 where it is infinite, as tf2onnx writes a choice: by factors of 0 and 1
_CHECKED_MAXIMUM = (
    "ReduceMax scores > largest axes=[1] keepdims=1; IsInf largest > infinite; Not infinite > finite; "
    "Cast finite > is_finite to=FLOAT; Mul is_finite largest > kept; "
    "Cast infinite > is_infinite to=FLOAT; Mul nothing is_infinite > in_its_place; Add kept in_its_place > shift"
)
# shifts that need not be the same for all classes, so that what comes out is no log-softmax
_OTHER_SHIFTS = {
    "one a class": "Mul scores share > shift",
    "0 on all data at hand": "Sub scores limit > beyond; Relu beyond > shift",
    "made of a maximum, and a constant by class": "ReduceMax scores > largest axes=[1] keepdims=1; "
    "Sub largest limit > less; Relu less > beyond; Mul beyond share > shift",
}


def _log_softmax(shift: str) -> Sample:
    """s - (log |sum exp(s - a)| + a)."""
    b = Builder()
    b.linear("scores")
    summed = "Sub scores shift > shifted; Exp shifted > exponentials; ReduceSum exponentials axes > sum keepdims=1"
    log = "Abs sum > absolute; Log absolute > log; Add log shift > summed; Sub scores summed > y"
    b.text(f"{shift}; {summed}; {log}", nothing=0.0, share=[0.5, 0.1, 0.9], limit=100.0, axes=[1])
    return b.sample({"y": "log_softmax"}, bias_scale=1.0, logits="scores")


def test_a_log_softmax_around_a_maximum_that_is_checked(tmp_path: Path) -> None:
    sample = _log_softmax(_CHECKED_MAXIMUM)
    model = sample.write(tmp_path)
    head = choose_head(model)
    assert (head.activation, head.logits, head.linear) == ("log_softmax", "scores", True)
    np.testing.assert_allclose(head.weight, sample.weight, rtol=1e-6)
    _check_by_numbers(model, tmp_path)


@pytest.mark.parametrize("shift", _OTHER_SHIFTS.values(), ids=_OTHER_SHIFTS)
def test_what_need_not_be_the_same_for_all_classes_is_refused(shift: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel):
        _check_by_numbers(_log_softmax(shift).write(tmp_path), tmp_path)


@pytest.mark.parametrize(("operands", "form"), [("sum least", ("Softmax", "scores")), ("beyond sum least", None)])
def test_a_sum_that_computed_numbers_may_exceed_is_no_softmax(operands: str, form: tuple[str, str] | None) -> None:
    """They are below it on all data at hand."""
    b = Builder()
    b.linear("scores")
    summed = "Exp scores > exponentials; ReduceSum exponentials axes > sum keepdims=1; Sub scores limit > beyond"
    b.text(f"{summed}; Max {operands} > kept; Div exponentials kept > y", limit=100.0, least=1e-30, axes=[1])
    assert written_out(load_model(b.proto("y")), "y") == form


def _check_by_numbers(model: Model, folder: Path) -> None:
    head, x = choose_head(model), Builder().draw(30, FEATURES)
    np.savez(folder / "data.npz", x=x, labels=np.arange(30) % CLASSES)
    opened = OpenModel(model, head, Device("cpu"))
    source = open_source(folder / "data.npz", opened.inputs, CLASSES, None)
    check_readout(opened, head, opened.session, source, 30)


@pytest.mark.parametrize("other", ["output", "another head"])
def test_an_expanded_bias_that_others_read_stays_as_it_is(other: str, tmp_path: Path) -> None:
    outputs = {"expanded": "bias"}
    b = Builder()
    b.product("product")
    b.text("Shape product > target; Expand bias target > expanded; Add product expanded > y", bias=b.bias)
    if other == "another head":
        b.text("Mul expanded two > doubled", two=[2.0])
        outputs = {"doubled": "bias"}
    sample = b.sample({"y": "logits", **outputs}, bias_scale=1.0)
    model = sample.write(tmp_path)
    head, x = choose_head(model, output="y"), sample.inputs(9)
    assert can_scale(model, head)
    require_no_other_readers(model, head, keeps_order=False)

    halved = rewrite(model, head, head.weight / 2, bias_factor=0.5, metadata={})
    assert unexpected(model, halved, halved.proto) == []
    names = ["y", *outputs]
    y, kept = run(model.path, names, x)
    half, same = run(halved.proto, names, x)
    np.testing.assert_allclose(half, y / 2, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(same, kept)


# what makes p of scores
_NO_SIGMOIDS = {
    "the modified Huber loss of scikit-learn": "Clip scores least one > clipped; Add clipped one > up; Div up two > p",
    "an average of two networks": "Sigmoid scores > p1; Neg scores > n; Sigmoid n > p2; Mean p1 p2 > p",
    "scores": "Identity scores > p",
}


@pytest.mark.parametrize("made", _NO_SIGMOIDS.values(), ids=_NO_SIGMOIDS)
def test_two_columns_that_no_sigmoid_makes_are_probabilities_as_they_are(made: str) -> None:
    """Concat(1 - p, p): p is no logit, whatever computes it."""
    b = Builder(classes=1)
    b.linear("scores")
    b.text(f"{made}; Sub one p > other; Concat other p > y axis=1", least=-1.0, one=1.0, two=2.0)
    readout = find_readout(load_model(b.sample().proto.SerializeToString()))
    assert (readout.logits, readout.holds, readout.n_classes) == ("y", "probabilities", 2)
    assert (readout.paired, readout.binary) == (False, False)
