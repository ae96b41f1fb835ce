"""Recalibrate a trained ONNX classifier: a drop-in file with confidences that can be trusted.

The functions mirror the command line: `calibrate`, `card`, `compare`, `evaluate`, `features`, `fit`,
`guard`, `inspect`, `shift`, `study`, `verify`. They load on first use, so that importing the package stays light.

>>> import tna_onnx
>>> sorted(tna_onnx.__all__)[:3]
['Calibrator', 'Card', 'CheckFailed']
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tna_onnx.errors import CheckFailed, DataError, DeviceError, TnaError, UnsupportedModel, UsageError
from tna_onnx.errors import in_words_of_python as _in_words_of_python

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tna_onnx.api.calibrate import calibrate, card, study
    from tna_onnx.api.calibrator import Calibrator, fit
    from tna_onnx.api.compare import compare
    from tna_onnx.api.evaluate import evaluate
    from tna_onnx.api.features import features
    from tna_onnx.api.guard import edit_decision, guard, shift
    from tna_onnx.api.inspect import inspect
    from tna_onnx.api.verify import verify
    from tna_onnx.data.choices import Limits
    from tna_onnx.data.images.preprocess import PRESETS, Recipe
    from tna_onnx.data.options import Data
    from tna_onnx.extraction.extractor import FeatureExtractor
    from tna_onnx.graph.options import ModelLimits, ModelOptions
    from tna_onnx.guarding.guard_settings import GuardSettings
    from tna_onnx.numerics.averages import tilt
    from tna_onnx.pipeline.settings import Settings
    from tna_onnx.results.gates import GateMissed, Gates
    from tna_onnx.results.inspection import Collection, Inspection, ModelDifference
    from tna_onnx.results.measured import Evaluation, ModelComparison
    from tna_onnx.results.outcomes import Guard, Shift
    from tna_onnx.results.report import Card, Report
    from tna_onnx.results.study import Studies, Study
    from tna_onnx.shifting.shift_settings import ShiftSettings
    from tna_onnx.studies.recalibrations import PAPER
    from tna_onnx.studies.settings import StudySettings

__all__ = [
    "PAPER",
    "PRESETS",
    "Calibrator",
    "Card",
    "CheckFailed",
    "Collection",
    "Data",
    "DataError",
    "DeviceError",
    "Evaluation",
    "FeatureExtractor",
    "GateMissed",
    "Gates",
    "Guard",
    "GuardSettings",
    "Inspection",
    "Limits",
    "ModelComparison",
    "ModelDifference",
    "ModelLimits",
    "ModelOptions",
    "Recipe",
    "Report",
    "Settings",
    "Shift",
    "ShiftSettings",
    "Studies",
    "Study",
    "StudySettings",
    "TnaError",
    "UnsupportedModel",
    "UsageError",
    "calibrate",
    "card",
    "compare",
    "edit_decision",
    "evaluate",
    "features",
    "fit",
    "guard",
    "inspect",
    "shift",
    "study",
    "tilt",
    "verify",
]

# Module -> the public names in it.
_MODULES = {
    "api.calibrate": "calibrate card study",
    "api.calibrator": "Calibrator fit",
    "api.compare": "compare",
    "api.evaluate": "evaluate",
    "api.features": "features",
    "api.guard": "edit_decision guard shift",
    "api.inspect": "inspect",
    "api.verify": "verify",
    "data.images.preprocess": "PRESETS Recipe",
    "data.choices": "Limits",
    "data.options": "Data",
    "extraction.extractor": "FeatureExtractor",
    "graph.options": "ModelLimits ModelOptions",
    "numerics.averages": "tilt",
    "guarding.guard_settings": "GuardSettings",
    "pipeline.settings": "Settings",
    "results.gates": "GateMissed Gates",
    "results.inspection": "Collection Inspection ModelDifference",
    "results.measured": "Evaluation ModelComparison",
    "results.outcomes": "Guard Shift",
    "results.report": "Card Report",
    "results.study": "Studies Study",
    "shifting.shift_settings": "ShiftSettings",
    "studies.recalibrations": "PAPER",
    "studies.settings": "StudySettings",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tna_onnx' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"tna_onnx.{_HOMES[name]}"), name)
    if _HOMES[name].startswith("api.") and not isinstance(value, type):
        value = _in_words_of_python(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted(__all__)
