"""Random forests as skl2onnx writes them: the share of the first class is 1 less a sum, which may end below zero."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import tna_onnx
from tests.support import with_options
from tna_onnx.errors import UnsupportedModel

skl2onnx = pytest.importorskip("skl2onnx")
ensemble = pytest.importorskip("sklearn.ensemble")


def test_shares_that_end_a_rounding_below_zero(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1500, 4)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] + rng.standard_normal(1500) > 0).astype(np.int64)
    forest = ensemble.RandomForestClassifier(20, random_state=0).fit(x[:500], y[:500])
    model = skl2onnx.to_onnx(forest, x[:1], options={"zipmap": False}).SerializeToString()
    shares = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(["probabilities"], {"X": x})[0]
    assert -1e-6 < shares.min() < 0
    words = {"device": "cpu"}
    report = with_options(
        tna_onnx.calibrate, model, (x[500:], y[500:]), output=tmp_path / "o.onnx", search="none", map="ts", **words
    )
    assert report.comparison.after.nll < report.comparison.before.nll


def test_values_that_are_none_say_so(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((100, 4)).astype(np.float32)
    regression = pytest.importorskip("sklearn.linear_model").LinearRegression().fit(x, x[:, :3])
    model = skl2onnx.to_onnx(regression, x[:1]).SerializeToString()
    with pytest.raises(UnsupportedModel, match="should hold probabilities, but the values are no probabilities"):
        tna_onnx.calibrate(
            model,
            (x, np.arange(100) % 3),
            output=tmp_path / "o.onnx",
            search="none",
            model_options=tna_onnx.ModelOptions(output_kind="probabilities"),
        )


@pytest.mark.parametrize("kind", ["RandomForestClassifier", "ExtraTreesClassifier"])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_forest_needs_no_word(kind: str, classes: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((900, 4)).astype(np.float32)
    y = np.digitize(x[:, 0] + x[:, 1] + rng.standard_normal(900), [-0.7, 0.7] if classes == 3 else [0.0])
    forest = getattr(ensemble, kind)(20, random_state=0).fit(x[:300], y[:300])
    model = skl2onnx.to_onnx(forest, x[:1], options={"zipmap": False}).SerializeToString()
    report = tna_onnx.calibrate(model, (x[300:], y[300:]), output=tmp_path / "o.onnx", device="cpu")
    assert report.comparison.after.nll <= report.comparison.before.nll
    assert any("shares in the leaves" in note for note in report.notes)


@pytest.mark.parametrize("form", ["tensor", "double", "map"])
def test_shares_of_zero_cost_the_same_in_every_command(form: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((900, 4)).astype(np.float32)
    y = np.digitize(x[:, 0] + x[:, 1] + rng.standard_normal(900), [-0.7, 0.7])
    forest = ensemble.RandomForestClassifier(5, random_state=0).fit(x[:300], y[:300])
    model = skl2onnx.to_onnx(forest, x[:1], options={"zipmap": form == "map"})
    if form == "double":
        model.graph.node.append(onnx.helper.make_node("Cast", [model.graph.output[1].name], ["wide"], to=11))
        del model.graph.output[:]
        model.graph.output.append(onnx.helper.make_tensor_value_info("wide", 11, [None, 3]))
    held_out = (x[600:], y[600:])
    words = {"device": "cpu", "search": "none", "map": "ets"}
    report = with_options(
        tna_onnx.calibrate,
        model.SerializeToString(),
        (x[300:600], y[300:600]),
        eval=held_out,
        output=tmp_path / "o.onnx",
        **words,
    )
    before = tna_onnx.evaluate(model.SerializeToString(), held_out, device="cpu")
    assert report.comparison.before.nll > 1  # of some labels the probability is 0
    assert before.metrics.nll == pytest.approx(report.comparison.before.nll, rel=1e-5)
    assert np.isfinite(before.bin_free.ece_expected)
