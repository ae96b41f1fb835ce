"""`--by`: calibration in subgroups, and its slope and intercept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tna_onnx
from tests.conftest import Small
from tests.support import ok
from tna_onnx.errors import UsageError
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.numerics.slope import event_of, slope_and_intercept
from tna_onnx.results.measured import MIN_SAMPLES, estimates_of, subgroups_of


def drawn(n: int, factor: float, seed: int = 0, classes: int = 4) -> SampleScores:
    """Scores of logits that are `factor` times too large, with their labels."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.normal(size=(n, classes))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return SampleScores.of_logits(factor * logits, labels).labelled(labels)


def test_slope_is_that_of_a_logistic_regression() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    scores = drawn(2000, 2.0)
    odds = np.log(scores.confidence.astype(float)) - np.log1p(-scores.confidence.astype(float))
    found = slope_and_intercept(scores.confidence, scores.hit, 1.96)
    model = linear.LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(odds[:, None], scores.hit)
    assert found["slope"] is not None
    assert found["slope"][0] == pytest.approx(model.coef_[0, 0], rel=1e-5)  # where that solver stops


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_slope_of_two_classes_is_one_over_the_factor(factor: float) -> None:
    scores = drawn(20_000, factor, classes=2)
    found = slope_and_intercept(*event_of(scores, 2), 4.0)  # four standard errors: once in 16,000 draws outside
    assert found["slope"] is not None
    assert found["intercept"] is not None
    assert found["slope"][1] <= 1 / factor <= found["slope"][2]
    assert found["intercept"][1] <= 0 <= found["intercept"][2]


def test_the_intervals_of_slope_and_intercept_hold_them_and_repeats_in_groups_add_nothing() -> None:
    held = []
    for seed in range(200):
        found = slope_and_intercept(*event_of(drawn(400, 1.0, seed, classes=2), 2), 1.96)
        assert found["slope"] is not None
        held.append(found["slope"][1] <= 1 <= found["slope"][2])
    assert 0.90 <= np.mean(held) <= 0.99  # 95 % with a standard error of 1.5 points
    p, event = event_of(drawn(400, 1.5), 4)
    alone = slope_and_intercept(p, event, 1.96, np.arange(400))
    repeated = slope_and_intercept(np.repeat(p, 3), np.repeat(event, 3), 1.96, np.repeat(np.arange(400), 3))
    assert repeated["slope"] == pytest.approx(alone["slope"], rel=1e-9)


def test_what_has_no_slope_is_left_out() -> None:
    assert slope_and_intercept(np.linspace(0.5, 0.9, 50), np.ones(50, bool), 1.96) == {"slope": None, "intercept": None}
    scores = drawn(200, 1.0)
    right = estimates_of(scores.take(scores.hit), 4)
    assert "slope" not in right
    assert right["nll"].value == pytest.approx(float(scores.nll[scores.hit].mean()), rel=1e-6)
    assert right["nll"].low is None
    # nine groups have a sample that is wrong
    groups = np.where(scores.hit, np.arange(200), -1 - np.arange(200) % 9)
    assert "slope" in estimates_of(scores, 4)
    assert "slope" not in estimates_of(scores.clustered(groups), 4)


def test_subgroups_are_those_of_the_samples_alone_and_the_worst_comes_first() -> None:
    scores = SampleScores.concatenate([drawn(500, 1.0, 1), drawn(500, 3.0, 2), drawn(MIN_SAMPLES - 1, 1.0, 3)])
    parts = np.repeat(["calm", "sure", "rare"], [500, 500, MIN_SAMPLES - 1])
    found = subgroups_of(scores, parts, 4)
    assert [part.name for part in found] == ["sure", "calm"]
    assert found[0].estimates == estimates_of(scores.take(parts == "sure"), 4)
    assert found[0].estimates["ece"].low > found[1].estimates["ece"].low
    assert found[0].estimates["slope"].high < 1


def test_by_a_column_on_the_command_line(small: Small, tmp_path: Path) -> None:
    with np.load(small.calib) as stored:
        x, labels = stored["x"], stored["labels"]
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
        tna_onnx.guard(small.model, small.calib, by="site")


@pytest.mark.parametrize("held_out", [True, False])
def test_calibrate_compares_subgroups_of_the_samples_that_it_reports_on(
    small: Small, tmp_path: Path, held_out: bool
) -> None:
    for name in ("calib", "test"):
        with np.load(getattr(small, name)) as stored:
            x, labels = stored["x"], stored["labels"]
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
        compared = tna_onnx.compare([small.model, new], tmp_path / "test.npz", by="site")
        for part in compared.models[1].subgroups:
            assert parts[part.name]["estimates"]["ece"]["value"] == pytest.approx(part.estimates["ece"].value, abs=1e-6)
            assert parts[part.name]["differences"]["nll"]["low"] == pytest.approx(part.differences["nll"].low, abs=1e-6)
    # cross-fitted, the errors are those of a fit on all samples, on new ones; means are those of the parts
    total = sum(part["metrics"]["n"] * part["differences"]["nll"]["difference"] for part in parts.values())
    count = sum(part["metrics"]["n"] for part in parts.values())
    assert total / count == pytest.approx(report["comparison"]["differences"]["nll"]["difference"], rel=1e-6)
