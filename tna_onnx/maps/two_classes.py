"""Maps for problems of two classes: those of a model with two, and of each of several labels, with the logits (0, s).

    Platt                s' = a s + c, a > 0
    beta                 s' = a ln p - b ln(1 - p) + c, a, b >= 0; p is the probability of the second class
    labels: temperature, Platt, isotonic    s / T_c;  a_c s + c_c;  s / T + g_c(s / T) (`maps.isotonic`)

Fits are logistic regressions with the ridge of `numerics.fitting`, so that separable data have a minimum. A label that
has too few samples on one side for its own fit (25 for a function, else `FEW`) has the temperature of all labels.
Source: Platt (1999), "Probabilistic Outputs for Support Vector Machines", section 2.2; Kull, Silva Filho & Flach
(2017), "Beta calibration", section 3; Zadrozny & Elkan (2002).
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.maps.base import MAX_LISTED, CalibrationMap, Folding, Reduce, SampleColumns, common, listed_classes
from tna_onnx.maps.isotonic import MIN_SAMPLES, Knots, chain, knot_counts
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.fitting import LogisticFit, fit_logistic
from tna_onnx.numerics.isotonic import CENTRES, expit, isotonic_log_odds, thinned
from tna_onnx.numerics.multinomial import shape_of
from tna_onnx.numerics.ops import ArrayOps, Ops, WeightedLabels, namespace, plain_labels, to_host, weights_of


@dataclass(frozen=True)
class Platt(CalibrationMap):
    """Log-odds times `slope`, plus `intercept`."""

    slope: float
    intercept: float

    name: ClassVar[str] = "platt"
    title: ClassVar[str] = "slope and intercept of the log-odds"
    rank: ClassVar[int] = 30
    positive: ClassVar[str] = "slope"
    weighted: ClassVar[bool] = True
    few_parameters: ClassVar[bool] = True
    # law 5: a (W z + b) + (0, c); the first logit stays 0 where it was
    foldable: ClassVar[bool] = True
    binary: ClassVar[bool] = True

    @property
    def brief(self) -> dict[str, Any]:
        """Slope and intercept."""
        return {"slope": self.slope, "intercept": self.intercept}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return a s + (0, c)."""
        return op.add(op.mul(logits, op.const(self.slope)), op.const(np.array([0.0, self.intercept])))

    def folded(self) -> Folding:
        """Return the factor a and the shift (0, c)."""
        return Folding(self.slope, np.array([0.0, self.intercept]))

    @classmethod
    def fit(cls, reduce: Reduce, *, start: Platt | None = None) -> Platt:  # noqa: ARG003
        """Fit a and c."""
        _check_two_classes(cls.name, reduce)
        fit = _logistic(reduce, _log_odds)
        slope = float(fit.weights[0])
        if not slope > 0:
            raise _not_increasing(cls.name)
        return cls(slope, fit.intercept)


def _check_two_classes(name: str, reduce: Reduce) -> None:
    """Refuse logits of more classes."""
    classes = common(reduce, shape_of).classes
    if classes != 2:
        raise DataError(
            f"{name}: this map is for two classes, and the logits have {classes}; "
            "use --map bias, svs or sms, which are for any number"
        )


def _not_increasing(name: str) -> DataError:
    """Return the error for a probability that falls where the model's rises."""
    return DataError(
        f"{name}: the second class is not more frequent where the model says that it is more probable; check the "
        "labels, the class order and the preprocessing"
    )


def _logistic(reduce: Reduce, features: Callable[[Any], Any]) -> LogisticFit:
    """Fit labels of two classes to features of the logits; a function that can be pickled."""
    f, labels = reduce(functools.partial(_features_of, features)).columns
    return fit_logistic(f, plain_labels(labels), weights_of(labels))


def _features_of(features: Callable[[Any], Any], logits: Any, labels: Any, *_: Any) -> SampleColumns:
    return SampleColumns.of(to_host(features(logits)), labels)


