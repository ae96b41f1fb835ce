"""Tilting around a refitted layer: what is written, what search and map see, and what has not seen a fold.

Refits of known samples are those of `Refit` itself, which has tests of its own; all that follows is done here by hand.
"""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from scipy.optimize import minimize_scalar

import tna_onnx
from tests.conftest import Small
from tests.graph.samples import FEATURES, run, softmax
from tests.pipeline.samples import few, opened, outcome_of, outputs, probabilities
from tests.pipeline.test_folded_maps import MODELS, Built, task_of
from tests.support import cli
from tna_onnx.errors import DataError, UnsupportedModel, UsageError
from tna_onnx.graph.rewrite import Rewritten
from tna_onnx.maps.base import CalibrationMap
from tna_onnx.maps.ensemble_temperature import EnsembleTemperature
from tna_onnx.maps.refit import Refit
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.averages import Draws, averages
from tna_onnx.pipeline import strategy as strategy_module
from tna_onnx.pipeline.anchor import AnchoredStrategy
from tna_onnx.pipeline.checking import check_written, checked_samples
from tna_onnx.pipeline.crossfit import FOLDS, folds
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.strategy import Outcome, Strategy
from tna_onnx.pipeline.task import Task
from tna_onnx.pipeline.writing import Writing, provenance_entries

Array = NDArray[Any]

FAST = Settings(method="tna", anchor="refit", angle_step=15.0, ensemble_size=4)


def silent(*_: object) -> None:
    """Show nothing."""


# --- what is written


def anchor_of(classes: int) -> Refit:
    """A refit of given numbers."""
    rng = np.random.default_rng(9)
    delta, shift = rng.normal(0, 0.3, (classes, FEATURES)), rng.normal(0, 1, classes)
    return Refit(1.5, 0.05, delta.astype(np.float32), shift.astype(np.float32))


def anchored(built: Built, anchor: Refit) -> tuple[Array, Array]:
    """(C, n) W' and (C,) b' by their formula, the logit of the first of one class taken as 0."""
    weight, bias = built.weight.astype(np.float64), built.bias.astype(np.float64)
    if len(bias) == 1:
        weight, bias = np.vstack([np.zeros_like(weight), weight]), np.append(0.0, bias)
    return weight / 1.5 + anchor.delta, bias / 1.5 + anchor.shift


def write(task: Task, outcome: Outcome, *, fold: bool = True) -> tuple[Rewritten, Path]:
    """Write a result, and let the tool check the file as it does before it is moved to its place."""
    writing = Writing(task, fold)
    writing.require_anchor()
    rewritten = writing.write(outcome, {})
    assert task.model.path is not None
    path = task.model.path.with_name("written.onnx")
    path.write_bytes(rewritten.proto.SerializeToString())
    checked = checked_samples(task)
    check_written(task, path, checked, writing.shipped(outcome, checked))
    return rewritten, path


def map_of(name: str, classes: int) -> tuple[CalibrationMap | None, Any]:
    """A map of given numbers, and what it makes of (N, C) logits: probabilities."""
    if name == "ts":
        return Temperature(0.7), lambda s: softmax(s / 0.7)
    if name == "ets":
        return EnsembleTemperature(1.0, (0.6, 0.2, 0.2), classes), lambda s: 0.8 * softmax(s) + 0.2 / classes
    return None, softmax


