"""The first batch decides whether a head is what the graph walk took it for: right ones pass, wrong ones do not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tna_onnx
from tests.builders import nodes_of, small_model, tensor_info
from tests.extraction.samples import BIAS, CPU, WEIGHT, dense, divided, inputs, opened, source_of, tokens
from tna_onnx.errors import DataError, UnsupportedModel
from tna_onnx.extraction.classifier import OpenModel
from tna_onnx.extraction.head_check import CheckedHead, HeadDiffers, check_readout
from tna_onnx.graph.load import load_model
from tna_onnx.graph.readout import Head, Readout


def check(model: OpenModel, x: np.ndarray, readout: Readout | None = None) -> CheckedHead:
    return check_readout(model, readout or model.readout, model.session, source_of(model, x), 64)


def with_weight(model: OpenModel, weight: np.ndarray) -> Head:
    """Return the head with another weight than the file's: what a wrong walk would have found."""
    head = model.readout
    return replace(head, stored_weight=replace(head.stored_weight, value=weight.astype(head.stored_weight.value.dtype)))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("softmax", [False, True])
def test_a_linear_head_passes(dtype: type, *, softmax: bool) -> None:
    probed = check(opened(dense(dtype, softmax=softmax)), inputs(64).astype(dtype))
    assert (probed.tail, probed.plain_features, probed.logits_shape) == (None, True, (3,))
    assert probed.readout.logits_type == np.dtype(dtype).name


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_weight_that_is_off_by_ten_times_the_rounding_is_refused(dtype: type) -> None:
    """16 units of rounding of sum |z||w| + |b| may be explained; one number off by ten times that may not."""
    model = opened(dense(dtype))
    x = np.ones((4, 6), dtype)
    bound = 16 * float(np.finfo(dtype).eps) * float(np.abs(WEIGHT[1]).sum() + 1)
    for times, refused in ((0.1, False), (10, True)):
        weight = WEIGHT.copy()
        weight[1, 2] += times * bound
        if refused:
            with pytest.raises(UnsupportedModel, match="does not give the model's logits"):
                check(model, x, with_weight(model, weight))
        else:
            check(model, x, with_weight(model, weight))


def classifier(scale: float = 1.0) -> onnx.ModelProto:
    """A binary logistic regression as scikit-learn's converter writes it: its probabilities saturate in float32."""
    w = scale * WEIGHT[1].astype(np.float32)
    node = helper.make_node(
        "LinearClassifier", ["x"], ["label", "p"], domain="ai.onnx.ml", coefficients=[*-w, *w],
        intercepts=[-scale, scale], classlabels_ints=[0, 1], post_transform="LOGISTIC",
    )  # fmt: skip
    outputs = {"p": ["N", 2], "label": (["N"], np.int64)}
    return small_model([node], {"x": ["N", 6]}, outputs, domains={"ai.onnx.ml": 3})


@pytest.mark.parametrize("scale", [1.0, 8.0, 40.0])
def test_probabilities_that_saturate_are_compared_as_probabilities(scale: float) -> None:
    """log p of a float32 that is computed as 1 - p says nothing beyond a logit of 17; p itself does."""
    model = opened(classifier(scale))
    x = inputs(64)
    assert check(model, x).tail is None
    # a fault of ten times what rounding explains shows in the samples that are not saturated
    logits = np.abs(x @ WEIGHT[1].astype(np.float64) + 1) * scale
    size = np.abs(x) @ np.abs(WEIGHT[1]) * scale + scale
    open_one = int(np.argmin(logits))
    bound = 2 * 16 * np.finfo(np.float32).eps * size[open_one]
    changed = model.readout.weight.copy()
    k = int(np.argmax(np.abs(x[open_one])))
    slope = np.exp(-logits[open_one]) / (1 + np.exp(-logits[open_one])) ** 2
    changed[1, k] += 10 * (bound + 1e-6 / slope) / abs(x[open_one, k])
    with pytest.raises(UnsupportedModel, match="does not give the model's logits"):
        check(model, x, with_weight(model, np.concatenate([-changed[1:], changed[1:]]).reshape(-1)))


def test_other_heads_get_a_tail() -> None:
    probed = check(opened(tokens()), inputs(16, 4, 6))
    assert probed.tail is not None
    assert isinstance(probed.readout, Head)
    assert (probed.readout.linear, probed.plain_features) == (False, False)


def test_a_head_whose_logits_need_more_of_the_data_gets_a_map_behind_them() -> None:
    with pytest.raises(HeadDiffers, match="not computed from 'z' alone"):
        check(opened(divided()), inputs(16))
    x = inputs(300)
    labels = np.argmax(np.maximum(x, 0) @ WEIGHT.T + BIAS + np.random.default_rng(0).gumbel(size=(300, 3)), axis=1)
    report = tna_onnx.calibrate(divided(), {"x": x, "labels": labels}, map="ts", search="none")
    assert (report.head, report.map) == ("", "ts")
    assert any("not computed from 'z' alone" in note for note in report.notes)


