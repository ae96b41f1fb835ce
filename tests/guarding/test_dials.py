"""Levels as graph inputs: callers that give none get the defaults; every other level is what `guard` would choose."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from scipy.special import softmax

import tna_onnx
from tests.conftest import Small
from tests.guarding.conftest import run
from tests.runtimes.matrix import Source, binary
from tests.runtimes.matrix import small as small_source
from tests.support import loaded, with_options
from tna_onnx.errors import DataError, UnsupportedModel, UsageError
from tna_onnx.graph.dials import Dials
from tna_onnx.guarding.guard_settings import GuardSettings
from tna_onnx.guarding.thresholds import default_thresholds, set_dial
from tna_onnx.numerics.conformal import (
    coverage_band,
    quantile,
    rank_penalty,
    set_scores,
    set_sizes,
    small_set_penalty,
    small_set_temperature,
    tempered,
)

WORDS = {"add": ["confidence", "accept", "set"], "risk": 20, "device": "cpu"}


@pytest.fixture(scope="module")
def dialled(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dials") / "d.onnx"
    with_options(tna_onnx.guard, small.model, small.calib, output=path, dials=True, **WORDS)
    onnx.checker.check_model(path, full_check=True)
    return path


def test_callers_that_know_no_dials_get_the_defaults(
    small: Small, dialled: Path, data: dict[str, np.ndarray], tmp_path: Path
) -> None:
    with_options(tna_onnx.guard, small.model, small.calib, output=tmp_path / "g.onnx", **WORDS)
    expected = run(tmp_path / "g.onnx", data["new"])
    found = run(dialled, data["new"])
    assert found.keys() == expected.keys() | {"posterior"}
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize(("coverage", "risk"), [(50, 15), (99, 30)])
def test_every_level_is_what_guard_chooses_for_it(
    small: Small, dialled: Path, data: dict[str, np.ndarray], coverage: float, risk: float, tmp_path: Path
) -> None:
    words = {**WORDS, "coverage": coverage, "risk": risk}
    with_options(tna_onnx.guard, small.model, small.calib, output=tmp_path / "g.onnx", **words)
    expected = run(tmp_path / "g.onnx", data["new"])
    found = run(dialled, data["new"], coverage=coverage / 100, risk=risk / 100)
    np.testing.assert_array_equal(found["set"], expected["set"])
    np.testing.assert_array_equal(found["accept"], expected["accept"])


def test_levels_that_cannot_be_promised_are_on_the_safe_side(dialled: Path, data: dict[str, np.ndarray]) -> None:
    found = run(dialled, data["new"], coverage=0.99999, risk=0.0001)
    assert found["set"].all()
    assert not found["accept"].any()


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("n", [9, 19, 1000])
def test_the_table_ranks_as_the_quantile_does(n: int, per_class: bool) -> None:
    rng = np.random.default_rng(n)
    scores = rng.random(n).astype(np.float32)
    labels = rng.integers(0, 3, n)
    for level in (0.1, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999):
        settings = GuardSettings(dials=True, add=("set",), coverage=100 * level, per_class=per_class)
        found = default_thresholds(Dials(set=set_dial(scores, labels, settings, 4)))["set"]
        groups = [scores[labels == c] for c in range(4)] if per_class else [scores]
        np.testing.assert_array_equal(np.ravel(found), np.float32([quantile(own, level) for own in groups]))


def test_a_coverage_by_class_can_be_turned(small: Small, data: dict[str, np.ndarray], tmp_path: Path) -> None:
    words = {"add": ["set"], "per_class": True, "device": "cpu"}
    result = with_options(tna_onnx.guard, small.model, small.calib, output=tmp_path / "d.onnx", dials=True, **words)
    assert [dial.name for dial in result.inputs] == ["coverage"]
    assert run(tmp_path / "d.onnx", data["new"], coverage=0.999)["set"].all()
    with pytest.raises(DataError, match="no class has so many"):
        with_options(tna_onnx.guard, small.model, small.calib, dry_run=True, coverage=99.9, **words)
    for coverage in (50, 80, 95):
        sets = run(tmp_path / "d.onnx", data["new"], coverage=coverage / 100)["set"]
        with_options(
            tna_onnx.guard, small.model, small.calib, output=tmp_path / f"{coverage}.onnx", coverage=coverage, **words
        )
        np.testing.assert_array_equal(sets, run(tmp_path / f"{coverage}.onnx", data["new"])["set"])


@pytest.mark.parametrize("per_class", [False, True])
def test_what_is_no_level_decides_nothing(
    small: Small, data: dict[str, np.ndarray], per_class: bool, tmp_path: Path
) -> None:
    path = tmp_path / "d.onnx"
    with_options(tna_onnx.guard, small.model, small.calib, output=path, dials=True, per_class=per_class, **WORDS)
    plain = run(path, data["new"])
    for value in (np.nan, np.inf, -np.inf, -1.0, 0.0):
        turned = run(path, data["new"], coverage=value)
        assert turned["set"].all() or value <= 0
        np.testing.assert_array_equal(turned["accept"], plain["accept"])
        turned = run(path, data["new"], risk=value)
        assert not turned["accept"].any() or value == np.inf
        np.testing.assert_array_equal(turned["set"], plain["set"])
        turned = run(path, data["new"], class_prior=np.array([0.2, 0.3, value, 0.1, 0.4]))
        assert not turned["accept"].any()
        assert turned["set"].all() or per_class
        np.testing.assert_array_equal(turned["logits"], plain["logits"])


PRIOR = np.array([0.05, 0.4, 0.3, 0.05, 0.2])


def test_class_frequencies_move_probabilities_as_the_formula_says(
    small: Small, dialled: Path, data: dict[str, np.ndarray]
) -> None:
    plain = run(dialled, data["new"])
    found = run(dialled, data["new"], class_prior=PRIOR)
    np.testing.assert_array_equal(found["logits"], plain["logits"])
    counts = np.bincount(data["y"], minlength=5) + 0.5
    logits = plain["logits"].astype(np.float64) + np.log(PRIOR) - np.log(counts / counts.sum())
    np.testing.assert_allclose(found["posterior"], softmax(logits, axis=1), rtol=0, atol=2e-6)
    np.testing.assert_array_equal(found["confidence"], found["posterior"].max(axis=1))
    # the scale of the numbers does not count
    for name, values in run(dialled, data["new"], class_prior=7 * PRIOR).items():
        np.testing.assert_allclose(values.astype(np.float64), found[name], rtol=0, atol=2e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_scale_of_class_frequencies_does_not_count(
    dialled: Path, data: dict[str, np.ndarray], scale: float
) -> None:
    found = run(dialled, data["new"], class_prior=PRIOR)
    for name, values in run(dialled, data["new"], class_prior=scale * PRIOR).items():
        np.testing.assert_allclose(values.astype(np.float64), found[name], rtol=0, atol=2e-6)
    tiny = run(dialled, data["new"], class_prior=1e-40 * PRIOR)
    assert tiny["confidence"].max() <= 1 + 1e-6


@pytest.mark.parametrize("coverage", [0.5, 0.97])
def test_sets_have_the_weighted_quantile_as_their_threshold(
    small: Small, dialled: Path, data: dict[str, np.ndarray], coverage: float
) -> None:
    """Oracle: the definition, with the largest weight as that of the new sample."""
    counts = np.bincount(data["y"], minlength=5) + 0.5
    ratio = PRIOR / (counts / counts.sum())
    # left alone, these are the probabilities, to the last bit
    scores = 1 - run(dialled, data["x"])["posterior"]
    own = scores[np.arange(len(scores)), data["y"]]
    order = np.argsort(own)
    weights = ratio[data["y"][order]]
    share = np.cumsum(weights) / (weights.sum() + ratio.max())
    limit = own[order][np.flatnonzero(share >= coverage)[0]]
    expected = 1 - run(dialled, data["new"])["posterior"] <= limit
    found = run(dialled, data["new"], class_prior=PRIOR, coverage=coverage)["set"]
    np.testing.assert_array_equal(found, expected)


def test_sets_keep_their_coverage_where_class_frequencies_change() -> None:
    """1,000 draws of calibration and new samples with other class frequencies: the mean is at or above the level."""
    rng = np.random.default_rng(0)
    old, new = np.array([0.6, 0.3, 0.1]), np.array([0.1, 0.3, 0.6])
    held = []
    for _ in range(1000):
        labels, others = rng.choice(3, 100, p=old), rng.choice(3, 100, p=new)
        scores, fresh = (rng.normal(each, 1.0).astype(np.float32) for each in (labels, others))
        order = np.argsort(scores)
        weights = (new / old)[labels[order]]
        share = np.cumsum(weights) / (weights.sum() + (new / old).max())
        above = np.flatnonzero(share >= 0.8)
        limit = scores[order][above[0]] if len(above) else np.inf
        held.append(np.mean(fresh <= limit))
    assert np.mean(held) >= 0.8 - 3 * np.std(held) / np.sqrt(1000)
    assert np.mean(held) < 0.86


@pytest.mark.parametrize("kind", ["probabilities", "positive_probability", "float16"])
def test_frequencies_left_alone_change_nothing(kind: str, tmp_path: Path) -> None:
    made = {"probabilities": probabilities, "positive_probability": one_number, "float16": half}
    source = made[kind](tmp_path)
    words = {"add": ["confidence", "accept", "set"], "risk": 30, "coverage": 80, "device": "cpu"}
    for dials in (False, True):
        with_options(
            tna_onnx.guard, source.model, source.calib, output=tmp_path / f"{dials}.onnx", dials=dials, **words
        )
    x = loaded(source.test)["x"]
    expected, found = (run(tmp_path / f"{dials}.onnx", x) for dials in (False, True))
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


def one_number(folder: Path) -> Source:
    """Return the binary model of the runtimes, in an opset in which sums can run along an axis."""
    source = binary(folder)
    model = onnx.load(source.model)
    model.opset_import[0].version = 13
    onnx.save(model, source.model)
    return source


def probabilities(folder: Path) -> Source:
    """Return the small model of the runtimes with a Softmax behind its logits."""
    source = small_source(folder)
    model = onnx.load(source.model)
    model.graph.node.append(onnx.helper.make_node("Softmax", ["logits"], ["p"], "softmax", axis=1))
    model.graph.output[0].name = "p"
    onnx.save(model, source.model)
    return source


def half(folder: Path) -> Source:
    """Return the small model of the runtimes with a head in float16, of which other nodes read more digits."""
    source = small_source(folder)
    model = onnx.load(source.model)
    head = model.graph.node[-1]
    for tensor in model.graph.initializer:
        if tensor.name in head.input:
            values = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    cast = onnx.helper.make_node("Cast", [head.input[0]], ["half"], "half", to=onnx.TensorProto.FLOAT16)
    head.input[0] = "half"
    model.graph.node.insert(len(model.graph.node) - 1, cast)
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    onnx.save(model, source.model)
    return source


def test_a_file_in_which_inputs_with_a_default_are_constants(small: Small, tmp_path: Path) -> None:
    old = onnx.load(small.model)
    old.ir_version = 3
    old.graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in old.graph.initializer
    )
    onnx.save(old, tmp_path / "old.onnx")
    with_options(tna_onnx.guard, tmp_path / "old.onnx", small.calib, output=tmp_path / "g.onnx", **WORDS)
    with pytest.raises(UnsupportedModel, match=r"IR version 3.*which dials need"):
        with_options(
            tna_onnx.guard, tmp_path / "old.onnx", small.calib, output=tmp_path / "d.onnx", dials=True, **WORDS
        )


# --- A temperature of its own for sets: smaller sets, the same coverage, and thresholds from other samples


def drawn(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities that are right, of 8 classes."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, 8))
    labels = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
    return tempered(np.exp(z), 1.0), labels


def test_tempered_by_definition() -> None:
    p, _ = drawn(50)
    np.testing.assert_allclose(tempered(p, 2.0), np.sqrt(p) / np.sqrt(p).sum(axis=1, keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(tempered(np.array([[1.0, 0.0]]), 3.0), [[1, 0]])


@pytest.mark.parametrize("name", ["lac", "aps"])
def test_the_size_by_definition(name: str) -> None:
    p, labels = drawn(120)
    scores = 1 - p
    if name == "aps":
        scores = np.array([[row[row > row[c]].sum() + row[c] / 2 for c in range(8)] for row in p])
    own = np.sort(scores[np.arange(120), labels])
    limit = own[int(np.ceil(121 * 0.9)) - 1]
    found = set_sizes(p, labels, 0.9, name, allow_empty=True)
    np.testing.assert_allclose(found.mean(), (scores <= limit + 1e-6).sum(axis=1).mean(), atol=0.02)


def test_it_is_never_larger_than_that_of_the_probabilities_as_they_are() -> None:
    p, labels = drawn(2000)
    sharp = tempered(p, 0.2)
    found = small_set_temperature(sharp, labels, 0.9, "aps")
    assert set_sizes(tempered(sharp, found), labels, 0.9, "aps").mean() <= set_sizes(sharp, labels, 0.9, "aps").mean()
    # too few samples for a threshold leave it alone
    assert small_set_temperature(p[:5], labels[:5], 0.9, "aps") == 1


def test_a_temperature_that_only_noise_prefers_is_not_taken() -> None:
    """Two classes: sets are the same at every temperature, up to rounding."""
    rng = np.random.default_rng(1)
    top = rng.uniform(0.5, 1, 500)
    labels = (rng.random(500) > top).astype(np.int64)
    assert small_set_temperature(np.stack([top, 1 - top], axis=1), labels, 0.9, "aps") == 1


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_penalty_has_the_smallest_sets_of_its_choices(level: float) -> None:
    p, labels = drawn(1500)
    free, weight = small_set_penalty(p, labels, level)
    ranks = 1 + np.sum(p > p[np.arange(1500), labels][:, None], axis=1)
    assert free in (1, quantile(ranks, level))
    size = set_sizes(p, labels, level, "raps", rank_penalty(8, free, weight)).mean()
    for other in (0.001, 0.01, 0.1, 0.5):
        assert size <= set_sizes(p, labels, level, "raps", rank_penalty(8, free, other)).mean()


@pytest.mark.parametrize("name", ["lac", "aps", "raps"])
@pytest.mark.parametrize("level", [0.6, 0.9])
def test_no_sample_loses_the_likeliest_class_by_being_surer(name: str, level: float) -> None:
    p, labels = drawn(400)
    penalty = rank_penalty(8, 2, 0.05) if name == "raps" else None
    order, scores = set_scores(p, name, penalty)
    threshold = quantile(scores[np.arange(400), np.argmax(order == labels[:, None], axis=1)], level)
    sizes = []
    for temperature in (4.0, 1.0, 0.25, 0.05):
        held = set_scores(tempered(p, temperature), name, penalty)[1] <= threshold
        assert held[:, 0].all()
        sizes.append(held.sum(axis=1))
    if name != "lac":
        # more classes of a sample only where the model is less sure of it
        assert all((surer <= less).all() for less, surer in itertools.pairwise(sizes))


@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
def test_the_file_makes_sets_at_it(small: Small, data: dict[str, np.ndarray], score: str, tmp_path: Path) -> None:
    words = {"add": ["set"], "set_score": score, "device": "cpu", "eval": small.test}
    plain = with_options(tna_onnx.guard, small.model, small.calib, output=tmp_path / "p.onnx", **words)
    own = with_options(
        tna_onnx.guard, small.model, small.calib, output=tmp_path / "t.onnx", set_temperature="auto", **words
    )
    assert plain.set_temperature == 1
    assert own.fitted_on == 750
    assert plain.fitted_on == (750 if score == "raps" else 0)
    assert (plain.set_penalty > 0) == (score == "raps")
    # half of the samples give the threshold, so the band is wider
    assert own.decisions.coverage >= coverage_band(750, 0.95, 1500, 0.999)[0]
    assert own.decisions.empty_sets == plain.decisions.empty_sets == 0
    entries = {entry.key: entry.value for entry in onnx.load(tmp_path / "t.onnx").metadata_props}
    assert float(entries["tna_onnx.guard_set_temperature"]) == own.set_temperature
    assert json.loads(entries["tna_onnx.guard"])["set_temperature"] == "auto"


@pytest.mark.parametrize("value", [0, -1.0, 1e6, float("nan"), "warm"])
def test_what_is_no_temperature(value: object) -> None:
    with pytest.raises(UsageError, match="set_temperature"):
        GuardSettings(set_temperature=value)  # type: ignore[arg-type]
