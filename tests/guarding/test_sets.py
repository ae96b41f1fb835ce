"""A temperature and a penalty of their own for sets: smaller sets, the same coverage, thresholds from other samples."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import tna_onnx
from tests.conftest import Small
from tests.support import with_options
from tna_onnx.errors import UsageError
from tna_onnx.guarding.guard_settings import GuardSettings
from tna_onnx.numerics.conformal import (
    conformal_quantile,
    coverage_band,
    rank_penalty,
    set_scores,
    set_sizes,
    small_set_penalty,
    small_set_temperature,
    tempered,
)


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
    assert free in (1, conformal_quantile(ranks, level))
    size = set_sizes(p, labels, level, "raps", rank_penalty(8, free, weight)).mean()
    for other in (0.001, 0.01, 0.1, 0.5):
        assert size <= set_sizes(p, labels, level, "raps", rank_penalty(8, free, other)).mean()


@pytest.mark.parametrize(("name", "level"), [("lac", 0.6), ("aps", 0.9), ("raps", 0.6)])
def test_no_sample_loses_the_likeliest_class_by_being_surer(name: str, level: float) -> None:
    p, labels = drawn(400)
    penalty = rank_penalty(8, 2, 0.05) if name == "raps" else None
    order, scores = set_scores(p, name, penalty)
    threshold = conformal_quantile(scores[np.arange(400), np.argmax(order == labels[:, None], axis=1)], level)
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
