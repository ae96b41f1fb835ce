"""Temperature scaling (TS): s' = s / T with one T > 0 that minimises the NLL.

With beta = 1/T and p = softmax(beta s), the mean NLL is convex in beta:

    d NLL / d beta   = mean_i ( E_p[s_i] - s_iy )
    d2 NLL / d beta2 = mean_i Var_p[s_i] >= 0
    d3 NLL / d beta3 = mean_i E_p[(s_i - E_p[s_i])^3]

so the fit is the root of an increasing function. Of many samples, some are fitted first: all need one pass less from
there than from T = 1, or two. Sums over classes are in the dtype of the logits (the errors of a row
are those of its logits), sums over samples float64. Source: Guo et al. (2017), section 4.2.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.maps.base import CalibrationMap, Folding, Reduce
from tna_onnx.maps.label_map import in_two_classes
from tna_onnx.numerics.fitting import increasing_root
from tna_onnx.numerics.metric import OBJECTIVES, Objective
from tna_onnx.numerics.metrics import objective_value
from tna_onnx.numerics.ops import Blocked, Ops, is_narrow, joined_labels, own_column, row_max, row_sum, to_host
from tna_onnx.numerics.scores import SampleScores

__all__ = ["Temperature"]

# The range of 1/T. Wide enough for logits of 1e4 and for logits that hardly differ.
_MIN_BETA = 1e-6
_MAX_BETA = 1e6

# How far from the T of the least NLL another objective is scanned, and how finely: to 1e-4 of T in the end.
_REACH = 3.0
_SCANNED = 33
_SCANS = 3

# Logits that a chunk gives to the first fit, and all chunks together at most.
_SAMPLED = 2**17
_MAX_SAMPLED = 2**20


class Tempered(Protocol):
    """A map with a temperature."""

    @property
    def temperature(self) -> float:
        """T."""


@dataclass(frozen=True)
class Temperature(CalibrationMap):
    """Logits divided by `temperature`; of several labels a sample, those of all labels."""

    temperature: float

    name: ClassVar[str] = "ts"
    title: ClassVar[str] = "one temperature"
    rank: ClassVar[int] = 10
    on_tilted: ClassVar[bool] = True
    few_parameters: ClassVar[bool] = True
    scales: ClassVar[bool] = True
    for_labels: ClassVar[bool] = True
    # law 4: T > 0
    keeps_order: ClassVar[bool] = True
    # law 5: (W z + b) / T = (W / T) z + b / T
    soft: ClassVar[bool] = True
    foldable: ClassVar[bool] = True
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "objective": ("nll", *(each for each in OBJECTIVES if each != "nll")),
        "bins": (),
    }

    @property
    def brief(self) -> dict[str, Any]:
        """The temperature."""
        return {"temperature": self.temperature}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return logits / T."""
        return op.mul(logits, op.const(1 / self.temperature))

    def folded(self) -> Folding:
        """Return the factor 1 / T."""
        return Folding(1 / self.temperature)

    @classmethod
    def fit(
        cls, reduce: Reduce, *, start: Tempered | None = None, objective: Objective = "nll", bins: int = 15
    ) -> Temperature:
        """Fit T by safeguarded Halley steps in log(1/T); for another objective than the NLL, scan T around that.

        Args:
            reduce: runs over chunks of (logits, labels).
            start: a map whose T is tried first, of this kind or another.
            objective: what T minimises.
            bins: of a calibration error.

        Raises:
            DataError: no T minimises the NLL: each sample's label has the largest logit (T -> 0), or the logits say
                less than nothing about the labels (T -> infinity).
        """
        reduce = in_two_classes(reduce)
        first = _first_beta(reduce) if start is None else 1 / start.temperature
        # d NLL / d beta increases: its root is the minimum, and a range end means that there is none
        root = increasing_root(functools.partial(_slope, reduce), _MIN_BETA, _MAX_BETA, start=first)
        if root.status == "upper":
            raise DataError(
                f"temperature: the NLL falls all the way to T = {1 / _MAX_BETA:g}: the logits hardly differ from one "
                "another; check the head and the preprocessing, or use --map none"
            )
        if root.status == "lower":
            raise DataError(
                "temperature: the NLL falls all the way to T = infinity: the model does no better than guessing on "
                "these data; check the labels, the class order and the preprocessing"
            )
        fitted = cls(1 / root.value)
        if objective == "nll":
            return fitted
        return _scanned(reduce, fitted, objective, bins)


def _scanned(reduce: Reduce, centre: Temperature, objective: Objective, bins: int) -> Temperature:
    """Scan T from a third to three times that of the least NLL, ever finer around the best; of equals, the first."""
    best = centre
    least = _objective(reduce, centre, objective, bins)
    # a calibration error has many small dips: a grid that halves its reach finds the lowest region
    reach = math.log(_REACH)
    for _ in range(_SCANS):
        middle = math.log(best.temperature)
        for log_t in np.linspace(middle - reach, middle + reach, _SCANNED):
            tried = Temperature(math.exp(log_t))
            value = _objective(reduce, tried, objective, bins)
            if value < least:
                least = value
                best = tried
        reach *= 2 / (_SCANNED - 1)
    return best


