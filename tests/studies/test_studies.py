"""Each study's rows against its definition, computed anew on small data; and what all studies have in common."""

import math
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from tests.support import ece
from tna_onnx.errors import DataError, UsageError
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics import averages as averages_module
from tna_onnx.numerics.averages import Average, Draws, averages
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.rotations import TiltParameters
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.results.study import Study
from tna_onnx.search.candidates import SearchSettings, candidate_of
from tna_onnx.studies import curves, main_table, recalibrations, run
from tna_onnx.studies import settings as settings_module
from tna_onnx.studies.curves import narrowed
from tna_onnx.studies.geometry import expected_angle, feature_angles
from tna_onnx.studies.main_table import mean_interval
from tna_onnx.studies.recalibrations import StudyData, search_printed, stratified, walk
from tna_onnx.studies.settings import EXPERIMENTS, StudySettings


def problem(*, n: int = 24, classes: int = 4, samples: int = 400, seed: int = 1, bias: float = 0.5) -> StudyData:
    """Labels drawn at temperature 3 on two sets of samples."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((classes, n)).astype(np.float32)
    shift = (bias * rng.standard_normal(classes)).astype(np.float32)
    tables = []
    for _ in range(2):
        features = np.maximum(rng.standard_normal((samples, n)), 0).astype(np.float32)
        logits = features @ weight.T + shift
        labels = np.argmax(logits / 3 + rng.gumbel(size=logits.shape), axis=1)
        tables.append(FeatureTable(features, labels.astype(np.int64)))
    return StudyData(weight, shift, *tables)


SETTINGS = StudySettings(repeats=2)


def made(name: str, data: StudyData, settings: StudySettings = SETTINGS) -> Study:
    return run.made(name, data, settings, lambda *_: None)


@pytest.fixture(scope="module")
def data() -> StudyData:
    return problem(samples=300)


@pytest.fixture(scope="module", autouse=True)
def _few_points() -> Iterator[None]:
    """Fewer points of each curve, and maps: every one costs a search or a fit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recalibrations, "maps_for", lambda _: ("irova", "ts", "ets", "aar", "bias", "isotonic"))
        patch.setattr(recalibrations, "GRID_STEP", 30.0)
        patch.setattr(curves, "_SIZES", (1, 3, 10))
        patch.setattr(curves, "_SHARES", (4, 1))
        patch.setattr(curves, "_SMALLEST", 200)
        yield


@pytest.fixture(scope="module")
def studies(data: StudyData) -> dict[str, Study]:
    return {name: made(name, data) for name in EXPERIMENTS}


def row(study: Study, **wanted: Any) -> dict[str, Any]:
    """The one row with these values."""
    names = [column.name for column in study.columns]
    rows = [dict(zip(names, each, strict=True)) for each in study.rows]
    (found,) = [each for each in rows if all(each[name] == value for name, value in wanted.items())]
    return found


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_study_is_whole(studies: dict[str, Study], name: str) -> None:
    study = studies[name]
    assert study.name == name
    assert study.rows
    assert study.sentence.endswith(".")
    names = [column.name for column in study.columns]
    assert len(set(names)) == len(names)
    for each in study.rows:
        assert len(each) == len(names)
        assert all(value is None or isinstance(value, str) or math.isfinite(value) for value in each)
    for column in study.columns:
        assert set(column.beside) <= set(names)
    for chart in study.charts:
        assert chart.lines
        for line in chart.lines:
            assert len(line.x) == len(line.y) > 0
            assert len(line.low) == len(line.high) in (0, len(line.x))


@pytest.mark.parametrize("name", ["angle", "members", "rotations", "angles"])
def test_the_same_seed_gives_the_same_numbers(data: StudyData, studies: dict[str, Study], name: str) -> None:
    assert made(name, data) == studies[name]


def test_the_curve_is_that_of_the_averages(data: StudyData, studies: dict[str, Study]) -> None:
    (average,) = averages(data.weight, [30.0], 10, Draws(0))
    # the bias keeps the share of the weight that is left
    kept = np.vdot(data.weight, average.weight) / np.vdot(data.weight, data.weight)
    logits = data.held_out.features @ average.weight.T + kept * data.bias
    expected = Metrics.of(SampleScores.of_logits(logits, data.held_out.labels))
    found = row(studies["angle"], members="10 members", data="held-out", angle=30.0)
    for name in ("accuracy", "ece", "nll"):
        assert found[name] == pytest.approx(getattr(expected, name), abs=1e-6)


