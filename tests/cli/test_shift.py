"""`shift` from the command line and Python: better files where frequencies have changed, refusals where more has."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from scipy.special import softmax

import tna_onnx
from tests.builders import nodes_of, small_model
from tests.results.test_json import valid
from tests.support import cli, loaded, ok, outputs_of, refused, with_options
from tna_onnx.fields import settings_of

Q = np.array([0.55, 0.25, 0.15, 0.05])


def probabilities(path: Path, x: np.ndarray) -> np.ndarray:
    (scores,) = outputs_of(path, x).values()
    return softmax(np.asarray(scores, np.float64), axis=1)


def save(path: Path, data: dict[str, np.ndarray], rows: Any) -> None:
    np.savez(path, **{name: values[rows] for name, values in data.items()})


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A linear model of four classes that was overconfident, and its data.

    `source` has logits that are twice those that the labels were drawn with; `m` is calibrated on `fit`. `fresh` comes
    from the same distribution, `target` and `eval` have the class frequencies Q, `later` those of `fit`.
    """
    folder = tmp_path_factory.mktemp("shift")
    rng = np.random.default_rng(3)
    weight = np.concatenate([2.5 * np.eye(4), np.zeros((2, 4))]).astype(np.float32)
    bias = np.array([0.0, 0.4, -0.2, 0.1], np.float32)
    nodes = nodes_of("Gemm x weight bias > logits name=head")
    model = small_model(nodes, {"x": ["N", 6]}, {"logits": ["N", 4]}, {"weight": 2 * weight, "bias": 2 * bias})
    onnx.save(model, folder / "source.onnx")
    x = rng.standard_normal((8000, 6)).astype(np.float32)
    data = {"x": x, "labels": np.argmax(x @ weight + bias + rng.gumbel(size=(8000, 4)), axis=1)}
    save(folder / "fit.npz", data, np.arange(1000))
    save(folder / "fresh.npz", data, np.arange(1000, 2500))
    save(folder / "later.npz", data, np.arange(2500, 3500))
    labels = data["labels"][3500:]
    own = [3500 + np.flatnonzero(labels == k)[: round(share * 1200)] for k, share in enumerate(Q)]
    chosen = rng.permutation(np.concatenate(own))
    np.savez(folder / "target.npz", x=x[chosen[:600]])
    save(folder / "eval.npz", data, chosen[600:])
    words = ["--search", "none", "--map", "bias", "-o", folder / "m.onnx", "-q"]
    ok("calibrate", folder / "source.onnx", "--calib", folder / "fit.npz", *words)
    return {path.stem: path for path in folder.iterdir()}


def run(given: dict[str, Path], tmp_path: Path, *words: object, code: int = 0, said: str = "") -> Path:
    """Run `shift`, which must end with an exit code and say what a pattern matches; return where its file goes."""
    out = tmp_path / "s.onnx"
    done = cli("shift", given["m"], "--calib", given["fresh"], "-o", out, "--device", "cpu", *words)
    assert done.exit_code == code, done.output
    assert re.search(said, done.output, re.DOTALL), done.output
    return out


def test_estimated_frequencies_make_the_model_better(calibrated: dict[str, Path], tmp_path: Path) -> None:
    words = ["--target-data", calibrated["target"], "--eval", calibrated["eval"], "--json", tmp_path / "r.json"]
    out = run(calibrated, tmp_path, *words, said="which must come from the target")
    report = valid((tmp_path / "r.json").read_text())
    found = np.array([each["target"] for each in report["classes"]])
    before = np.array([each["source"] for each in report["classes"]])
    assert np.abs(found - Q).sum() < np.abs(before - Q).sum() / 2
    assert report["method"] == "em"
    assert report["placed"] == "bias"
    assert report["nodes"] == 0
    effect = report["effect"]
    assert effect["nll"]["high"] < 0
    held_out = loaded(calibrated["eval"])
    own = probabilities(out, held_out["x"])[np.arange(len(held_out["labels"])), held_out["labels"]]
    assert effect["after"]["nll"] == pytest.approx(-np.mean(np.log(own)), rel=1e-5)
    # Bayes: the formula on the probabilities of the source
    old = probabilities(calibrated["m"], held_out["x"]) * found / before
    new = probabilities(out, held_out["x"])
    np.testing.assert_allclose(new, old / old.sum(axis=1, keepdims=True), atol=1e-6)