@pytest.mark.parametrize("tilted", [False, True])
@pytest.mark.parametrize("name", ["none", "ts", "ets"])
@pytest.mark.parametrize("model", MODELS)
def test_the_file_computes_the_tilted_refit(
    model: str, name: str, small: Small, tmp_path: Path, *, tilted: bool
) -> None:
    built = MODELS[model]()
    task = task_of(small, built, tmp_path)
    anchor = anchor_of(built.classes)
    around = task.around(anchor)
    assert task.head is not None
    weight, bias = anchored(built, anchor)
    kept, given = 1.0, around.weight
    if tilted:
        drawn = 3 * np.random.default_rng(3).standard_normal(weight.shape)
        given = task.head.anchored((0.5 * weight + drawn).astype(np.float32))
        own = task.head.anchored(weight)
        kept, weight = float(np.sum(own * given) / np.sum(own**2)), given.astype(np.float64)
    fitted, formula = map_of(name, built.classes)
    outcome = outcome_of(around, fitted, given, angle=20.0 if tilted else 0.0)
    rewritten, path = write(task, replace(outcome, anchor=anchor))

    x = built.inputs()
    z = built.features(x)
    expected = formula(z @ weight.T + kept * bias)
    (raw,) = run(path, ["y"], x)
    found = np.exp(raw) if built.kind == "logsoftmax" else built.probabilities(raw)
    # as in the tests of folded maps: a logit of size s moves by some 2^-24 s, 2^-11 s in float16; ts magnifies by 1 / T
    eps = np.finfo(built.dtype).eps if built.dtype != "float64" else 1e-8
    size = (np.abs(z) @ np.abs(weight).T + np.abs(kept * bias)).max() / 0.7
    np.testing.assert_allclose(found, expected, rtol=0, atol=32 * eps * size)
    added = [node.op_type for node in rewritten.proto.graph.node if node.name in rewritten.nodes]
    if name != "ets":
        assert ("Add" in added) == (not task.head.holds_bias)


def test_maps_may_be_nodes_while_the_anchor_is_in_the_weight(small: Small, tmp_path: Path) -> None:
    built = MODELS["gemm"]()
    task = task_of(small, built, tmp_path)
    anchor = anchor_of(3)
    around = task.around(anchor)
    rewritten, path = write(task, replace(outcome_of(around, Temperature(0.5)), anchor=anchor), fold=False)
    assert len(rewritten.nodes) == 1  # the temperature's
    weight, bias = anchored(built, anchor)
    x = built.inputs()
    expected = softmax(2 * (built.features(x) @ weight.T + bias))
    np.testing.assert_allclose(built.probabilities(run(path, ["y"], x)[0]), expected, rtol=0, atol=1e-5)


def test_an_anchor_is_a_change_that_reports_name(task: Task) -> None:
    anchor = Refit(1.5, 0.002, np.ones((5, 32), np.float32), np.zeros(5, np.float32))
    outcome = outcome_of(task, Temperature(2.0), angle=20.0)
    assert (outcome.label, outcome.parameters) == ("tna + ts", {"temperature": 2.0})
    outcome = replace(outcome, anchor=anchor)
    assert outcome.label == "refit 0.002 > tna + ts"
    expected = {"anchor_temperature": 1.5, "anchor_strength": 0.002, "anchor_weight_change": pytest.approx(160**0.5)}
    assert outcome.parameters == expected | {"anchor_bias_change": 0.0, "temperature": 2.0}
    entries = provenance_entries(task, FAST, outcome)
    assert (entries["anchor"], entries["method"]) == ("refit", outcome.label)
    assert json.loads(entries["anchor_strength"]) == 0.002
    alone = replace(outcome_of(task), anchor=anchor)
    assert not alone.unchanged
    assert not alone.keeps_predictions


# --- what is searched and fitted


@functools.cache
def cached_task(small: Small, samples: int) -> Task:
    return opened(small, calib=few(small.calib, samples))


def strategy_of(
    small: Small, search: str = "sparse", name: str = "ts", samples: int = 300, relabelled: Any = None, **words: Any
) -> AnchoredStrategy:
    """The small model's, some of whose labels may be drawn anew."""
    task = cached_task(small, samples)
    settings = replace(FAST, search=search, map=name, **words)
    if relabelled is not None:
        table = task.calibration.table
        labels = np.where(relabelled, np.random.default_rng(1).integers(0, 5, samples), table.labels)
        task = replace(task, calibration=replace(task.calibration, table=replace(table, labels=labels)))
    return AnchoredStrategy(task, Strategy(task.logits, task.weight, search, name, settings.for_search))