def test_members_are_averages_of_single_tilted_weights(data: StudyData, studies: dict[str, Study]) -> None:
    totals = []
    for repeat in range(2):
        seeds = [int(np.random.SeedSequence([0, repeat, k]).generate_state(1)[0]) for k in range(3)]
        members = [next(averages(data.weight, [30.0], 1, Draws(seed))).weight for seed in seeds]
        mean = np.mean(members, axis=0, dtype=np.float64).astype(np.float32)
        totals.append(Metrics.of(data.scores(mean)).accuracy)
    found = row(studies["members"], angle=30.0, members="3")
    assert found["accuracy"] == pytest.approx(np.mean(totals), abs=1e-9)
    assert found["accuracy_sd"] == pytest.approx(np.std(totals, ddof=1), abs=1e-9)
    # a weight times a number, bias included, keeps every prediction
    limit = row(studies["members"], angle=75.0, members="limit of many")
    assert limit["accuracy"] == row(studies["members"], members="not tilted")["accuracy"]


def test_the_table_is_paired_and_its_rows_are_means_over_splits(data: StudyData, studies: dict[str, Study]) -> None:
    errors: dict[str, list[float]] = {"None": [], "TS": []}
    for repeat in range(2):
        split = data.split(repeat, 0)
        logits = split.logits(split.calibration)
        fitted = Temperature.fit(logits.reduce())
        held_out = split.held_out.features @ data.weight.T + data.bias
        for name, scale in (("None", 1.0), ("TS", fitted.temperature)):
            scores = SampleScores.of_logits(held_out / scale, split.held_out.labels)
            errors[name].append(Metrics.of(scores).ece)
    for name, values in errors.items():
        found = row(studies["table"], method=name)
        assert found["ece"] == pytest.approx(np.mean(values), abs=1e-6)
        assert found["ece_sd"] == pytest.approx(np.std(values, ddof=1), abs=1e-6)
    change = row(studies["table"], method="TS")["ece_change"]
    assert change == pytest.approx(np.mean(errors["TS"]) - np.mean(errors["None"]), abs=1e-6)
    assert row(studies["table"], method="None")["ece_change"] is None


def test_angles_are_arc_cosines(data: StudyData, studies: dict[str, Study]) -> None:
    z = data.held_out.features.astype(float)
    w = data.weight[data.held_out.labels].astype(float)
    cosine = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(z, w, strict=True)]
    angles = np.degrees(np.arccos(cosine))
    assert np.allclose(feature_angles(data.weight, z, data.held_out.labels), angles)
    found = row(studies["angles"], weight="original", kind="own class")
    assert found["mean"] == pytest.approx(angles.mean())
    assert found["bin_60"] == pytest.approx(((angles >= 60) & (angles < 63)).mean())
    psi = np.radians(angles)
    (average,) = averages(data.weight, [30.0], 1, Draws(0))
    tilted = average.weight.astype(float)
    lengths = np.linalg.norm(data.weight, axis=1) * np.linalg.norm(tilted, axis=1)
    # by what each class's own vector turned, and not by the angle that was asked for
    turned = np.arccos(np.sum(data.weight * tilted, axis=1) / lengths)[data.held_out.labels]
    theorem = np.degrees(np.arccos(np.cos(psi) * np.cos(turned))).mean()
    found = row(studies["angles"], weight="30 degrees", kind="own class")
    assert found["theorem"] == pytest.approx(theorem, abs=1e-4)
    assert found["mrc"] == pytest.approx(average.reached)


def test_features_and_class_vectors_are_narrowed_together() -> None:
    base = problem(samples=1200)
    data = narrowed(base, 6, np.random.default_rng(0))
    assert data.weight.shape == (4, 6)
    assert data.calibration.features.shape == (1200, 6)
    assert abs(len(data.held_out) - 1200) <= 1
    assert data.scores().hit.mean() > 1.2 / 4


def test_the_whole_dimension_is_the_head_itself(studies: dict[str, Study]) -> None:
    base = problem(samples=300)
    data = narrowed(base, 24, np.random.default_rng(0))
    np.testing.assert_array_equal(data.weight, base.weight)
    hits = [each.scores().hit.sum() for each in (data, replace(data, held_out=data.calibration))]
    both = [base.scores().hit.sum(), replace(base, held_out=base.calibration).scores().hit.sum()]
    assert sum(hits) == sum(both)


