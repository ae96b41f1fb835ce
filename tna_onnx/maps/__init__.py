"""Calibration maps, numerics only: `fit` learns one, `forward` is its formula.

To add a map, write it and name it here twice, in `MapName` and `_CLASSES`. What else there is to know of it, the
class says itself (`maps.base.CalibrationMap`).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tna_onnx.maps.base import CalibrationMap

__all__ = ["CLAMPED", "MAPS", "MapName", "is_map_of", "map_of_class", "maps_of"]

MapName = Literal[
    "ts", "ets", "bias", "bias-robust", "svs", "bias-floor", "sms", "platt", "beta", "isotonic", "irova", "aar",
    "refit", "label-ts", "label-platt", "label-isotonic",
]  # fmt: skip
"""Maps by the name that the command line uses."""

CLAMPED = "clamped-"
"""How the name of a map begins that would change predictions, and is kept from it (`maps.clamp`)."""

_CLASSES: dict[MapName, tuple[str, str]] = {
    "ts": ("temperature", "Temperature"),
    "ets": ("temperature", "EnsembleTemperature"),
    "bias": ("linear", "Bias"),
    "bias-robust": ("linear", "RobustBias"),
    "svs": ("linear", "VectorScaling"),
    "bias-floor": ("linear", "NoiseFloor"),
    "sms": ("linear", "MatrixScaling"),
    "platt": ("two_classes", "Platt"),
    "beta": ("two_classes", "Beta"),
    "isotonic": ("isotonic", "SmoothedIsotonic"),
    "irova": ("isotonic", "IsotonicOneVsAll"),
    "aar": ("atypicality", "AtypicalityAware"),
    "refit": ("refit", "Refit"),
    "label-ts": ("two_classes", "LabelTemperature"),
    "label-platt": ("two_classes", "LabelPlatt"),
    "label-isotonic": ("two_classes", "LabelIsotonic"),
}


class _Maps(Mapping[str, "type[CalibrationMap]"]):
    """Map classes by name. Names are known at once; a class is imported when it is first asked for.

    The command line lists the names in its help, which must not wait for NumPy.
    """

    def __getitem__(self, name: str) -> type[CalibrationMap]:
        if name.startswith(CLAMPED):
            clamp = importlib.import_module(f"{__name__}.clamp")
            clamped: type[CalibrationMap] = clamp.clamped_class(self[name.removeprefix(CLAMPED)])
            return clamped
        module, cls = _CLASSES[name]  # type: ignore[index]  # any other word is a KeyError
        map_class: type[CalibrationMap] = getattr(importlib.import_module(f"{__name__}.{module}"), cls)
        return map_class

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.removeprefix(CLAMPED) in _CLASSES

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


MAPS: Mapping[str, type[CalibrationMap]] = _Maps()
"""Map classes by name, read-only; `clamped-` in front of one names the same with every prediction kept."""


def is_map_of(name: str, classes: int, *, labels: bool = False) -> bool:
    """Whether a map is for so many classes, or for so many labels that a sample may have."""
    if labels:
        return MAPS[name].for_labels
    return MAPS[name].for_classes and (classes == 2 or not MAPS[name].binary)


def maps_of(classes: int, *, labels: bool = False) -> tuple[str, ...]:
    """Return the names of the maps for so many classes, or for so many labels that a sample may have."""
    return tuple(name for name in MAPS if is_map_of(name, classes, labels=labels))


def map_of_class(name: str) -> type[CalibrationMap] | None:
    """Return the map whose class has a name; None if none has."""
    plain = name.removeprefix("Clamped")
    word = next((word for word, (_, cls) in _CLASSES.items() if cls == plain), None)
    if word is None:
        return None
    return MAPS[word if plain == name else CLAMPED + word]
