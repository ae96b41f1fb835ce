"""Recalibrate a trained ONNX classifier: a drop-in file with confidences that can be trusted.

The functions mirror the command line: `calibrate`, `compare`, `evaluate`, `features`, `inspect`, `verify`. They load on
first use, so that importing the package stays light.

>>> import tna_onnx
>>> sorted(tna_onnx.__all__)[:3]
['CheckFailed', 'Collection', 'DataError']
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tna_onnx.errors import CheckFailed, DataError, DeviceError, TnaError, UnsupportedModel, UsageError

if TYPE_CHECKING:
    from tna_onnx.collection import Collection, features
    from tna_onnx.comparison import ModelDifference, verify
    from tna_onnx.data import PRESETS, Recipe
    from tna_onnx.evaluation import Evaluation, evaluate
    from tna_onnx.gates import GateMissed
    from tna_onnx.inspection import Inspection, inspect
    from tna_onnx.model_comparison import compare
    from tna_onnx.recalibration import calibrate
    from tna_onnx.report.as_json import json_schema
    from tna_onnx.report.compared import ModelComparison
    from tna_onnx.report.report import Report

__all__ = [
    "PRESETS",
    "CheckFailed",
    "Collection",
    "DataError",
    "DeviceError",
    "Evaluation",
    "GateMissed",
    "Inspection",
    "ModelComparison",
    "ModelDifference",
    "Recipe",
    "Report",
    "TnaError",
    "UnsupportedModel",
    "UsageError",
    "calibrate",
    "compare",
    "evaluate",
    "features",
    "inspect",
    "json_schema",
    "verify",
]

__version__ = "0.1.0"

_HOMES = {
    "PRESETS": "data",
    "Recipe": "data",
    "Collection": "collection",
    "Evaluation": "evaluation",
    "GateMissed": "gates",
    "features": "collection",
    "Report": "report.report",
    "Inspection": "inspection",
    "ModelComparison": "report.compared",
    "ModelDifference": "comparison",
    "calibrate": "recalibration",
    "compare": "model_comparison",
    "evaluate": "evaluation",
    "inspect": "inspection",
    "json_schema": "report.as_json",
    "verify": "comparison",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tna_onnx' has no attribute '{name}'")
    import importlib  # noqa: PLC0415

    value = getattr(importlib.import_module(f"tna_onnx.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
