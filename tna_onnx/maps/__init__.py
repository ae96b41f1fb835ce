"""Calibration maps, one a file, numerics only: `fit` learns one, `forward` is its formula."""

from tna_onnx.maps.base import CalibrationMap, Reduce, apply_map
from tna_onnx.maps.ensemble_temperature import EnsembleTemperature
from tna_onnx.maps.temperature import Temperature

__all__ = ["MAPS", "CalibrationMap", "EnsembleTemperature", "Reduce", "Temperature", "apply_map"]

MAPS: dict[str, type[Temperature] | type[EnsembleTemperature]] = {"ts": Temperature, "ets": EnsembleTemperature}
"""Maps by the name that the command line uses."""
