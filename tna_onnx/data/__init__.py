"""Labelled samples for a model: open what a team has, check its labels, read it in batches.

Names load on first use, so that the command line can read `choices` without loading NumPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tna_onnx.data.formats import open_source
    from tna_onnx.data.images.preprocess import PRESETS, Recipe
    from tna_onnx.data.images.recipe_files import read_recipe
    from tna_onnx.data.source import Batch, InputSpec, Source
    from tna_onnx.data.sources.arrays import open_precomputed

__all__ = [
    "PRESETS",
    "Batch",
    "InputSpec",
    "Recipe",
    "Source",
    "open_precomputed",
    "open_source",
    "read_recipe",
]

_HOMES = {
    "PRESETS": "images.preprocess",
    "Batch": "source",
    "InputSpec": "source",
    "Recipe": "images.preprocess",
    "Source": "source",
    "open_precomputed": "sources.arrays",
    "open_source": "formats",
    "read_recipe": "images.recipe_files",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value  # found at once the next time
    return value
