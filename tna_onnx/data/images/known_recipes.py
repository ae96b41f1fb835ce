"""Recipes that networks are commonly trained with, the options that select one, and a search among them by labels.

Mean and std are in the order of the channels; those of RGB applied to BGR, a common slip, are a recipe of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tna_onnx.data.images.preprocess import PRESETS, Recipe

if TYPE_CHECKING:
    from tna_onnx.data.source import Source

_UNIT = 1 / 255

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
