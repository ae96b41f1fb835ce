"""Smoothed isotonic regression: each class's probability through its own non-decreasing function, after a temperature.

    p = softmax(s / T)        p' = f(p) / sum_c f_c(p_c)        result s_c / T + g_c(p_c),  g_c(p) = log f_c(p) / p

T is the temperature of TS, and f_c the isotonic regression of [y = c] on p_c (`numerics.isotonic`); f_c(p) = p where
fewer than 25 samples are of class c and fewer than 25 were expected. g_c is a chain of ramps, constant outside of its
knots. With many classes, or where most have few samples, `TopVersusAll` takes the place of all these functions.
`IsotonicOneVsAll` is the published method, for the tables that compare with it; `auto` does not look at it.
Source: Zadrozny & Elkan (2002), "Transforming classifier scores into accurate multiclass probability estimates".
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tna_onnx.maps.base import CalibrationMap, Reduce, SampleColumns, listed_classes
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.isotonic import CENTRES, expit, isotonic_log_odds, thinned
from tna_onnx.numerics.ops import ArrayOps, Ops, class_counts, namespace, plain_labels, to_host, weigh, weights_of

Knots = tuple[tuple[float, ...], tuple[float, ...]]
"""(x, y), K values each, x ascending, K >= 1."""


def knot_counts(functions: Sequence[Knots], of: str) -> dict[str, int]:
    """Return how many knots there are, and how many one has at most of what has a function each: a class, a label."""
    sizes = [len(x) for x, _ in functions]
    return {"knots": sum(sizes), f"most_knots_of_a_{of}": max(sizes)}


def chain(op: Ops, x: Any, functions: Sequence[Knots]) -> Any:
    """Return the value of each column's function at x, (N, C) with C functions or (N, 1) with one.

    A function is linear between knots: y_0 + sum_k clip(a_k x + b_k, 0, 1) d_k, a = 1 / (x_{k+1} - x_k), b = -a x_k.

    Functions of one knot each are constants: then the value has the shape [C].
    """
    columns = []
    for knots, y in functions:
        ramps = []
        for (low, high), (below, above) in zip(itertools.pairwise(knots), itertools.pairwise(y), strict=False):
            slope = 1 / (high - low)
            ramps.append((slope, -slope * low, above - below))
        columns.append(ramps)
    return _with_ramps(op, x, op.const(np.array([y[0] for _, y in functions])), columns)


def _with_ramps(op: Ops, x: Any, total: Any, columns: Sequence[Sequence[tuple[float, float, float]]]) -> Any:
    """Return the total plus the sum of clip(a x + b, 0, 1) d over the ramps (a, b, d) of each column."""
    # a column with fewer ramps has some of height zero
    for ramps in itertools.zip_longest(*columns, fillvalue=(0.0, 0.0, 0.0)):
        slope, offset, height = np.array(ramps).T
        ramp = op.clip(op.add(op.mul(x, op.const(slope)), op.const(offset)), 0.0, 1.0)
        total = op.add(total, op.mul(ramp, op.const(height)))
    return total


# A class that is this many times d/8 below the largest logit does not move up with it.
_UP = 8.0

# Half: what comes down keeps half of its lead.
_DOWN = 0.5

# Far more than log-odds of 9 can be off.
_MOST = 100.0


@dataclass(frozen=True)
class TopVersusAll(CalibrationMap):
    """Logits over `temperature`, the largest moved by a function d of its probability t: one function for all classes.

    d(t) = log-odds of f(t) less log-odds of t, f the isotonic regression of "the prediction is right" on t. With
    h_c = (max s - s_c) / T all logits move by clip(d - 8 h_c, 0, 100) - clip(-d - h_c / 2, 0, 100): by d where h_c = 0,
    and classes close to it move along, so that their order stays.
    Source: Le Coz, Herbin & Adjed (2024), "Confidence calibration of classifiers with many classes".
    """

    knots: Knots  # the pair (t, d)
    temperature: float = 1.0  # T

    # that it keeps the order is not said: the map of the same name for few classes does not
    name: ClassVar[str] = "isotonic"
    title: ClassVar[str] = "isotonic regression"
    rank: ClassVar[int] = 110
    positive: ClassVar[str] = "temperature"
    weighted: ClassVar[bool] = True

    @property
    def brief(self) -> dict[str, Any]:
        """The temperature, how many knots there are, and that all classes share them."""
        return {"temperature": self.temperature, "knots": len(self.knots[0]), "top_versus_all": 1}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return log p' up to a constant of each row."""
        scaled = op.mul(logits, op.const(1 / self.temperature))
        top = op.mul(op.min(op.mul(op.softmax(scaled), op.const(-1.0))), op.const(-1.0))
        below = op.add(scaled, op.min(op.mul(scaled, op.const(-1.0))))  # -h_c
        d = chain(op, top, [self.knots])
        up = op.clip(op.add(op.mul(below, op.const(_UP)), d), 0.0, _MOST)
        down = op.clip(op.add(op.mul(below, op.const(_DOWN)), op.mul(d, op.const(-1.0))), 0.0, _MOST)
        return op.add(op.add(scaled, up), op.mul(down, op.const(-1.0)))

    @classmethod
    def fit(cls, reduce: Reduce, *, start: float = 1.0) -> TopVersusAll:
        """Fit f to the logits over a temperature, `start`, by pooling adjacent violators."""
        temperature = start
        probability, hit, labels = reduce(functools.partial(_tops, temperature)).columns
        log_odds = isotonic_log_odds(probability, hit, weights_of(labels))
        x, d = thinned(expit(CENTRES), log_odds, log_odds - CENTRES)
        return cls((tuple(x.tolist()), tuple(d.tolist())), temperature)


