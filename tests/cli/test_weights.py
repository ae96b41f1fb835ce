"""Samples with weights: read from every kind of data, refused where they would be ignored or say nothing."""

import json
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tna_onnx
from tests.cli.test_groups import features, written
from tests.conftest import Small
from tests.pipeline import test_label_models as label_models
from tests.support import PLAIN, loaded, ok, refused, with_options
from tna_onnx.data.source import rows_by_weight
from tna_onnx.errors import DataError, UsageError
from tna_onnx.numerics.conformal import conformal_quantile
from tna_onnx.numerics.positive import NO_CLASSES, positive_scores, slope_and_intercept
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.results.measured import MIN_SAMPLES, estimates_of, subgroups_of

Arrays = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def arrays(small: Small) -> Arrays:
    found = {name: values[:300] for name, values in loaded(small.calib).items()}
    # the column that the writers of other formats know
    return {**found, "patient": np.random.default_rng(0).integers(1, 4, 300)}


def test_weights_of_a_column_are_those_of_an_array(small: Small, arrays: Arrays, tmp_path: Path) -> None:
    path = written(tmp_path / "samples", arrays, ".parquet")
    metrics = tna_onnx.evaluate(small.model, tna_onnx.Data(path, weight_column="patient")).metrics
    data = {name: arrays[name] for name in ("x", "labels")}
    assert metrics == tna_onnx.evaluate(small.model, tna_onnx.Data(data, weights=arrays["patient"])).metrics
    rows = np.repeat(np.arange(300), arrays["patient"])
    repeated = tna_onnx.evaluate(small.model, {name: values[rows] for name, values in data.items()}).metrics
    for name in ("accuracy", "ece", "nll", "brier"):
        assert getattr(metrics, name) == pytest.approx(getattr(repeated, name), abs=1e-6), name
    assert metrics.effective_n == pytest.approx(len(rows) ** 2 / (arrays["patient"] ** 2).sum())
    for unit in (1e300, 1e-300):  # whose squares no float holds
        scaled = tna_onnx.evaluate(small.model, tna_onnx.Data(data, weights=arrays["patient"] * unit)).metrics
        assert scaled.nll == pytest.approx(metrics.nll, rel=1e-9)
    rarely = np.where(arrays["labels"] == 2, 1e-170, 1.0)
    results = [
        with_options(tna_onnx.calibrate, small.model, data, weights=weights, output=tmp_path / "o.onnx", **PLAIN)
        for weights in (rarely, np.round(rarely))
    ]
    assert results[0].comparison == results[1].comparison


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [(7, -1.0, "row 7"), (3, np.nan, "row 3"), (0, np.inf, "row 0"), (slice(None), 0.0, "all 300")],
)
def test_weights_that_are_none_are_refused_with_their_row(
    small: Small, arrays: Arrays, place: Any, value: float, words: str
) -> None:
    weights = np.ones(300)
    weights[place] = value
    with pytest.raises(DataError, match=words):
        tna_onnx.evaluate(small.model, tna_onnx.Data({**arrays, "w": weights}, weight_column="w"))
    with pytest.raises(DataError, match=words):
        tna_onnx.evaluate(small.model, tna_onnx.Data({name: arrays[name] for name in ("x", "labels")}, weights=weights))


@pytest.mark.parametrize("command", ["shift", "study", "verify"])
def test_commands_that_count_samples_refuse_weights(small: Small, arrays: Arrays, tmp_path: Path, command: str) -> None:
    words: dict[str, Any] = {"weights": arrays["patient"]}
    data = {name: arrays[name] for name in ("x", "labels")}
    calls: dict[str, Any] = {
        "shift": lambda: with_options(tna_onnx.shift, small.model, data, target_prior="uniform", **words),
        "study": lambda: with_options(tna_onnx.study, small.model, data, eval=data, **words),
        "verify": lambda: with_options(tna_onnx.verify, small.model, small.model, data=data, **words),
    }
    with pytest.raises(UsageError, match="weight"):
        calls[command]()