@pytest.mark.parametrize(
    ("behind", "k"),
    [
        # subtracting the mean over classes lets each class vector move the logits of the others
        ("ReduceMean maxima > mean axes=[1] keepdims=1; Sub maxima mean > logits", 0),
        # the second class vector moves the third logit as well
        ("MatMul maxima mix > logits", 1),
    ],
)
def test_a_layer_whose_class_vectors_move_other_logits_is_not_the_classifiers(behind: str, k: int) -> None:
    proto = tokens()
    proto.graph.node[-1].output[0] = "maxima"
    proto.graph.node.extend(nodes_of(behind))
    mix = np.eye(3, dtype=np.float32) + np.float32(np.outer([0, 1, 0], [0, 0, 1]))
    proto.graph.initializer.append(numpy_helper.from_array(mix, "mix"))
    broken = OpenModel(load_model(proto), opened(tokens()).readout, CPU)
    with pytest.raises(UnsupportedModel, match=f"class vector {k} .* moves the logits of other classes too"):
        check(broken, inputs(16, 4, 6))


def test_an_activation_over_another_axis_is_noticed() -> None:
    proto = dense(softmax=True)
    model = opened(proto)
    proto.graph.node[-1].attribute[0].i = 0
    wrong = OpenModel(load_model(proto), model.readout, CPU)
    with pytest.raises(UnsupportedModel, match="'p' is not the softmax of 'logits'"):
        check(wrong, inputs(64))


def test_infinite_logits_name_the_sample() -> None:
    x = inputs(64)
    x[5] = 3e38
    with pytest.raises(DataError, match="logits 'logits' of sample 5 hold NaN or infinite values"):
        check(opened(dense()), x)


@pytest.mark.parametrize(("holds", "name"), [("logits", "p"), ("probabilities", "logits")])
def test_an_output_that_does_not_hold_what_was_said(holds: str, name: str) -> None:
    proto = dense(softmax=name == "p")
    head = opened(proto).readout
    fields = {field: getattr(head, field) for field in Readout.__dataclass_fields__}
    stated = Readout(**{**fields, "output": name, "logits": name, "holds": holds, "activation": "none", "follows": ()})
    with pytest.raises(UnsupportedModel, match="probabilities"):
        check(OpenModel(load_model(proto), stated, CPU), inputs(8))


def test_a_probability_by_hard_sigmoid_is_no_logit(tmp_path: Path) -> None:
    nodes = [helper.make_node("Gemm", ["x", "w"], ["z"]), helper.make_node("HardSigmoid", ["z"], ["p"])]
    weight = WEIGHT[:1].T.astype(np.float32)
    onnx.save(small_model(nodes, {"x": ["N", len(weight)]}, {"p": ["N", 1]}, {"w": weight}), tmp_path / "hard.onnx")
    data = {"x": np.random.default_rng(0).normal(size=(100, len(weight))).astype(np.float32)}
    data["labels"] = (data["x"] @ weight > 0)[:, 0].astype(np.int64)
    with pytest.raises(UnsupportedModel, match="all values lie between 0 and 1"):
        tna_onnx.calibrate(
            tmp_path / "hard.onnx",
            data,
            dry_run=True,
            model_options=tna_onnx.ModelOptions(output_kind="logit"),
            settings=tna_onnx.Settings(trust_labels=True),
        )


# ---- The part of a graph behind the features, under any weight: against NumPy

ATOL = 1e-5  # of logits up to about 10 in float32


def test_one_number_of_a_binary_head_gets_its_zero_beside_it() -> None:
    proto = tokens()
    del proto.graph.initializer[:]
    arrays = {"weight": np.ascontiguousarray(WEIGHT[:1].T), "bias": BIAS[:1]}
    proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in arrays.items())
    proto.graph.node.append(helper.make_node("Sigmoid", ["logits"], ["y"]))
    del proto.graph.output[:]
    proto.graph.output.append(tensor_info("y", ["N", 1]))
    z = np.maximum(inputs(7, 4, 6), 0)
    tail = check(opened(proto), inputs(16, 4, 6)).tail
    own = (z @ WEIGHT[:1].T + BIAS[:1]).max(axis=1)
    np.testing.assert_allclose(tail.logits(None)(z), np.hstack([np.zeros((7, 1)), own]), atol=ATOL)


def test_a_candidate_is_a_copy_of_the_head_alone() -> None:
    """The weights of the network in front are not copied for each weight that is tried."""
    proto = tokens()
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros(10_000, np.float32), "trunk"))
    proto.graph.node.insert(0, helper.make_node("Identity", ["trunk"], ["unused"]))
    z = np.maximum(inputs(7, 4, 6), 0)
    tail = check(opened(proto), inputs(16, 4, 6)).tail
    assert "trunk" not in tail.model.initializers
    assert tail.head.stored_weight.name in tail.model.initializers
    np.testing.assert_allclose(tail.logits(tail.head.weight)(z), (z @ WEIGHT.T + BIAS).max(axis=1), atol=ATOL)