def _tops(temperature: float, logits: Any, labels: NDArray[np.int64], *_: Any) -> SampleColumns:
    """Return the largest tempered probability, whether its class is the label, and the labels."""
    xp = namespace(logits)
    p = xp.max(ArrayOps(logits).softmax(logits * (1 / temperature)), axis=1)
    hit = to_host(xp.argmax(logits, axis=1)) == plain_labels(labels)
    return SampleColumns.of(np.asarray(to_host(p), np.float64), hit, labels)


# The standard error of a frequency among 25 is up to 0.1: fewer say next to nothing about a class's own function.
MIN_SAMPLES = 25

# One-vs-all divides by the sum of all functions: with many classes, the noise of the others is in every probability.
_MANY_CLASSES = 50

# What a class has that is left alone.
_UNCHANGED: Knots = ((0.5,), (0.0,))


@dataclass(frozen=True)
class SmoothedIsotonic(CalibrationMap):
    """Logits over `temperature`, plus a function of each class's probability."""

    # `knots[c]` is the pair (p, g): what is added to the logit of class c at the probability p
    knots: tuple[Knots, ...]
    temperature: float = 1.0  # T
    left_alone: tuple[int, ...] = ()  # classes with too few samples for a function of their own

    name: ClassVar[str] = "isotonic"
    title: ClassVar[str] = "isotonic regression"
    rank: ClassVar[int] = 110
    positive: ClassVar[str] = "temperature"
    weighted: ClassVar[bool] = True

    @property
    def brief(self) -> dict[str, Any]:
        """The temperature, how many knots there are and how many a class has at most, and the classes without any."""
        left_alone = listed_classes("classes_left_alone", self.left_alone)
        return {"temperature": self.temperature, **knot_counts(self.knots, "class"), **left_alone}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return log p' up to a constant of each row."""
        scaled = op.mul(logits, op.const(1 / self.temperature))
        return op.add(scaled, chain(op, op.softmax(scaled), self.knots))

    @classmethod
    def fit(
        cls, reduce: Reduce, *, start: SmoothedIsotonic | TopVersusAll | None = None
    ) -> SmoothedIsotonic | TopVersusAll:
        """Fit T by NLL, then each class by pooling adjacent violators, or all of them as one."""
        temperature = Temperature.fit(reduce, start=start).temperature
        count, expected = reduce(functools.partial(_class_sums, temperature))
        # a class that was expected often and never seen has much to say
        scarce = np.maximum(count, expected) < MIN_SAMPLES
        if len(scarce) >= _MANY_CLASSES or 2 * scarce.sum() > len(scarce):
            return TopVersusAll.fit(reduce, start=temperature)
        # isotonic regression sorts: it needs the probabilities of all samples together
        probabilities, labels = reduce(functools.partial(_probabilities, temperature)).columns
        knots = [_UNCHANGED] * len(scarce)
        for c in np.flatnonzero(~scarce):
            log_odds = isotonic_log_odds(probabilities[:, c], plain_labels(labels) == c, weights_of(labels))
            x, g = thinned(expit(CENTRES), log_odds, np.log(expit(log_odds) / expit(CENTRES)))
            knots[c] = (tuple(x.tolist()), tuple(g.tolist()))
        return cls(tuple(knots), temperature, tuple(np.flatnonzero(scarce).tolist()))