def _log_odds(logits: Any) -> Any:
    """Return d = s_1 - s_0, (N, 1), in float64."""
    xp = namespace(logits)
    return xp.astype(logits[:, 1:] - logits[:, :1], xp.float64)


@dataclass(frozen=True)
class Beta(CalibrationMap):
    """Logits (b ln(1 - p), a ln p + c)."""

    a: float
    b: float
    c: float

    name: ClassVar[str] = "beta"
    title: ClassVar[str] = "beta calibration"
    rank: ClassVar[int] = 70
    weighted: ClassVar[bool] = True
    binary: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse powers < 0, which would turn predictions round."""
        super().__post_init__()
        if min(self.a, self.b) < 0:
            raise DataError(f"{self.name}: expected a and b of at least 0, got {self.a} and {self.b}")

    @property
    def brief(self) -> dict[str, Any]:
        """Both slopes and the intercept."""
        return {"a": self.a, "b": self.b, "c": self.c}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return the two logits; logarithms are cut at the smallest normal number of the dtype."""
        log_p = _log_probabilities(op, logits)
        return op.add(op.mul(log_p, op.const(np.array([self.b, self.a]))), op.const(np.array([0.0, self.c])))

    @classmethod
    def fit(cls, reduce: Reduce, *, start: Beta | None = None) -> Beta:  # noqa: ARG003
        """Fit a, b and c."""
        _check_two_classes(cls.name, reduce)
        two_sided = _logistic(reduce, functools.partial(_sides, (1.0, 1.0)))
        a, b = two_sided.weights.tolist()
        if min(a, b) >= 0 and max(a, b) > 0:
            return cls(a, b, two_sided.intercept)
        bounded = []
        for sides in ((1.0, 0.0), (0.0, 1.0)):
            # the column that is 0 has no variation and gets the weight 0
            fit = _logistic(reduce, functools.partial(_sides, sides))
            if fit.weights.max() > 0:
                bounded.append(fit)
        if not bounded:
            raise _not_increasing(cls.name)
        best = min(bounded, key=lambda fit: fit.loss)
        a, b = best.weights.tolist()
        return cls(max(a, 0.0), max(b, 0.0), best.intercept)


def _log_probabilities(op: Ops, logits: Any) -> Any:
    return op.log(op.clip(op.softmax(logits), op.tiny, 1.0))


def _sides(factors: tuple[float, float], logits: Any) -> Any:
    """Return (ln p, -ln(1 - p)) times the factors, (N, 2), in float64."""
    xp = namespace(logits)
    log_p = xp.astype(_log_probabilities(ArrayOps(logits), logits), xp.float64)
    return xp.stack([factors[0] * log_p[:, 1], -factors[1] * log_p[:, 0]], axis=1)


FEW = 5
"""Samples with the label, or without it, below which it has no fit of its own."""

_Fit = TypeVar("_Fit")


