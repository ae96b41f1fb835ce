"""Temperature scaling (TS): s' = s / T with one T > 0 that minimises the NLL. ETS: a mixture of three distributions.

    d NLL / d beta = mean_i ( E_p[s_i] - s_iy ),    beta = 1/T, p = softmax(beta s)

increases in beta, so the fit is its root; the derivatives are mean Var_p[s_i] and the mean third moment.

    ETS    p = w_1 softmax(s / T) + w_2 softmax(s) + w_3 / C,        w >= 0, sum w = 1, the result is log p

The weights minimise the Brier score, a 3 x 3 problem on the simplex, or the NLL.
Source: Guo et al. (2017), section 4.2; Zhang, Kailkhura & Han (2020), "Mix-n-Match", section 3.3.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.maps.base import CalibrationMap, Folding, Reduce, SampleColumns, common
from tna_onnx.numerics.fitting import increasing_root, mixture_weights, simplex_weights
from tna_onnx.numerics.metric import OBJECTIVES, Objective
from tna_onnx.numerics.metrics import metric_value
from tna_onnx.numerics.ops import (
    ArrayOps,
    Blocked,
    Ops,
    is_narrow,
    namespace,
    own_column,
    row_dot,
    row_max,
    row_sum,
    to_host,
    total_weight,
    weigh,
    weights_of,
)
from tna_onnx.numerics.scores import SampleScores, as_two_classes

# The range of 1/T. Wide enough for logits of 1e4 and for logits that hardly differ.
_MIN_BETA = 1e-6
_MAX_BETA = 1e6

# How far from the T of the least NLL another objective is scanned, and how finely: to 1e-4 of T in the end.
_REACH = 3.0
_SCANNED = 33
_SCANS = 3

# By how much the sum of three weights may miss 1: they are rounded in float64.
_SUM = 1e-6


@dataclass(frozen=True)
class Temperature(CalibrationMap):
    """Logits divided by `temperature`; of several labels a sample, those of all labels."""

    temperature: float

    name: ClassVar[str] = "ts"
    title: ClassVar[str] = "one temperature"
    rank: ClassVar[int] = 10
    positive: ClassVar[str] = "temperature"
    weighted: ClassVar[bool] = True
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
        "objective": ("nll", *(name for name in OBJECTIVES if name != "nll")),
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
    def fit(cls, reduce: Reduce, *, start: Any = None, objective: Objective = "nll", bins: int = 15) -> Temperature:
        """Fit T by safeguarded Halley steps in log(1/T); for another objective than the NLL, scan T around that,
        with so many bins of a calibration error.

        `start`: a map with a temperature.
        """
        fitted = common(reduce, _likeliest, start)
        if objective == "nll":
            return fitted
        return _scanned(reduce, fitted, objective, bins)


def _likeliest(reduce: Reduce, start: Any) -> Temperature:
    first = 1.0
    if start is not None:
        first = 1 / start.temperature
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
    return Temperature(1 / root.value)


def _in_two_classes(of: Callable[..., Any], beta: float, logits: Any, labels: NDArray[np.int64], *_: Any) -> Any:
    """Sum of(beta, logits, labels) over a chunk, where each label of a multi-label sample is one of two classes."""
    return Blocked(functools.partial(of, beta))(*as_two_classes(logits, labels))


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
    scores = reduce(functools.partial(_in_two_classes, _scores, 1 / tried.temperature))
    return metric_value(scores, objective, bins)


def _scores(beta: float, logits: Any, labels: NDArray[np.int64]) -> SampleScores:
    return replace(SampleScores.of_logits(logits * beta, labels), weights=weights_of(labels))


def _slope(reduce: Reduce, beta: float) -> tuple[float, float, float]:
    """Return the first three derivatives of the mean NLL at beta."""
    sums = reduce(functools.partial(_in_two_classes, _moments, beta))
    # The slope is negative for every beta then; where the exponentials underflow it would look like a root.
    if sums[4] == 0:
        if reduce(functools.partial(_in_two_classes, _range, beta)) == 0:
            raise DataError(
                "temperature: the logits do not differ from one another; check the head and the preprocessing"
            )
        raise DataError(
            "temperature: the NLL falls all the way to T = 0, because every calibration sample is classified "
            "right; expected data with some errors (were these samples trained on?), or use --map none"
        )
    first, second, third = (sums[:3] / sums[3]).tolist()
    return first, second, third


def _range(_beta: float, logits: Any, _labels: NDArray[np.int64]) -> float:
    """Sum over samples of max s - min s."""
    xp = namespace(logits)
    return float(xp.sum(row_max(logits) + row_max(-logits)))


def _moments(beta: float, logits: Any, labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sums over samples of (E_p[s] - s_y, Var_p[s], E_p[(s - E_p[s])^3], 1, max s - s_y) at p = softmax(beta s).

    The last is the limit of the first for beta -> infinity.
    """
    xp = namespace(logits)
    shifted = logits - row_max(logits)  # all moments are those of s - max s
    raw = _narrow_moments(beta, shifted) if is_narrow(logits) else _raw_moments(beta, shifted)
    total, first, second, third = (xp.astype(row, xp.float64) for row in raw)
    mean = first / total
    square = second / total
    label_logits = own_column(shifted, labels)[:, 0]
    sums = (
        xp.sum(weigh(mean - label_logits, labels)),
        xp.sum(weigh(square - mean * mean, labels)),
        # the third central moment, from raw ones
        xp.sum(weigh(third / total - mean * (3 * square - 2 * mean * mean), labels)),
        total_weight(labels),
        -xp.sum(weigh(label_logits, labels), dtype=xp.float64),
    )
    return np.array([float(value) for value in sums])


