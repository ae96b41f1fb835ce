"""Labelled samples for a model: open a file or folder, check its labels, read it in batches.

Depends on NumPy and `tna_onnx.errors` only; Pillow is imported when an image folder is opened.
"""

from collections.abc import Sequence
from pathlib import Path

from tna_onnx.data.arrays import open_arrays
from tna_onnx.data.images import open_images
from tna_onnx.data.preprocess import PRESETS, Recipe, ResolvedRecipe
from tna_onnx.data.source import Batch, InputSpec, IntArray, Source
from tna_onnx.errors import DataError, UsageError

__all__ = ["PRESETS", "Batch", "InputSpec", "IntArray", "Recipe", "ResolvedRecipe", "Source", "open_source"]


def open_source(path: str | Path, inputs: Sequence[InputSpec], n_classes: int, recipe: Recipe | None = None) -> Source:
    """Open labelled samples: a `.npz` file, or a folder with one sub-folder of images per class.

    Args:
        path: the file or folder.
        inputs: the model's inputs, all of which the samples must provide.
        n_classes: the number of classes of the model; labels are indices below it, checked here.
        recipe: preprocessing for images; None is `Recipe()`.

    Raises:
        UsageError: the path does not exist, a recipe is given for stored arrays or cannot be used for the model, or
            Pillow is missing.
        DataError: the data cannot be read or do not fit the model, or the labels cannot be used.
    """
    path = Path(path)
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder; give a .npz file or a folder with one sub-folder per class")
    if path.is_dir():
        if len(inputs) != 1:
            names = ", ".join(repr(spec.name) for spec in inputs)
            raise DataError(
                f"{path}: an image folder needs a model with one input, but this one has {len(inputs)} ({names}); "
                "store the samples as .npz, with one array per input"
            )
        return open_images(path, inputs[0], n_classes, recipe or Recipe())
    if path.suffix.lower() != ".npz":
        raise DataError(
            f"{path}: expected a .npz file or a folder of images, found {path.suffix or 'no suffix'}; supported are "
            ".npz files (one array per model input and 'labels') and folders with one sub-folder of images per class"
        )
    if recipe not in (None, Recipe()):
        raise UsageError(
            f"{path}: preprocessing applies to images only; stored arrays are used as they are, leave it out"
        )
    if not inputs:
        raise DataError(f"{path}: the model has no inputs, so samples cannot be given to it")
    return open_arrays(path, inputs, n_classes)
