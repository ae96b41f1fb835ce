"""Platt scaling by label, for several labels a sample: s'_c = a_c s_c + b_c, each as in `maps.platt`.

Labels without enough samples for one are divided by the temperature that all labels share (`maps.label_map`).
Source: Platt (1999), "Probabilistic Outputs for Support Vector Machines", section 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tna_onnx.maps.base import CalibrationMap, Folding, Reduce
from tna_onnx.maps.label_map import LabelColumns, brief_of
from tna_onnx.maps.platt import Platt
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.ops import Ops

__all__ = ["LabelPlatt"]


@dataclass(frozen=True)
class LabelPlatt(CalibrationMap):
    """Logits times the slope of their label, plus its intercept.

    Attributes:
        slopes: a_c, C values.
        intercepts: b_c, C values.
        shared: labels that are divided by the temperature of all labels.
    """

    slopes: tuple[float, ...]
    intercepts: tuple[float, ...]
    shared: tuple[int, ...] = ()

    name: ClassVar[str] = "label-platt"
    title: ClassVar[str] = "slope and intercept for each label"
    rank: ClassVar[int] = 40
    for_labels: ClassVar[bool] = True
    for_classes: ClassVar[bool] = False
    # thresholds move
    keeps_order: ClassVar[bool] = False
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
        """Fit the shared T, then each label's slope and intercept.

        Args:
            reduce: runs over chunks of (logits, labels), (B, C) each.
            start: not used; there is nothing to gain.

        Raises:
            DataError: as `Temperature.fit`, of all labels together; or labels that are one class a sample.
        """
        columns = LabelColumns.of(reduce)
        together = Platt(1 / Temperature.fit(reduce).temperature, 0.0)
        lines, shared = columns.fits(Platt.fit, together)
        return cls(tuple(each.slope for each in lines), tuple(each.intercept for each in lines), shared)