@dataclass(frozen=True, eq=False)
class LabelColumns:
    """Logits and labels of all samples, (N, C) each, and their weights (N,) if they have some."""

    logits: NDArray[Any]
    labels: NDArray[np.int64]
    weights: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, reduce: Reduce) -> LabelColumns:
        """Gather them: every label is fitted with many passes over its own."""
        logits, labels = reduce(_gathered).columns
        if labels.ndim == 1:
            raise DataError(
                "this map is for models with several labels a sample, but these samples have one class each"
            )
        return cls(logits, plain_labels(labels), weights_of(labels))

    def scarce(self, least: int) -> NDArray[np.bool_]:
        """Return which labels, (C,), have fewer samples than `least` on one side."""
        counted = self.labels if self.weights is None else self.labels[self.weights > 0]
        positives = counted.sum(axis=0)
        scarce: NDArray[np.bool_] = np.minimum(positives, len(counted) - positives) < least
        return scarce

    def reduce(self, c: int) -> Reduce:
        """Return the reduction over label c, of two classes; `aligned` arrays are not cut."""
        column = self.logits[:, c]
        pair = np.stack([np.zeros_like(column), column], axis=1)
        labels: Any = self.labels[:, c]
        if self.weights is not None:
            labels = WeightedLabels(labels, self.weights)
        return lambda of, *aligned: of(pair, labels, None, *aligned)

    def fits(self, fit: Callable[[Reduce], _Fit], together: _Fit) -> tuple[list[_Fit], tuple[int, ...]]:
        """Return the fit of each label, and the labels that have `together` in its place: the shared temperature."""
        fits: dict[int, _Fit] = {}
        for c in np.flatnonzero(~self.scarce(FEW)).tolist():
            # else a label that the model knows nothing of, or everything
            with contextlib.suppress(DataError):
                fits[c] = fit(self.reduce(c))
        labels = range(self.labels.shape[1])
        return [fits.get(c, together) for c in labels], tuple(c for c in labels if c not in fits)

    def level(self, c: int, slope: float) -> float:
        """Return the intercept with which the mean probability of label c is its frequency.

        One sample is added, of which half has the label: of few samples, a share of them is too extreme.
        """
        from scipy.optimize import brentq  # noqa: PLC0415 - heavy

        weights = np.ones(len(self.labels)) if self.weights is None else self.weights
        frequency = (weights @ (self.labels[:, c] == 1) + 0.5) / (np.sum(weights) + 1)
        scaled = slope * self.logits[:, c].astype(np.float64)
        target = math.log(frequency / (1 - frequency))

        def excess(intercept: float) -> float:
            return float(weights @ (expit(scaled + intercept) - frequency))

        return float(brentq(excess, target - np.max(scaled) - 1, target - np.min(scaled) + 1))


def _gathered(logits: Any, labels: Any, *_: Any) -> SampleColumns:
    return SampleColumns.of(to_host(logits), labels)


def brief_of(shared: Sequence[int], **values: Sequence[float]) -> dict[str, Any]:
    """Return parameters by label, and which labels share a temperature; of many labels their range, or their number."""
    brief: dict[str, Any] = {}
    for name, numbers in values.items():
        if len(numbers) > MAX_LISTED:
            brief[f"{name}_range"] = [min(numbers), max(numbers)]
        else:
            brief[name] = list(numbers)
    return {**brief, **listed_classes("labels_shared", shared)}


class _LabelMap(CalibrationMap):
    """What the maps of labels have in common."""

    for_labels: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
    for_classes: ClassVar[bool] = False


@dataclass(frozen=True)
class LabelTemperature(_LabelMap):
    """Logits divided by the temperature of their label."""

    temperatures: tuple[float, ...]  # T_c, C values
    shared: tuple[int, ...] = ()  # labels whose temperature is that of all labels

    name: ClassVar[str] = "label-ts"
    title: ClassVar[str] = "a temperature for each label"
    rank: ClassVar[int] = 20
    positive: ClassVar[str] = "temperatures"
    on_tilted: ClassVar[bool] = True
    # T > 0: no probability crosses 1/2
    keeps_order: ClassVar[bool] = True
    foldable: ClassVar[bool] = True

    @property
    def brief(self) -> dict[str, Any]:
        """The temperatures, and the labels with the shared one."""
        return brief_of(self.shared, temperatures=self.temperatures)

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return s_c / T_c."""
        return op.mul(logits, op.const(1 / np.array(self.temperatures)))

    def folded(self) -> Folding:
        """Return the factors 1 / T_c."""
        return Folding(1 / np.array(self.temperatures))

    @classmethod
    def fit(cls, reduce: Reduce, *, start: LabelTemperature | None = None) -> LabelTemperature:  # noqa: ARG003
        """Fit the shared T, then each label's."""
        columns = LabelColumns.of(reduce)
        together = Temperature.fit(reduce)
        fits, shared = columns.fits(lambda label_reduce: Temperature.fit(label_reduce, start=together), together)
        return cls(tuple(fit.temperature for fit in fits), shared)