def by_hand(strategy: AnchoredStrategy, strength: float) -> tuple[Array, Array]:
    """(N, C) logits of each sample under a refit without its fold; and labels. The head has a bias."""
    table, head = strategy.task.calibration.table, strategy.task.head
    assert head is not None
    z = np.asarray(table.features, np.float64)
    fold = folds(len(z), strategy.settings.seed)
    logits = np.zeros((len(z), 5))
    for k in range(FOLDS):
        original = strategy.task.logits(head.weight)
        path = Refit.fit_path(original.reduce(fold != k, features=True))
        found = next(each for each in path if each.strength == strength)
        weight = head.weight / found.temperature + found.delta
        logits[fold == k] = z[fold == k] @ weight.T + head.bias / found.temperature + found.shift
    return logits, table.labels


def nll(logits: Array, labels: Array) -> float:
    p = probabilities(logits)
    return -float(np.mean(np.log(p[np.arange(len(labels)), labels])))


def test_angle_and_temperature_are_the_best_for_refits_that_have_not_seen_the_sample(small: Small) -> None:
    """In the limit of many members the logits of an angle are those of the anchor times its cosine."""
    strategy = strategy_of(small, ensemble_size="inf", angle_step=2.0)
    outcome = strategy.run(silent)
    assert outcome.anchor is not None
    logits, labels = by_hand(strategy, outcome.anchor.strength)
    values = {c.angle: nll(np.cos(np.radians(c.angle)) * logits, labels) for c in outcome.candidates}
    for candidate in outcome.candidates:
        # means of 300 float32 losses
        assert np.mean(candidate.scores.nll, dtype=np.float64) == pytest.approx(values[candidate.angle], abs=1e-6)
    assert outcome.chosen.angle == min(values, key=lambda angle: values[angle])
    scaled = np.cos(np.radians(outcome.chosen.angle)) * logits
    best = minimize_scalar(lambda t: nll(scaled / np.exp(t), labels), bounds=(-3, 3), method="bounded").x
    assert outcome.parameters["temperature"] == pytest.approx(np.exp(best), rel=1e-3)  # the minimum is flat