def test_a_few_samples_of_all_the_weight_are_no_sign_of_anything(small: Small, arrays: Arrays) -> None:
    weights = np.full(300, 1e-6)
    weights[:6] = 1
    data = {name: arrays[name] for name in ("x", "labels")}
    found = tna_onnx.evaluate(small.model, tna_onnx.Data(data, weights=weights))
    assert any("are worth 6" in note for note in found.notes)
    with pytest.raises(DataError, match="6 samples, fewer than the 15 bins"):
        tna_onnx.evaluate(small.model, tna_onnx.Data(data, weights=weights > 1e-3))


def test_calibrate_fits_what_a_repeated_sample_would(small: Small, tmp_path: Path) -> None:
    """As many draws as there are samples, so that priors count the same."""
    data = loaded(small.calib)
    n = len(data["labels"])
    times = np.bincount(np.random.default_rng(1).integers(0, n, n), minlength=n)
    rows = np.repeat(np.arange(n), times)
    repeated = {name: values[rows] for name, values in data.items()}
    words: dict[str, Any] = {"search": "none", "map": "bias"}
    one = with_options(tna_onnx.calibrate, small.model, data, output=tmp_path / "a.onnx", weights=times, **words)
    two = with_options(tna_onnx.calibrate, small.model, repeated, output=tmp_path / "b.onnx", **words)
    assert one.parameters["temperature"] == pytest.approx(two.parameters["temperature"], rel=1e-6)
    assert one.parameters["bias"] == pytest.approx(two.parameters["bias"], abs=1e-6)
    for name in ("accuracy", "ece", "nll", "brier"):
        values = [getattr(report.calibration.after, name) for report in (one, two)]
        assert values[0] == pytest.approx(values[1], abs=1e-6), name
    assert one.comparison.how == "cross-fitted"
    assert one.comparison.after.effective_n == pytest.approx(n**2 / (times**2).sum())


@pytest.mark.slow
def test_equal_weights_write_the_same_bytes(small: Small, tmp_path: Path) -> None:
    data, held_out = loaded(small.calib), loaded(small.test)
    weights = np.full(len(data["labels"]), 3.0)
    alike = {"weights": weights, "eval": tna_onnx.Data(held_out, weights=weights)}
    words: dict[str, Any] = {"search": "none", "map": "bias"}
    with_options(tna_onnx.calibrate, small.model, data, output=tmp_path / "a.onnx", eval=held_out, **words)
    with_options(tna_onnx.calibrate, small.model, data, output=tmp_path / "b.onnx", **alike, **words)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_the_choice_takes_maps_that_know_weights_and_others_are_refused(
    small: Small, arrays: Arrays, tmp_path: Path
) -> None:
    path = written(tmp_path / "samples", arrays)
    words = ("--weight-column", "patient", "-o", tmp_path / "new.onnx")
    chosen = ok("calibrate", small.model, path, *words)
    assert "by weight worth" in chosen.output
    refused(3, "map aar", "calibrate", small.model, path, *words, "--map", "aar", "--overwrite")
    refused(2, "weight", "calibrate", small.model, path, *words, "--expect-accuracy", "80", "--overwrite")


def test_class_frequencies_are_short_for_weights(small: Small, arrays: Arrays, tmp_path: Path) -> None:
    data = {name: arrays[name] for name in ("x", "labels")}
    classes = int(arrays["labels"].max()) + 1
    prior = np.arange(1, classes + 1) / np.arange(1, classes + 1).sum()
    weights = (prior / np.bincount(arrays["labels"], minlength=classes))[arrays["labels"]]
    expected = tna_onnx.evaluate(small.model, tna_onnx.Data(data, weights=weights)).metrics
    path = tmp_path / "prior.json"
    path.write_text(json.dumps({str(c): share for c, share in enumerate(prior.tolist())}))
    for stated in (prior.tolist(), path, dict(enumerate(prior.tolist()))):
        metrics = tna_onnx.evaluate(small.model, tna_onnx.Data(data, class_prior=stated)).metrics
        for name in ("accuracy", "ece", "nll", "brier", "effective_n"):
            assert getattr(metrics, name) == pytest.approx(getattr(expected, name), rel=1e-12), name
    words: dict[str, Any] = {"search": "none", "map": "ts"}
    held_out = {name: values[:150] for name, values in data.items()}
    rest = {name: values[150:] for name, values in data.items()}
    report = with_options(tna_onnx.calibrate, small.model, rest, eval=held_out, class_prior=prior, **words)
    assert report.comparison.after.effective_n == pytest.approx(
        tna_onnx.evaluate(small.model, tna_onnx.Data(held_out, class_prior=prior)).metrics.effective_n
    )
    fitted = with_options(tna_onnx.calibrate, small.model, data, weights=weights, **words)
    found = with_options(tna_onnx.calibrate, small.model, data, class_prior=prior, **words)
    assert found.parameters["temperature"] == pytest.approx(fitted.parameters["temperature"], rel=1e-9)
    balanced = with_options(tna_onnx.calibrate, small.model, data, **words).recall.balanced_before
    even = tna_onnx.evaluate(small.model, tna_onnx.Data(data, class_prior="uniform")).metrics
    assert even.accuracy == pytest.approx(balanced, rel=1e-9)


