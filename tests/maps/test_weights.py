"""Fits to samples with weights: a weight k is the sample k times, and independent solvers find the same."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.maps.samples import reduce_of
from tna_onnx.maps import MAPS
from tna_onnx.maps.base import Reduce, apply_map
from tna_onnx.numerics.fitting import RIDGE
from tna_onnx.numerics.ops import WeightedLabels

N = 1500
WEIGHTED = tuple(name for name in MAPS if MAPS[name].weighted and MAPS[name].for_classes)
OF_LABELS = tuple(name for name in MAPS if MAPS[name].weighted and MAPS[name].for_labels)


def problem(classes: int) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Logits twice too large with a bias, labels, and features that the logits are linear in."""
    rng = np.random.default_rng(classes)
    features = rng.normal(size=(N, 6))
    logits = features @ rng.normal(size=(6, classes))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return 2 * logits + np.linspace(0, 1, classes), labels, features


def reduced(logits: Any, labels: Any, features: Any) -> Reduce:
    """The sums over three chunks."""
    return reduce_of(logits, labels, features, cuts=(500, 900))


def times() -> NDArray[np.int64]:
    """How often each sample comes, N times in all: of a bootstrap, so that some never do."""
    return np.bincount(np.random.default_rng(7).integers(0, N, N), minlength=N)


@pytest.mark.parametrize("name", WEIGHTED)
def test_a_weight_is_the_sample_so_often(name: str) -> None:
    """Priors count samples too; as many are drawn as there are, so that their number is the sum of the weights."""
    classes = 2 if MAPS[name].binary else 4
    logits, labels, features = problem(classes)
    rows = np.repeat(np.arange(N), times())
    weighted = MAPS[name].fit(reduced(logits, WeightedLabels(labels, times().astype(float)), features))
    repeated = MAPS[name].fit(reduced(logits[rows], labels[rows], features[rows]))
    plain = MAPS[name].fit(reduced(logits, labels, features))
    one, two, three = (
        np.exp(each - np.logaddexp.reduce(each, axis=1, keepdims=True))
        for each in (apply_map(fitted, logits, features) for fitted in (weighted, repeated, plain))
    )
    # a refit is solved in float32 until a step gains 1e-5 nats, others to rounding
    np.testing.assert_allclose(one, two, rtol=0, atol=5e-3 if name == "refit" else 1e-6)
    assert np.abs(one - three).max() > 2e-3  # weights are not ignored


@pytest.mark.parametrize("name", OF_LABELS)
def test_a_weight_is_the_sample_with_all_of_its_labels_so_often(name: str) -> None:
    rng = np.random.default_rng(9)
    truth = rng.normal(size=(N, 3))
    labels = (rng.random((N, 3)) < 1 / (1 + np.exp(-truth))).astype(np.int64)
    logits, rows = truth * (1, 2, 4) + 0.5, np.repeat(np.arange(N), times())
    weighted = MAPS[name].fit(reduced(logits, WeightedLabels(labels, times().astype(float)), logits))
    repeated = MAPS[name].fit(reduced(logits[rows], labels[rows], logits[rows]))
    plain = MAPS[name].fit(reduced(logits, labels, logits))
    one, two, three = (apply_map(fitted, logits, None) for fitted in (weighted, repeated, plain))
    np.testing.assert_allclose(one, two, rtol=0, atol=1e-6)
    assert np.abs(one - three).max() > 1e-2


def test_a_map_of_the_two_losses_of_ets_and_one_of_many_classes() -> None:
    logits, labels, features = problem(60)
    rows = np.repeat(np.arange(N), times())
    weights = WeightedLabels(labels, times().astype(float))
    for name, words in (("ets", {"ets_loss": "nll"}), ("isotonic", {}), ("ts", {"objective": "ece"})):
        one = MAPS[name].fit(reduced(logits, weights, features), **words)
        two = MAPS[name].fit(reduced(logits[rows], labels[rows], features[rows]), **words)
        outputs = [apply_map(fitted, logits, features) for fitted in (one, two)]
        np.testing.assert_allclose(outputs[0], outputs[1], rtol=0, atol=1e-6)


def test_a_temperature_and_a_line_are_those_of_scikit_learn() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    logits, labels, features = problem(2)
    weights = np.random.default_rng(3).lognormal(size=N)
    reduce = reduced(logits, WeightedLabels(labels, weights), features)
    odds = (logits[:, 1] - logits[:, 0])[:, None]
    options: dict[str, Any] = {"C": np.inf, "tol": 1e-12, "max_iter": 10_000}
    slope = linear.LogisticRegression(fit_intercept=False, **options).fit(odds, labels, sample_weight=weights)
    temperature = MAPS["ts"].fit(reduce)
    assert 1 / temperature.temperature == pytest.approx(slope.coef_[0, 0], rel=1e-6)
    # the same ridge: 0.05 of the squares of all coefficients, of a column with mean 0 and variance 1
    mean = np.average(odds[:, 0], weights=weights)
    spread = np.sqrt(np.average((odds[:, 0] - mean) ** 2, weights=weights))
    columns = np.concatenate([np.ones_like(odds), (odds - mean) / spread], axis=1)
    options["C"] = 1 / (2 * RIDGE)
    line = linear.LogisticRegression(fit_intercept=False, **options).fit(columns, labels, sample_weight=weights)
    fitted = MAPS["platt"].fit(reduce)
    expected = (line.coef_[0, 1] / spread, line.coef_[0, 0] - line.coef_[0, 1] * mean / spread)
    assert (fitted.slope, fitted.intercept) == pytest.approx(expected, rel=1e-6)


def test_one_against_all_is_the_isotonic_regression_of_scikit_learn() -> None:
    isotonic = pytest.importorskip("sklearn.isotonic")
    logits, labels, features = problem(3)
    weights = np.random.default_rng(3).lognormal(size=N)
    steps = MAPS["irova"].fit(reduced(logits, WeightedLabels(labels, weights), features)).steps
    p = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32).astype(float)
    for c, (_, first, values) in enumerate(steps):
        expected = isotonic.IsotonicRegression().fit(p[:, c], labels == c, sample_weight=weights).predict(p[:, c])
        found = np.array(values)[np.searchsorted(first, p[:, c], side="right")]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["ts", "ets", "bias", "isotonic"])
def test_neither_the_engine_nor_the_cut_into_chunks_matters(name: str) -> None:
    torch = pytest.importorskip("torch")
    logits, labels, features = problem(4)
    weights = WeightedLabels(labels, np.random.default_rng(3).lognormal(size=N))
    one = MAPS[name].fit(reduced(logits, weights, features))
    tensors = (torch.asarray(values) for values in (logits, features))
    two = MAPS[name].fit(reduced(next(tensors), weights, next(tensors)))
    three = MAPS[name].fit(reduce_of(logits, weights, features))
    for fitted in (two, three):
        np.testing.assert_allclose(apply_map(fitted, logits, None), apply_map(one, logits, None), rtol=0, atol=1e-7)