def test_python_gives_the_same_file(calibrated: dict[str, Path], tmp_path: Path) -> None:
    out = run(calibrated, tmp_path, "--target-data", calibrated["target"], "--estimator", "bbse")
    settings = tna_onnx.ShiftSettings(estimator="bbse")
    words: dict[str, Any] = {"output": tmp_path / "p.onnx", "device": "cpu", "settings": settings}
    result = tna_onnx.shift(calibrated["m"], calibrated["fresh"], calibrated["target"], **words)
    assert (tmp_path / "p.onnx").read_bytes() == out.read_bytes()
    assert result.method == "bbse"
    told = json.loads(next(e.value for e in onnx.load(out).metadata_props if e.key == "tna_onnx.shift"))
    assert told["target"] == [each.target for each in result.classes]


def test_as_few_draws_as_the_option_says_are_taken() -> None:
    least = settings_of(tna_onnx.ShiftSettings)["draws"][1].low
    assert tna_onnx.ShiftSettings(draws=int(least or 0)).draws == least


@pytest.mark.parametrize("name", ["bias", "isotonic"])
def test_only_some_classes_can_occur(calibrated: dict[str, Path], tmp_path: Path, name: str) -> None:
    """The definition: 0 elsewhere, and the others divided by their sum; in the bias, and behind a map."""
    words = ["--calib", calibrated["fit"], "--search", "none", "--map", name, "-o", tmp_path / "m.onnx", "-q"]
    ok("calibrate", calibrated["source"], *words)
    out = run({**calibrated, "m": tmp_path / "m.onnx"}, tmp_path, "--only", "1,3")
    x = loaded(calibrated["eval"])["x"]
    expected = probabilities(tmp_path / "m.onnx", x) * [0, 1, 0, 1]
    found = probabilities(out, x)
    np.testing.assert_allclose(found, expected / expected.sum(axis=1, keepdims=True), atol=1e-6)
    assert not found[:, [0, 2]].any()
    ok("verify", tmp_path / "m.onnx", out)
    # whatever it is measured on, the numbers are finite
    ok("evaluate", out, "--data", calibrated["eval"], "-q")