def test_class_frequencies_that_no_weights_give_are_refused(small: Small, arrays: Arrays) -> None:
    data = {name: arrays[name] for name in ("x", "labels")}
    one_less = {name: values[data["labels"] != 2] for name, values in data.items()}
    with pytest.raises(DataError, match="no sample of the classes 2"):
        tna_onnx.evaluate(small.model, tna_onnx.Data(one_less, class_prior="uniform"))
    with pytest.raises(UsageError, match="give one"):
        tna_onnx.evaluate(small.model, tna_onnx.Data(data, class_prior="uniform", weights=np.ones(300)))
    with pytest.raises(UsageError, match="class_prior is not used by verify"):
        tna_onnx.verify(small.model, small.model, data=tna_onnx.Data(data, class_prior="uniform"))
    several = tna_onnx.Data(label_models.samples(600, 1), class_prior="uniform")
    with pytest.raises(UsageError, match="predict one class a sample"):
        tna_onnx.calibrate(label_models.model(), several, dry_run=True)


def test_decisions_are_those_of_samples_drawn_by_weight(small: Small, tmp_path: Path) -> None:
    """With weights of zero and one, of the samples that have one: the draw leaves nothing to chance."""
    data = loaded(small.calib)
    weights = (np.arange(len(data["labels"])) % 3 > 0).astype(float)
    part = {name: values[weights > 0] for name, values in data.items()}
    words: dict[str, Any] = {"add": ("accept", "set", "ood"), "risk": 20.0, "ood_score": "energy", "overwrite": True}
    other = loaded(small.test)
    even = tna_onnx.Data(other, weights=np.ones(len(other["labels"])))
    for held_out in (False, True):
        words |= {"eval": even if held_out else None}
        first = with_options(tna_onnx.guard, small.model, data, output=tmp_path / "a.onnx", weights=weights, **words)
        words |= {"eval": other if held_out else None}
        second = with_options(tna_onnx.guard, small.model, part, output=tmp_path / "b.onnx", **words)
        assert first.samples == second.samples == len(part["labels"])
        assert [out.threshold for out in first.outputs] == [out.threshold for out in second.outputs]
        assert first.decisions.coverage == second.decisions.coverage
    measured, alone = (
        with_options(tna_onnx.evaluate, tmp_path / name, samples, limits=tna_onnx.Limits(overlap=100), **more)
        for name, samples, more in (("a.onnx", data, {"weights": weights}), ("b.onnx", part, {}))
    )
    assert measured.decisions.coverage == alone.decisions.coverage
    assert measured.decisions.n == len(part["labels"])
    assert measured.metrics.nll == pytest.approx(alone.metrics.nll, rel=1e-6)


def test_a_set_that_is_enriched_gives_the_thresholds_of_the_population() -> None:
    """100 draws: the coverage among new samples of the population, where half of the calibration set is rare."""
    rng = np.random.default_rng(0)
    covered = []
    for draw in range(100):
        event = np.arange(2000) < 1000
        scores = rng.normal(np.where(event, 2.0, 0.0), 1.0)
        weights = np.where(event, 0.04, 1.96)
        rows = rows_by_weight(SimpleNamespace(sample_info={"weight": weights}), draw)  # type: ignore[arg-type]
        assert rows is not None
        threshold = conformal_quantile(scores[rows], 0.9)
        covered.append(0.02 * NormalDist(2).cdf(threshold) + 0.98 * NormalDist(0).cdf(threshold))
    # split conformal prediction: 0.9 on average or more, to the standard error of 100 draws of 1,000 samples
    assert 0.9 - 0.003 < np.mean(covered) < 0.9 + 0.004


