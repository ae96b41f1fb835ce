"""Per-sample scores and calibration errors against the definitions and against other libraries.

Oracles: for ECE netcal, torchmetrics, scikit-learn's calibration curve and `uncertainty-calibration`; for AdaECE
netcal, scikit-learn and `uncertainty-calibration`; for both, loops over bins written from the paper. Of the libraries
only scikit-learn has to be there.

Where the others differ, and what the data below do about it:

- torchmetrics bins [j/B, (j+1)/B) and so gives confidence 1.0 a bin of its own; netcal's bins are half-open the same
  way, with 1.0 in the last. No confidence here is a multiple of 1/B, and none is 1.
- With N a multiple of B every library cuts the sorted confidences into runs of N/B. For another N netcal and
  scikit-learn interpolate quantiles, and `uncertainty-calibration` puts the longer runs first: their borders are off by
  a sample. No two confidences are equal: these libraries keep ties together in one bin.
"""

import itertools
import math
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import special
from scipy.special import log_softmax
from sklearn.calibration import calibration_curve
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from tests.numerics.bernoulli import equal
from tests.numerics.bernoulli import scores as scores_of
from tests.support import ada_ece, ece, pairwise
from tna_onnx.numerics.metric import OBJECTIVES
from tna_onnx.numerics.metrics import Metrics, metric_value, sample_losses
from tna_onnx.numerics.reliability import SAME, ClassCounts
from tna_onnx.numerics.scores import SampleScores, numpy_terms

Array = NDArray[Any]
Error = Callable[[SampleScores, int], float]
N = 1500  # a multiple of 10 and 15


# ---- data ----