def _objective(reduce: Reduce, tried: Temperature, objective: Objective, bins: int) -> float:
    scores = reduce(Blocked(functools.partial(_scores, 1 / tried.temperature)))
    return objective_value(scores, objective, bins)


def _scores(beta: float, logits: Any, labels: NDArray[np.int64], *_: Any) -> SampleScores:
    return SampleScores.of_logits(logits * beta, labels)


def _slope(reduce: Reduce, beta: float) -> tuple[float, float, float]:
    """Return the first three derivatives of the mean NLL at beta."""
    sums = reduce(Blocked(functools.partial(_moments, beta)))
    # The slope is negative for every beta then; where the exponentials underflow it would look like a root.
    if sums[4] == 0:
        raise DataError(
            "temperature: the NLL falls all the way to T = 0, because every calibration sample is classified "
            "right; expected data with some errors (were these samples trained on?), or use --map none"
        )
    first, second, third = (sums[:3] / sums[3]).tolist()
    return first, second, third


def _moments(beta: float, logits: Any, labels: NDArray[np.int64], *_: Any) -> NDArray[np.float64]:
    """Sums over samples of (E_p[s] - s_y, Var_p[s], E_p[(s - E_p[s])^3], 1, max s - s_y) at p = softmax(beta s).

    The last is the limit of the first for beta -> infinity.
    """
    xp = array_api_compat.array_namespace(logits)
    shifted = logits - row_max(logits)  # all moments are those of s - max s
    raw = _narrow_moments(beta, shifted) if is_narrow(logits) else _raw_moments(beta, shifted)
    total, first, second, third = (xp.astype(row, xp.float64) for row in raw)
    mean = first / total
    square = second / total
    own = own_column(shifted, labels)[:, 0]
    sums = (
        xp.sum(mean - own),
        xp.sum(square - mean * mean),
        # the third central moment, from raw ones
        xp.sum(third / total - mean * (3 * square - 2 * mean * mean)),
        logits.shape[0],
        -xp.sum(own, dtype=xp.float64),
    )
    return np.array([float(value) for value in sums])


def _raw_moments(beta: float, shifted: Any) -> tuple[Any, ...]:
    """Sums over classes of e s^k, k = 0 to 3, (B,) each, with e = exp(beta s)."""
    xp = array_api_compat.array_namespace(shifted)
    weights = xp.exp(beta * shifted)
    weighted = weights * shifted
    return (
        row_sum(weights)[:, 0],
        xp.vecdot(weights, shifted),
        xp.vecdot(weighted, shifted),
        xp.vecdot(weighted * shifted, shifted),
    )


def _narrow_moments(beta: float, shifted: NDArray[Any]) -> tuple[Any, ...]:
    """The same for NumPy arrays of few classes, from class to class."""
    by_class = np.ascontiguousarray(shifted.T)
    weights = np.exp(beta * by_class)
    sums = [weights.sum(axis=0)]
    for _ in range(3):
        weights *= by_class
        sums.append(weights.sum(axis=0))
    return tuple(sums)


@dataclass(frozen=True, eq=False)
class _Sample:
    """Some of the samples: (B, C) logits and (B,) labels on the host; `thinned` if others were left out."""

    logits: NDArray[Any]
    labels: NDArray[np.int64]
    thinned: bool

    @classmethod
    def of(cls, logits: Any, labels: NDArray[np.int64], *_: Any) -> _Sample:
        """Take evenly spaced rows of a chunk."""
        step = max(1, logits.shape[0] * logits.shape[1] // _SAMPLED)
        return cls(np.array(to_host(logits[::step])), labels[::step], step > 1)

    def __add__(self, other: _Sample) -> _Sample:
        logits = np.concatenate([self.logits, other.logits])
        labels = joined_labels([self.labels, other.labels])
        # so that the memory of any number of chunks is that of a few
        if logits.size > _MAX_SAMPLED:
            return _Sample(logits[::2].copy(), labels[::2], True)
        return _Sample(logits, labels, self.thinned or other.thinned)


def _first_beta(reduce: Reduce) -> float:
    """Return 1/T of some of the samples; 1 where these are all, or have none."""
    sample: _Sample = reduce(_Sample.of)
    if not sample.thinned:
        return 1.0

    def some(of: Any, *_: NDArray[Any]) -> Any:
        return of(sample.logits, sample.labels)

    try:
        # as many digits as the samples tell
        root = increasing_root(functools.partial(_slope, some), _MIN_BETA, _MAX_BETA, tolerance=1e-3)
    except DataError:
        return 1.0
    return root.value if root.status == "converged" else 1.0
