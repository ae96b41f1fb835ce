"""Values of pixels that no usual preprocessing gives: wrong preprocessing raises no error, but lowers the accuracy.

Normalised pixels lie within -3 to 3, plain ones in 0 to 255.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.images.preprocess import recipe_text
from tna_onnx.data.source import InputSpec, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tna_onnx.data.images.preprocess import Recipe

_MAX_PIXEL = 255.0
_NORMALISED = 16.0  # normalised pixels lie within 3, and even a small --std keeps them below
_PROBED = 32  # samples: what is wrong with the scale of a data set is wrong with each of them
_MIN_SIDE = 8  # smaller ones are no images


def preprocessing_notes(source: Source, inputs: Sequence[InputSpec], stated: Recipe | str | Path | None) -> list[str]:
    """Return a source's notes, one line on the preprocessing of its images, and the warnings."""
    recipe = source.recipe()
    notes = [*source.notes]
    if recipe is not None:
        notes.append(f"preprocessing: {recipe_text(recipe)}")
    return [*notes, *preprocessing_warnings(source, inputs, stated)]


def preprocessing_warnings(
    source: Source, inputs: Sequence[InputSpec], stated: Recipe | str | Path | None
) -> list[str]:
    """Return the warnings alone; see `preprocessing_notes`."""
    recipe = source.recipe()
    if recipe is None:
        return _array_warnings(source, inputs)
    if not str(recipe.get("dtype")).startswith("float"):
        return []
    if _says_nothing(stated):
        return [
            "WARNING: nothing says how the model's images are normalised, so pixels went in as 0 to 1, without mean "
            "and std; give --preset, or --mean and --std, or --scale 0.00392157 if this is right"
        ]
    # what pixels of 0 and 255 become, over all channels
    ends = (np.array([[0.0], [_MAX_PIXEL]]) * recipe["scale"] - np.array(recipe["mean"])) / np.array(recipe["std"])
    low, high = float(ends.min()), float(ends.max())
    if max(-low, high) > _MAX_PIXEL:
        return [
            f"WARNING: preprocessing takes pixels to {low:.4g} to {high:.4g}, which no usual recipe does; --mean and "
            "--std count in scaled pixels: with --scale 1 they must be 255 times as large"
        ]
    return []


def other_scale(values: np.ndarray[Any, Any]) -> float:
    """Return by what stored images may have to be multiplied; 1 where no other scale is plausible.

    Fractions may belong to a model of pixels of 0 to 255; values beyond those of normalised pixels to one of fractions.

    >>> [other_scale(np.array(values)) for values in ([0.0, 0.98], [-2.1, 2.6], [0.0, 249.9])]
    [255.0, 1.0, 0.00392156862745098]
    """
    low = float(values.min())
    high = float(values.max())
    if max(-low, high) > _NORMALISED:
        return 1 / _MAX_PIXEL
    if low >= 0 and 0 < high <= 1:
        return _MAX_PIXEL
    return 1.0


def _says_nothing(stated: Recipe | str | Path | None) -> bool:
    if isinstance(stated, (str, Path)):
        return False
    return stated is None or not (stated.mean or stated.std or stated.scale or stated.per_image)


def _array_warnings(source: Source, inputs: Sequence[InputSpec]) -> list[str]:
    """Return a warning about the values of the first stored samples, for inputs that take images."""
    images = [spec.name for spec in inputs if takes_images(spec)]
    if not images or not len(source):
        return []
    rows = np.arange(min(_PROBED, len(source)))
    batch = next(iter(source.batches(len(rows), rows)))
    return [warning for name in images if (warning := _value_warnings(name, batch[name]))]


def takes_images(spec: InputSpec) -> bool:
    """Tell whether an input takes images of floats."""
    if spec.dtype.kind != "f" or len(spec.shape) != 4:
        return False
    sides = {1: spec.shape[2:], 3: spec.shape[1:3]}
    return any(
        spec.shape[axis] in (1, 3) and all(side is None or side >= _MIN_SIDE for side in sides[axis]) for axis in sides
    )


def _value_warnings(name: str, values: np.ndarray[Any, Any]) -> str:
    low = float(values.min())
    high = float(values.max())
    if max(-low, high) > _MAX_PIXEL:
        return (
            f"WARNING: {name!r} has values from {low:.4g} to {high:.4g}, which no usual preprocessing of images gives; "
            "store the samples as the model was trained on them"
        )
    if low >= 0 and high > _NORMALISED and np.array_equal(values, np.trunc(values)):
        return (
            f"{name!r} holds whole numbers from {low:g} to {high:g}, like pixels that nothing has normalised; this is "
            "right only for a model that does so by itself"
        )
    return ""
