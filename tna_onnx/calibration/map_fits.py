"""Fits of the maps of methods (`calibration.methods`) to logits: a single one, or those along a map's path."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.calibration.crossfit import Fit
from tna_onnx.calibration.methods import Method
from tna_onnx.engine.logits import Logits
from tna_onnx.maps import MAPS
from tna_onnx.maps.base import CalibrationMap, Reduce

__all__ = ["MapFits"]

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class MapFits:
    """Fits of maps with the same options.

    Attributes:
        options: by name; each map takes those that it declares.
    """

    options: Mapping[str, Any]

    def path(self, method: Method, logits: Logits, rows: Mask) -> Iterator[Fit]:
        """Yield the fit to the samples `rows`, (N,), or those along the map's path.

        Raises:
            DataError: the map cannot be fitted.
        """
        if not method.has_path:
            yield method, logits, self.one(method.map, logits, rows)
            return
        path: Any = MAPS[method.map]
        for step, fitted in enumerate(path.fit_path(_reduce(method.map, logits, rows))):
            yield dataclasses.replace(method, step=step), logits, fitted

    def chosen(self, method: Method, logits: Logits) -> CalibrationMap | None:
        """Return the fit to all samples, up to the step chosen.

        Raises:
            DataError: the map cannot be fitted.
        """
        fits = self.path(dataclasses.replace(method, step=0), logits, np.ones(len(logits), bool))
        _, _, fitted = next(itertools.islice(fits, method.step, None))
        return fitted

    def one(self, name: str, logits: Logits, rows: Mask | None, start: Any = None) -> CalibrationMap | None:
        """Return the fit of a map without a path to samples, from `start` on; None of the map `none`.

        Raises:
            DataError: the map cannot be fitted.
        """
        if name == "none":
            return None
        chosen = MAPS[name]
        options = {option: value for option, value in self.options.items() if option in chosen.options}
        return chosen.fit(_reduce(name, logits, rows), start=start, **options)


def _reduce(name: str, logits: Logits, rows: Mask | None) -> Reduce:
    return logits.reduce(rows, features=MAPS[name].needs_features)
