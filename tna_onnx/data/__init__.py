"""Labelled samples for a model: open what a team has, check its labels, read it in batches.

Depends on NumPy and `tna_onnx.errors` only; Pillow and other optional libraries are imported when a source needs them.
"""

from tna_onnx.data.images.preprocess import PRESETS, Recipe, ResolvedRecipe
from tna_onnx.data.images.recipes import read_recipe
from tna_onnx.data.names import metadata_class_names, read_class_names
from tna_onnx.data.opening import FORMATS, Format, open_source
from tna_onnx.data.options import Data
from tna_onnx.data.source import Batch, InputSpec, IntArray, Source
from tna_onnx.data.sources.precomputed import Precomputed, open_precomputed

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
