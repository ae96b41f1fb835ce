"""Per-sample scores of a classifier (`SampleScores`), from logits or probabilities; they are all that metrics need.

    confidence = max_c p_c     hit = (argmax_c s_c == y)     nll = -log p_y     brier = sum_c (p_c - [c == y])^2

Of several labels each has these by itself, in fields (N, C): p = 1 / (1 + exp -s), predicted = (s > 0),
confidence = max(p, 1 - p), brier = (p - y)^2. Scores of chunks add up to the scores of the whole, in float32.

`numpy_terms`, s less its largest: sums of e_c = exp s_c and e_c^2 leave the largest out, which is added in float64; the
others are summed in the dtype of the logits in runs of at most 256 classes. No e_c is taken below the root of the
smallest normal number, since processors are slow there: that moves a sum by less than 1e-12 for a million classes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import UnsupportedModel
from tna_onnx.numerics.ops import (
    ArrayOps,
    SoftLabels,
    WeightedLabels,
    namespace,
    own_column,
    plain_labels,
    row_max,
    row_sum,
    rows_of,
    sigmoid,
    to_host,
)

Terms = tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.float32], NDArray[np.float32]]
"""Confidence, hit, NLL and Brier score of samples (`SampleScores`)."""

# Classes that are summed in the dtype of the logits.
_RUN = 256

# Classes up to which arrays are turned over, since NumPy is slow along short rows.
_NARROW = 64


def numpy_terms(logits: NDArray[Any], labels: NDArray[Any]) -> Terms:
    """Return the scores of (N, C) logits against (N,) labels."""
    # exponentials of float16 would have three digits
    if logits.dtype == np.float16:
        logits = logits.astype(np.float32)
    if logits.shape[1] <= _NARROW:
        return _narrow(logits, labels)
    return _wide(logits, labels)


def _wide(logits: NDArray[Any], labels: NDArray[Any]) -> Terms:
    rows = np.arange(len(logits))
    first = np.argmax(logits, axis=1)
    shifted = logits - logits[rows, first][:, None]
    label_logits = shifted[rows, labels]
    _take_exponentials(shifted)
    ones = shifted[rows, first]  # or not a number, where a logit is infinite
    shifted[rows, first] = 0
    total, squares = _sums_of_runs(shifted)
    return terms(label_logits, ones + total, ones + squares, first == labels)


def _narrow(logits: NDArray[Any], labels: NDArray[Any]) -> Terms:
    by_class = logits.T.copy()
    by_class -= by_class.max(axis=0)
    label_logits = by_class[labels, np.arange(len(logits))]
    # down columns, finding all of the largest takes less time than finding the first
    largest = by_class == 0
    # mostly every row has one largest
    tied = np.count_nonzero(largest) != len(label_logits)
    hits = label_logits == 0
    ones: Any = 1
    if tied:
        hits = np.argmax(largest, axis=0) == labels
        ones = np.sum(largest, axis=0)
    _take_exponentials(by_class)
    np.copyto(by_class, 0, where=largest)
    total, squares = _sums_of_columns(by_class)
    return terms(label_logits, ones + total, ones + squares, hits)


def _take_exponentials(shifted: NDArray[Any]) -> None:
    least = _least_exponent(shifted.dtype)
    # cutting takes as long as the exponentials, and mostly there is nothing to cut
    if np.min(shifted, initial=0.0) < least:
        np.maximum(shifted, least, out=shifted)
    np.exp(shifted, out=shifted)


@functools.cache
def _least_exponent(dtype: np.dtype[Any]) -> float:
    """Return s of the least exp s with a square that is a normal number."""
    return math.ceil(math.log(np.finfo(dtype).tiny) / 2)


def terms(label_logits: NDArray[Any], total: NDArray[Any], squares: NDArray[Any], hits: NDArray[np.bool_]) -> Terms:
    """Put the scores together: (N,) s_y, sum of e_c, sum of e_c^2, hits."""
    # the exponential of the largest logit is 1
    confidence = 1 / total
    nll = np.log(total) - label_logits
    # sum_c (p_c - [c == y])^2 multiplied out: sum p^2 - 2 p_y + 1
    brier = squares * confidence**2 - 2 * np.exp(label_logits) * confidence + 1
    return confidence.astype(np.float32), hits, nll.astype(np.float32), brier.astype(np.float32)


def _sums_of_columns(values: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sums, and sums of squares, over the first axis."""
    # one row after the other, which `sum` would not do for a lone sample
    total = values[0].copy()
    squares = values[0] ** 2
    for row in values[1:]:
        total += row
        squares += row * row
    return total.astype(np.float64), squares.astype(np.float64)


