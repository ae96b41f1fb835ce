"""Labels of classifiers beside probabilities: kept to the last bit, or the likeliest class; compared with ONNX Runtime
and with Platt's map by scikit-learn.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.svm import SVC

import tna_onnx
from tests.builders import nodes_of, small_model, stumps, tensor_info
from tests.pipeline.samples import recalibrated
from tests.support import outputs_of, with_options
from tna_onnx.errors import CheckFailed
from tna_onnx.graph.load import load_model
from tna_onnx.graph.readers import label_outputs
from tna_onnx.pipeline.other_outputs import _require_kept, _require_likeliest

SAMPLES = 3000


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return one column x and labels, of which about 5 % are positive."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(2 * SAMPLES, 1)).astype(np.float32)
    y = (rng.random(2 * SAMPLES) < 1 / (1 + np.exp(4 - 1.5 * x[:, 0]))).astype(np.int64)
    return x, y


def trees(names: list[int] | list[str], *, zipmap: bool = False) -> onnx.ModelProto:
    """Return a TreeEnsembleClassifier of stumps whose scores are those of a model of as many positives as negatives."""
    kind, dtype = ("strings", np.str_) if isinstance(names[0], str) else ("int64s", np.int64)
    leaves = stumps(*[[[-0.35], [0.35]]] * 12, post_transform="LOGISTIC")
    leaves |= {"nodes_featureids": [0] * 36, "nodes_values": np.repeat(np.linspace(-2.5, 2.5, 12), 3).tolist()}
    del leaves["classlabels_int64s"]
    named = {f"classlabels_{kind}": names}
    nodes = [helper.make_node("TreeEnsembleClassifier", ["x"], ["label", "p"], domain="ai.onnx.ml", **leaves, **named)]
    outputs = [tensor_info("label", ["N"], dtype), tensor_info("p", ["N", 2])]
    if zipmap:
        nodes.append(helper.make_node("ZipMap", ["p"], ["maps"], domain="ai.onnx.ml", **named))
        labels = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        maps = helper.make_map_type_proto(labels, helper.make_tensor_type_proto(1, []))
        outputs[1] = helper.make_value_info("maps", helper.make_sequence_type_proto(maps))
    return small_model(nodes, {"x": ["N", 1]}, outputs, opset=15, domains={"ai.onnx.ml": 3})


def p_of(model: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    label, p = outputs_of(model, x).values()
    if isinstance(p, list):
        p = np.array([[row[name] for name in sorted(row)] for row in p])
    return np.asarray(label), p


@pytest.mark.parametrize(("names", "zipmap"), [([7, 9], True), (["no", "yes"], False)])
def test_trees_keep_their_label_and_get_the_right_probabilities(
    names: list[int] | list[str], tmp_path: Path, *, zipmap: bool
) -> None:
    x, y = data()
    model = trees(names, zipmap=zipmap)
    calib = {"x": x[:SAMPLES], "labels": y[:SAMPLES]}
    new, rest = x[SAMPLES:], y[SAMPLES:]
    report, output = recalibrated(model, calib, tmp_path, search="auto")
    (label, before), (kept, after) = p_of(model, new), p_of(output, new)
    assert np.array_equal(label, kept)
    logits = [np.log(p[:, 1:] / p[:, :1]) for p in (p_of(model, x[:SAMPLES])[1], before)]
    by_hand = LogisticRegression(C=1e9).fit(logits[0], y[:SAMPLES]).predict_proba(logits[1])[:, 1]
    assert log_loss(rest, after[:, 1]) < log_loss(rest, by_hand) + 0.005
    assert log_loss(rest, before[:, 1]) > log_loss(rest, by_hand) + 0.1
    assert not report.protected
    assert report.kept_label.text in report.notes
    calibrated = p_of(output, calib["x"])
    places = np.array([sorted(names).index(one) for one in calibrated[0].tolist()])  # type: ignore[type-var]
    assert report.kept_label.differing == pytest.approx(np.mean(places != calibrated[1].argmax(axis=1)))
    assert report.kept_label.smallest == pytest.approx(calibrated[1][np.arange(SAMPLES), places].min(), abs=1e-5)
    sides = (report.comparison.before, report.comparison.after)
    assert [side.accuracy for side in sides] == [pytest.approx(np.mean(places == calib["labels"]))] * 2
    assert report.comparison.before.accuracy_of_likeliest == sides[0].accuracy


def test_evaluate_and_compare_give_the_accuracy_of_the_label(tmp_path: Path) -> None:
    x, y = data()
    model = trees(["no", "yes"], zipmap=True)
    _, output = recalibrated(model, (x, y), tmp_path, map="platt")
    label, p = p_of(output, x)
    right, likeliest = np.mean((label == "yes") == y), np.mean(p.argmax(axis=1) == y)
    assert right < likeliest
    measured = tna_onnx.evaluate(output, (x, y), device="cpu").metrics
    assert (measured.accuracy, measured.accuracy_of_likeliest) == pytest.approx((right, likeliest))
    compared = tna_onnx.compare([model, output], (x, y), device="cpu").models
    assert [one.metrics.accuracy for one in compared] == pytest.approx([right, right])
    assert (compared[1].agreement, compared[1].differences["accuracy"].high) == (1, 0)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_accuracy_of_an_svm_is_that_of_its_label_under_every_map(tmp_path: Path) -> None:
    skl2onnx = pytest.importorskip("skl2onnx")
    x, y = data()
    svm = SVC(probability=True, random_state=0).fit(x[:400], y[:400])
    proto = skl2onnx.to_onnx(svm, x[:1], options={"zipmap": False}, target_opset=17)
    calib = {proto.graph.input[0].name: x[400:2400], "labels": y[400:2400]}
    right = np.mean(svm.predict(x[400:2400]) == y[400:2400])
    for chosen in ("ts", "platt"):
        words = {"map": chosen, "search": "auto", "overwrite": True}
        report, output = recalibrated(proto, calib, tmp_path, **words)
        sides = (report.comparison.before, report.comparison.after)
        assert [side.accuracy for side in sides] == pytest.approx([right, right])
        assert (report.kept_label.changing == 0) == (chosen == "ts")
        measured = tna_onnx.evaluate(output, calib, device="cpu").metrics
        assert measured.accuracy == pytest.approx(right)
        _, p = p_of(output, x[400:2400])
        assert report.kept_label.differing == pytest.approx(np.mean(p.argmax(axis=1) != svm.predict(x[400:2400])))
        _, output = recalibrated(proto, calib, tmp_path, predictions="change", **words)
        label, p = p_of(output, x[400:2400])
        assert np.array_equal(label, p.argmax(axis=1))


def test_change_makes_the_label_the_likeliest_class(tmp_path: Path) -> None:
    names = ["no", "yes"]
    x, y = data()
    model = trees(names)
    _, output = recalibrated(model, (x, y), tmp_path, predictions="change", map="platt")
    label, p = p_of(output, x)
    assert [names[c] for c in p.argmax(axis=1)] == label.tolist()
    assert np.any(label != p_of(model, x)[0])


def test_a_shift_leaves_the_label(tmp_path: Path) -> None:
    x, y = data()
    model = trees([0, 1])
    words: dict[str, Any] = {"source_prior": {"0": 0.5, "1": 0.5}, "target_prior": {"0": 0.95, "1": 0.05}}
    with_options(tna_onnx.shift, model, (x, y), output=tmp_path / "o.onnx", device="cpu", **words)
    (label, before), (kept, after) = p_of(model, x), p_of(tmp_path / "o.onnx", x)
    assert np.array_equal(label, kept)
    odds = before[:, 1] / before[:, 0] * 0.05 / 0.95
    np.testing.assert_allclose(after[:, 1], odds / (1 + odds), atol=1e-5)


def test_an_argmax_behind_the_probabilities_goes_on_reading_those_of_the_source(tmp_path: Path) -> None:
    """Its nodes are copied where the probabilities need them too."""
    x, y = data()
    weight, bias = np.array([[0.0], [1.5]], np.float32), np.array([0.0, -0.8], np.float32)
    nodes = nodes_of(
        "Gemm x w b > s name=head transB=1; Softmax s > p axis=1; ArgMax p > place axis=1 keepdims=0; "
        "Gather names place > label"
    )
    outputs = {"label": (["N"], np.int64), "p": ["N", 2]}
    constants = {"w": weight, "b": bias, "names": np.array([3, 5])}
    model = small_model(nodes, {"x": ["N", 1]}, outputs, constants)
    (found,) = label_outputs(load_model(model), "p", 2)
    assert found.classes == (3, 5)
    _, output = recalibrated(model, (x, y), tmp_path, map="platt")
    (label, _), (kept, after) = p_of(model, x), p_of(output, x)
    assert np.array_equal(label, kept)
    assert after[:, 1].mean() == pytest.approx(y.mean(), abs=0.01)


def test_a_label_that_is_not_what_was_meant_is_refused(tmp_path: Path) -> None:
    q = np.array([[0.9, 0.1], [0.2, 0.8]])
    old, wrong, path = np.array([0, 1]), np.array([0, 0]), tmp_path / "o.onnx"
    _require_kept("label", old, old, path, 1e-5)
    with pytest.raises(CheckFailed, match="1 of 2 samples"):
        _require_kept("label", old, wrong, path, 1e-5)
    _require_likeliest("label", (0, 1), old, q, path)
    with pytest.raises(CheckFailed, match="1 of 2 samples"):
        _require_likeliest("label", (0, 1), wrong, q, path)
