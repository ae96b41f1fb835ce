"""Labelled samples for a model: open what a team has, check its labels, read it in batches.

Depends on NumPy, SciPy and `tna_onnx.errors` only; Pillow and other optional libraries are imported when a source needs
them. The names below load on first use, so that the command line can read `formats` without loading NumPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tna_onnx.data.choices import FORMATS, Format

if TYPE_CHECKING:
    from tna_onnx.data.formats import open_source
    from tna_onnx.data.images.preprocess import PRESETS, Recipe, ResolvedRecipe
    from tna_onnx.data.images.recipes import read_recipe
    from tna_onnx.data.labels import metadata_class_names, read_class_names
    from tna_onnx.data.options import Data
    from tna_onnx.data.source import Batch, InputSpec, IntArray, Source
    from tna_onnx.data.sources.arrays import Precomputed, open_precomputed

__all__ = [
    "FORMATS",
    "PRESETS",
    "Batch",
    "Data",
    "Format",
    "InputSpec",
    "IntArray",
    "Precomputed",
    "Recipe",
    "ResolvedRecipe",
    "Source",
    "metadata_class_names",
    "open_precomputed",
    "open_source",
    "read_class_names",
    "read_recipe",
]

_HOMES = {
    "PRESETS": "images.preprocess",
    "Batch": "source",
    "Data": "options",
    "InputSpec": "source",
    "IntArray": "source",
    "Precomputed": "sources.arrays",
    "Recipe": "images.preprocess",
    "ResolvedRecipe": "images.preprocess",
    "Source": "source",
    "metadata_class_names": "labels",
    "open_precomputed": "sources.arrays",
    "open_source": "formats",
    "read_class_names": "labels",
    "read_recipe": "images.recipes",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value  # found at once the next time
    return value
