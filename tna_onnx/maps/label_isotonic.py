"""Isotonic regression by label, for several labels a sample: each probability through a non-decreasing function.

    x_c = s_c / T        s'_c = x_c + g_c(x_c),  g_c(x) = log-odds of f_c less x

with the temperature T of all labels and f_c the isotonic regression of the label on its probability
(`numerics.monotone`). g_c is a chain of ramps over log-odds (`maps.isotonic`), constant outside of its knots. A label
with fewer than 25 samples on one side has no function of its own, f_c = p: the standard error of a frequency among 25
is up to 0.1.
Source: Zadrozny & Elkan (2002), "Transforming classifier scores into accurate multiclass probability estimates".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tna_onnx.maps.base import CalibrationMap, Reduce
from tna_onnx.maps.isotonic import Knots, chain, knot_counts
from tna_onnx.maps.label_map import LabelColumns, brief_of
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.monotone import isotonic_log_odds, thinned_over_log_odds
from tna_onnx.numerics.ops import Ops

__all__ = ["LabelIsotonic"]

_MIN_SAMPLES = 25

# What a label has without a function of its own.
_UNCHANGED: Knots = ((0.0,), (0.0,))


@dataclass(frozen=True)
class LabelIsotonic(CalibrationMap):
    """Logits over `temperature`, plus a function of each label's log-odds.

    Attributes:
        knots: `knots[c]` is the pair (x, g): what is added to the tempered logit x of label c.
        temperature: T.
        shared: labels without a function of their own.
    """

    knots: tuple[Knots, ...]
    temperature: float = 1.0
    shared: tuple[int, ...] = ()

    name: ClassVar[str] = "label-isotonic"
    title: ClassVar[str] = "isotonic regression of each label"
    rank: ClassVar[int] = 120
    for_labels: ClassVar[bool] = True
    for_classes: ClassVar[bool] = False
    # thresholds move
    keeps_order: ClassVar[bool] = False

    @property
    def brief(self) -> dict[str, Any]:
        """The temperature, how many knots there are and how many a label has at most, and the labels without any."""
        return {"temperature": self.temperature, **knot_counts(self.knots, "label"), **brief_of(self.shared)}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return x_c + g_c(x_c)."""
        scaled = op.mul(logits, op.const(1 / self.temperature))
        return op.add(scaled, chain(op, scaled, self.knots))

    def folded(self) -> None:
        """Return None: the formula needs nodes of its own."""

    @classmethod
    def fit(cls, reduce: Reduce, *, start: LabelIsotonic | None = None) -> LabelIsotonic:
        """Fit T by NLL, then each label by pooling adjacent violators.

        Args:
            reduce: runs over chunks of (logits, labels), (B, C) each.
            start: a map whose T is tried first.

        Raises:
            DataError: as `Temperature.fit`, of all labels together; or labels that are one class a sample.
        """
        columns = LabelColumns.of(reduce)
        temperature = Temperature.fit(reduce, start=start).temperature
        scarce = columns.scarce(_MIN_SAMPLES)
        knots = [_UNCHANGED] * len(scarce)
        for c in np.flatnonzero(~scarce).tolist():
            knots[c] = _correction(columns, c, temperature)
        return cls(tuple(knots), temperature, tuple(np.flatnonzero(scarce).tolist()))


def _correction(columns: LabelColumns, c: int, temperature: float) -> Knots:
    """Return the knots of g_c."""
    from scipy.special import expit  # noqa: PLC0415 - heavy

    probability = expit(columns.logits[:, c].astype(np.float64) / temperature)
    x, g = thinned_over_log_odds(isotonic_log_odds(probability, columns.labels[:, c] == 1))
    return tuple(x.tolist()), tuple(g.tolist())