def test_a_narrow_head_loses_more_by_a_tilt() -> None:
    """As in the paper: the noise of a tilt is spread over fewer dimensions. Features lie around means of classes."""
    rng = np.random.default_rng(0)
    means = rng.standard_normal((10, 128)).astype(np.float32)
    tables = []
    for _ in range(2):
        labels = rng.integers(0, 10, 1500)
        tables.append(FeatureTable(means[labels] + rng.standard_normal((1500, 128)).astype(np.float32), labels))
    data = StudyData(means, np.zeros(10, np.float32), *tables)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves, "_SHARES", (8, 1))
        study = made("dimension", data)
    narrow, whole = (row(study, n=n) for n in (16, 128))
    for angle in (30, 45, 60):
        assert narrow[f"change_1_{angle}"] < whole[f"change_1_{angle}"] - 0.02


def test_intervals_of_means_and_of_repeated_splits() -> None:
    low, high = mean_interval([1.0, 2.0, 3.0]) or (0, 0)
    # t quantile 4.3027 with 2 degrees of freedom, standard error 1 / sqrt 3
    assert (low, high) == (pytest.approx(2 - 4.302653 / math.sqrt(3)), pytest.approx(2 + 4.302653 / math.sqrt(3)))
    ends = mean_interval([1.0, 2.0, 3.0], overlap=200 / 100)
    assert ends[1] - 2 == pytest.approx(4.302653 * math.sqrt(1 / 3 + 2))
    assert mean_interval([1.0]) is None


def test_the_row_of_the_default_is_the_same_under_the_protocol_of_the_paper(
    data: StudyData, monkeypatch: pytest.MonkeyPatch
) -> None:
    # few maps to choose from: every one is cross-validated
    monkeypatch.setattr(recalibrations, "maps_for", lambda _: ("ts", "ets"))
    scores = []
    for protocol in ("default", "paper"):
        settings = StudySettings(protocol=protocol)  # type: ignore[arg-type]
        own = replace(data, tilt_bias=settings.tilt_bias)
        _, found = main_table.run_row(("auto", "auto"), own, settings, 0, recalibrations.Recalibration(data.weight), {})
        scores.append(Metrics.of(found))
    assert scores[0] == scores[1]


def runs_of(values: dict[main_table.Row, list[tuple[float, float]]], members: int = 10) -> main_table.Runs:
    """Rows with the accuracy and the ECE of each repeat."""
    runs = main_table.Runs((500, 500))
    for key, repeats in values.items():
        runs.values[key] = [{"accuracy": a, "ece": e, "adaece": e, "nll": 1.0} for a, e in repeats]
        tilted = recalibrations.Recalibration(np.ones((2, 2)), angle=30.0 if key[0] != "none" else 0.0, members=members)
        runs.results[key] = [tilted for _ in repeats]
    return runs


def test_a_row_that_loses_accuracy_is_neither_best_nor_counted() -> None:
    runs = runs_of(
        {
            ("none", "none"): [(0.43, 0.2), (0.44, 0.21), (0.42, 0.19)],
            ("none", "ts"): [(0.43, 0.02), (0.44, 0.03), (0.42, 0.02)],
            ("sparse", "ts"): [(0.01, 0.0003), (0.02, 0.0002), (0.01, 0.0004)],
            ("complete", "ts"): [(0.43, 0.01), (0.435, 0.02), (0.421, 0.01)],
        }
    )
    rows = [*runs.values]
    assert main_table.less_accurate(rows, runs) == [("sparse", "ts")]
    (footnote,) = main_table.footnotes_of(rows, runs)
    assert (footnote.mark, footnote.rows, footnote.barred) == ("†", (2,), True)
    said = main_table.sentence(rows, runs)
    assert "in 1 of 1 cases" in said
    assert "1 more lose accuracy" in said
    assert "that of TS +TNA (comp.), 1.33 %" in said


def test_a_complete_search_keeps_the_weights_that_are_best(monkeypatch: pytest.MonkeyPatch) -> None:
    data = problem(samples=150)
    monkeypatch.setattr(recalibrations, "GRID_STEP", 5.0)
    # one average at a time
    monkeypatch.setattr(averages_module, "_MOST_BYTES", 1)
    made: list[weakref.ref[Any]] = []
    alive: list[int] = []

    def watched(average: Average, *rest: Any) -> Any:
        if not made or made[-1]() is not average.weight:
            made.append(weakref.ref(average.weight))
        alive.append(sum(each() is not None for each in made))
        return candidate_of(average, *rest)

    monkeypatch.setattr(recalibrations, "candidate_of", watched)
    recalibrations.complete(data, ("ts", "ets"), SETTINGS, 0)
    assert len(made) > 10
    # the original, the best of each map, this one and the one before
    assert max(alive) <= 5


