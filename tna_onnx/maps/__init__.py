"""Calibration maps, one a file, numerics only: `fit` learns one, `forward` is its formula."""

from tna_onnx.maps.atypicality import AtypicalityAware
from tna_onnx.maps.base import CalibrationMap, Reduce, apply_map
from tna_onnx.maps.ensemble_temperature import EnsembleTemperature
from tna_onnx.maps.isotonic import IsotonicOneVsAll
from tna_onnx.maps.temperature import Temperature

__all__ = [
    "MAPS",
    "AtypicalityAware",
    "CalibrationMap",
    "EnsembleTemperature",
    "IsotonicOneVsAll",
    "Reduce",
    "Temperature",
    "apply_map",
]

AnyMap = type[Temperature] | type[EnsembleTemperature] | type[IsotonicOneVsAll] | type[AtypicalityAware]

MAPS: dict[str, AnyMap] = {
    "ts": Temperature,
    "ets": EnsembleTemperature,
    "irova": IsotonicOneVsAll,
    "aar": AtypicalityAware,
}
"""Maps by the name that the command line uses."""