@dataclass(frozen=True)
class LabelPlatt(_LabelMap):
    """Logits times the slope of their label, plus its intercept."""

    slopes: tuple[float, ...]  # a_c, C values
    intercepts: tuple[float, ...]  # b_c, C values
    shared: tuple[int, ...] = ()  # labels with the slope of all labels, and the intercept that their frequency tells

    name: ClassVar[str] = "label-platt"
    title: ClassVar[str] = "slope and intercept for each label"
    rank: ClassVar[int] = 40
    positive: ClassVar[str] = "slopes"
    foldable: ClassVar[bool] = True

    @property
    def brief(self) -> dict[str, Any]:
        """Slopes and intercepts, and the labels with the shared slope."""
        return brief_of(self.shared, slopes=self.slopes, intercepts=self.intercepts)

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return a_c s_c + b_c."""
        return op.add(op.mul(logits, op.const(np.array(self.slopes))), op.const(np.array(self.intercepts)))

    def folded(self) -> Folding:
        """Return the factors a_c and the shifts b_c."""
        return Folding(np.array(self.slopes), np.array(self.intercepts))

    @classmethod
    def fit(cls, reduce: Reduce, *, start: LabelPlatt | None = None) -> LabelPlatt:  # noqa: ARG003
        """Fit the shared T, then each label's slope and intercept, or the intercept alone where it lacks samples."""
        columns = LabelColumns.of(reduce)
        together = Platt(1 / Temperature.fit(reduce).temperature, 0.0)
        lines, shared = columns.fits(Platt.fit, together)
        # of a label that none has, or all, samples tell nothing
        for c in set(shared) - {*np.flatnonzero(columns.scarce(1)).tolist()}:
            lines[c] = Platt(together.slope, columns.level(c, together.slope))
        return cls(tuple(line.slope for line in lines), tuple(line.intercept for line in lines), shared)


# What a label has without a function of its own.
_UNCHANGED: Knots = ((0.0,), (0.0,))


@dataclass(frozen=True)
class LabelIsotonic(_LabelMap):
    """Logits over `temperature`, plus a function of each label's log-odds."""

    knots: tuple[Knots, ...]  # `knots[c]` is the pair (x, g): what is added to the tempered logit x of label c
    temperature: float = 1.0  # T
    shared: tuple[int, ...] = ()  # labels without a function of their own

    name: ClassVar[str] = "label-isotonic"
    title: ClassVar[str] = "isotonic regression of each label"
    rank: ClassVar[int] = 120
    positive: ClassVar[str] = "temperature"

    @property
    def brief(self) -> dict[str, Any]:
        """The temperature, how many knots there are and how many a label has at most, and the labels without any."""
        return {"temperature": self.temperature, **knot_counts(self.knots, "label"), **brief_of(self.shared)}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return x_c + g_c(x_c)."""
        scaled = op.mul(logits, op.const(1 / self.temperature))
        return op.add(scaled, chain(op, scaled, self.knots))

    @classmethod
    def fit(cls, reduce: Reduce, *, start: LabelIsotonic | None = None) -> LabelIsotonic:
        """Fit T by NLL, then each label by pooling adjacent violators."""
        columns = LabelColumns.of(reduce)
        temperature = Temperature.fit(reduce, start=start).temperature
        scarce = columns.scarce(MIN_SAMPLES)
        knots = [_UNCHANGED] * len(scarce)
        for c in np.flatnonzero(~scarce).tolist():
            probability = expit(columns.logits[:, c].astype(np.float64) / temperature)
            log_odds = isotonic_log_odds(probability, columns.labels[:, c] == 1, columns.weights)
            x, g = thinned(CENTRES, log_odds, log_odds - CENTRES)
            knots[c] = (tuple(x.tolist()), tuple(g.tolist()))
        return cls(tuple(knots), temperature, tuple(np.flatnonzero(scarce).tolist()))
