"""Random forests as skl2onnx writes them: the share of the first class is 1 less a sum, which may end below zero."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import tna_onnx
from tests.builders import nodes_of, small_model, tensor_info
from tests.support import PLAIN, with_options
from tna_onnx.errors import UnsupportedModel

skl2onnx = pytest.importorskip("skl2onnx")
ensemble = pytest.importorskip("sklearn.ensemble")


def drawn(n: int, classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Samples of four columns; a class is the sum of two and noise."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 4)).astype(np.float32)
    return x, np.digitize(x[:, 0] + x[:, 1] + rng.standard_normal(n), [-0.7, 0.7] if classes == 3 else [0.0])


def trained(x: np.ndarray, y: np.ndarray, trees: int = 20, kind: str = "RandomForestClassifier") -> tuple[Any, bytes]:
    """Return a forest and its file."""
    forest = getattr(ensemble, kind)(trees, random_state=0).fit(x, y)
    return forest, skl2onnx.to_onnx(forest, x[:1], options={"zipmap": False}).SerializeToString()


def test_shares_that_end_a_rounding_below_zero(tmp_path: Path) -> None:
    x, y = drawn(1500)
    _, model = trained(x[:500], y[:500])
    shares = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(["probabilities"], {"X": x})[0]
    assert -1e-6 < shares.min() < 0
    report = with_options(tna_onnx.calibrate, model, (x[500:], y[500:]), output=tmp_path / "o.onnx", **PLAIN)
    assert report.comparison.after.nll < report.comparison.before.nll


def test_values_that_are_none_say_so(tmp_path: Path) -> None:
    x, _ = drawn(100)
    regression = pytest.importorskip("sklearn.linear_model").LinearRegression().fit(x, x[:, :3])
    model = skl2onnx.to_onnx(regression, x[:1]).SerializeToString()
    words = {"output": tmp_path / "o.onnx", "output_kind": "probabilities", **PLAIN}
    with pytest.raises(UnsupportedModel, match="should hold probabilities, but the values are no probabilities"):
        with_options(tna_onnx.calibrate, model, (x, np.arange(100) % 3), **words)


@pytest.mark.parametrize(("kind", "classes"), [("RandomForestClassifier", 2), ("ExtraTreesClassifier", 3)])
def test_a_forest_needs_no_word(kind: str, classes: int, tmp_path: Path) -> None:
    x, y = drawn(900, classes)
    _, model = trained(x[:300], y[:300], kind=kind)
    report = tna_onnx.calibrate(model, (x[300:], y[300:]), output=tmp_path / "o.onnx", device="cpu")
    assert report.comparison.after.nll <= report.comparison.before.nll


@pytest.mark.parametrize("form", ["tensor", "double", "map"])
def test_shares_of_zero_cost_the_same_in_every_command(form: str, tmp_path: Path) -> None:
    x, y = drawn(900, 3)
    forest = ensemble.RandomForestClassifier(5, random_state=0).fit(x[:300], y[:300])
    model = skl2onnx.to_onnx(forest, x[:1], options={"zipmap": form == "map"})
    if form == "double":
        model.graph.node.append(onnx.helper.make_node("Cast", [model.graph.output[1].name], ["wide"], to=11))
        del model.graph.output[:]
        model.graph.output.append(onnx.helper.make_tensor_value_info("wide", 11, [None, 3]))
    calib, held_out = (x[300:600], y[300:600]), (x[600:], y[600:])
    words = {"eval": held_out, "output": tmp_path / "o.onnx", "device": "cpu", "search": "none", "map": "ets"}
    report = with_options(tna_onnx.calibrate, model, calib, **words)
    before = tna_onnx.evaluate(model, held_out, device="cpu")
    p = forest.predict_proba(held_out[0])[np.arange(300), held_out[1]]
    assert p.min() == 0
    assert report.resolution == before.resolution == pytest.approx(0.1 / 3)  # one of five votes is taken for a tenth
    nll = -np.log((p + 0.1 / 3) / 1.1).mean()
    assert before.metrics.nll == pytest.approx(nll, rel=1e-5)
    assert report.comparison.before.nll == pytest.approx(nll, rel=1e-5)
    assert before.metrics.ece == pytest.approx(report.comparison.before.ece, rel=1e-5)
    assert np.isfinite(before.bin_free.ece_expected)


def test_models_are_compared_by_the_coarser_resolution() -> None:
    x, y = drawn(900)
    forests, models = zip(*(trained(x[:300], y[:300], trees) for trees in (20, 50)), strict=True)
    result = tna_onnx.compare(models, (x[300:], y[300:]), device="cpu")
    assert result.resolution == 1 / 40
    for forest, compared in zip(forests, result.models, strict=True):
        p = forest.predict_proba(x[300:])[np.arange(600), y[300:]]
        assert compared.metrics.nll == pytest.approx(-np.log((p + 1 / 40) / (1 + 1 / 20)).mean(), rel=1e-5)


def test_samples_show_the_steps_that_the_graph_does_not() -> None:
    x, y = drawn(600)
    nodes = nodes_of(  # four votes, each for the sign of a column
        "Sign x > signs; ReduceMean signs > mean axes=[1]; Mul mean half > moved; Sub half moved > first; "
        "Add half moved > second; Concat first second > p axis=1"
    )
    model = small_model(nodes, {"x": ["N", 4]}, [tensor_info("p", ["N", 2])], {"half": np.float32(0.5)})
    options = tna_onnx.ModelOptions(output_kind="probabilities")
    assert tna_onnx.evaluate(model, (x, y), model_options=options).resolution == 0.1 / 2  # of a quarter, a tenth
    new = tna_onnx.calibrate(model, (x, y), search="none", map="ts", model_options=options)
    assert new.resolution == 0.1 / 2
    assert tna_onnx.verify(model, new.recalibrated).intact


def _probabilities(model: str | bytes, x: np.ndarray, size: int, threads: int) -> np.ndarray:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    parts = [session.run(["probabilities"], {"X": x[k : k + size]})[0] for k in range(0, len(x), size)]
    return np.concatenate(parts)


@pytest.mark.slow
@pytest.mark.parametrize(("trees", "classes"), [(60, 2), (20, 3)])
def test_shares_that_round_away_from_zero_make_no_other_file(trees: int, classes: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = np.round(rng.normal(size=(1500, 4)), 1).astype(np.float32)
    y = np.digitize(1.2 * x[:, 0] - x[:, 1] + rng.logistic(size=1500), [0.0] if classes == 2 else [-1.0, 1.0])
    forest, model = trained(x[:500], y[:500], trees)
    out = tmp_path / "o.onnx"
    words = {"device": "cpu", "search": "none", "map": "ts", "batch_size": 1}
    report = with_options(tna_onnx.calibrate, model, (x[500:1000], y[500:1000]), output=out, **words)
    assert report.resolution == 1 / trees / classes
    alone, together = _probabilities(str(out), x[1000:], 1, 1), _probabilities(str(out), x[1000:], 500, 2)
    assert np.abs(alone - together).max() < 1e-5
    p = forest.predict_proba(x[1000:])
    scaled = (p + 1 / trees / classes) ** (1 / report.parameters["temperature"])
    np.testing.assert_allclose(alone, scaled / scaled.sum(axis=1, keepdims=True), atol=1e-5)
    assert tna_onnx.verify(model, out).intact


def test_what_the_graph_shows_to_be_probabilities_is_not_said_to_be_logits() -> None:
    x, y = drawn(100)
    _, model = trained(x, y)
    with pytest.raises(UnsupportedModel, match="holds probabilities"):
        tna_onnx.evaluate(model, (x, y), model_options=tna_onnx.ModelOptions(output_kind="logits"))
