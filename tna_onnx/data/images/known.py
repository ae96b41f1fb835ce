"""Recipes that networks are commonly trained with, and recipes written down next to a model.

The latter are in the metadata of a file that this package wrote, and in a `preprocessor_config.json` or timm
`config.json` in the model's folder (for an export in a folder `onnx`, the parent folder).

A recipe's mean and std are in the order of its channels. Code that reads images with OpenCV often applies the mean and
std of red, green and blue to blue, green and red; that is a separate recipe here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tna_onnx.data.files import foreign_json
from tna_onnx.data.images.preprocess import PRESETS, Recipe
from tna_onnx.data.images.recipes import read_recipe
from tna_onnx.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tna_onnx.data.choices import Limits

_UNIT = 1 / 255
_METADATA = "preprocessing"  # the entry's name, behind the prefix of this package

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
        for name, preset in PRESETS.items():
            if _same(preset, self.recipe):
                return f"--preset {name}"
        words = []
        for field in fields(Recipe):
            value = getattr(self.recipe, field.name)
            if value is None or value == field.default or field.name == "layout":
                continue
            words.append(f"--{field.name.replace('_', '-')} {_typed(value)}")
        return " ".join(words)


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


# Statistics of natural images (ImageNet, CLIP, CIFAR) lie close to one another; one of them stands for all.
COARSE = ("0 to 1", "0 to 255", "-1 to 1", "imagenet", "mnist")
"""Names of recipes of which each differs much from the others."""


def known_recipes(channels: int, *, float_input: bool) -> list[NamedRecipe]:
    """Return the recipes for an input, which differ in scale, mean, std and order of the channels.

    Args:
        channels: 1 or 3.
        float_input: whether the input takes floating-point numbers; others take pixels as they are.
    """
    scaled = {
        "0 to 1": Recipe(scale=_UNIT),
        "0 to 255": Recipe(scale=1.0),
        "-1 to 1": Recipe(scale=_UNIT, mean=(0.5,), std=(0.5,)),
    }
    if not float_input:
        scaled = {"pixels": Recipe()}
    mnist = replace(PRESETS["mnist"], scale=_UNIT)
    if channels == 1:
        plain = [NamedRecipe(name, replace(recipe, color="L")) for name, recipe in scaled.items()]
        return [*plain, NamedRecipe("mnist", mnist)] if float_input else plain
    if float_input:
        for name in ("imagenet", "clip", "cifar10", "cifar100"):
            scaled[name] = Recipe(scale=_UNIT, mean=PRESETS[name].mean, std=PRESETS[name].std)
        scaled["cifar10, std 0.2"] = _CIFAR10_SINGLE
        scaled["mnist"] = replace(mnist, color=None)
        scaled["caffe"] = _CAFFE
    named = []
    for name, recipe in scaled.items():
        named.append(NamedRecipe(f"{name}, RGB", replace(recipe, color="RGB")))
        named.append(NamedRecipe(f"{name}, BGR", replace(_reversed(recipe), color="BGR")))
        if name == "imagenet":
            named.append(NamedRecipe(f"{name}, BGR with mean and std of RGB", replace(recipe, color="BGR")))
    return named


def recipe_in(entries: Mapping[str, str], model: str) -> Recipe | None:
    """Return the recipe that this package wrote into a model's metadata; None where there is none.

    Args:
        entries: of this package, without their prefix.
        model: what messages call the model.

    Raises:
        DataError: the entry is no recipe.
    """
    text = entries.get(_METADATA)
    if text is None:
        return None
    try:
        values = foreign_json(text)
        names = [field.name for field in fields(Recipe)]
        if not isinstance(values, dict) or not set(values) <= {*names, "height", "width", "dtype"}:
            raise ValueError("other keys than those of a recipe")
        return Recipe(**{name: _stored(name, values[name]) for name in names if values.get(name) is not None})
    except (ValueError, OverflowError, RecursionError) as error:
        raise DataError(
            f"{model}: its metadata tna_onnx.{_METADATA} describe no preprocessing ({error}); state it with options"
        ) from error


def recipe_beside(path: Path, limits: Limits) -> tuple[Path, Recipe] | None:
    """Return the recipe in a Hugging Face or timm file in a model's folder, and that file's path; None without one.

    Raises:
        DataError: a `preprocessor_config.json` is there and cannot be followed.
    """
    folder = path.parent
    folders = [folder, folder.parent] if folder.name == "onnx" else [folder]
    for place in folders:
        file = place / "preprocessor_config.json"
        if file.is_file():
            return file, read_recipe(file, limits)
        file = place / "config.json"
        # most files of this name are about other things
        try:
            if file.is_file():
                return file, read_recipe(file, limits)
        except (DataError, UsageError):
            continue
    return None


def _reversed(recipe: Recipe) -> Recipe:
    mean = None if recipe.mean is None else recipe.mean[::-1]
    std = None if recipe.std is None else recipe.std[::-1]
    return replace(recipe, mean=mean, std=std)


def _same(preset: Recipe, recipe: Recipe) -> bool:
    """Tell whether a preset gives this recipe on an input with as many channels."""
    color = preset.color or "RGB"
    return replace(preset, scale=_UNIT, color=color) == replace(recipe, color=recipe.color or "RGB")


def _typed(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(_typed(part) for part in value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def _stored(name: str, value: Any) -> Any:
    """Convert a value of the metadata to the type of its field.

    Raises:
        ValueError: another type.
    """
    if name in ("layout", "color", "interpolation"):
        if isinstance(value, str):
            return value
    elif name in ("resize", "crop"):
        if type(value) is int:
            return value
        if isinstance(value, list) and len(value) == 2 and all(type(side) is int for side in value):
            return tuple(value)
    elif name in ("mean", "std"):
        if isinstance(value, list) and all(type(part) in (int, float) for part in value):
            return tuple(float(part) for part in value)
    elif type(value) in (int, float):
        return float(value)
    raise ValueError(f"{name}: {value!r:.80}")
