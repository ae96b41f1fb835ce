"""Sums of linear layers: what is written, and what samples of their features give, against NumPy."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

import tna_onnx
from tests.corpus.case import Case
from tests.corpus.forms import CASES
from tests.graph.samples import Builder
from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.cut import cut_at, cut_between
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.rewrite import rewrite
from tna_onnx.graph.scores import choose_head

SUMMED = [case for case in CASES if case.route == "summed"]
TOLERANCE = {"float16": 2e-2}  # units of rounding of logits up to 20
SAMPLES = 600


def _run(proto: Any, names: list[str] | None, feeds: dict[str, Any]) -> list[NDArray[np.float64]]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(value, np.float64) for value in session.run(names, feeds)]


def _opened(name: str, folder: Path) -> tuple[Model, dict[str, Any]]:
    case = next(each for each in SUMMED if each.name == f"summed/{name}")
    assert case.feeds is not None
    model = load_model(case.build(folder))
    return model, case.feeds(SAMPLES, np.random.default_rng(3))


@pytest.mark.parametrize("case", SUMMED, ids=lambda case: case.name)
def test_any_weight_and_bias_can_be_written(case: Case, tmp_path: Path) -> None:
    model, feeds = _opened(case.name.partition("/")[2], tmp_path)
    head = choose_head(model)
    (features,) = _run(cut_at(model, [head.features], head.joined), None, feeds)
    rng = np.random.default_rng(4)
    weight = head.anchored(rng.standard_normal(head.weight.shape).astype(head.working_type))
    bias = head.anchored(rng.standard_normal(head.n_classes).astype(head.working_type)) if head.holds_bias else None
    written = rewrite(model, head, weight, bias=bias, metadata={})
    (logits,) = _run(written.proto, [head.logits] if head.activation == "none" else [head.output], feeds)
    expected = features @ weight.T + (head.bias if bias is None else bias)
    if head.activation == "softmax":
        expected = np.exp(expected) / np.exp(expected).sum(axis=1, keepdims=True)
    elif head.activation == "sigmoid":
        expected = 1 / (1 + np.exp(expected[:, :1] - expected[:, 1:]))
    np.testing.assert_allclose(logits, expected, atol=TOLERANCE.get(head.stored_weight.float_type, 1e-4), rtol=1e-4)
    read = choose_head(Model(written.proto, "", None)).weight
    np.testing.assert_allclose(read, head.as_written(weight), rtol=1e-6, atol=1e-6)


def test_layers_on_the_same_features_share_them(tmp_path: Path) -> None:
    model, _ = _opened("heads on the same features summed", tmp_path)
    head = choose_head(model)
    assert head.features in model.producers
    assert not head.parts


def test_features_are_taken_apart_again(tmp_path: Path) -> None:
    model, feeds = _opened("mean of two heads, Add and Mul", tmp_path)
    head = choose_head(model)
    (features,) = _run(cut_at(model, [head.features], head.joined), None, feeds)
    part = cut_between(model.proto, {head.features: np.dtype("float32")}, [head.logits], head.joined)
    (logits,) = _run(part, None, {head.features: features.astype(np.float32)})
    np.testing.assert_allclose(logits, features @ head.weight.T + head.bias, atol=1e-4)
    assert features.shape == (SAMPLES, sum(head.parts.values()))


def test_features_and_data_give_the_same_refit(tmp_path: Path) -> None:
    model, feeds = _opened("heads summed", tmp_path)
    head = choose_head(model)
    (features,) = _run(cut_at(model, [head.features], head.joined), None, feeds)
    scores = features @ head.weight.T + head.bias + 2 * np.random.default_rng(5).gumbel(size=(SAMPLES, head.n_classes))
    labels = scores.argmax(axis=1)
    np.savez(tmp_path / "data.npz", labels=labels, **feeds)
    np.savez(tmp_path / "features.npz", labels=labels, features=features.astype(np.float32))
    weights = []
    for name in ("data", "features"):
        written = tmp_path / f"{name}.onnx"
        report = tna_onnx.calibrate(
            str(model.path),
            tmp_path / f"{name}.npz",
            output=written,
            map="refit",
            search="none",
            settings=tna_onnx.Settings(max_accuracy_drop=50),
        )
        assert report.folded
        assert tna_onnx.verify(model.path, written).intact
        weights.append(choose_head(load_model(written)).weight)
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-4, atol=1e-5)
    assert not np.allclose(weights[0], head.weight, atol=1e-3)


def test_features_of_several_tensors_are_refused_by_name_where_one_is_read(tmp_path: Path) -> None:
    model, feeds = _opened("heads summed", tmp_path)
    (logits,) = _run(model.proto, None, feeds)
    labels = np.where(np.arange(SAMPLES) % 7, logits.argmax(axis=1), 0)
    np.savez(tmp_path / "data.npz", labels=labels, **feeds)
    with pytest.raises(tna_onnx.UnsupportedModel, match="several tensors"):
        tna_onnx.guard(
            str(model.path),
            tmp_path / "data.npz",
            output=tmp_path / "guarded.onnx",
            add=["ood"],
            settings=tna_onnx.GuardSettings(ood_score="mahalanobis"),
        )


def test_a_layer_that_is_added_to_itself_is_no_sum_of_two() -> None:
    """Both summands would be given a weight of their own, and there is one."""
    b = Builder()
    product = b.product("product")
    b.node("Add", b.node("Div", product, b.store("factor", [1.0, 2.0, 3.0]), out="scaled"), product, out="y")
    with pytest.raises(UnsupportedModel, match="twice"):
        choose_head(load_model(b.sample().proto.SerializeToString()))
