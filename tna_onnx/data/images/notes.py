"""What users should read about the preprocessing of images: what was done, and what looks like an oversight.

Wrong preprocessing raises no error anywhere: the model runs, and its accuracy is that of a worse one. So the steps are
said in each command, and these two are said loudly:

1. Nobody has said how a floating-point input is normalised, so pixels went in as 0 to 1.
2. Values are far from what any usual preprocessing gives: normalised pixels lie within -3 to 3, plain ones in 0 to 255.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.data.source import InputSpec, Source, source_notes

__all__ = ["preprocessing_notes", "preprocessing_warnings", "recipe_text"]

_MAX_PIXEL = 255.0
_NORMALISED = 16.0  # normalised pixels lie within 3, and even a small --std keeps them below
_PROBED = 32  # samples: what is wrong with the scale of a data set is wrong with each of them
_MIN_SIDE = 8  # smaller ones are no images


def preprocessing_notes(source: Source, inputs: Sequence[InputSpec], stated: Recipe | str | Path | None) -> list[str]:
    """Return what a source says of itself, one line on what was done to images, and the warnings.

    Args:
        source: the samples.
        inputs: of the model.
        stated: how the user says that images are preprocessed.

    Raises:
        DataError: a sample cannot be read.
    """
    recipe = source.recipe()
    notes = [*source_notes(source)]
    if recipe is not None:
        notes.append(f"preprocessing: {recipe_text(recipe)}")
    return [*notes, *preprocessing_warnings(source, inputs, stated)]


def preprocessing_warnings(
    source: Source, inputs: Sequence[InputSpec], stated: Recipe | str | Path | None
) -> list[str]:
    """Return the warnings alone; see `preprocessing_notes`."""
    recipe = source.recipe()
    if recipe is None:
        return _of_arrays(source, inputs)
    if not str(recipe.get("dtype")).startswith("float"):
        return []
    if _says_nothing(stated):
        return [
            "WARNING: nothing says how the model's images are normalised, so pixels went in as 0 to 1, without mean "
            "and std; give --preset, --preprocessing or --mean and --std, or --scale 0.00392157 if this is right"
        ]
    low, high = _range(recipe)
    if max(-low, high) > _MAX_PIXEL:
        return [
            f"WARNING: preprocessing takes pixels to {low:.4g} to {high:.4g}, which no usual recipe does; --mean and "
            "--std count in scaled pixels: with --scale 1 they must be 255 times as large"
        ]
    return []


def recipe_text(recipe: Mapping[str, object]) -> str:
    """Write a resolved recipe.

    >>> recipe_text({"crop": [224, 224], "mean": [0.485], "resize": None})
    'crop (224, 224), mean (0.485)'
    """
    return ", ".join(f"{key} {_plain(value)}" for key, value in recipe.items() if value is not None)


def _says_nothing(stated: Recipe | str | Path | None) -> bool:
    if isinstance(stated, (str, Path)):
        return False
    return stated is None or (stated.mean, stated.std, stated.scale) == (None, None, None)


def _range(recipe: Mapping[str, Any]) -> tuple[float, float]:
    """Return what pixels of 0 and 255 become, over all channels."""
    ends = np.array([[0.0], [_MAX_PIXEL]]) * recipe["scale"]
    values = (ends - np.array(recipe["mean"])) / np.array(recipe["std"])
    return float(values.min()), float(values.max())


def _of_arrays(source: Source, inputs: Sequence[InputSpec]) -> list[str]:
    """Look at the first stored samples for inputs that take images."""
    images = [spec.name for spec in inputs if _takes_images(spec)]
    if not images or not len(source):
        return []
    rows = np.arange(min(_PROBED, len(source)))
    batch = next(iter(source.batches(len(rows), rows)))
    return [warning for name in images if (warning := _of_values(name, batch[name]))]


def _takes_images(spec: InputSpec) -> bool:
    if spec.dtype.kind != "f" or len(spec.shape) != 4:
        return False
    sides = {1: spec.shape[2:], 3: spec.shape[1:3]}
    return any(
        spec.shape[axis] in (1, 3) and all(side is None or side >= _MIN_SIDE for side in sides[axis]) for axis in sides
    )


def _of_values(name: str, values: np.ndarray[Any, Any]) -> str:
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


def _plain(value: object) -> str:
    """Write a value of the recipe: 0.485, (224, 224)."""
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(_plain(v) for v in value) + ")"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)