def test_samples_that_are_all_right_leave_maps_out_and_break_nothing() -> None:
    base = problem(n=16, samples=120)
    logits = base.calibration.features @ base.weight.T + base.bias
    right = FeatureTable(base.calibration.features, np.argmax(logits, axis=1))
    data = StudyData(base.weight, base.bias, right, right)
    for name in ("samples", "angles"):
        assert made(name, data).rows
    assert any("left out" in note for note in made("table", data).notes)


@pytest.mark.parametrize("protocol", ["default", "paper"])
def test_a_table_tells_how_far_its_searches_are(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recalibrations, "maps_for", lambda _: ("ts",))
    monkeypatch.setattr(recalibrations, "PAPER_MAPS", ("ts",))
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(settings_module, "PAPER_N_T", 3)
    settings = StudySettings(repeats=2, protocol=protocol)  # type: ignore[arg-type]
    main_table.table(problem(n=8, samples=150), settings, lambda done, total: told.append((done, total)))
    shares = [done / total for done, total in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert len(shares) == len({*shares}) > 10


def test_members_and_rotations_are_those_that_were_asked_for() -> None:
    settings = StudySettings(protocol="paper", theta_s=0.5, ensemble_size=3)
    search = settings.search(0)
    assert (search.tilt.theta_s, search.tilt.n_t, search.ensemble_size) == (0.5, 50, 3)
    result = recalibrations.sparse(problem(n=12, samples=150), settings, 0)
    assert result.members in (1, 3)
    plain = settings.by_default.search(0)
    assert (plain.tilt.theta_s, plain.tilt.n_t, plain.ensemble_size) == (0.9, 1, 10)
    shaped = StudySettings(alpha=2.0, beta=3.0)
    assert (shaped.search(0).tilt.alpha, shaped.search(0).tilt.beta) == (2, 3)
    assert shaped.by_default.search(0).tilt == plain.tilt
    for wrong in ({"theta_s": -1.0}, {"ensemble_size": 0}):
        with pytest.raises(UsageError):
            StudySettings(**wrong)  # type: ignore[arg-type]


# --- Splits and subsets of samples: sizes, classes, and what they leave alone


@pytest.mark.parametrize("seed", range(20))
def test_a_stratified_draw_has_its_size_and_each_class_its_share(seed: int) -> None:
    draws = np.random.default_rng(seed)
    counts = draws.integers(1, 40, draws.integers(1, 7))
    share = draws.random()
    labels = np.repeat(np.arange(len(counts)), counts)
    wanted = round(share * len(labels))
    rows = stratified(labels, wanted, np.random.default_rng(seed))
    assert len(rows) == wanted
    assert list(rows) == sorted(set(rows.tolist()))
    for label, count in enumerate(counts):
        # place k of a class of m lies within one step of k / m
        assert abs((labels[rows] == label).sum() - count * wanted / len(labels)) <= 2


def test_splits_hold_all_samples_once_and_differ_between_repeats() -> None:
    data = problem()
    both = np.concatenate([data.calibration.features, data.held_out.features])
    splits = [data.split(repeat, 0) for repeat in (0, 0, 1)]
    for each in splits:
        assert len(each.calibration) == len(data.calibration)
        joined = np.concatenate([each.calibration.features, each.held_out.features])
        assert np.array_equal(np.sort(joined, axis=0), np.sort(both, axis=0))
    assert np.array_equal(splits[0].calibration.features, splits[1].calibration.features)
    assert not np.array_equal(splits[0].calibration.features, splits[2].calibration.features)


@pytest.mark.parametrize("scaled", [True, False])
def test_the_bias_follows_the_weight_only_where_it_should(scaled: bool) -> None:
    base = problem()
    data = StudyData(base.weight, base.bias, base.calibration, base.held_out, tilt_bias=scaled)
    logits = np.concatenate([chunk for chunk, _, _ in data.logits(data.held_out, 0.5 * data.weight).chunks()])
    bias = data.bias * (0.5 if scaled else 1)
    assert np.allclose(logits, data.held_out.features @ (0.5 * data.weight).T + bias, atol=1e-5)


# --- Algorithm 1 as printed: against explicit n x n matrices, and the search against all of its candidates


def test_a_walk_is_a_product_of_rotation_matrices() -> None:
    weight = np.random.default_rng(0).standard_normal((3, 6))
    walked = walk(weight, 2, TiltParameters(), np.random.default_rng(7), 12, every=4)
    stops = [(s.rotations, s.tilted.copy(), s.angles) for s in walked]
    assert [rotations for rotations, _, _ in stops] == [4, 8, 12]
    rng = np.random.default_rng(7)
    matrices = [np.eye(6), np.eye(6)]
    for _, tilted, angles in stops:
        first = rng.integers(0, 6, (4, 2))
        second = (first + rng.integers(1, 6, (4, 2))) % 6
        turn = 0.9 * rng.beta(5, 1, (4, 2))
        for k in range(4):
            for d in range(2):
                i, j, t = first[k, d], second[k, d], turn[k, d]
                rotation = np.eye(6)
                rotation[[i, j], [i, j]] = math.cos(t)
                rotation[i, j] = -math.sin(t)
                rotation[j, i] = math.sin(t)
                matrices[d] = rotation @ matrices[d]
        for d in range(2):
            expected = matrices[d] @ weight.T
            assert np.allclose(tilted[d], expected, atol=1e-12)
            cosines = np.sum(weight.T * expected, axis=0) / np.sum(weight.T**2, axis=0)
            assert np.allclose(angles[d], np.arccos(cosines), atol=1e-6)


@pytest.mark.parametrize(("theta_s", "alpha", "beta"), [(0.9, 5, 1), (1.5, 1, 1), (0.5, 2, 3)])
def test_the_expectation_is_that_of_the_integral(theta_s: float, alpha: float, beta: float) -> None:
    cosine = integrate.quad(lambda tau: math.cos(theta_s * tau) * stats.beta.pdf(tau, alpha, beta), 0, 1)[0]
    expected = math.degrees(math.acos((1 - 2 / 50 * (1 - cosine)) ** 40))
    assert expected_angle(50, 40, TiltParameters(alpha, beta, theta_s)) == pytest.approx(expected, abs=1e-4)


def test_the_search_takes_the_least_ece_of_all_stops_and_the_original() -> None:
    data = problem(n=40)
    seen: list[float] = []

    def score(weight: np.ndarray) -> tuple[SampleScores, None]:
        scores = data.logits(data.calibration, weight).scores()
        seen.append(ece(scores))
        if len(seen) == 3:
            raise DataError("what cannot be scored is never taken")
        return scores, None

    settings = SearchSettings(seed=3, tilt=TiltParameters(n_t=50))
    found = search_printed(data.weight, score, settings)
    assert found is not None
    assert len(seen) == 1 + settings.tilt.max_rotations(40) // 50
    seen[2] = math.inf
    index = seen.index(min(seen))
    # the average of the members at that stop, made again
    stops = walk(data.weight, 10, settings.tilt, np.random.default_rng(3), 50 * index, 50)
    last = [stop.tilted.copy() for stop in stops][-1]
    assert np.allclose(found.weight, last.mean(axis=0).T, atol=1e-5)


def test_rotations_are_those_that_were_asked_for(data: StudyData) -> None:
    study = made("rotations", data, replace(SETTINGS, theta_s=0.7, alpha=2.0))
    assert study.rows[0][:3] == (0.7, 2.0, 1.0)
    assert {row[0] for row in study.rows} == {0.5, 0.7, 0.9, 1.0, 1.5}


def test_confidence_falls_with_the_angle(data: StudyData) -> None:
    """The proposition of the paper: angles between class vectors and features move towards 90 degrees."""
    tilted = averages(data.weight, (20.0, 40.0, 60.0, 80.0), 10, Draws(0))
    weights = [data.weight, *(average.weight for average in tilted)]
    confidences = [float(np.mean(data.scores(weight).confidence)) for weight in weights]
    assert confidences == sorted(confidences, reverse=True)
    assert confidences[-1] < confidences[0] - 0.1


def test_zero_vectors_have_no_angle() -> None:
    weight = np.zeros((3, 8))
    weight[1:] = np.random.default_rng(0).standard_normal((2, 8))
    (stop,) = walk(weight, 1, TiltParameters(), np.random.default_rng(0), 5, 5)
    assert np.isnan(stop.angles[0, 0])
    assert 0 < stop.mrc[0] < 90