def overconfident(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    logits = 2 * rng.normal(size=(n, 10))
    return special.softmax(3 * logits, axis=1), _drawn(rng, logits)


def underconfident(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    logits = 2 * rng.normal(size=(n, 5))
    return special.softmax(logits / 3, axis=1), _drawn(rng, logits)


def calibrated(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    logits = rng.normal(size=(n, 100))
    return special.softmax(logits, axis=1), _drawn(rng, logits)


def two_classes(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    p = rng.beta(0.5, 0.7, n)
    return np.stack([p, 1 - p], axis=1), (rng.random(n) > p**2).astype(np.int64)


def one_class_predicted(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    logits = rng.normal(size=(n, 7))
    logits[:, 2] += 9
    return special.softmax(logits, axis=1), rng.integers(0, 7, n)


def all_right(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    p = rng.dirichlet(np.full(4, 0.6), n)
    return p, p.argmax(axis=1)


def all_wrong(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    p = rng.dirichlet(np.full(4, 0.6), n)
    return p, p.argmin(axis=1)


def _drawn(rng: np.random.Generator, logits: Array) -> Array:
    return (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


GENERATORS = [overconfident, underconfident, calibrated, two_classes, one_class_predicted, all_right, all_wrong]


@pytest.fixture(scope="module", params=GENERATORS, ids=lambda generator: generator.__name__)
def data(request: pytest.FixtureRequest) -> tuple[Array, Array]:
    """Return (N, C) probabilities and labels, without confidences that are equal or on a border of 10 or 15 bins.

    The values are float32, so that our confidences and the float64 ones of the libraries are the same numbers.
    """
    p, labels = request.param(np.random.default_rng(11), 3 * N)
    p = p.astype(np.float32).astype(np.float64)
    confidence = p.max(axis=1)
    kept = np.unique(confidence, return_index=True)[1]
    for bins in (10, 15):
        kept = kept[np.abs(confidence[kept] * bins - np.round(confidence[kept] * bins)) > 1e-5]
    kept = np.sort(kept)[:N]
    assert len(kept) == N
    return p[kept], labels[kept]


# ---- the definitions ----


def ece_by_definition(scores: SampleScores, bins: int) -> float:
    """sum_j |B_j| / N |acc(B_j) - conf(B_j)| over B_j = those with j/B < confidence <= (j+1)/B, but for rounding."""
    total = 0.0
    for j in range(bins):
        inside = [
            k
            for k, c in enumerate(scores.confidence.astype(float))
            if (j / bins + SAME < c or j == 0) and c <= (j + 1) / bins + SAME
        ]
        if inside:
            accuracy = sum(bool(scores.hit[k]) for k in inside) / len(inside)
            confidence = sum(float(scores.confidence[k]) for k in inside) / len(inside)
            total += len(inside) / len(scores) * abs(accuracy - confidence)
    return total


def ada_ece_by_definition(scores: SampleScores, bins: int) -> float:
    """The same over B_j = the j-th run of |D|/B samples in ascending order of the confidence; no ties."""
    order = sorted(range(len(scores)), key=lambda k: float(scores.confidence[k]))
    total = 0.0
    for j in range(bins):
        inside = order[j * len(order) // bins : (j + 1) * len(order) // bins]
        accuracy = sum(bool(scores.hit[k]) for k in inside) / len(inside)
        confidence = sum(float(scores.confidence[k]) for k in inside) / len(inside)
        total += len(inside) / len(scores) * abs(accuracy - confidence)
    return total


# Sums of at most 1500 float64 terms below 1, in whatever order: 1500 * 2^-53 = 2e-13.
SUMMED = 1e-12


@pytest.mark.parametrize("bins", [1, 2, 10, 15])
def test_as_defined(data: tuple[Array, Array], bins: int) -> None:
    scores = SampleScores.of_probabilities(*data)
    assert ece(scores, bins) == pytest.approx(ece_by_definition(scores, bins), abs=SUMMED)
    assert ada_ece(scores, bins) == pytest.approx(ada_ece_by_definition(scores, bins), abs=SUMMED)


@given(
    samples=st.lists(st.tuples(st.integers(0, 60), st.booleans()), min_size=12, max_size=60), bins=st.integers(1, 12)
)
def test_ece_on_borders_as_defined(samples: list[tuple[int, bool]], bins: int) -> None:
    """Confidences k/60: most of them border on bins of a width that divides 60."""
    scores = scores_of([k / 60 for k, _ in samples], [hit for _, hit in samples])
    assert ece(scores, bins) == pytest.approx(ece_by_definition(scores, bins), abs=SUMMED)


@given(n=st.integers(12, 80), bins=st.integers(1, 12), seed=st.integers(0, 2**32))
def test_ada_ece_of_any_number_of_samples_as_defined(n: int, bins: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    confidence = rng.choice(np.arange(1, 10_000), n, replace=False) / 10_000
    scores = scores_of(confidence, rng.random(n) < 0.5)
    assert ada_ece(scores, bins) == pytest.approx(ada_ece_by_definition(scores, bins), abs=SUMMED)


def test_ties_across_a_border_count_with_their_mean() -> None:
    scores = scores_of([0.5, 0.75, 0.75, 0.75, 0.75, 0.875], [False, True, True, False, False, True])
    tied = 0.5 - 0.75  # mean residual of the four
    by_hand = (abs(-0.5 + 2 * tied) + abs(2 * tied + 0.125)) / 6
    assert ada_ece(scores, 2) == pytest.approx(by_hand, abs=SUMMED)
    # |.| is convex: the mean over all orders of the four is more, and no order is preferred
    orders = [
        ada_ece_by_definition(scores.take(np.array([0, *ties, 5])), 2) for ties in itertools.permutations(range(1, 5))
    ]
    assert ada_ece(scores, 2) < np.mean(orders)


@given(
    samples=st.lists(st.tuples(st.integers(1, 8), st.booleans()), min_size=15, max_size=60),
    bins=st.integers(1, 15),
    seed=st.integers(0, 2**32),
)
def test_the_order_of_samples_does_not_matter(samples: list[tuple[int, bool]], bins: int, seed: int) -> None:
    scores = scores_of([k / 8 for k, _ in samples], [hit for _, hit in samples])
    shuffled = scores.take(np.random.default_rng(seed).permutation(len(scores)))
    assert ada_ece(shuffled, bins) == pytest.approx(ada_ece(scores, bins), abs=SUMMED)
    assert ece(shuffled, bins) == pytest.approx(ece(scores, bins), abs=SUMMED)


# ---- other libraries ----


def netcal() -> ModuleType:
    """netcal.metrics; importing it may warn about what it itself imports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("netcal.metrics", reason="netcal is in the extra 'oracles'")


@pytest.mark.parametrize("bins", [10, 15])
class TestOtherLibraries:
    @pytest.mark.parametrize("ours", [ece, ada_ece])
    def test_both_of_netcal(self, data: tuple[Array, Array], bins: int, ours: Error) -> None:
        p, labels = data
        measure = netcal().ECE(bins, equal_intervals=ours is ece).measure
        expected = measure(p.max(axis=1), (p.argmax(axis=1) == labels).astype(np.int64))
        assert ours(SampleScores.of_probabilities(p, labels), bins) == pytest.approx(expected, abs=SUMMED)

    def test_ece_of_torchmetrics(self, data: tuple[Array, Array], bins: int) -> None:
        torch = pytest.importorskip("torch", reason="torch is in the extra 'gpu'")
        functional = pytest.importorskip("torchmetrics.functional.classification", reason="in the extra 'oracles'")
        p, labels = data
        expected = functional.multiclass_calibration_error(
            torch.from_numpy(p), torch.from_numpy(labels), num_classes=p.shape[1], n_bins=bins, norm="l1"
        )
        # torchmetrics adds float32: a sum of 1500 terms is off by 1500 * 2^-24 of itself at most
        assert ece(SampleScores.of_probabilities(p, labels), bins) == pytest.approx(float(expected), abs=N * 2.0**-24)

    @pytest.mark.parametrize(("strategy", "ours"), [("uniform", ece), ("quantile", ada_ece)])
    def test_both_of_scikit_learn(self, data: tuple[Array, Array], bins: int, strategy: str, ours: Error) -> None:
        """Its calibration curve gives accuracy and confidence per bin that is not empty, without the sizes."""
        p, labels = data
        confidence, hit = p.max(axis=1), p.argmax(axis=1) == labels
        accuracy, mean = calibration_curve(hit, confidence, n_bins=bins, strategy=strategy, pos_label=True)
        size = (
            np.histogram(confidence, np.linspace(0, 1, bins + 1))[0]
            if strategy == "uniform"
            else np.full(bins, N / bins)
        )
        expected = float(np.sum(np.abs(accuracy - mean) * size[size > 0]) / N)
        assert ours(SampleScores.of_probabilities(p, labels), bins) == pytest.approx(expected, abs=SUMMED)

    @pytest.mark.parametrize(("name", "ours"), [("get_ece", ece), ("get_ece_em", ada_ece)])
    def test_both_of_uncertainty_calibration(
        self, data: tuple[Array, Array], bins: int, name: str, ours: Error
    ) -> None:
        p, labels = data
        library = pytest.importorskip("calibration", reason="install uncertainty-calibration to compare with it")
        expected = getattr(library, name)(p, labels, num_bins=bins)
        assert ours(SampleScores.of_probabilities(p, labels), bins) == pytest.approx(expected, abs=SUMMED)


# ---- edges ----


@pytest.mark.parametrize("error", [ece, ada_ece, Metrics.of])
def test_too_few_samples(error: Callable[..., Any]) -> None:
    for n in (0, 1, 14):
        with pytest.raises(ValueError, match=f"{n} samples, 15 bins"):
            error(scores_of([0.5] * n, [True] * n), 15)
    with pytest.raises(ValueError, match="3 samples, 0 bins"):
        error(scores_of([0.5] * 3, [True] * 3), 0)
    error(scores_of([0.5] * 15, [True] * 15), 15)


# ---- per-sample scores ----


def reference_scores(logits: Array, labels: Array) -> SampleScores:
    """From scipy's log_softmax in float64."""
    log_p = special.log_softmax(logits.astype(np.float64), axis=1)
    p, rows = np.exp(log_p), np.arange(len(labels))
    onehot = np.eye(logits.shape[1])[labels]
    return SampleScores(
        p.max(axis=1), logits.argmax(axis=1) == labels, -log_p[rows, labels], np.sum((p - onehot) ** 2, axis=1)
    )  # type: ignore[arg-type]


def assert_close(scores: SampleScores, expected: SampleScores, rounding: float, largest: float) -> None:
    """Compare up to some roundings of the dtype: exp(s - max) turns an error of s into the same relative error of p."""
    np.testing.assert_array_equal(scores.hit, expected.hit)
    np.testing.assert_allclose(scores.confidence, expected.confidence, rtol=8 * rounding, atol=0)
    np.testing.assert_allclose(scores.nll, expected.nll, rtol=4 * rounding, atol=8 * rounding * max(1.0, largest))
    np.testing.assert_allclose(scores.brier, expected.brier, rtol=0, atol=16 * rounding)
    assert [v.dtype for v in (scores.confidence, scores.hit, scores.nll, scores.brier)] == [
        np.float32,
        np.bool_,
        np.float32,
        np.float32,
    ]


# The result is float32; float32 logits are subtracted and exponentiated in float32 (2^-24 each, exp within 2 units).
FLOAT32 = 2.0**-24


@given(
    logits=st.lists(st.lists(st.floats(-1e4, 1e4, width=32), min_size=4, max_size=4), min_size=1, max_size=6),
    label=st.integers(0, 3),
)
@settings(max_examples=60)
def test_scores_of_any_logits(logits: list[list[float]], label: int) -> None:
    array = np.array(logits, np.float32)
    scores = SampleScores.of_logits(array, np.full(len(array), label))
    # s - max is exact to 2^-24 of up to 2e4
    assert_close(scores, reference_scores(array, np.full(len(array), label)), FLOAT32, 2e4)
    assert np.all((scores.confidence > 0) & (scores.confidence <= 1))
    assert np.all(scores.nll >= 0)
    # p_y = 1 rounds 1 - 2 + 1 to +-2^-53, and the sum of squares exceeds 1 by roundings of float32
    assert np.all((scores.brier >= -4 * FLOAT32) & (scores.brier <= 2 + 4 * FLOAT32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_losses_far_below_the_rounding_of_one_are_kept(dtype: Any) -> None:
    """log(1 + e^-20) is 0 where the sum of the exponentials is float32."""
    scores = SampleScores.of_logits(np.array([[0, -20], [30, 10]], dtype), np.array([0, 0]))
    # the sum 1 + 2e-9 is rounded by 2^-53: 5e-8 of the rest
    np.testing.assert_allclose(scores.nll, np.log1p(np.exp([-20.0, -20.0])), rtol=2e-7)


def test_the_first_of_equal_logits_is_predicted() -> None:
    scores = SampleScores.of_logits(np.zeros((3, 4), np.float32), np.array([0, 1, 3]))
    assert scores.hit.tolist() == [True, False, False]
    np.testing.assert_array_equal(scores.confidence, np.float32([0.25] * 3))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_torch_gives_the_scores_of_numpy(dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is in the extra 'gpu'")
    rng = np.random.default_rng(3)
    logits, labels = (4 * rng.normal(size=(200, 12))).astype(dtype), rng.integers(0, 12, 200)
    logits[0], labels[0] = [1e4] + [-1e4] * 11, 5
    ours = SampleScores.of_logits(logits, labels)
    theirs = SampleScores.of_logits(torch.from_numpy(logits), torch.from_numpy(labels))
    assert isinstance(theirs.nll, np.ndarray)
    # exp of the two libraries may differ by a unit or two
    assert_close(theirs, ours, FLOAT32, 1.0)
    p = special.softmax(logits.astype(np.float64), axis=1)
    of_torch = SampleScores.of_probabilities(torch.from_numpy(p), torch.from_numpy(labels))
    assert_close(of_torch, SampleScores.of_probabilities(p, labels), FLOAT32, 1.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_probabilities_and_logits_give_the_same_scores(dtype: Any) -> None:
    rng = np.random.default_rng(4)
    logits, labels = 3 * rng.normal(size=(400, 6)), rng.integers(0, 6, 400)
    probabilities = special.softmax(logits, axis=1).astype(dtype)
    # a probability rounded to float32 is off by 2^-24 of itself, and so is its logarithm, absolutely
    assert_close(
        SampleScores.of_probabilities(probabilities, labels), SampleScores.of_logits(logits, labels), FLOAT32, 1.0
    )


# exponents of the smallest normal numbers; in float16, that of half of the smallest one
@pytest.mark.parametrize(("dtype", "exponent"), [(np.float16, 25), (np.float32, 126), (np.float64, 1022)])
def test_log_of_probability_zero_is_cut(dtype: type[np.floating[Any]], exponent: int) -> None:
    scores = SampleScores.of_probabilities(np.array([[1.0, 0.0], [1.0, 0.0]], dtype), np.array([0, 1]))
    np.testing.assert_allclose(scores.nll, [0, exponent * math.log(2)], rtol=FLOAT32)
    np.testing.assert_array_equal(scores.brier, np.float32([0, 2]))


@given(
    n=st.integers(1, 60),
    classes=st.integers(2, 40),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
)
def test_chunks_give_the_scores_of_the_whole(n: int, classes: int, cuts: list[int], seed: int, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    logits, labels = (5 * rng.normal(size=(n, classes))).astype(dtype), rng.integers(0, classes, n)
    whole = SampleScores.of_logits(logits, labels)
    borders = sorted({0, n, *(c for c in cuts if c < n)})
    parts = [SampleScores.of_logits(logits[a:b], labels[a:b]) for a, b in itertools.pairwise(borders)]
    assert equal(SampleScores.concatenate(parts), whole)
    added = parts[0]
    for part in parts[1:]:
        added += part
    assert equal(added, whole)
    rows = np.array([SampleScores.of_logits(logits[k : k + 1], labels[k : k + 1]).nll[0] for k in range(n)])
    np.testing.assert_array_equal(rows, whole.nll)


# --- Counts per class, against scikit-learn, and any split gives the same


@pytest.mark.parametrize("classes", [2, 7, 1000])
def test_counts_are_those_of_scikit_learn(classes: int) -> None:
    rng = np.random.default_rng(classes)
    labels = rng.integers(0, classes, 400)
    predicted = np.where(rng.uniform(size=400) < 0.7, labels, rng.integers(0, classes, 400))
    found = ClassCounts.of(predicted, labels, classes)
    precision, recall, _, samples = precision_recall_fscore_support(
        labels, predicted, labels=range(classes), zero_division=0
    )
    np.testing.assert_allclose(found.right, recall * samples, atol=1e-9)
    np.testing.assert_allclose(found.right, precision * found.predicted, atol=1e-9)
    matrix = confusion_matrix(labels, predicted, labels=range(classes))
    assert dict(found.errors) == {(int(a), int(b)): int(matrix[a, b]) for a, b in np.argwhere(matrix) if a != b}


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40), st.integers(0, 40))
def test_any_split_gives_the_same(pairs: list[tuple[int, int]], at: int) -> None:
    labels, predicted = np.array(pairs).T
    whole = ClassCounts.of(predicted, labels, 5)
    parts = ClassCounts.of(predicted[:at], labels[:at], 5) + ClassCounts.of(predicted[at:], labels[at:], 5)
    np.testing.assert_array_equal(whole.predicted, parts.predicted)
    np.testing.assert_array_equal(whole.right, parts.right)
    assert whole.errors == parts.errors
    assert whole.confused(2) == parts.confused(2)


# --- Losses of single samples: their mean is the metric, whatever the order of the samples, and ties


# sums of up to 300 terms of at most 2, in float64
ROUNDING = 1e-12


def drawn(seed: int, n: int, levels: int) -> SampleScores:
    """Scores whose confidences take so many levels at most, 0 and 1 among them."""
    rng = np.random.default_rng(seed)
    confidence = np.float32(rng.integers(0, levels + 1, n) / levels)
    return SampleScores(confidence, rng.random(n) < 0.6, np.float32(rng.gamma(1, 1, n)), np.float32(2 * rng.random(n)))


@given(st.integers(0, 2**32 - 1), st.integers(20, 300), st.sampled_from([1, 2, 7, 15, 10**6]), st.integers(1, 20))
def test_their_mean_is_the_metric(seed: int, n: int, levels: int, bins: int) -> None:
    scores = drawn(seed, n, levels)
    for objective in OBJECTIVES:
        losses = sample_losses(scores, objective, bins)
        assert (losses.shape, losses.dtype) == ((n,), np.float64)
        assert np.mean(losses) == pytest.approx(metric_value(scores, objective, bins), abs=ROUNDING)


@pytest.mark.parametrize("objective", ["ece", "adaece"])
def test_a_bin_errs_to_one_side(objective: Any) -> None:
    """Two bins: the lower one is too modest, the upper one too sure."""
    confidence = np.float32([0.2, 0.2, 0.3, 0.8, 0.8, 0.9])
    hit = np.array([True, False, True, False, False, True])
    scores = SampleScores(confidence, hit, confidence, confidence)
    expected = np.where(confidence < 0.5, hit - confidence, confidence - hit)
    np.testing.assert_allclose(sample_losses(scores, objective, 2), expected, rtol=0, atol=1e-7)  # float32 confidences


def test_samples_of_one_confidence_on_two_sides_of_a_border_share_their_sides() -> None:
    """Ranks 3 and 4 of 6 have one confidence: one lies in each of two bins of three, which err to opposite sides."""
    confidence = np.float32([0.1, 0.2, 0.5, 0.5, 0.8, 0.9])
    hit = np.array([True, True, True, False, False, False])
    scores = SampleScores(confidence, hit, confidence, confidence)
    losses = sample_losses(scores, "adaece", 2)
    np.testing.assert_allclose(losses, [0.9, 0.8, 0, 0, 0.8, 0.9], rtol=0, atol=1e-7)  # float32 confidences


# --- What a sample's scores are made of, against the definition in float64


@pytest.mark.parametrize(
    ("dtype", "spread", "classes"), pairwise(["float32", "float64"], [1.0, 20.0, 300.0], [3, 64, 65, 256, 700])
)
def test_terms_are_the_definition_where_most_exponentials_are_tiny(dtype: str, spread: float, classes: int) -> None:
    rng = np.random.default_rng(classes)
    logits = (spread * rng.standard_normal((50, classes))).astype(dtype)
    labels = rng.integers(0, classes, 50)
    confidence, hits, nll, brier = numpy_terms(logits, labels)
    log_p = log_softmax(logits.astype(np.float64), axis=1)
    p = np.exp(log_p)
    rtol = 1e-5 if dtype == "float32" else 3e-7  # of float32 results
    np.testing.assert_allclose(confidence, p.max(axis=1), rtol=rtol)
    np.testing.assert_array_equal(hits, p.argmax(axis=1) == labels)
    np.testing.assert_allclose(nll, -log_p[np.arange(50), labels], rtol=rtol, atol=1e-6)
    expected = np.sum((p - np.eye(classes)[labels]) ** 2, axis=1)
    np.testing.assert_allclose(brier, expected, rtol=rtol, atol=1e-6)


def test_a_class_that_is_masked_out_is_no_exception() -> None:
    logits = np.full((1, 70), -np.inf, np.float32)
    logits[0, :2] = 1.0, 0.0
    confidence, hits, nll, _ = numpy_terms(logits, np.array([0]))
    assert hits[0]
    assert nll[0] == pytest.approx(np.log1p(np.exp(-1)), rel=1e-6)
    assert confidence[0] == pytest.approx(1 / (1 + np.exp(-1)), rel=1e-6)


@pytest.mark.parametrize("classes", [3, 70])
def test_an_infinite_logit_has_no_scores(classes: int) -> None:
    logits = np.zeros((2, classes), np.float32)
    logits[0, 1] = np.inf
    with np.errstate(invalid="ignore"):
        confidence, _, nll, brier = numpy_terms(logits, np.zeros(2, np.int64))
    assert np.isnan([confidence[0], nll[0], brier[0]]).all()
    assert np.isfinite([confidence[1], nll[1], brier[1]]).all()


# ---- confidences that only rounding sets apart


@pytest.mark.parametrize("bins", [10, 15])
def test_shares_of_trees_are_scored_alike_whatever_their_rounding(bins: int) -> None:
    """Shares k / 100 as a forest gives them, and as a softmax of their float32 logarithms does; some border on bins."""
    rng = np.random.default_rng(0)
    votes = rng.multinomial(100, rng.dirichlet(np.full(5, 0.4)), 3000)
    p = (votes / 100).astype(np.float32)
    labels = _drawn(rng, 3 * rng.normal(size=(3000, 5)) + 4 * p)
    given = SampleScores.of_probabilities(p, labels)
    logits = np.log(np.maximum(p, np.finfo(np.float32).tiny))
    mapped = SampleScores.of_logits(logits + rng.normal(size=(3000, 1)).astype(np.float32), labels)
    assert np.any(given.confidence != mapped.confidence)
    for measure in (ece, ada_ece):
        # residuals are moved by 1e-6 at most
        assert measure(mapped, bins) == pytest.approx(measure(given, bins), abs=2e-6)
    by_definition = ece_of_shares(votes.max(axis=1), given.hit, bins)
    assert ece(given, bins) == pytest.approx(by_definition, abs=1e-6)


def ece_of_shares(votes: Array, hit: Array, bins: int) -> float:
    """The definition in whole numbers: j / B < k / 100 <= (j + 1) / B."""
    index = (-(-votes * bins // 100)) - 1
    return float(sum(abs(np.sum(hit[index == j] - votes[index == j] / 100)) for j in range(bins)) / len(votes))


@pytest.mark.parametrize("step", [1 / 64, 1 / 100, 1e-5])
def test_the_adaece_is_that_of_ties_in_float32_and_in_float64(step: float) -> None:
    """Confidences that are tied but for rounding: their order, and the type, decide nothing."""
    rng = np.random.default_rng(0)
    confidence = np.round((0.3 + 0.69 * rng.random(2000)) / step) * step
    hit = rng.random(2000) < confidence
    rounded = confidence * (1 + rng.integers(-1, 2, 2000) * np.finfo(np.float32).eps / 2)
    zero = np.zeros(2000)
    values = [
        ada_ece(SampleScores(each.astype(kind), hit, zero, zero)) for each in (confidence, rounded) for kind in "fd"
    ]
    # the mean confidence of a bin is known to an ulp of float32
    assert max(values) - min(values) < 1e-7