def test_behind_an_appended_map(calibrated: dict[str, Path], tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    words = ["--calib", calibrated["fit"], "--search", "none", "--map", "bias-floor", "-o", model, "-q"]
    ok("calibrate", calibrated["source"], *words)
    given = {**calibrated, "m": model}
    words = ["--target-data", calibrated["target"], "--json", tmp_path / "r.json", "--trust-shift"]
    out = run(given, tmp_path, *words)
    report = valid((tmp_path / "r.json").read_text())
    assert report["placed"] == "nodes"
    assert report["nodes"] == 1
    x = loaded(calibrated["eval"])["x"]
    ratio = [each["target"] / each["source"] for each in report["classes"]]
    expected = probabilities(model, x) * ratio
    np.testing.assert_allclose(probabilities(out, x), expected / expected.sum(axis=1, keepdims=True), atol=1e-6)
    ok("evaluate", out, "--data", calibrated["eval"], "-q")
    ok("guard", out, "--calib", calibrated["eval"], "--add", "confidence", "-o", tmp_path / "g.onnx")


@pytest.mark.parametrize("activation", ["Softmax", "LogSoftmax", "Sigmoid"])
def test_other_outputs(activation: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns = 1 if activation == "Sigmoid" else 3
    weight = rng.standard_normal((4, columns)).astype(np.float32)
    axis = "" if activation == "Sigmoid" else "axis=1"
    nodes = nodes_of(f"MatMul x weight > s name=head; {activation} s > p name=link {axis}")
    model = small_model(nodes, {"x": ["N", 4]}, {"p": ["N", columns]}, {"weight": weight})
    onnx.save(model, tmp_path / "m.onnx")
    x = rng.standard_normal((600, 4)).astype(np.float32)
    scores = x @ weight
    if columns == 1:
        scores = np.concatenate([np.zeros_like(scores), scores], axis=1)
    labels = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)
    np.savez(tmp_path / "c.npz", x=x, labels=labels)
    q = rng.dirichlet(np.full(scores.shape[1], 5.0))
    result = tna_onnx.shift(
        tmp_path / "m.onnx", tmp_path / "c.npz", target_prior=q.tolist(), source_prior="uniform", device="cpu"
    )
    actual = outputs_of(result.output, x)["p"]
    expected = np.exp(scores) * q
    expected /= expected.sum(axis=1, keepdims=True)
    if activation == "LogSoftmax":
        actual = np.exp(actual)
    np.testing.assert_allclose(actual, expected[:, 1:] if columns == 1 else expected, atol=1e-5)


@pytest.mark.parametrize("words", [{"target_prior": [0.8, 0.15, 0.05]}, {"only": ["0", "2"]}])
def test_a_float16_head_behind_which_all_is_float32(words: dict[str, Any], tmp_path: Path) -> None:
    """The bias is rounded to float16; and samples that are surely of a class that cannot occur get finite numbers."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((4, 3)).astype(np.float16)
    nodes = nodes_of(
        "Cast x > half to=FLOAT16; Gemm half weight bias > scores name=head; Cast scores > logits to=FLOAT; "
        "Softmax logits > p axis=1"
    )
    tensors = {"weight": weight, "bias": np.array([0.3, 0.1, 0.2], np.float16)}
    model = small_model(nodes, {"x": ["N", 4]}, {"p": ["N", 3]}, tensors)
    onnx.save(model, tmp_path / "m.onnx")
    x = rng.standard_normal((300, 4)).astype(np.float32)
    x[:20] = 50 * weight[:, 1]
    labels = np.argmax(x @ weight + rng.gumbel(size=(300, 3)), axis=1)
    result = with_options(tna_onnx.shift, tmp_path / "m.onnx", {"x": x, "labels": labels}, device="cpu", **words)
    assert result.placed == "bias"
    p = outputs_of(result.output, x)["p"]
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-6)
    assert "only" not in words or not p[:, 1].any()


# Where it must refuse


def test_samples_that_look_different_are_refused(calibrated: dict[str, Path], tmp_path: Path) -> None:
    """Inputs pushed together: every class looks unsure, which no class frequencies explain."""
    test = loaded(calibrated["later"])
    np.savez(tmp_path / "t.npz", x=test["x"] * np.float32(0.5))
    words = ["--target-data", tmp_path / "t.npz"]
    said = "more than class frequencies has changed.*--trust-shift"
    out = run(calibrated, tmp_path, *words, code=1, said=said)
    assert not out.exists()
    out = run(calibrated, tmp_path, *words, "--trust-shift", said="which label shift does not explain")
    assert out.exists()


def test_held_out_data_that_get_worse_are_refused(calibrated: dict[str, Path], tmp_path: Path) -> None:
    """They come from the source, and not from the target."""
    words = ["--target-data", calibrated["target"], "--eval", calibrated["later"]]
    out = run(calibrated, tmp_path, *words, code=1, said="the NLL rises")
    assert not out.exists()


def test_a_confusion_matrix_that_cannot_be_inverted(calibrated: dict[str, Path], tmp_path: Path) -> None:
    """Of one class there is one sample, which tells little of how it is predicted."""
    few = loaded(calibrated["fresh"])
    rows = np.concatenate([np.flatnonzero(few["labels"] < 3), np.flatnonzero(few["labels"] == 3)[:1]])
    save(tmp_path / "few.npz", few, rows)
    given = {**calibrated, "fresh": tmp_path / "few.npz"}
    words = ["--target-data", calibrated["target"], "--source-prior", "uniform"]
    run(given, tmp_path, *words, "--estimator", "bbse", code=4, said="the confusion matrix may be singular")
    run(given, tmp_path, *words)  # EM needs none


def test_a_class_without_a_sample(calibrated: dict[str, Path], tmp_path: Path) -> None:
    data = loaded(calibrated["fresh"])
    np.savez(tmp_path / "c.npz", **{key: values[data["labels"] != 3] for key, values in data.items()})
    given = {**calibrated, "fresh": tmp_path / "c.npz"}
    run(given, tmp_path, "--target-data", calibrated["target"], code=4, said="no sample of the classes '3'")
    words = ["--target-data", calibrated["target"], "--source-prior", "uniform"]
    run(given, tmp_path, *words, "--estimator", "bbse", code=4, said="class 3 has no sample")


def test_a_target_without_samples(calibrated: dict[str, Path], tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.zeros((0, 6), np.float32))
    run(calibrated, tmp_path, "--target-data", tmp_path / "t.npz", code=4, said="expected samples, found none")


def test_samples_that_serve_two_purposes(calibrated: dict[str, Path], tmp_path: Path) -> None:
    run(calibrated, tmp_path, "--target-data", calibrated["fresh"], code=4, said="are labelled samples of --calib")
    run(calibrated, tmp_path, "--target-data", calibrated["fit"], code=4, said="was recalibrated on these samples")
    words = ["--target-prior", "uniform", "--eval", calibrated["fresh"]]
    run(calibrated, tmp_path, *words, code=4, said="--eval must come from the target")


def test_the_samples_that_the_model_was_calibrated_on(calibrated: dict[str, Path], tmp_path: Path) -> None:
    """One number a class is fitted hardly too well; a matrix is."""
    given = {**calibrated, "fresh": calibrated["fit"]}
    run(given, tmp_path, "--target-data", calibrated["target"], "--trust-shift", said="by one number a class at most")
    words = ["--search", "none", "--map", "sms", "-o", tmp_path / "m.onnx", "-q"]
    ok("calibrate", calibrated["source"], "--calib", calibrated["fit"], *words)
    given["m"] = tmp_path / "m.onnx"
    run(given, tmp_path, "--target-data", calibrated["target"], code=4, said="looks better on them than it is")


@pytest.mark.parametrize("words", [[], ["--target-data", "target", "--target-prior", "uniform"]])
def test_frequencies_are_given_or_estimated(calibrated: dict[str, Path], tmp_path: Path, words: list[str]) -> None:
    given = [calibrated.get(word, word) for word in words]
    run(calibrated, tmp_path, *given, code=2, said="expected either class frequencies")


def test_a_dry_run_refuses_what_a_run_does(calibrated: dict[str, Path]) -> None:
    words = ("shift", calibrated["m"], "--calib", calibrated["fresh"], "--target-prior", "uniform", "--dry-run")
    refused(2, "output is the input model", *words, "-o", calibrated["m"])


def test_a_model_is_shifted_once_and_before_it_is_guarded(calibrated: dict[str, Path], tmp_path: Path) -> None:
    out = run(calibrated, tmp_path, "--target-prior", "uniform")
    words = ["--target-prior", "uniform", "--overwrite"]
    run({**calibrated, "m": out}, tmp_path / "..", *words, "--dry-run", code=3, said="has been shifted already")
    guarded = tmp_path / "g.onnx"
    ok("guard", calibrated["m"], "--calib", calibrated["fresh"], "--add", "confidence", "-o", guarded)
    run({**calibrated, "m": guarded}, tmp_path, *words, code=3, said="has been guarded already")


def test_what_is_said_of_a_shifted_file(calibrated: dict[str, Path], tmp_path: Path) -> None:
    """Verified beside its own source, judged on samples that shifted it, and calibrated again."""
    out = run(calibrated, tmp_path, "--target-data", calibrated["target"])
    for original in (calibrated["m"], calibrated["source"]):
        ok("verify", original, out)
    assert "another model" in cli("verify", out, calibrated["m"]).output
    said = "was shifted with some or all of these samples"
    for data, seen in (("fresh", True), ("later", False)):
        assert (said in cli("evaluate", out, "--data", calibrated[data]).output) is seen
        words = ["--calib", calibrated[data], "--add", "confidence", "-o", tmp_path / "g.onnx"]
        assert (said in cli("guard", out, *words).output) is seen
    words = ["--calib", calibrated["later"], "--search", "none", "--map", "ts", "-o", tmp_path / "c.onnx"]
    done = ok("calibrate", out, *words)
    assert "was shifted to other class frequencies" in done.output
