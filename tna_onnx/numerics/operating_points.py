"""Operating points: which class is decided at which thresholds (`DecisionRule`), and the thresholds themselves.

    labels      all labels with p_c >= t_c, for several labels a sample
    positive    the class k where p_k >= t, and elsewhere the likeliest of the others
    sure        the likeliest class c where p_c >= t_c, and elsewhere nothing, which is -1
    ratio       the largest p_c / t_c; with costs, the column a with the least sum_c cost_ca p_c / t_c

`best_thresholds` looks along t_c = exp(u d_c), d_c the log frequency of c, or 1 for the second of two classes (Menon et
al. 2021, section 4). `bounded_threshold`: the j-th smallest of n scores is below more than 1 - r with P(B(n, 1 - r) >=
j) (Wilks 1941).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.conformal import accept_above, errorless_needed, lowest_risk
from tna_onnx.numerics.scores import SampleScores, cluster_sums

BOUNDS = ("recall", "precision", "fpr")
"""What a threshold can bound."""

Floats = NDArray[np.float32]
Counts = NDArray[Any]

_FOLDS = 5
_DRAWS = 1000  # of a bootstrap; its 95 % ends are known to about a twentieth of the interval
_MAX_NUMBERS = 5_000_000  # probabilities on which a curve of thresholds is searched
_STEPS = 121

RuleKind: TypeAlias = Literal["labels", "positive", "sure", "ratio"]
"""How probabilities become a decision; see above."""


@dataclass(frozen=True, eq=False)
class DecisionRule:
    """How probabilities become a decision."""

    kind: RuleKind  # see above
    positive: int  # the class k of `positive`
    # (C, A) of deciding a where c is true, of `ratio`; A is C, or C + 1 with a column for no decision; (0, 0) without
    # costs
    cost: Floats

    def decide(self, p: Floats, thresholds: Floats) -> NDArray[Any]:
        """Return the classes (N,) int64, -1 for none; of `labels` (N, C) bool.

        >>> rule = DecisionRule("positive", 1, np.zeros((0, 0), np.float32))
        >>> rule.decide(np.array([[0.7, 0.3], [0.9, 0.1]], np.float32), np.float32(0.3)).tolist()
        [1, 0]
        """
        if self.kind == "labels":
            reached: NDArray[np.bool_] = p >= thresholds
            return reached
        if self.kind == "positive":
            moved = np.array(p)
            moved[:, self.positive] += np.where(p[:, self.positive] >= thresholds, np.float32(2), np.float32(-2))
            return np.asarray(moved.argmax(axis=1), np.int64)
        if self.kind == "sure":
            first = p.argmax(axis=1)
            return np.where(p.max(axis=1) >= thresholds[first], first, -1)
        scores = self.scores(p, thresholds)
        actions = np.asarray(scores.argmax(axis=1), np.int64)
        return np.where(actions == p.shape[1], -1, actions)

    def scores(self, p: Floats, thresholds: Floats) -> Floats:
        """Return the score of each action, (N, A): minus its cost under p / thresholds, or p / thresholds."""
        ratios: Floats = p / thresholds
        return -(ratios @ self.cost) if self.cost.size else ratios


def confusion(decided: NDArray[Any], labels: NDArray[np.int64], classes: int) -> Counts:
    """Count samples by true class and decision, (C, C + 1), a column for none; of labels (C, 2, 2), absent first."""
    if decided.ndim == 2:
        cells = 2 * labels + decided
        counts = np.stack([(cells == k).sum(axis=0) for k in range(4)], axis=1)
        return counts.reshape(-1, 2, 2)
    column = np.where(decided < 0, classes, decided)
    return np.bincount(labels * (classes + 1) + column, minlength=classes * (classes + 1)).reshape(classes, classes + 1)


def goal_value(counts: Counts, goal: str, cost: Floats | None = None) -> NDArray[np.float64]:
    """Return what is to be maximised, for counts (..., C, A) of true classes and decisions; the last class is positive.

    `counts`: A is C or C + 1, with a column for no decision; `goal`: f1, macro-f1, balanced-accuracy, mcc or cost,
    whose mean is negative here; `cost`: (C, A) of it.
    """
    n = counts.astype(np.float64)
    classes = n.shape[-2]
    right = np.diagonal(n[..., :classes], axis1=-2, axis2=-1)
    true, decided = n.sum(axis=-1), n.sum(axis=-2)[..., :classes]
    total = np.maximum(true.sum(axis=-1), 1)
    if goal == "cost":
        assert cost is not None  # noqa: S101 - a cost is of a matrix
        return np.asarray(-(n[..., : cost.shape[1]] * cost).sum(axis=(-2, -1)) / total)
    if goal in ("f1", "macro-f1"):
        f1 = 2 * right / np.maximum(true + decided, 1)
        return np.asarray(f1[..., -1] if goal == "f1" else _mean(f1, true + decided > 0))
    if goal == "balanced-accuracy":
        return _mean(right / np.maximum(true, 1), true > 0)
    joint = total * right.sum(axis=-1) - (true * decided).sum(axis=-1)
    spread = (total**2 - (true**2).sum(axis=-1)) * (total**2 - (decided**2).sum(axis=-1))
    return np.asarray(joint / np.sqrt(np.maximum(spread, 1)))


def _mean(values: NDArray[np.float64], where: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.asarray((values * where).sum(axis=-1) / np.maximum(where.sum(axis=-1), 1))


def _of_one(counts: Counts, rule: DecisionRule) -> Counts:
    """Return counts of which the last class is the positive one: of one class (2, 2), of labels (C, 2, 2)."""
    if rule.kind != "positive":
        return counts
    k = rule.positive
    hits, true, decided = counts[..., k, k], counts[..., k, :].sum(axis=-1), counts[..., :, k].sum(axis=-1)
    rest = counts.sum(axis=(-2, -1)) - true - decided + hits
    return np.stack([np.stack([rest, decided - hits], -1), np.stack([true - hits, hits], -1)], -2)


def _best_cut(scores: Floats, positive: NDArray[np.bool_], goal: str) -> np.float32:
    """Return the threshold that is best for a goal of two classes: between the scores of two samples."""
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    hits = np.concatenate([[0], np.cumsum(positive[order])])
    flagged = np.arange(len(scores) + 1)
    # samples of one score are flagged together
    cuts = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True)) + 1
    if len(cuts) > 1:
        cuts = cuts[:-1]  # all samples alike are no decision
    hits, flagged = hits[cuts], flagged[cuts]
    true, n = int(positive.sum()), len(scores)
    counts = np.stack([n - true - flagged + hits, flagged - hits, true - hits, hits], -1).reshape(-1, 2, 2)
    cut = int(cuts[int(np.argmax(goal_value(counts, goal)))])
    last, following = ranked[cut - 1], ranked[min(cut, n - 1)]
    middle = np.float32((np.float64(last) + following) / 2)
    return max(middle, np.nextafter(following, np.float32(np.inf))) if following < last else last


def best_thresholds(rule: DecisionRule, p: Floats, labels: NDArray[np.int64], goal: str) -> Floats:
    """Return the thresholds that are best on samples: [] of `positive`, else (C,).

    `p`: (N, C) probabilities; `labels`: (N,), or (N, C) of 0 and 1 of several labels.
    """
    if rule.kind == "positive":
        return np.asarray(_best_cut(p[:, rule.positive], labels == rule.positive, goal), np.float32)
    if rule.kind == "labels":
        cut = [_best_cut(p[:, c], labels[:, c] == 1, goal) for c in range(p.shape[1])]
        # nothing is known of a label that all samples have, or none
        mixed = (labels.min(axis=0) == 0) & (labels.max(axis=0) == 1)
        return np.where(mixed, np.array(cut, np.float32), np.float32(0.5))
    n_samples = max(1, _MAX_NUMBERS // p.shape[1])
    p, labels = p[:n_samples], labels[:n_samples]
    classes = p.shape[1]
    if classes == 2:
        direction, reach = np.array([0.0, 1.0]), np.linspace(-6, 6, _STEPS)
    else:
        direction = np.log((np.bincount(labels, minlength=classes) + 0.5) / (len(labels) + 0.5 * classes))
        direction -= direction.max()
        reach = np.linspace(-1.5, 1.5, _STEPS)
    curve = np.exp(reach[:, None] * direction).astype(np.float32)
    cost = rule.cost if goal == "cost" else None
    values = [goal_value(confusion(rule.decide(p, t), labels, classes), goal, cost) for t in curve]
    # of several that are as good, the one nearest to plain probabilities
    near = np.abs(reach)
    best = int(np.lexsort((near, -np.array(values)))[0])
    return np.asarray(curve[best])


def crossfitted(rule: DecisionRule, p: Floats, labels: NDArray[np.int64], goal: str, seed: int = 0) -> NDArray[Any]:
    """Return decisions on each fifth of the samples by thresholds that are best on the others."""
    order = np.random.default_rng(seed).permutation(len(p))
    if labels.ndim == 1:
        # the same share of each class in each fold
        order = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(len(p), np.int64)
    fold[order] = np.arange(len(p)) % _FOLDS
    decided = rule.decide(p, best_thresholds(rule, p, labels, goal))
    for k in range(_FOLDS):
        out = fold == k
        if out.any() and not out.all():
            decided[out] = rule.decide(p[out], best_thresholds(rule, p[~out], labels[~out], goal))
    return decided


def goal_interval(
    rule: DecisionRule, decided: NDArray[Any], labels: NDArray[np.int64], goal: str, level: float, classes: int
) -> tuple[float, float, float]:
    """Return what decisions reach of a goal, and a percentile interval over samples that are drawn again."""
    cost = rule.cost if goal == "cost" else None
    rng = np.random.default_rng(0)
    counts = confusion(decided, labels, classes)
    n = len(labels)
    if decided.ndim == 2:
        cells = np.eye(4, dtype=np.float32)[2 * labels + decided].reshape(n, -1)
        draws = np.stack([rng.multinomial(n, np.full(n, 1 / n)) @ cells for _ in range(_DRAWS)])
        counts_drawn = draws.reshape(_DRAWS, classes, 2, 2)
    else:
        occupied = np.flatnonzero(counts)
        drawn = rng.multinomial(n, counts.reshape(-1)[occupied] / n, _DRAWS)
        counts_drawn = np.zeros((_DRAWS, counts.size), np.int64)
        counts_drawn[:, occupied] = drawn
        counts_drawn = counts_drawn.reshape(_DRAWS, *counts.shape)
    value = float(np.mean(goal_value(_of_one(counts, rule), goal, cost)))
    values = goal_value(_of_one(counts_drawn, rule), goal, cost).reshape(_DRAWS, -1).mean(axis=1)
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return value, float(low), float(high)


def bounded_threshold(
    scores: Floats, positive: NDArray[np.bool_], bound: str, level: float, delta: float
) -> np.float32 | None:
    """Return the threshold with a bounded recall, precision or false positive rate; None where none has.

    It is the highest for a recall, and the lowest for the others: as few false alarms, or as many hits, as can be.

    `scores`: (N,) probabilities of a class; it is decided where they reach the threshold. `positive`: (N,) whether
    samples have the class. `level`: smallest recall or precision, or largest false positive rate, in (0, 1). `delta`:
    probability with which the promise may be broken.
    """
    if bound == "precision":
        threshold = accept_above(scores, positive, 1 - level, delta)
        return None if threshold is None else np.float32(threshold)
    if bound == "recall":
        return _ranked(scores[positive], 1 - level, delta)
    highest = _ranked(-scores[~positive], level, delta)
    return None if highest is None else np.float32(np.nextafter(-highest, np.float32(np.inf)))


def _ranked(values: Floats, share: float, delta: float) -> np.float32 | None:
    """Return the largest of n values so that with certainty at most this share lies below it; None for none."""
    from scipy.special import bdtr  # noqa: PLC0415 - heavy

    n = len(values)
    rank = int(np.count_nonzero(bdtr(np.arange(n), n, share) <= delta))
    if rank == 0:
        return None
    return np.float32(np.sort(values)[rank - 1])


def needed_for(bound: str, level: float, delta: float) -> int:
    """Return how many samples it takes at least: with the class for a recall, without it for a false positive rate, and
    decided without an error for a precision.

    >>> needed_for("recall", 0.95, 0.05)
    59
    """
    if bound == "precision":
        return errorless_needed(1 - level, delta)
    return math.ceil(math.log(delta) / math.log(level if bound == "recall" else 1 - level))


def reachable_bound(scores: Floats, positive: NDArray[np.bool_], bound: str, delta: float) -> float | None:
    """Return the best bound that samples can give, a fraction; None where they can give none."""
    if bound == "precision":
        risk = lowest_risk(scores, positive, delta)
        return None if risk is None else 1 - risk
    n = int(np.count_nonzero(positive if bound == "recall" else ~positive))
    if n == 0:
        return None
    best: float = delta ** (1 / n)
    return best if bound == "recall" else 1 - best


FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Recalls:
    """Recall of K classes, those with a sample."""

    # (K,) number of each; of C labels, c for the samples with label c and C + c for those without it
    classes: NDArray[np.int64]
    # (K,) how many samples each has; with weights, how many of equal weight would know its recall as well
    samples: NDArray[np.int64]
    # (K,) how many of them are independent: as `samples`, and no more than clusters with the class
    independent: NDArray[np.int64]
    before: FloatArray  # (K,) share of them that was predicted right
    after: FloatArray  # (K,) share of them that is predicted right now
    # (K,) sums of squared changes, of clusters where there are any: n_c^2 times the variance of the change
    squares: FloatArray
    balanced_error: float  # standard error of the change of the balanced accuracy

    @classmethod
    def of(cls, before: SampleScores, after: SampleScores) -> Recalls:
        """Compare the answers to the same samples; `before` has their labels.

        >>> hit, zero = np.array([True, True, False]), np.zeros(3, np.float32)
        >>> old = SampleScores(zero, hit, zero, zero, labels=np.array([0, 0, 2]))
        >>> new = SampleScores(zero, ~hit, zero, zero)
        >>> both = Recalls.of(old, new)
        >>> both.classes.tolist(), both.change.tolist(), both.balanced_before, both.balanced_after
        ([0, 2], [-1.0, 1.0], 0.5, 0.5)
        """
        if before.weights is not None:
            # a class without weight has no recall, and no say
            before, after = (scores.take(before.weights > 0) for scores in (before, after))
        labels, clusters = _groups(before)
        old, new = (scores.right.reshape(-1).astype(np.float64) for scores in (before, after))
        classes, place = np.unique(labels, return_inverse=True)
        weights = np.repeat(before.weigh(np.ones(len(before))), len(place) // len(before))
        if before.weights is not None:
            # relative to the largest of a class: equal ones count as samples do, and not all squares are zero
            largest = np.zeros(len(classes))
            np.maximum.at(largest, place, weights)
            weights = weights / largest[place]
        mass = np.bincount(place, weights)
        # as many of equal weight as would know a recall as well
        count: NDArray[Any] = mass**2 / np.bincount(place, weights**2)
        weights = weights * (count / mass)[place]
        first, second = (np.bincount(place, weights * hits) / count for hits in (old, new))
        deviations = weights * (new - old - (second - first)[place])
        squares, groups = _by_cluster(deviations, place, len(classes), clusters)
        weighted = deviations / (len(classes) * count[place])
        total = weighted if clusters is None else cluster_sums(weighted, clusters)
        return cls(classes, count, np.minimum(count, groups), first, second, squares, math.sqrt(float(total @ total)))

    @property
    def change(self) -> FloatArray:
        """(K,) recall after less recall before."""
        return self.after - self.before

    @property
    def error(self) -> FloatArray:
        """(K,) standard error of the change."""
        error: FloatArray = np.sqrt(self.squares) / self.samples
        return error

    @property
    def balanced_before(self) -> float:
        """Balanced accuracy before."""
        return float(np.mean(self.before))

    @property
    def balanced_after(self) -> float:
        """Balanced accuracy after."""
        return float(np.mean(self.after))

    def ends(self, z: float) -> tuple[FloatArray, FloatArray]:
        """Return the ends of the intervals of the changes, (K,): z standard errors, with one sample won and one lost.

        Without these two, the interval would be too narrow where few samples of a class change sides, or none.
        Source: Bonett & Price (2012), "Adjusted Wald confidence interval for a difference of binomial proportions
        based on paired data".
        """
        n = self.samples
        middle = self.change * n / (n + 2)
        squares = self.squares + n * self.change**2 + 2 - (n + 2) * middle**2
        reach = z * np.sqrt(squares) / (n + 2)
        # of few samples these two draw the middle far away from the change
        return np.minimum(self.change, middle - reach), np.maximum(self.change, middle + reach)

    def balanced_ends(self, z: float) -> tuple[float, float]:
        """Return the same of the balanced accuracy: half a sample of each class that changes sides is added.

        A class of ten samples weighs as much as one of a thousand, and often shows no change where there is one.
        """
        change = self.balanced_after - self.balanced_before
        unseen = float(np.sum(0.5 / self.samples.astype(np.float64) ** 2)) / len(self.samples) ** 2
        reach = z * math.sqrt(self.balanced_error**2 + unseen)
        return change - reach, change + reach


def _groups(scores: SampleScores) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Return the class of each prediction, and which predictions depend on one another."""
    if scores.predicted is None:
        if scores.labels is None:
            raise ValueError("the labels of the samples are needed")
        return scores.labels, scores.clusters
    n, count = scores.hit.shape
    holds = scores.hit == scores.predicted
    ranks = np.where(holds, 0, count) + np.arange(count)
    clusters = np.arange(n) if scores.clusters is None else scores.clusters
    return ranks.reshape(-1), np.repeat(clusters, count)


def _by_cluster(
    deviations: FloatArray, place: NDArray[Any], k: int, clusters: NDArray[np.int64] | None
) -> tuple[FloatArray, NDArray[np.int64]]:
    """Return for each of k classes the squared sums of its clusters, added up, and the number of these clusters."""
    if clusters is None:
        return np.asarray(np.bincount(place, deviations**2, k), np.float64), np.bincount(place, minlength=k)
    _, number = np.unique(clusters, return_inverse=True)
    pairs, pair = np.unique(place * (number.max() + 1) + number, return_inverse=True)
    classes = pairs // (number.max() + 1)
    squares = np.asarray(np.bincount(classes, np.bincount(pair, deviations) ** 2, k), np.float64)
    return squares, np.bincount(classes, minlength=k)