def _raw_moments(beta: float, shifted: Any) -> tuple[Any, ...]:
    """Sums over classes of e s^k, k = 0 to 3, (B,) each, with e = exp(beta s)."""
    xp = namespace(shifted)
    weights = xp.exp(beta * shifted)
    weighted = weights * shifted
    return (
        row_sum(weights)[:, 0],
        xp.vecdot(weights, shifted),
        xp.vecdot(weighted, shifted),
        xp.vecdot(weighted * shifted, shifted),
    )


def _narrow_moments(beta: float, shifted: NDArray[Any]) -> tuple[Any, ...]:
    """As `_raw_moments`, for NumPy arrays of few classes: NumPy is slow along short rows."""
    by_class = np.ascontiguousarray(shifted.T)
    weights = np.exp(beta * by_class)
    sums = [weights.sum(axis=0)]
    for _ in range(3):
        weights *= by_class
        sums.append(weights.sum(axis=0))
    return tuple(sums)


# A weight that no probability in float32 shows.
_NONE = 1e-8


@dataclass(frozen=True)
class EnsembleTemperature(CalibrationMap):
    """Mixture of softmax(s / temperature), softmax(s) and 1 / n_classes with `weights`, as log-probabilities."""

    temperature: float
    weights: tuple[float, float, float]
    n_classes: int

    name: ClassVar[str] = "ets"
    title: ClassVar[str] = "mixture of scaled, plain and uniform probabilities"
    rank: ClassVar[int] = 50
    positive: ClassVar[str] = "temperature"
    weighted: ClassVar[bool] = True
    on_tilted: ClassVar[bool] = True
    few_parameters: ClassVar[bool] = True
    # law 4: two of the distributions have the order of the logits, the third has none
    keeps_order: ClassVar[bool] = True
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {"ets_loss": ("squared", "nll")}

    def __post_init__(self) -> None:
        """Refuse weights outside of the simplex."""
        super().__post_init__()
        if min(self.weights) < 0 or abs(sum(self.weights) - 1) > _SUM:
            raise DataError(f"{self.name}: expected weights of at least 0 whose sum is 1, got {self.weights}")

    @property
    def brief(self) -> dict[str, Any]:
        """Temperature and weights."""
        return {"temperature": self.temperature, "weights": list(self.weights)}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return log p, cut at the smallest normal number of the dtype."""
        scaled, plain, uniform = self.weights
        # p = w_1 softmax(s / T) + w_2 softmax(s) + w_3 / C
        p = op.mul(op.softmax(op.mul(logits, op.const(1 / self.temperature))), op.const(scaled))
        p = op.add(p, op.mul(op.softmax(logits), op.const(plain)))
        p = op.add(p, op.const(uniform / self.n_classes))
        return op.log(op.clip(p, op.tiny, 1.0))

    def simpler(self) -> Temperature | None:
        """Return the temperature that it is where only one of the first two distributions has a weight."""
        scaled, plain, uniform = self.weights
        if uniform > _NONE or min(scaled, plain) > _NONE:
            return None
        return Temperature(self.temperature if scaled > plain else 1.0)

    @classmethod
    def fit(
        cls, reduce: Reduce, *, start: EnsembleTemperature | None = None, ets_loss: str = "squared"
    ) -> EnsembleTemperature:
        """Fit T by NLL, then the weights by `ets_loss`, squared error or NLL too."""
        # T changes little with the weight: a fit from the neighbour's takes fewer passes
        temperature = Temperature.fit(reduce, start=start).temperature
        # G and t for the squared error; the number of classes for both losses
        sums = reduce(Blocked(functools.partial(_quadratic, temperature)))
        count = sums[12]
        n_classes = round(sums[13] / count)
        if ets_loss == "nll":
            likelihoods, labels = reduce(Blocked(functools.partial(_likelihoods, temperature))).columns
            weights = mixture_weights(likelihoods, weights_of(labels))
        else:
            weights = simplex_weights(sums[:9].reshape(3, 3) / count, sums[9:12] / count)
        return cls(temperature, (float(weights[0]), float(weights[1]), float(weights[2])), n_classes)


def _likelihoods(temperature: float, logits: Any, labels: NDArray[np.int64], *_: Any) -> SampleColumns:
    """Return the probability of the label under each of the three distributions, (B, 3), and the labels."""
    op = ArrayOps(logits)
    columns = [to_host(own_column(p, labels)) for p in (op.softmax(logits / temperature), op.softmax(logits))]
    # the third distribution is uniform
    columns.append(np.full((len(labels), 1), 1 / logits.shape[1]))
    return SampleColumns.of(np.concatenate(columns, axis=1).astype(np.float64), labels)


def _quadratic(temperature: float, logits: Any, labels: NDArray[np.int64], *_: Any) -> NDArray[np.float64]:
    """Sums over samples: G (9), t (3), 1, C. Products of exponentials are summed first, and normalised row by row."""
    xp = namespace(logits)
    n, classes = total_weight(labels), logits.shape[1]
    shifted = logits - row_max(logits)
    # from the largest logit: no exponential overflows, for any T
    parts = [xp.exp(shifted * (1 / temperature)), xp.exp(shifted)]
    totals = [row_sum(a, double=True)[:, 0] for a in parts]

    def inner(k: int, m: int) -> float:
        products = xp.astype(row_dot(parts[k], parts[m]), xp.float64) / (totals[k] * totals[m])
        return float(xp.sum(weigh(products, labels)))

    hits = [float(xp.sum(weigh(own_column(a, labels)[:, 0] / b, labels))) for a, b in zip(parts, totals, strict=True)]
    uniform = n / classes  # the probabilities of a sample sum to one
    mixed = inner(0, 1)
    gram = [inner(0, 0), mixed, uniform, mixed, inner(1, 1), uniform, uniform, uniform, uniform]
    return np.array([*gram, *hits, uniform, n, n * classes], np.float64)
