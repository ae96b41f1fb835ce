"""Recipes that networks are commonly trained with, what a search among them gives, and pixels that none of them makes.

Mean and std are in the order of the channels; those of RGB applied to BGR, a common slip, are a recipe of their own.
Wrong preprocessing raises no error, but lowers the accuracy. Normalised pixels lie within -3 to 3, plain ones in 0 to
255.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tna_onnx.data.images.preprocess import PRESETS, Recipe, recipe_text
from tna_onnx.data.source import InputSpec, Source

_UNIT = 1 / 255
_MAX_PIXEL = 255.0
_NORMALISED = 16.0  # normalised pixels lie within 3, and even a small --std keeps them below
_PROBED = 32  # samples: what is wrong with the scale of a data set is wrong with each of them
_MIN_SIDE = 8  # smaller ones are no images

# Subtracted from pixels of 0 to 255 by networks from Caffe, and by several of Keras: ImageNet's means.
_CAFFE = Recipe(scale=1.0, mean=(123.68, 116.779, 103.939))

# What much CIFAR-10 code has: the mean of the standard deviations of single images.
_CIFAR10_SINGLE = Recipe(scale=_UNIT, mean=PRESETS["cifar10"].mean, std=(0.2023, 0.1994, 0.2010))


@dataclass(frozen=True)
class NamedRecipe:
    """A recipe and its name in reports."""

    name: str
    recipe: Recipe

    @property
    def flags(self) -> str:
        """The command-line options that select it."""
        recipe = replace(self.recipe, color=self.recipe.color or "RGB")
        for name, preset in PRESETS.items():
            # on an input with as many channels
            if replace(preset, scale=_UNIT, color=preset.color or "RGB") == recipe:
                return f"--preset {name}"
        words = ["--preset per-image"] if recipe.per_image else []
        for name in ("resize", "crop", "crop_pct", "scale", "mean", "std", "color", "interpolation"):
            value = getattr(recipe, name)
            # 1/255 is what other options of normalisation take for granted
            granted = name == "scale" and value == _UNIT and (recipe.mean or recipe.std or recipe.per_image)
            if value is not None and not granted:
                words.append(f"--{name.replace('_', '-')} {_typed(value)}")
        return " ".join(words)


# Statistics of natural images (ImageNet, CLIP, CIFAR) lie close to one another; one of them stands for all.
COARSE = ("0 to 1", "0 to 255", "-1 to 1", "imagenet", "mnist")
"""Names of recipes of which each differs much from the others."""


def known_recipes(channels: int, *, float_input: bool) -> list[NamedRecipe]:
    """Return the recipes for an input, which differ in scale, mean, std and order of the channels.

    `float_input`: whether the input takes floating-point numbers; others take pixels as they are.
    """
    scaled = {
        "0 to 1": Recipe(scale=_UNIT),
        "0 to 255": Recipe(scale=1.0),
        "-1 to 1": Recipe(scale=_UNIT, mean=(0.5,), std=(0.5,)),
        "per image": Recipe(scale=_UNIT, per_image=True),
    }
    if not float_input:
        scaled = {"pixels": Recipe()}
    mnist = replace(PRESETS["mnist"], scale=_UNIT)
    if channels == 1:
        plain = [NamedRecipe(name, replace(recipe, color="L")) for name, recipe in scaled.items()]
        if float_input:
            return [*plain, NamedRecipe("mnist", mnist)]
        return plain
    if float_input:
        for name in ("imagenet", "clip", "cifar10", "cifar100"):
            scaled[name] = Recipe(scale=_UNIT, mean=PRESETS[name].mean, std=PRESETS[name].std)
        scaled["cifar10, std 0.2"] = _CIFAR10_SINGLE
        scaled["mnist"] = replace(mnist, color=None)
        scaled["caffe"] = _CAFFE
    named = []
    for name, recipe in scaled.items():
        named.append(NamedRecipe(f"{name}, RGB", replace(recipe, color="RGB")))
        mean = recipe.mean and recipe.mean[::-1]
        std = recipe.std and recipe.std[::-1]
        named.append(NamedRecipe(f"{name}, BGR", replace(recipe, mean=mean, std=std, color="BGR")))
        if name == "imagenet":
            named.append(NamedRecipe(f"{name}, BGR with mean and std of RGB", replace(recipe, color="BGR")))
    return named


def _typed(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(_typed(part) for part in value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


@dataclass(frozen=True)
class RecipeScore:
    """The accuracy and NLL of a model on images under one recipe.

    Attributes:
        name: of the recipe.
        flags: options that ask for it.
        samples: images that were run under it.
        accuracy: of the model on them, a fraction.
        nll: NLL on them at the recipe's own temperature, nats.
        behind: how much larger than that of the best recipe the NLL is on the same images, in units of its standard
            error.
    """

    name: str
    flags: str
    samples: int
    accuracy: float
    nll: float
    behind: float


@dataclass(frozen=True)
class RecipeSearch:
    """The result of searching for the preprocessing of images that nothing states.

    Attributes:
        chosen: name of the recipe that is used.
        tied: whether recipes that hardly differ from it do as well, as far as these samples tell.
        recipes: all that were tried, the best first.
    """

    chosen: str
    tied: bool
    recipes: tuple[RecipeScore, ...]


def source_search(source: Source) -> RecipeSearch | None:
    """Return how the preprocessing of images was found; None where something says what it is."""
    search: RecipeSearch | None = getattr(source, "search", None)
    return search


# ---- warnings of unusual values


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
