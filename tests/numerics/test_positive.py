"""P(positive) beside how often it occurs: against definitions, simulation and a fit by scikit-learn."""

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression

from tna_onnx.numerics.metrics import ChanceEce, metric_value
from tna_onnx.numerics.positive import Classes, PositiveSide, positive_difference
from tna_onnx.numerics.scores import SampleScores

NAMES = Classes(("no", "yes"))


def two_classes(p, labels) -> SampleScores:
    probabilities = np.stack([1 - p, p], axis=1)
    return SampleScores.of_probabilities(probabilities, labels).labelled(labels)


def drawn(seed: int, n: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    p = rng.beta(0.4, 4.0, n)
    return p, (rng.random(n) < p).astype(np.int64)


def test_the_numbers_are_those_of_the_definition() -> None:
    p, labels = drawn(0)
    p = np.sqrt(p)
    found = PositiveSide.of(two_classes(p, labels), NAMES).worst(15)
    assert found is not None
    observed, stated = calibration_curve(labels, p, n_bins=15)
    counts = np.histogram(p, np.linspace(0, 1, 16))[0]
    expected = np.sum(np.abs(observed - stated) * counts[counts > 0]) / len(p)
    assert (found.name, found.labels) == ("yes", 1)
    # float32 confidences
    assert found.ece == pytest.approx(expected, abs=1e-6)
    assert found.reliability is not None
    assert found.reliability.count == tuple(counts)
    assert [value for value in found.reliability.accuracy if value] == pytest.approx(observed[observed > 0])
    assert (found.mean, found.frequency) == pytest.approx((p.mean(), labels.mean()), abs=1e-6)
    fit = LogisticRegression(C=1e12, tol=1e-10, max_iter=1000).fit(np.log(p / (1 - p))[:, None], labels)
    assert found.slope is not None
    assert found.slope.low is not None
    assert found.slope.value == pytest.approx(fit.coef_[0, 0], rel=1e-3)
    assert found.slope.low < found.slope.value
    assert found.off


def test_the_top_label_hides_what_the_positive_class_shows() -> None:
    # too sure positives beside too unsure negatives: max(p, 1 - p) is right on average, p is not
    p = np.repeat([0.75, 0.25], 400)
    labels = np.tile([1, 1, 0, 0], 200)
    labels[:400] = np.tile([1, 0, 0, 0, 1], 80)
    labels[400:] = np.tile([0, 0, 0, 0, 0, 0, 0, 0, 1, 0], 40)
    scores = two_classes(p, labels)
    found = PositiveSide.of(scores, NAMES).worst(15)
    assert found is not None
    assert found.ece == pytest.approx((0.35 + 0.15) / 2, abs=1e-6)
    assert found.mean - found.frequency == pytest.approx(0.25, abs=1e-6)


def test_p_values_of_right_probabilities_are_small_as_often_as_they_say() -> None:
    small = sum(PositiveSide.of(two_classes(*drawn(seed)), NAMES).positives[0].off for seed in range(200))
    # 5 % of 200, or fewer, as two tests are taken together: 3 standard errors above are 19
    assert small <= 19
    p, labels = drawn(0)
    scores = SampleScores.of_probabilities(np.stack([1 - p, p], axis=1), labels)
    assert ChanceEce.of(scores).p(metric_value(scores, "ece")) > 0.001


@pytest.mark.parametrize("count", [12, 14, 16])
def test_the_tail_of_a_count_of_few_is_that_of_a_binomial(count: int) -> None:
    """The p-value counts half of the ties, and is of two sides and two tests; a normal's is 4 to 40 times less."""
    scores = two_classes(np.full(300, 0.02), (np.arange(300) < count).astype(np.int64))
    expected = 4 * (binom.sf(count, 300, 0.02) + binom.pmf(count, 300, 0.02) / 2)
    assert PositiveSide.of(scores, NAMES).positives[0].p == pytest.approx(expected, rel=0.3)


def test_the_worst_of_labels_stands_beside_what_chance_gives_the_worst() -> None:
    rng = np.random.default_rng(1)
    p = rng.beta(1.0, 3.0, (1000, 20))
    twenty = Classes([f"l{c}" for c in range(20)])
    worst = []
    for _ in range(40):
        labels = (rng.random(p.shape) < p).astype(np.int64)
        found = PositiveSide.of(SampleScores.of_probabilities(p, labels), twenty).worst(15)
        assert found is not None
        worst.append((found.ece, found.ece_expected, found.p))
    eces, expected, p_values = np.array(worst).T
    # the mean of 40 maxima, whose spread is a tenth of them
    assert eces.mean() == pytest.approx(expected.mean(), rel=0.06)
    assert np.sum(p_values < 0.05) <= 6
    assert found.labels == 20
    assert found.ece_mean < found.ece


def test_the_difference_holds_zero_for_equal_models_and_not_for_a_better_one() -> None:
    p, labels = drawn(3)
    wrong, right = (PositiveSide.of(two_classes(q, labels), NAMES) for q in (np.sqrt(p), p))
    same = positive_difference(wrong, wrong)
    better = positive_difference(wrong, right)
    assert same.difference == same.low == same.high == 0
    assert better.high < 0
    assert better.difference == pytest.approx(right.positives[0].ece - wrong.positives[0].ece, abs=0.02)


def test_three_classes_have_no_positive_one() -> None:
    scores = SampleScores.of_probabilities(np.full((30, 3), 1 / 3), np.zeros(30, np.int64))
    side = PositiveSide.of(scores.labelled(np.zeros(30, np.int64)), Classes(("a", "b", "c")))
    assert side.worst(15) is None


def test_rare_events_and_certain_models_have_numbers() -> None:
    labels = np.zeros(300, np.int64)
    labels[:3] = 1
    certain = PositiveSide.of(two_classes(labels.astype(float), labels), NAMES).worst(15)
    rare = PositiveSide.of(two_classes(np.full(300, 0.01), labels), NAMES).worst(15)
    none = PositiveSide.of(two_classes(np.full(300, 0.01), labels * 0), NAMES).worst(15)
    assert certain is not None
    assert rare is not None
    assert none is not None
    assert not certain.off
    assert not rare.off
    assert rare.slope is None
    assert none.frequency == 0
