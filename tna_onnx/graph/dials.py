"""Dials of a guarded model: graph inputs with a default, by which a caller chooses the level or the class frequencies,
and the nodes that make thresholds of them (`Dials`). `DecisionOps` are the words of formulas that decisions need
besides those of maps.

With r_y = q_y / p_y, where q is the dial of the class frequencies and p its default:

    posterior    p'(y | x) = p(y | x) r_y sum_k p(k | x) / sum_k p(k | x) r_k
    coverage     of n calibration scores s_1 <= ... <= s_n with labels y_i, the threshold is the first s_k at which
                 (r_{y_1} + ... + r_{y_k}) / (r_{y_1} + ... + r_{y_n} + max r) is at least the level; else infinity

The scale of r does not count; nodes divide it by its largest. At the default r is 1, to the last bit, the posterior is
p(y | x), and s_k is that of split conformal prediction. Where only the class frequencies have changed, from p to q,
sets hold the true class at the level: these are weighted quantiles, of the one weight that all candidates may have at
most.

A dial that is no number, or a frequency that is not positive, gives sets of all classes and accepts nothing.

Source: A. Podkopaev, A. Ramdas, Distribution-free uncertainty quantification for classification under label shift, UAI
2021, section 2.2; R. Tibshirani et al., Conformal prediction under covariate shift, NeurIPS 2019, lemma 3.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tna_onnx.graph.nodes import PREFIX, NodeOps

Floats = NDArray[np.float32]

_ROUNDING = 2.0**-22
"""Of a level and its product with a count, in float32: a level of k / (n + 1) must not become rank k + 1."""


@dataclass(frozen=True, eq=False)
class Dial:
    """A graph input with a default."""

    name: str  # of the graph input
    default: Any  # its value where the caller gives none: a number, or (C,)


@dataclass(frozen=True, eq=False)
class RiskDial(Dial):
    """The risk as a float32 scalar, from which the threshold of the confidence is taken."""

    levels: Floats  # (L,) rising
    thresholds: Floats  # (L + 1,) number k holds for dials above `levels[k - 1]`, up to `levels[k]`


@dataclass(frozen=True, eq=False)
class SetDial(Dial):
    """The coverage as a float32 scalar, from which the threshold of the sets is taken."""

    scores: Floats  # (n + 1,) of the calibration samples, rising, and infinity
    labels: NDArray[np.int64]  # (n,) their classes


@dataclass(frozen=True, eq=False)
class ClassSetDial(Dial):
    """The coverage as a float32 scalar, from which a threshold for each class is taken."""

    # (n + C,) of the calibration samples of each class, rising and with infinity behind them, one class behind the
    # other
    scores: Floats
    counts: NDArray[np.int64]  # (C,) samples of each class

    @property
    def starts(self) -> NDArray[np.int64]:
        """(C,) where the scores of each class begin."""
        return np.concatenate([[0], np.cumsum(self.counts[:-1] + 1)])

    @property
    def factors(self) -> Floats:
        """(C,) what a level is multiplied by and rounded up to get a rank."""
        return ((self.counts + 1) * (1 - _ROUNDING)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class PriorDial(Dial):
    """Class frequencies as a float32 vector, (C,), all positive."""


@dataclass(frozen=True, eq=False)
class ThresholdDial(Dial):
    """The thresholds of the decision, a float32 scalar or vector, [] or (C,)."""


@dataclass(frozen=True, eq=False)
class Dials:
    """All dials of a file."""

    accept: RiskDial | None = None  # of the risk; None without
    set: SetDial | ClassSetDial | None = None  # of the coverage; None without
    prior: PriorDial | None = None  # of the class frequencies; None without
    decision: ThresholdDial | None = None  # of the thresholds of the decision; None without

    def __iter__(self) -> Iterator[Dial]:
        """Go through those that there are."""
        return (dial for dial in (self.accept, self.set, self.prior, self.decision) if dial is not None)


def below(thresholds: NDArray[np.float32]) -> Floats:
    """Return the numbers t' for which c > t' says the same as c >= t, and is false where c is no number."""
    return np.nextafter(thresholds, np.float32(-np.inf))


class DecisionOps(NodeOps):
    """The words of maps, and those that decisions and dials need besides."""

    def cast(self, a: str) -> str:
        """Write a tensor as float32."""
        return self._node("Cast", [a], to=TensorProto.FLOAT)

    def largest(self, a: str) -> str:
        """Write the maximum over axis 1, (N,)."""
        return self.reshape(self._reduced("ReduceMax", a), [-1])

    def below_largest(self, a: str) -> str:
        """Write (N, C) with 0 where an entry is the largest of its row, and 1 elsewhere."""
        return self.cast(self.compared("Less", a, self._reduced("ReduceMax", a)))

    def compared(self, op_type: str, a: str, b: str) -> str:
        return self._node(op_type, [a, b])

    def negated(self, op_type: str, a: str, b: str) -> str:
        """Write a comparison that does not hold: LessOrEqual and GreaterOrEqual are younger than Greater and Less."""
        return self._node("Not", [self._node(op_type, [a, b])])

    def both(self, p: str) -> str:
        """Write (1 - p, p) of the probability (N, 1) of the second class."""
        return self.beside(self.add(self.const(1.0), self.mul(p, self.const(-1.0))), p)

    def beside(self, a: str, b: str) -> str:
        """Write the columns of b behind those of a."""
        return self._node("Concat", [a, b], axis=1)

    def all_or_none(self, p: str, classes: int) -> str:
        """Write rows (N, C) in which one entry that is no number makes all of them none."""
        # a maximum may pass over such entries
        total = self.matmul(p, self.const(np.ones((classes, 1))))
        return self.add(p, self.mul(total, self.const(0.0)))

    def exp(self, a: str) -> str:
        return self._node("Exp", [a])

    def summed_down(self, p: str, penalty: NDArray[Any]) -> str:
        """Write the sum of the probabilities above each class, half of its own, and a penalty by rank."""
        classes = len(penalty)
        name = f"{PREFIX}/topk_{len(self.nodes)}"
        values, places = f"{name}_values", f"{name}_places"
        count = self.integers([classes])
        self.nodes.append(helper.make_node("TopK", [p, count], [values, places], name=name, axis=1))
        sums = self._node("CumSum", [values, self.integers(1)])
        sums = self.add(sums, self.mul(values, self.const(-0.5)))
        if penalty.any():
            sums = self.add(sums, self.const(penalty))
        # back to the order of the classes; every place of p is replaced
        return self._node("ScatterElements", [p, places, sums], axis=1)

    def reached(self, a: str, limit: str) -> str:
        """Write a >= limit, which does not hold for what is no number; no entry of a is below -1."""
        return self._node("And", [self.negated("Less", a, limit), self.compared("Greater", a, self.const(-1.0))])

    def column(self, a: str, k: int) -> str:
        """Write (N, 1), column k of (N, C)."""
        return self._node("Gather", [a, self.integers([k])], axis=1)

    def first(self, a: str) -> str:
        """Write the column of the first largest entry of each row, (N,)."""
        return self._node("ArgMax", [a], axis=1, keepdims=0)

    def taken(self, values: str, places: str) -> str:
        """Write the values (C,) at some places (N,)."""
        return self._node("Gather", [values, places])

    def or_none(self, classes: str, holds: str) -> str:
        """Write classes (N,) where something holds, and -1 elsewhere."""
        counted = self.mul(self.add(classes, self.integers(1)), self._node("Cast", [holds], to=TensorProto.INT64))
        return self.add(counted, self.integers(-1))

    def integers(self, value: Any) -> str:
        """Write whole numbers."""
        name = f"{PREFIX}/integers_{len(self.initializers)}"
        self.initializers.append(self._tensor(np.array(value, np.int64), name))
        return name

    def ratio(self, dial: PriorDial) -> str:
        """Write r / max r, (C,): not a number where a frequency is not positive and finite."""
        r = self.div(dial.name, self.const(dial.default))
        # 0 log r is 0, or no number; of all classes, as a maximum may pass over it
        lost = self.mul(self._whole("ReduceSum", self.log(r)), self.const(0.0))
        # products with small numbers would have the rounding of the smallest, or be 0
        return self.add(self.div(r, self._whole("ReduceMax", r)), lost)

    def posterior(self, p: str, ratio: str, classes: int) -> str:
        """Write the probabilities (N, C) under other class frequencies."""
        ones = self.const(np.ones((classes, 1)))
        moved = self.mul(p, ratio)
        # both sums in the same way: their ratio is 1 where r is
        return self.mul(moved, self.div(self.matmul(p, ones), self.matmul(moved, ones)))

    def accepted_above(self, dial: RiskDial) -> str:
        """Write what an accepted confidence is above: that of the first level that is not below the dial, []."""
        count = self._count(self.compared("Less", self.const(dial.levels), dial.name))
        return self._node("Gather", [self.const(below(dial.thresholds)), count])

    def set_limit(self, dial: SetDial, ratio: str) -> str:
        """Write the threshold of all sets, []."""
        weights = self._node("Gather", [ratio, self.integers(dial.labels)])
        total = self.add(self._whole("ReduceSum", weights), self._whole("ReduceMax", ratio))
        share = self.div(self._node("CumSum", [weights, self.integers(0)]), total)
        count = self._count(self.compared("Less", share, dial.name))
        limit = self._node("Gather", [self.const(dial.scores), count])
        # what is no number stays none; and nothing is above it, so that sets hold all classes
        return self.add(limit, self.mul(self.add(total, dial.name), self.const(0.0)))

    def class_limits(self, dial: ClassSetDial) -> str:
        """Write the threshold of each class, (C,)."""
        rank = self._node("Ceil", [self.mul(dial.name, self.const(dial.factors))])
        # a float32 beyond the whole numbers would become any of them, the smallest say
        place = self.clip(self.add(rank, self.const(-1.0)), 0, float(dial.counts.max()))
        place = self._node("Cast", [place], to=TensorProto.INT64)
        # as whole numbers: what is no number becomes any of them
        place = self._node("Max", [place, self.integers([0])])
        place = self._node("Min", [place, self.integers(dial.counts)])
        limits = self._node("Gather", [self.const(dial.scores), self.add(place, self.integers(dial.starts))])
        return self.add(limits, self.mul(dial.name, self.const(0.0)))

    def _count(self, holds: str) -> str:
        ones = self._node("Cast", [holds], to=TensorProto.FLOAT)
        return self._node("Cast", [self._whole("ReduceSum", ones)], to=TensorProto.INT64)

    def _whole(self, op_type: str, a: str) -> str:
        """Write a reduction over all axes, []."""
        return self._node(op_type, [a], keepdims=0)