@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("search", ["sparse", "complete"])
def test_what_was_found_is_done_to_the_refit_of_all_samples(
    small: Small, search: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever candidate is taken: here the first, which is not tilted, or the last."""
    monkeypatch.setattr(strategy_module, "choose", lambda candidates, _: range(len(candidates))[place])
    strategy = strategy_of(small, search, max_accuracy_drop=100.0)
    outcome = strategy.run(silent)
    anchor, head = outcome.anchor, strategy.task.head
    assert anchor is not None
    assert head is not None
    path = Refit.fit_path(strategy.task.logits(head.weight).reduce(features=True))
    expected = next(each for each in path if each.strength == anchor.strength)
    np.testing.assert_array_equal(anchor.delta, expected.delta)
    weight = (head.weight / np.float32(anchor.temperature) + anchor.delta).astype(np.float32)
    tilted = weight
    if place:
        assert outcome.chosen.angle > 0
        draws = Draws(strategy.settings.seed)
        average = next(averages(weight, [outcome.chosen.angle], outcome.chosen.ensemble_size, draws))
        tilted = average.weight
        assert outcome.chosen.reached == pytest.approx(average.reached, abs=1e-4)
    np.testing.assert_allclose(np.asarray(outcome.weight), tilted, atol=1e-5)
    # candidates are those of the pieces, and no weight of theirs stays
    assert outcome.chosen in outcome.candidates
    assert all(c.weight is None for c in outcome.candidates if c is not outcome.chosen)
    np.testing.assert_array_equal(outcome.before.nll, strategy.task.logits(head.weight).scores().nll)


def test_an_angle_that_the_refit_does_not_reach_is_an_error(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = strategy_of(small)
    outcome = strategy.run(silent)
    monkeypatch.setattr("tna_onnx.pipeline.anchor.averages", lambda *_: iter(()))
    with pytest.raises(DataError, match="cannot be tilted by 30 degrees; add --ensemble-size inf"):
        strategy._tilted(replace(outcome.chosen, angle=30.0), outcome.weight)


def test_samples_that_are_all_right_are_refused(small: Small) -> None:
    strategy = strategy_of(small)
    table = strategy.task.calibration.table
    right = strategy.task.logits(strategy.task.weight).predictions()
    task = replace(strategy.task, calibration=replace(strategy.task.calibration, table=replace(table, labels=right)))
    inner = replace(strategy.strategy, logits_of=task.logits)
    with pytest.raises(DataError, match="every calibration sample is classified right"):
        AnchoredStrategy(task, inner).run(silent)


# --- honest scores


@pytest.mark.parametrize(("search", "name"), [("sparse", "ts"), ("sparse", "none"), ("complete", "ts")])
def test_labels_of_a_fold_touch_neither_anchor_nor_weight_nor_map(small: Small, search: str, name: str) -> None:
    held = folds(300, FAST.seed) == 2
    one, other = (strategy_of(small, search, name, relabelled=each) for each in (None, held))
    confidences = [each.cross_fitted(each.run(silent)).confidence for each in (one, other)]
    np.testing.assert_array_equal(confidences[0][held], confidences[1][held])
    assert not np.array_equal(confidences[0][~held], confidences[1][~held])  # the others did see them


def test_each_fold_is_scored_by_a_run_without_it(small: Small) -> None:
    strategy = strategy_of(small)
    scores = strategy.cross_fitted(strategy.run(silent))
    fold = folds(300, strategy.settings.seed)
    data = few(small.calib)
    for k in (0, 4):
        rest = opened(small, calib={name: values[fold != k] for name, values in data.items()})
        inner = Strategy(rest.logits, rest.weight, "sparse", "ts", strategy.settings)
        found = AnchoredStrategy(rest, inner).run(silent)
        head, anchor = strategy.task.head, found.anchor
        assert head is not None
        assert anchor is not None
        held = np.flatnonzero(fold == k)
        weight = np.asarray(found.weight, np.float64)
        own = head.weight / anchor.temperature + anchor.delta
        bias = (head.bias / anchor.temperature + anchor.shift) * np.sum(own * weight) / np.sum(own**2)
        z = np.asarray(strategy.task.calibration.table.features, np.float64)[held]
        expected = probabilities((z @ weight.T + bias) / found.parameters["temperature"])
        np.testing.assert_allclose(scores.confidence[held], expected.max(axis=1), atol=1e-5)
        np.testing.assert_array_equal(scores.hit[held], expected.argmax(axis=1) == data["labels"][held])


# --- refusals


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"anchor": "none"}, "anchor 'none' is not known; expected original, refit"),
        ({"anchor": "refit"}, "needs a search by name; add --method tna, --search sparse"),
        ({"anchor": "refit", "search": "none", "map": "ts"}, "Without a search, use --map refit"),
        ({"anchor": "refit", "map": "refit", "method": "tna"}, "fits the layer twice"),
    ],
)
def test_settings_that_leave_nothing_to_tilt_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Settings(**words)


def test_around_an_anchor_the_map_is_ts_unless_one_is_named() -> None:
    assert Settings(search="sparse", anchor="refit").resolved_map == "ts"
    assert Settings(search="sparse", anchor="refit", map="none").resolved_map == "none"
    assert Settings(search="sparse").resolved_map == "auto"


def refused(task: Task, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        Writing(task, fold=True).require_anchor()


def test_heads_that_cannot_hold_it_are_refused(task: Task, small: Small, tmp_path: Path) -> None:
    head = task.head
    assert head is not None

    def with_head(**fields: Any) -> Task:
        return replace(task, probed=replace(task.probed, readout=replace(head, **fields)))

    Writing(task, fold=False).require_anchor()
    refused(with_head(linear=False), "head 'head' cannot hold anchor refit: only the graph itself computes its logits")
    quantized: Any = object()
    stored = replace(head.stored_weight, quantized=quantized)
    refused(with_head(stored_weight=stored), "is stored quantised; add --quantized-head float")
    refused(with_head(homogeneous=False), "read in front of the bias")
    # Clip knows float64 from opset 12 on
    built = MODELS["no bias"]()
    built.proto.opset_import[0].version = 11
    old = task_of(small, built, tmp_path)
    readout = replace(old.readout, logits_type="float64")
    refused(replace(old, probed=replace(old.probed, readout=readout)), "no place for a bias, and no node can follow it")


# --- end to end


def tensors(path: Path) -> dict[str, Array]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


WORDS = ("--device", "cpu", "--angle-step", "5")


@pytest.fixture(scope="module")
def refitted(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model, refitted and nothing else."""
    path = tmp_path_factory.mktemp("refitted") / "r.onnx"
    words = ("--calib", small.calib, "--eval", small.test, "--search", "none", "--map", "refit", "--device", "cpu")
    result = cli("calibrate", small.model, *words, "-o", path)
    assert result.exit_code == 0, result.output
    return path


@pytest.mark.parametrize("search", ["sparse", "complete"])
def test_a_file_with_the_limit_of_many_members_is_the_refit_times_two_factors(
    small: Small, refitted: Path, tmp_path: Path, search: str
) -> None:
    output, json_file = tmp_path / "o.onnx", tmp_path / "r.json"
    words = ("--calib", small.calib, "--eval", small.test, "--search", search, "--anchor", "refit", *WORDS)
    result = cli("calibrate", small.model, *words, "--ensemble-size", "inf", "-o", output, "--json", json_file)
    assert result.exit_code == 0, result.output
    report = json.loads(json_file.read_text())
    assert report["settings"]["anchor"] == "refit"
    assert report["method"] == f"refit {report['parameters']['anchor_strength']:g} > tna + ts"
    assert tna_onnx.inspect(output).provenance["anchor"] == "refit"
    factor = np.cos(np.radians(report["angle"])) / report["parameters"]["temperature"]
    data = few(small.test, 1500)
    logits = outputs(refitted, data["x"])[0].astype(np.float64)
    # logits up to about 20 in float32, with a weight rounded twice
    np.testing.assert_allclose(outputs(output, data["x"])[0], factor * logits, atol=2e-5)
    assert report["comparison"]["after"]["nll"] == pytest.approx(nll(factor * logits, data["labels"]), abs=1e-5)


def test_without_an_angle_the_file_is_the_refit(small: Small, refitted: Path, tmp_path: Path) -> None:
    """Members so few that every tilt costs accuracy."""
    output = tmp_path / "o.onnx"
    words = ("--search", "sparse", "--map", "none", "--anchor", "refit", "--ensemble-size", "1", *WORDS)
    words += ("--max-accuracy-drop", "0")
    result = cli("calibrate", small.model, "--calib", small.calib, "--eval", small.test, *words, "-o", output)
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "weight refitted weight" in text
    assert "no tilted weight was better than the untilted one" in text
    expected, found = tensors(refitted), tensors(output)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_cross_fitted_with_members_a_configuration_and_a_page(small: Small, tmp_path: Path) -> None:
    np.savez(tmp_path / "c.npz", **few(small.calib, 400))
    (tmp_path / "settings.toml").write_text('anchor = "refit"\nmethod = "tna"\nensemble-size = 4\n')
    words = ("--calib", tmp_path / "c.npz", "--config", tmp_path / "settings.toml", "--device", "cpu")
    page = tmp_path / "r.html"
    result = cli("calibrate", small.model, *words, "--angle-step", "15", "-o", tmp_path / "o.onnx", "--report", page)
    assert result.exit_code == 0, result.output
    assert "cross-fitted: N = 400" in result.output
    assert "anchor_strength" in page.read_text()


def test_details_are_those_of_the_tilted_refit(small: Small, tmp_path: Path) -> None:
    report = tna_onnx.calibrate(
        small.model, small.calib, eval=small.test, output=tmp_path / "o.onnx", settings=FAST, map="none", details=True,
        max_accuracy_drop=100.0, device="cpu",
    )  # fmt: skip
    details = report.details
    assert details is not None
    chosen = details.steps[details.chosen]
    assert chosen.held_out is not None
    assert chosen.held_out.accuracy == report.comparison.after.accuracy
    assert chosen.held_out.objective == pytest.approx(report.comparison.after.nll, abs=1e-6)


def test_the_command_line_says_what_to_do_instead(small: Small) -> None:
    result = cli("calibrate", small.model, "--calib", small.calib, "--anchor", "refit")
    assert result.exit_code == 2
    assert "add --method tna" in " ".join(result.output.split())
    assert "--anchor" in cli("calibrate", "--help-all").output
