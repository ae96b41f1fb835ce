"""Temperature by label, for several labels a sample: s'_c = s_c / T_c, each T_c > 0 with the least NLL of its label.

Labels without enough samples for one share a temperature (`maps.label_map`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tna_onnx.maps.base import CalibrationMap, Folding, Reduce
from tna_onnx.maps.label_map import LabelColumns, brief_of
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.ops import Ops

__all__ = ["LabelTemperature"]


@dataclass(frozen=True)
class LabelTemperature(CalibrationMap):
    """Logits divided by the temperature of their label.

    Attributes:
        temperatures: T_c, C values.
        shared: labels whose temperature is that of all labels.
    """

    temperatures: tuple[float, ...]
    shared: tuple[int, ...] = ()

    name: ClassVar[str] = "label-ts"
    title: ClassVar[str] = "a temperature for each label"
    rank: ClassVar[int] = 20
    on_tilted: ClassVar[bool] = True
    for_labels: ClassVar[bool] = True
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
        """Fit the shared T, then each label's.

        Args:
            reduce: runs over chunks of (logits, labels), (B, C) each.
            start: not used; there is nothing to gain.

        Raises:
            DataError: as `Temperature.fit`, of all labels together; or labels that are one class a sample.
        """
        columns = LabelColumns.of(reduce)
        together = Temperature.fit(reduce)
        fits, shared = columns.fits(lambda each: Temperature.fit(each, start=together), together)
        return cls(tuple(each.temperature for each in fits), shared)