def _sums_of_runs(values: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sums, and sums of squares, over the second axis."""
    xp = namespace(values)
    samples, classes = values.shape
    in_runs = classes - classes % _RUN
    remainder = values[:, in_runs:]
    total = np.einsum("nc->n", remainder).astype(np.float64)
    squares = xp.vecdot(remainder, remainder).astype(np.float64)
    if in_runs:
        # a view: rows are cut, and not moved
        runs = values[:, :in_runs].reshape(samples, -1, _RUN)
        total += np.einsum("nrc->nr", runs).sum(axis=1, dtype=np.float64)
        squares += xp.vecdot(runs, runs).sum(axis=1, dtype=np.float64)
    return total, squares


SUM_TOLERANCE = 1e-2
"""A thousand float16 probabilities, each rounded by up to 2^-11 of itself, add up to 1 well within this."""

# Of 8 bits and more; votes, which come in larger ones, add up to 1.
_LARGEST_STEP = 0.01

# A forest's share of class 0 is 1 less a sum in float32 of the others, which ends a little above 1: no sign of logits.
_ROUNDING = 1e-5


class NotProbabilities(UnsupportedModel):
    """Values that should be probabilities lie outside of 0 to 1, or do not add up to 1."""


def distributions(p: NDArray[Any], quantum: float | None = None) -> bool:
    """Whether each row of (N, C) values is a distribution, but for rounding: not negative, and adding up to 1.

    A quantiser rounds each class to a multiple of its step, `quantum`. Rows with NaN are not looked at.
    """
    step = quantum or 0.0
    slack = max(SUM_TOLERANCE, p.shape[1] * step / 2 if step < _LARGEST_STEP else 0)
    return not (np.any(p < -_ROUNDING) or np.any(np.abs(p.sum(axis=1) - 1) > slack))


def are_shares(p: NDArray[Any]) -> bool:
    """Whether all values lie in 0 to 1, but for rounding; NaN is not looked at."""
    return not (np.any(p < -_ROUNDING) or np.any(p > 1 + _ROUNDING))


# A quantum is taken for no more than this, or one voter would make 1/4 and 3/4 of 0 and 1.
_LARGEST_QUANTUM = 0.1


def resolution_of(quantum: float | None, n_classes: int) -> float:
    """Return d of p' = (p + d) / (1 + C d), for probabilities in steps of a quantum: one more, shared by C classes.

    A p of 0 says "less than a quantum", no more; log p' has a size that a fit can use. p' rises strictly with p.

    >>> resolution_of(1 / 256, 2) == 1 / 512, resolution_of(0, 2)
    (True, 0.0)
    """
    return min(quantum or 0.0, _LARGEST_QUANTUM) / n_classes


# Finer grids than this look like floats.
_MOST_STEPS = 1000
# Fewer numbers lie on a grid by chance.
_LEAST_ON_GRID = 100


def grid_of(p: NDArray[Any]) -> float:
    """Return the step 1/m of the grid on which all probabilities lie, with some between 0 and 1; 0 where none is.

    >>> grid_of(np.tile([0.2, 0.8, 1.0, 0.0], 25))
    0.2
    """
    values = np.unique(np.asarray(p, np.float64))
    if np.size(p) < _LEAST_ON_GRID or np.all((values < _ROUNDING) | (values > 1 - _ROUNDING)):
        return 0.0
    for steps in range(2, _MOST_STEPS + 1):
        scaled = values * steps
        if np.all(np.abs(scaled - np.round(scaled)) <= _ROUNDING * steps):
            return 1 / steps
    return 0.0


def resolved_logits(logits: NDArray[Any], d: float, *, labels: bool = False) -> NDArray[Any]:
    """Return the logits of p' from (N, C) log p, or from logits of labels; of classes, but for one number a sample."""
    if labels:
        p, complement = sigmoid(logits), sigmoid(-logits)
        return np.asarray(np.log(p + d) - np.log(complement + d), logits.dtype)
    return np.asarray(np.log(np.exp(logits) + logits.dtype.type(d)))


def log_probabilities(p: NDArray[Any], quantum: float | None = None) -> NDArray[Any]:
    """Return log p of (N, C) probabilities in their dtype; of 0, the logarithm of its smallest normal number.

    Raises NotProbabilities: the values are none.

    >>> log_probabilities(np.array([[1.0, 0.0]])).round(1).tolist()
    [[0.0, -708.4]]
    """
    if not distributions(p, quantum):
        raise NotProbabilities("the values are no probabilities: some are negative, or do not add up to 1")
    logs: NDArray[Any] = np.log(np.clip(p, np.finfo(p.dtype).tiny, 1))
    return logs


def as_two_classes(logits: Any, labels: Any) -> tuple[Any, Any]:
    """Return the C labels of each sample as samples of two classes: logits (N C, 2), the first 0, and labels (N C,).

    Logits (N, C) of one class a sample, with labels (N,), are returned as they are.

    >>> as_two_classes(np.array([[0.5, -2.0]]), np.array([[1, 0]]))[0].tolist()
    [[0.0, 0.5], [0.0, -2.0]]
    """
    if labels.ndim == 1:
        return logits, labels
    if isinstance(labels, WeightedLabels):
        column, flat = as_two_classes(logits, labels.labels)
        return column, WeightedLabels(flat, np.repeat(labels.weights, labels.labels.shape[1]))
    xp = namespace(logits)
    column = xp.reshape(logits, (-1, 1))
    return xp.concat([xp.zeros_like(column), column], axis=1), labels.reshape(-1)


def label_logits(p: NDArray[Any]) -> NDArray[Any]:
    """Return log p - log (1 - p) of (N, C) probabilities, cut as in `SampleScores.of_probabilities`; `graph.rewrite`
    writes it so.

    Raises NotProbabilities: the values are none.
    """
    if not are_shares(p):
        raise NotProbabilities("the values are no probabilities: some are negative, or larger than 1")
    least = np.finfo(p.dtype).eps / 4
    logits: NDArray[Any] = np.log(np.clip(p, least, 1)) - np.log(np.clip(1 - p, least, 1))
    return logits


@dataclass(frozen=True, eq=False)
class SampleScores:
    """Scores of N samples, NumPy arrays of shape (N,); (N, C) where a sample has several labels."""

    confidence: NDArray[np.float32]  # float32 in (0, 1], probability of the predicted class
    hit: NDArray[np.bool_]  # bool, whether the predicted class is the label
    nll: NDArray[np.float32]  # float32 in nats, negative log-likelihood of the label
    brier: NDArray[np.float32]  # float32 in [0, 2], sum over classes of (p - one-hot)^2; of labels, (p - y)^2
    # which of them depend on one another, (N,) integers, equal within a cluster: predictions for the parts of one
    # text, say. None where all are independent.
    clusters: NDArray[np.int64] | None = None
    # of several labels, (N, C) bool, whether each is predicted; None for one class a sample
    predicted: NDArray[np.bool_] | None = None
    # (N,) classes, where recall by class matters (`labelled`); of several labels, the others tell them
    labels: NDArray[np.int64] | None = None
    # (N,) float64, how much each sample counts; None where all count the same. With weights there are `clusters`, of
    # one sample each if need be: only their standard errors know weights.
    weights: NDArray[np.float64] | None = None
    # (N,) bool, whether the model's own decision, in an output with labels, is right; None where it is the likeliest
    decided: NDArray[np.bool_] | None = None

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether the answer is right: that of an output with labels, else the predicted class."""
        return self.hit if self.decided is None else self.decided

    @classmethod
    def of_logits(cls, logits: Any, labels: Any) -> SampleScores:
        """Score (N, C) logits (NumPy or torch, any float dtype) against (N,) integer labels.

        Labels (N, C) of 0 and 1 are several a sample, each with a logit of its own.

        Source: notation of the paper, section "Background"; Brier (1950).

        >>> SampleScores.of_logits(np.log([[0.8, 0.2]]), np.array([0])).confidence.round(4).tolist()
        [0.800000011920929]
        """
        labels = plain_labels(labels)
        if isinstance(labels, SoftLabels):
            return cls._of_soft(logits, labels)
        if np.ndim(labels) == 2:
            return _scores_of_label_logits(to_host(logits).astype(np.float64), to_host(labels) == 1)
        if isinstance(logits, np.ndarray):
            return cls(*numpy_terms(logits, labels))
        xp = namespace(logits)
        # exponentials of float16 would have three digits
        if logits.dtype == xp.float16:
            logits = xp.astype(logits, xp.float32)
        # the largest is 0: no exponential overflows, and their sum cannot vanish
        shifted = logits - row_max(logits)
        label_logits = own_column(shifted, labels)
        weights = xp.exp(shifted)
        total = row_sum(weights, double=True)
        squares = row_sum(weights * weights, double=True)
        columns = (xp.squeeze(column, axis=1) for column in (label_logits, total, squares))
        label_logits, total, squares = (to_host(column) for column in columns)
        return cls(*terms(label_logits, total, squares, _hits(xp.argmax(logits, axis=1), labels)))

    @classmethod
    def _of_soft(cls, logits: Any, labels: SoftLabels) -> SampleScores:
        """Score logits against probabilities: NLL and Brier score are means over labels, hits are of the drawn ones."""
        scores = cls.of_logits(logits, labels.labels)
        xp = namespace(logits)
        wide = xp.astype(logits, xp.float64)
        p = ArrayOps(wide).softmax(wide)
        # a score is linear in s_y, or p_y
        moved = (own_column(values, labels.labels) - own_column(values, labels) for values in (wide, p))
        nll, brier = (to_host(column)[:, 0] for column in moved)
        return replace(
            scores, nll=(scores.nll + nll).astype(np.float32), brier=(scores.brier + 2 * brier).astype(np.float32)
        )

    @classmethod
    def of_probabilities(cls, probabilities: Any, labels: Any) -> SampleScores:
        """Score (N, C) probabilities as a model gave them; log p is cut at the smallest normal number of their dtype.

        In float16 it is cut at half of the smallest number: what was rounded to 0 is no larger, and smaller numbers
        than normal ones are common. Labels (N, C) of 0 and 1 are several a sample.
        """
        if np.ndim(labels) == 2:
            return _scores_of_label_probabilities(to_host(probabilities), to_host(labels) == 1)
        xp = namespace(probabilities)
        half = probabilities.dtype == xp.float16
        least = 2.0**-25 if half else float(xp.finfo(probabilities.dtype).smallest_normal)
        # probabilities are not divided by their sum: they are scored as the model gives them
        p = xp.astype(probabilities, xp.float64)
        label_p = xp.squeeze(own_column(p, labels), axis=1)
        return cls(
            confidence=to_host(row_max(p)[:, 0]).astype(np.float32),
            hit=_hits(xp.argmax(p, axis=1), labels),
            nll=to_host(-xp.log(xp.clip(label_p, least, None))).astype(np.float32),
            brier=to_host(row_sum(p * p)[:, 0] - 2 * label_p + 1).astype(np.float32),
        )

    def resolved(self, d: float, n_classes: int) -> SampleScores:
        """Return the same scores with the NLL of p' (`resolution_of`); all else is of the probabilities as they are."""
        if not d:
            return self
        classes = 2
        if self.predicted is None:
            classes = n_classes
        label_p = np.exp(-self.nll.astype(np.float64))
        return replace(self, nll=-np.log((label_p + d) / (1 + classes * d)).astype(np.float32))

    def __add__(self, addend: SampleScores) -> SampleScores:
        """Concatenate the scores of two chunks."""
        return SampleScores.concatenate([self, addend])

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.confidence)

    @classmethod
    def concatenate(cls, chunks: list[SampleScores]) -> SampleScores:
        """Join chunks in their order; one copy however many there are."""
        columns: dict[str, Any] = {}
        for field in fields(cls):
            parts = [getattr(chunk, field.name) for chunk in chunks]
            # what a chunk does not have, the whole does not have
            columns[field.name] = None if any(part is None for part in parts) else np.concatenate(parts)
        return cls(**columns)

    @classmethod
    def in_places(cls, places: list[NDArray[np.intp]], parts: list[SampleScores]) -> SampleScores:
        """Join parts whose samples lie at `places`, which together are all samples, each once."""
        return cls.concatenate(parts).take(np.argsort(np.concatenate(places)))

    def take(self, rows: NDArray[Any] | slice) -> SampleScores:
        """Return the scores of the chosen rows: integer indices, a (N,) bool mask, or a slice."""
        return SampleScores(*(rows_of(column, rows) for column in vars(self).values()))

    def clustered(self, clusters: NDArray[np.int64] | None, weights: NDArray[np.float64] | None = None) -> SampleScores:
        """Return the same scores with their clusters and weights, (N,) each."""
        if clusters is None:
            return self
        return replace(self, clusters=clusters, weights=weights)

    @property
    def total(self) -> float:
        """Sum of the weights; the number of samples where all count the same."""
        if self.weights is None:
            return len(self)
        return float(np.sum(self.weights))

    def weigh(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values times the weights of their samples, (N,) or (N, ...)."""
        if self.weights is None:
            return values
        weighted: NDArray[Any] = values * self.weights.reshape(-1, *[1] * (values.ndim - 1))
        return weighted

    def mean(self, name: str) -> float:
        """Return the mean of a field."""
        return weighted_mean(getattr(self, name), self.weights)

    def labelled(self, labels: NDArray[np.int64], answers: NDArray[np.int64] | None = None) -> SampleScores:
        """Return the same scores with the classes of the samples, (N,); with several labels, (N, C), as they are.

        `answers`: (N,) classes that an output with labels gives, if there is one.
        """
        if labels.ndim == 2:
            return self
        if answers is None:
            return replace(self, labels=labels)
        return replace(self, labels=labels, decided=answers == labels)

    def by_label(self) -> Iterator[SampleScores]:
        """Yield the scores of each label, (N,): its probability as the confidence, whether it holds as the hit.

        Scores of one class a sample are yielded as they are.
        """
        if self.predicted is None:
            yield self
            return
        probability = np.where(self.predicted, self.confidence, 1 - self.confidence)
        holds = self.hit == self.predicted
        for c in range(probability.shape[1]):
            columns = (probability[:, c], holds[:, c], self.nll[:, c], self.brier[:, c])
            yield SampleScores(*columns).clustered(self.clusters, self.weights)

    def decisions(self) -> SampleScores:
        """Return the same with each label's prediction as a sample of its own, (N C,)."""
        if self.predicted is None:
            return self
        count = self.hit.shape[1]
        weights = None if self.weights is None else np.repeat(self.weights, count)
        flat = SampleScores(
            self.confidence.reshape(-1), self.hit.reshape(-1), self.nll.reshape(-1), self.brier.reshape(-1)
        )
        return flat.clustered(np.repeat(self._owners, count), weights)

    def pooled(self) -> SampleScores:
        """Return the scores of all labels as one set, (N C,), those of a sample in a cluster; see `by_label`."""
        if self.predicted is None:
            return self
        together = SampleScores.concatenate(list(self.by_label()))
        return together.clustered(np.tile(self._owners, self.predicted.shape[1]), together.weights)

    @property
    def _owners(self) -> NDArray[np.int64]:
        """What the labels of a sample depend on one another in: its cluster, or the sample itself, (N,)."""
        if self.clusters is None:
            return np.arange(len(self))
        return self.clusters


def _scores_of_label_logits(logits: NDArray[np.float64], holds: NDArray[np.bool_]) -> SampleScores:
    """Score (N, C) logits of labels, each by itself, against whether it holds."""
    predicted = logits > 0
    hit = predicted == holds
    # the exponential of the smaller of s and -s: none overflows
    small = np.exp(-np.abs(logits))
    confidence = 1 / (1 + small)
    # where the label is the other one, its logit is -|s|
    nll = np.log1p(small) + np.where(hit, 0, np.abs(logits))
    brier = np.where(hit, small * confidence, confidence) ** 2
    return _label_scores(confidence, hit, nll, brier, predicted)


def _scores_of_label_probabilities(probabilities: NDArray[Any], holds: NDArray[np.bool_]) -> SampleScores:
    """Score (N, C) probabilities of labels as a model gave them, against whether each holds.

    Logarithms are cut at half of the dtype's step below 1: a p that was rounded to 1 says no more than that, and one
    near 0 that a runtime's sigmoid gives is as far off.
    """
    p = probabilities.astype(np.float64)
    predicted = p > 0.5
    label_p = np.where(holds, p, 1 - p)
    nll = -np.log(np.maximum(label_p, np.finfo(probabilities.dtype).eps / 4))
    return _label_scores(np.maximum(p, 1 - p), predicted == holds, nll, (1 - label_p) ** 2, predicted)


def _label_scores(
    confidence: NDArray[Any],
    hit: NDArray[np.bool_],
    nll: NDArray[Any],
    brier: NDArray[Any],
    predicted: NDArray[np.bool_],
) -> SampleScores:
    columns = (confidence.astype(np.float32), hit, nll.astype(np.float32), brier.astype(np.float32))
    return SampleScores(*columns, predicted=predicted)


def weighted_mean(values: NDArray[Any], weights: NDArray[np.float64] | None = None) -> float:
    """Return the mean of (N,) or (N, C) values, each row counting as much as its weight.

    >>> weighted_mean(np.array([1.0, 4.0])), weighted_mean(np.array([1.0, 4.0]), np.array([2.0, 1.0]))
    (2.5, 2.0)
    """
    if weights is None:
        return float(np.mean(values, dtype=np.float64))
    rows = values.reshape(len(values), -1).mean(axis=1, dtype=np.float64)
    return float(weights @ rows / np.sum(weights))


def cluster_sums(values: NDArray[Any], clusters: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the sums over each cluster, (K,) or (K, B), of (N,) or (N, B) values; clusters in ascending order.

    >>> cluster_sums(np.array([1.0, 2.0, 4.0]), np.array([7, 3, 7])).tolist()
    [2.0, 5.0]
    """
    order = np.argsort(clusters, kind="stable")
    ordered = clusters[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    sums: NDArray[np.float64] = np.add.reduceat(values[order].astype(np.float64), starts, axis=0)
    return sums


def mean_and_error(
    values: NDArray[np.float64], clusters: NDArray[np.int64] | None = None, weights: NDArray[np.float64] | None = None
) -> tuple[float, float]:
    """Return the mean of (N,) values and its standard error, infinite for a single cluster.

    `clusters`: of the values, (N,); None where they are independent. `weights`: of the values, (N,), where they have
    clusters; None where all count the same.

    >>> mean_and_error(np.array([1.0, 1.0, 3.0, 3.0]), np.array([0, 0, 1, 1]))
    (2.0, 1.0)
    """
    if clusters is None:
        return float(np.mean(values)), float(np.std(values)) / math.sqrt(len(values))
    mean = weighted_mean(values, weights)
    deviations = values - mean
    total: float = len(values)
    if weights is not None:
        deviations = weights * deviations
        total = float(np.sum(weights))
    deviations = cluster_sums(deviations, clusters)
    count = len(deviations)
    if count < 2:
        return mean, math.inf
    return mean, math.sqrt(count / (count - 1) * float(np.sum(deviations**2))) / total


def _hits(predicted: Any, labels: Any) -> NDArray[np.bool_]:
    hits: NDArray[np.bool_] = to_host(predicted) == to_host(labels)
    return hits
