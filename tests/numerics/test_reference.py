"""`numerics.reference`: the algebra by its definition, intervals and test by simulation, nonsense refused."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from tna_onnx.errors import DataError
from tna_onnx.numerics.reference import Reference, projections

CENTERS = 1.4 * np.random.default_rng(1).standard_normal((4, 6))


def drawn(rng: np.random.Generator, n: int, q: Any = None, noise: float = 1.0) -> tuple[np.ndarray, ...]:
    """Draw normal samples around the centers: probabilities under equal frequencies, labels, projections."""
    labels = rng.choice(4, n, p=q)
    x = CENTERS[labels] + noise * rng.standard_normal((n, 6))
    scores = -0.5 * np.sum((x[:, None] - CENTERS) ** 2, axis=2)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True), labels, projections(x)


@pytest.fixture(scope="module")
def reference() -> Reference:
    p, labels, z = drawn(np.random.default_rng(0), 2000)
    return Reference.fit(p, labels, z, name="features")


@pytest.mark.parametrize("weights", [[1, 1, 1, 1], [8, 1, 4, 2]])
def test_samples_of_the_reference_in_any_mix_have_their_own_accuracy_and_frequencies(weights: list[int]) -> None:
    # each class repeated as a whole: its means stay as they are, to rounding
    p, labels, z = drawn(np.random.default_rng(0), 500)
    reference = Reference.fit(p, labels, z)
    rows = np.concatenate([np.tile(np.flatnonzero(labels == k), times) for k, times in enumerate(weights)])
    accuracy, frequencies, other_p = reference.expected(p[rows], z[rows])
    assert accuracy.value == pytest.approx(np.mean(p[rows].argmax(axis=1) == labels[rows]), abs=1e-9)
    np.testing.assert_allclose(frequencies[:, 0], np.bincount(labels[rows]) / len(rows), atol=1e-9)
    assert other_p == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize("changed", [False, True])
def test_intervals_cover_and_the_test_keeps_its_level(changed: bool) -> None:
    covered = alarms = 0
    draws = 400
    for number in range(draws):
        rng = np.random.default_rng((7, number))
        p, labels, z = drawn(rng, 1000)
        q = rng.dirichlet(np.ones(4)) if changed else None
        new, truth, projected = drawn(rng, 700, q)
        accuracy, _, other_p = Reference.fit(p, labels, z).expected(new, projected)
        covered += accuracy.low <= np.mean(new.argmax(axis=1) == truth) <= accuracy.high
        alarms += other_p < 0.05
    # what 95 %, and 5 %, give in 400 draws but for one time in a thousand; the formulas are for many samples
    assert covered >= binom.ppf(0.0005, draws, 0.94)
    assert alarms <= binom.ppf(0.9995, draws, 0.06)


def test_noise_alarms(reference: Reference) -> None:
    p, _, z = drawn(np.random.default_rng(3), 1000, noise=1.5)
    assert reference.expected(p, z)[2] < 1e-6


def test_more_labelled_samples_make_intervals_narrower() -> None:
    new, _, z = drawn(np.random.default_rng(3), 5000)
    widths = []
    for n in (500, 5000):
        p, labels, old = drawn(np.random.default_rng(4), n)
        accuracy, _, _ = Reference.fit(p, labels, old).expected(new, z)
        widths.append(accuracy.high - accuracy.low)
    # 1 / 500 + 1 / 5000 and 2 / 5000
    assert widths[0] / widths[1] == pytest.approx(np.sqrt(5.5), rel=0.15)


def test_text_is_small_and_reads_back(reference: Reference) -> None:
    again = Reference.read(reference.text())
    assert len(reference.text()) < 5000
    for field in dataclasses.fields(Reference)[:-1]:
        np.testing.assert_allclose(getattr(again, field.name), getattr(reference, field.name), rtol=1e-5)
    assert again.features == "features"


def test_no_number_is_of_few_samples() -> None:
    rng = np.random.default_rng(0)
    p, labels, _ = drawn(rng, 80)
    parts = np.diff([0, *[np.sum(p.max(axis=1) <= edge) for edge in Reference.fit(p, labels).edges]])
    assert np.all(np.cumsum(parts) >= 10)


def test_classes_that_are_always_predicted_right_have_a_reference() -> None:
    # 11 and 20 terms of 1 / 11 and 1 / 20 add up to more than 1 in float64
    labels = np.repeat([0, 1], [11, 20])
    right = np.random.default_rng(0).uniform(0.6, 0.9, len(labels))
    p = np.where(labels[:, None] == [0, 1], right[:, None], 1 - right[:, None])
    accuracy, _, _ = Reference.fit(p, labels).expected(p)
    assert accuracy.value == 1
    # none of 31 was wrong, which Wilson's interval takes for a share up to 1 - 1 / (1 + 1.96^2 / n)
    n = 1 / np.sum((np.bincount(labels) / 31) ** 2 / np.bincount(labels))
    assert accuracy.low == pytest.approx(1 / (1 + 1.96**2 / n), abs=1e-3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("counts", [500, 500, 500, 3]),
        ("counts", [500, 500, 500]),
        ("probabilities", [[0.25] * 4] * 4),
        ("probabilities", [[2, -1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]),
        ("means", [[1.5] * 12] * 4),
        ("variances", [[-1.0] * 12] * 4),
        ("variances", [[float("nan")] * 12] * 4),
        ("correlations", [[3.0] * 11] * 11),
        ("edges", [0.9, 0.1]),
        ("edges", np.linspace(0.1, 0.9, 99).tolist()),
        ("features", 3),
        ("features", None),
        ("counts", "many"),
        ("other", [1]),
    ],
)
def test_nonsense_is_refused(reference: Reference, name: str, value: Any) -> None:
    values = json.loads(reference.text()) | {name: value}
    with pytest.raises(DataError, match="reference"):
        Reference.read(json.dumps(values))


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, '{"features": ""}'])
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="reference"):
        Reference.read(text)


def test_other_features_are_refused(reference: Reference) -> None:
    p, _, z = drawn(np.random.default_rng(3), 100)
    with pytest.raises(DataError, match="other features"):
        reference.expected(p, z[:, :3])
    with pytest.raises(DataError, match="not of features"):
        projections(np.zeros(5))