def _class_sums(temperature: float, logits: Any, labels: NDArray[np.int64], *_: Any) -> NDArray[np.float64]:
    """Sums over samples of onehot(y) and of the tempered p, (2, C)."""
    xp = namespace(logits)
    p = ArrayOps(logits).softmax(logits * (1 / temperature))
    count = class_counts(labels, logits.shape[1])
    return np.stack([count, to_host(xp.sum(weigh(p, labels), axis=0, dtype=xp.float64))])


def _probabilities(temperature: float, logits: Any, labels: NDArray[np.int64], *_: Any) -> SampleColumns:
    """Return the softmax of logits over a temperature, and the labels."""
    p = ArrayOps(logits).softmax(logits * (1 / temperature))
    # float32: the probabilities of all samples are in memory together
    return SampleColumns.of(np.asarray(to_host(p), np.float32), labels)


Steps = tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]
"""(last, first, value): block k has the value `value[k]`, ends at the probability `last[k]`, and the next one begins at
`first[k]`. K values for K blocks, K - 1 of the others."""

_KEPT = 1e-9

# A probability is rounded by 2^-24 of itself in float32, its logits by as much or some more: 1 % of a ramp.
_NARROWEST = 2.0**-16

# The slope of a ramp is at most the inverse of the product, which float32 can hold.
_LEAST = 1e-30


@dataclass(frozen=True)
class IsotonicOneVsAll(CalibrationMap):
    """Log of each class's function of its probability: log(f_c(p_c) + 1e-9 p_c), without a temperature.

    f_c is constant on blocks of pooled samples and linear between them. Sources: Zadrozny & Elkan (2002), section 4;
    Zhang, Kailkhura & Han (2020), "Mix-n-Match", section 4.1 and its code.
    """

    steps: tuple[Steps, ...]  # of each class

    name: ClassVar[str] = "irova"
    title: ClassVar[str] = "isotonic regression, one against all"
    rank: ClassVar[int] = 115
    weighted: ClassVar[bool] = True
    # 1e-9 p, which is all that a class has where f_c is 0
    wide_range: ClassVar[bool] = True
    max_classes_of_auto: ClassVar[int | None] = 0

    @property
    def brief(self) -> dict[str, Any]:
        """How many blocks there are, and how many a class has at most."""
        sizes = [len(value) for _, _, value in self.steps]
        return {"blocks": sum(sizes), "most_blocks_of_a_class": max(sizes)}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return log p' up to a constant of each row."""
        p = op.softmax(logits)
        least = max(_LEAST, op.tiny)
        total = op.add(op.mul(p, op.const(_KEPT)), op.const(np.array([value[0] for _, _, value in self.steps])))
        columns = []
        for last, first, value in self.steps:
            ramps = []
            for k, (low, high) in enumerate(zip(last, first, strict=True)):
                middle = (high + low) / 2
                slope = 1 / max(high - low, _NARROWEST * middle, least)
                ramps.append((slope, 0.5 - slope * middle, value[k + 1] - value[k]))
            columns.append(ramps)
        total = _with_ramps(op, p, total, columns)
        # rounding may make the sum a little more than 1
        return op.log(op.clip(total, op.tiny, 2.0))

    @classmethod
    def fit(cls, reduce: Reduce, *, start: IsotonicOneVsAll | None = None) -> IsotonicOneVsAll:  # noqa: ARG003
        """Fit each class by pooling adjacent violators."""
        # isotonic regression sorts: it needs the probabilities of all samples together
        probabilities, labels = reduce(functools.partial(_probabilities, 1.0)).columns
        weights = weights_of(labels)
        return cls(
            tuple(_steps(column, plain_labels(labels) == c, weights) for c, column in enumerate(probabilities.T))
        )


def _steps(probability: NDArray[np.float32], outcome: NDArray[np.bool_], weights: NDArray[np.float64] | None) -> Steps:
    """Return the blocks of the isotonic regression of `outcome` (N,) on `probability` (N,), by weights (N,) if any."""
    from scipy.optimize import isotonic_regression  # noqa: PLC0415 - heavy

    # samples of one probability are one, with their mean
    if weights is None:
        weights = np.ones(len(probability))
    # what counts nothing has no block
    counted = weights > 0
    x, group = np.unique(probability[counted], return_inverse=True)
    count = np.bincount(group, weights[counted])
    mean = np.bincount(group, weights[counted] * outcome[counted]) / count
    fitted = isotonic_regression(mean, weights=count)
    starts = fitted.blocks[:-1]
    ends = fitted.blocks[1:] - 1
    floats = x.astype(np.float64)
    return tuple(floats[ends[:-1]].tolist()), tuple(floats[starts[1:]].tolist()), tuple(fitted.x[starts].tolist())
