"""Maps of several labels a sample: each label is a problem of two classes, with the logits (0, s).

- `LabelTemperature`: s'_c = s_c / T_c, each T_c > 0 with the least NLL of its label.
- `LabelPlatt`: s'_c = a_c s_c + b_c, each as in `maps.two_classes.Platt`.
- `LabelIsotonic`: x_c = s_c / T, s'_c = x_c + g_c(x_c), g_c(x) = log-odds of f_c less x, with the temperature T of all
  labels and f_c the isotonic regression of the label on its probability (`numerics.monotone`). g_c is a chain of ramps
  over log-odds (`maps.isotonic`), constant outside of its knots. A label with fewer than 25 samples on one side has no
  function of its own, f_c = p: the standard error of a frequency among 25 is up to 0.1.

A label's own fit needs samples of both sides. Where there are fewer than `FEW` of one, or the fit fails, the label has
the temperature that all labels share: it says nothing on how often a label holds, which such data cannot tell.
Source: Platt (1999), "Probabilistic Outputs for Support Vector Machines", section 2.2; Zadrozny & Elkan (2002),
"Transforming classifier scores into accurate multiclass probability estimates".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.maps.base import MAX_LISTED, CalibrationMap, Folding, Reduce, Rows, listed
from tna_onnx.maps.isotonic import Knots, chain, knot_counts
from tna_onnx.maps.temperature import Temperature
from tna_onnx.maps.two_classes import Platt
from tna_onnx.numerics.monotone import CENTRES, expit, isotonic_log_odds, thinned
from tna_onnx.numerics.ops import Ops, WeightedLabels, plain_labels, to_host, weights_of

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

    def scarce(self, few: int) -> NDArray[np.bool_]:
        """Return which labels, (C,), have fewer samples than `few` on one side."""
        counted = self.labels if self.weights is None else self.labels[self.weights > 0]
        held = counted.sum(axis=0)
        scarce: NDArray[np.bool_] = np.minimum(held, len(counted) - held) < few
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


def _gathered(logits: Any, labels: Any, *_: Any) -> Rows:
    return Rows.of(to_host(logits), labels)


def brief_of(shared: Sequence[int], **values: Sequence[float]) -> dict[str, Any]:
    """Return parameters by label, and which labels share a temperature; of many labels their range, or their number."""
    brief: dict[str, Any] = {}
    for name, numbers in values.items():
        if len(numbers) > MAX_LISTED:
            brief[f"{name}_range"] = [min(numbers), max(numbers)]
        else:
            brief[name] = list(numbers)
    return {**brief, **listed("labels_shared", shared)}


@dataclass(frozen=True)
class LabelTemperature(CalibrationMap):
    """Logits divided by the temperature of their label."""

    temperatures: tuple[float, ...]  # T_c, C values
    shared: tuple[int, ...] = ()  # labels whose temperature is that of all labels

    name: ClassVar[str] = "label-ts"
    title: ClassVar[str] = "a temperature for each label"
    rank: ClassVar[int] = 20
    on_tilted: ClassVar[bool] = True
    for_labels: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
    for_classes: ClassVar[bool] = False
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
class LabelPlatt(CalibrationMap):
    """Logits times the slope of their label, plus its intercept."""

    slopes: tuple[float, ...]  # a_c, C values
    intercepts: tuple[float, ...]  # b_c, C values
    shared: tuple[int, ...] = ()  # labels that are divided by the temperature of all labels

    name: ClassVar[str] = "label-platt"
    title: ClassVar[str] = "slope and intercept for each label"
    rank: ClassVar[int] = 40
    for_labels: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
    for_classes: ClassVar[bool] = False
    foldable: ClassVar[bool] = True

    @property
    def brief(self) -> dict[str, Any]:
        """Slopes and intercepts, and the labels with the shared temperature."""
        return brief_of(self.shared, slopes=self.slopes, intercepts=self.intercepts)

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return a_c s_c + b_c."""
        return op.add(op.mul(logits, op.const(np.array(self.slopes))), op.const(np.array(self.intercepts)))

    def folded(self) -> Folding:
        """Return the factors a_c and the shifts b_c."""
        return Folding(np.array(self.slopes), np.array(self.intercepts))

    @classmethod
    def fit(cls, reduce: Reduce, *, start: LabelPlatt | None = None) -> LabelPlatt:  # noqa: ARG003
        """Fit the shared T, then each label's slope and intercept."""
        columns = LabelColumns.of(reduce)
        together = Platt(1 / Temperature.fit(reduce).temperature, 0.0)
        lines, shared = columns.fits(Platt.fit, together)
        return cls(tuple(line.slope for line in lines), tuple(line.intercept for line in lines), shared)


_MIN_SAMPLES = 25

# What a label has without a function of its own.
_UNCHANGED: Knots = ((0.0,), (0.0,))


@dataclass(frozen=True)
class LabelIsotonic(CalibrationMap):
    """Logits over `temperature`, plus a function of each label's log-odds."""

    knots: tuple[Knots, ...]  # `knots[c]` is the pair (x, g): what is added to the tempered logit x of label c
    temperature: float = 1.0  # T
    shared: tuple[int, ...] = ()  # labels without a function of their own

    name: ClassVar[str] = "label-isotonic"
    title: ClassVar[str] = "isotonic regression of each label"
    rank: ClassVar[int] = 120
    for_labels: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
    for_classes: ClassVar[bool] = False

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
        scarce = columns.scarce(_MIN_SAMPLES)
        knots = [_UNCHANGED] * len(scarce)
        for c in np.flatnonzero(~scarce).tolist():
            probability = expit(columns.logits[:, c].astype(np.float64) / temperature)
            log_odds = isotonic_log_odds(probability, columns.labels[:, c] == 1, columns.weights)
            x, g = thinned(CENTRES, log_odds, log_odds - CENTRES)
            knots[c] = (tuple(x.tolist()), tuple(g.tolist()))
        return cls(tuple(knots), temperature, tuple(np.flatnonzero(scarce).tolist()))
