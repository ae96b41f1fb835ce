"""Isotonic regression one-vs-all (IROvA): each class's probability through its own non-decreasing function.

    p = softmax(s / T)        p' = f(p) / sum_c f_c(p_c)        result s_c / T + g_c(p_c),  g_c(p) = log f_c(p) / p

with the temperature T of TS and f_c the isotonic regression of [y = c] on p_c (`numerics.isotonic`). The softmax of the
result is p', because s / T is log p up to a constant of the row. g_c is a chain of ramps (`maps.ramps`), constant
outside of its knots: a probability that is smaller than any seen keeps its proportion, and none becomes zero.

A class keeps its tempered probability, f_c(p) = p, where fewer than 25 samples are of it and fewer than 25 were
expected (the sum of p_c). With many classes, or where most are such, one function of the largest probability takes the
place of all (`maps.top_versus_all`).
Source: Zadrozny & Elkan (2002), "Transforming classifier scores into accurate multiclass probability estimates".
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tna_onnx.maps.base import Reduce
from tna_onnx.maps.ramps import Knots, chain, knot_counts
from tna_onnx.maps.temperature import Temperature
from tna_onnx.maps.top_versus_all import TopVersusAll
from tna_onnx.numerics.isotonic import CENTRES, isotonic_log_odds, thinned
from tna_onnx.numerics.ops import ArrayOps, Ops, to_host

__all__ = ["IsotonicOneVsAll"]

# The standard error of a frequency among 25 is up to 0.1: fewer say next to nothing about a class's own function.
_MIN_SAMPLES = 25

# One-vs-all divides by the sum of all functions: with many classes, the noise of the others is in every probability.
_MANY_CLASSES = 50

# More classes than this are counted in `brief`, not listed.
_MAX_LISTED = 20

# What a class has that is left alone.
_UNCHANGED: Knots = ((0.5,), (0.0,))


@dataclass(frozen=True)
class IsotonicOneVsAll:
    """Logits over `temperature`, plus a function of each class's probability.

    Attributes:
        knots: `knots[c]` is the pair (p, g): what is added to the logit of class c at the probability p.
        temperature: T.
        left_alone: classes with too few samples for a function of their own.
    """

    knots: tuple[Knots, ...]
    temperature: float = 1.0
    left_alone: tuple[int, ...] = ()

    name: ClassVar[str] = "irova"
    # each class has a function of its own, and may overtake another
    keeps_order: ClassVar[bool] = False
    foldable: ClassVar[bool] = False
    needs_features: ClassVar[bool] = False
    binary: ClassVar[bool] = False
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @property
    def brief(self) -> dict[str, Any]:
        """The temperature, how many knots there are and how many a class has at most, and the classes without any."""
        brief: dict[str, Any] = {"temperature": self.temperature, **knot_counts(self.knots, "class")}
        if len(self.left_alone) > _MAX_LISTED:
            brief["classes_left_alone"] = len(self.left_alone)
        elif self.left_alone:
            brief["classes_left_alone"] = list(self.left_alone)
        return brief

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return log p' up to a constant of each row."""
        scaled = op.mul(logits, op.const(1 / self.temperature))
        return op.add(scaled, chain(op, op.softmax(scaled), self.knots))

    def folded(self) -> None:
        """Return None: the formula needs nodes of its own."""

    @classmethod
    def fit(
        cls, reduce: Reduce, *, start: IsotonicOneVsAll | TopVersusAll | None = None
    ) -> IsotonicOneVsAll | TopVersusAll:
        """Fit T by NLL, then each class by pooling adjacent violators, or all of them as one.

        Args:
            reduce: runs over chunks of (logits, labels).
            start: a map whose T is tried first.

        Raises:
            DataError: as `Temperature.fit`.
        """
        temperature = Temperature.fit(reduce, start=start).temperature
        count, expected = reduce(functools.partial(_class_sums, temperature))
        # a class that was expected often and never seen has much to say
        few = np.maximum(count, expected) < _MIN_SAMPLES
        if len(few) >= _MANY_CLASSES or 2 * few.sum() > len(few):
            return TopVersusAll.fit(reduce, temperature)
        # isotonic regression sorts: it needs the probabilities of all samples together
        pairs = reduce(functools.partial(_Probabilities.of, temperature))
        knots = [_UNCHANGED] * len(few)
        for c in np.flatnonzero(~few):
            knots[c] = _correction(pairs.probabilities[:, c], pairs.labels == c)
        return cls(tuple(knots), temperature, tuple(np.flatnonzero(few).tolist()))


def _correction(probability: NDArray[np.float32], outcome: NDArray[np.bool_]) -> Knots:
    """Return the knots of g = log f / p."""
    from scipy.special import expit  # noqa: PLC0415 - heavy

    log_odds = isotonic_log_odds(probability, outcome)
    x, g = thinned(log_odds, np.log(expit(log_odds) / expit(CENTRES)))
    return tuple(x.tolist()), tuple(g.tolist())


def _class_sums(temperature: float, logits: Any, labels: NDArray[np.int64], *_: Any) -> NDArray[np.float64]:
    """Sums over samples of onehot(y) and of the tempered p, (2, C)."""
    xp = array_api_compat.array_namespace(logits)
    p = ArrayOps(logits).softmax(logits * (1 / temperature))
    count = np.bincount(labels, minlength=logits.shape[1])
    return np.stack([count, to_host(xp.sum(p, axis=0, dtype=xp.float64))])


@dataclass(frozen=True, eq=False)
class _Probabilities:
    """Tempered probabilities (N, C) float32 and labels (N,) of some samples; `+` joins."""

    probabilities: NDArray[np.float32]
    labels: NDArray[np.int64]

    @classmethod
    def of(cls, temperature: float, logits: Any, labels: NDArray[np.int64], *_: Any) -> _Probabilities:
        p = ArrayOps(logits).softmax(logits * (1 / temperature))
        # float32: the probabilities of all samples are in memory together
        return cls(np.asarray(to_host(p), np.float32), labels)

    def __add__(self, other: _Probabilities) -> _Probabilities:
        return _Probabilities(
            np.concatenate([self.probabilities, other.probabilities]), np.concatenate([self.labels, other.labels])
        )