# --- `--by`: calibration in subgroups, and its slope and intercept


def drawn(n: int, factor: float, seed: int = 0, classes: int = 4) -> SampleScores:
    """Scores of logits that are `factor` times too large, with their labels."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.normal(size=(n, classes))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return SampleScores.of_logits(factor * logits, labels).labelled(labels)


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_slope_of_two_classes_is_one_over_the_factor(factor: float) -> None:
    scores = drawn(20_000, factor, classes=2)
    (second,) = positive_scores(scores, 2)
    # four standard errors: once in 16,000 draws outside
    found = slope_and_intercept(second.confidence, second.hit, 4.0)
    assert found["slope"][1] <= 1 / factor <= found["slope"][2]
    assert found["intercept"][1] <= 0 <= found["intercept"][2]


def test_the_intervals_of_slope_and_intercept_hold_them_and_repeats_in_groups_add_nothing() -> None:
    held = []
    for seed in range(200):
        (second,) = positive_scores(drawn(400, 1.0, seed, classes=2), 2)
        found = slope_and_intercept(second.confidence, second.hit, 1.96)
        held.append(found["slope"][1] <= 1 <= found["slope"][2])
    assert 0.90 <= np.mean(held) <= 0.99  # 95 % with a standard error of 1.5 points
    p, event = (getattr(drawn(400, 1.5), name) for name in ("confidence", "hit"))
    alone = slope_and_intercept(p, event, 1.96, np.arange(400))
    repeated = slope_and_intercept(np.repeat(p, 3), np.repeat(event, 3), 1.96, np.repeat(np.arange(400), 3))
    assert repeated["slope"] == pytest.approx(alone["slope"], rel=1e-9)


def test_what_has_no_slope_is_left_out() -> None:
    assert slope_and_intercept(np.linspace(0.5, 0.9, 50), np.ones(50, bool), 1.96) == {"slope": None, "intercept": None}
    scores = drawn(200, 1.0)
    right = estimates_of(scores.take(scores.hit), NO_CLASSES)
    assert "slope" not in right
    assert right["nll"].value == pytest.approx(float(scores.nll[scores.hit].mean()), rel=1e-6)
    assert right["nll"].low is None
    # nine groups have a sample that is wrong
    groups = np.where(scores.hit, np.arange(200), -1 - np.arange(200) % 9)
    assert "slope" in estimates_of(scores, NO_CLASSES)
    assert "slope" not in estimates_of(scores.clustered(groups), NO_CLASSES)


def test_subgroups_are_those_of_the_samples_alone_and_the_worst_comes_first() -> None:
    scores = SampleScores.concatenate([drawn(500, 1.0, 1), drawn(500, 3.0, 2), drawn(MIN_SAMPLES - 1, 1.0, 3)])
    parts = np.repeat(["calm", "sure", "rare"], [500, 500, MIN_SAMPLES - 1])
    found = subgroups_of(scores, parts, NO_CLASSES)
    assert [part.name for part in found] == ["sure", "calm"]
    assert found[0].estimates == estimates_of(scores.take(parts == "sure"), NO_CLASSES)
    assert found[0].estimates["ece"].low > found[1].estimates["ece"].low
    assert found[0].estimates["slope"].high < 1


def test_by_a_column_on_the_command_line(small: Small, tmp_path: Path) -> None:
    x, labels = loaded(small.calib).values()
    site = np.where(np.arange(len(x)) % 3 == 0, "north", "south")
    site[:5] = "island"
    np.savez(tmp_path / "d.npz", x=x, labels=labels, site=site)
    done = ok("evaluate", small.model, tmp_path / "d.npz", "--by", "site", "--json", tmp_path / "r.json")
    assert "1 of 3 subgroups have fewer than 50 samples" in done.output
    assert "not corrected for 2 subgroups" in done.output
    found = json.loads((tmp_path / "r.json").read_text())
    assert {part["name"] for part in found["subgroups"]} == {"north", "south"}
    for part in found["subgroups"]:
        own = tna_onnx.evaluate(small.model, {"x": x[site == part["name"]], "labels": labels[site == part["name"]]})
        assert part["metrics"]["ece"] == pytest.approx(own.metrics.ece, rel=1e-9)
        assert part["estimates"]["slope"]["value"] == pytest.approx(own.estimates["slope"].value, rel=1e-9)
    page = tmp_path / "p.html"
    compared = ok("compare", small.model, small.model, tmp_path / "d.npz", "--by", "site", "--report", page)
    assert "differences to the baseline" in compared.output
    assert "Subgroups, " in page.read_text()
    with pytest.raises(UsageError, match="guard does not take subgroups into account"):
        tna_onnx.guard(small.model, small.calib, data=tna_onnx.Data(by="site"))


@pytest.mark.parametrize("suffix", [".npz", "features"])
def test_subgroups_by_the_label(small: Small, arrays: Arrays, tmp_path: Path, suffix: str) -> None:
    name = "labels" if suffix == ".npz" else "label"
    if suffix == "features":  # of which the head reads 32
        path = features(tmp_path / "samples", {**arrays, "x": np.tile(arrays["x"], 4)})
    else:
        path = written(tmp_path / "samples", arrays, suffix)
    found = tna_onnx.evaluate(small.model, tna_onnx.Data(path, by=name, weight_column="patient"))
    labels, counts = np.unique(arrays["labels"], return_counts=True)
    assert {part.name for part in found.subgroups} == {*map(str, labels[counts >= MIN_SAMPLES])} != set()


def test_subgroups_by_a_feature_leave_it_to_the_model(small: Small, arrays: Arrays, tmp_path: Path) -> None:
    x = arrays["x"].round()  # of which some values are frequent
    expected = tna_onnx.evaluate(small.model, tna_onnx.Data({"x": x, "labels": arrays["labels"]}, by=x[:, 0]))
    head = ",".join([*(f"x{k}" for k in range(x.shape[1])), "label"])
    rows = np.column_stack([x, arrays["labels"]])
    np.savetxt(tmp_path / "d.csv", rows, delimiter=",", header=head, comments="")
    found = tna_onnx.evaluate(small.model, tna_onnx.Data(tmp_path / "d.csv", by="x0"))
    assert found.metrics.nll == pytest.approx(expected.metrics.nll, rel=1e-6)
    assert [part.name for part in found.subgroups] == [part.name for part in expected.subgroups] != []


@pytest.mark.parametrize("held_out", [True, False])
def test_calibrate_compares_subgroups_of_the_samples_that_it_reports_on(
    small: Small, tmp_path: Path, held_out: bool
) -> None:
    for name in ("calib", "test"):
        x, labels = loaded(getattr(small, name)).values()
        np.savez(tmp_path / f"{name}.npz", x=x, labels=labels, site=np.arange(len(x)) % 2)
    new, page, result = (tmp_path / name for name in ("new.onnx", "p.html", "r.json"))
    words = ["--eval", tmp_path / "test.npz"] if held_out else []
    files = ["-o", new, "--report", page, "--json", result]
    command = ["calibrate", small.model, tmp_path / "calib.npz", "--search", "none", "--map", "ts", "--by", "site"]
    done = ok(*command, *words, *files)
    assert "subgroups: after minus before" in done.output
    assert "not corrected for 2 subgroups" in done.output
    assert "Subgroups: after minus before" in page.read_text()
    report = json.loads(result.read_text())
    parts = {part["name"]: part for part in report["subgroups"]}
    assert {*parts} == {"0", "1"}
    if held_out:
        compared = tna_onnx.compare([small.model, new], tna_onnx.Data(tmp_path / "test.npz", by="site"))
        for part in compared.models[1].subgroups:
            assert parts[part.name]["estimates"]["ece"]["value"] == pytest.approx(part.estimates["ece"].value, abs=1e-6)
            assert parts[part.name]["differences"]["nll"]["low"] == pytest.approx(part.differences["nll"].low, abs=1e-6)
    # cross-fitted, the errors are those of a fit on all samples, on new ones; means are those of the parts
    total = sum(part["metrics"]["n"] * part["differences"]["nll"]["difference"] for part in parts.values())
    count = sum(part["metrics"]["n"] for part in parts.values())
    assert total / count == pytest.approx(report["comparison"]["differences"]["nll"]["difference"], rel=1e-6)
