"""How images are preprocessed: the options, and the recipe that they make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from tna_onnx.cli.options import together
from tna_onnx.cli.types import choice, numbers, size
from tna_onnx.data.images.choices import PRESET_FIELDS, Color, Interpolation, Layout
from tna_onnx.errors import UsageError

if TYPE_CHECKING:
    from tna_onnx.data import Recipe

__all__ = ["preprocessing_options", "take_recipe"]

# Fields of Recipe that have an option of the same name.
_PARTS = ("resize", "crop", "crop_pct", "scale", "mean", "std", "layout", "color", "interpolation")

preprocessing_options = together(
    click.option(
        "--preset",
        metavar="NAME",
        type=choice(tuple(PRESET_FIELDS)),
        help=f"How images are preprocessed: {', '.join(PRESET_FIELDS)}. Flags such as --mean override parts of it.",
    ),
    click.option(
        "--preprocessing",
        type=click.Path(),
        help="preprocessor_config.json (Hugging Face) or config.json (timm); flags such as --mean override parts of "
        "it.",
    ),
    click.option("--resize", metavar="PIXELS", callback=size, help="Resize to this shorter side, or to HEIGHT,WIDTH."),
    click.option("--crop", metavar="PIXELS", callback=size, help="Crop the centre: side, or HEIGHT,WIDTH."),
    click.option("--crop-pct", type=float, help="Share of the shorter side that the crop keeps; not with --resize."),
    click.option("--scale", type=float, help="Factor on pixel values 0..255.  [default: 1/255]"),
    click.option(
        "--mean",
        metavar="NUMBERS",
        callback=numbers,
        help="Subtract this from each channel after scaling, such as 0.485,0.456,0.406.",
    ),
    click.option(
        "--std",
        metavar="NUMBERS",
        callback=numbers,
        help="Then divide each channel by this, such as 0.229,0.224,0.225.",
    ),
    click.option("--layout", type=choice(get_args(Layout)), help="Order of the axes.  [default: from the model]"),
    click.option("--color", type=choice(get_args(Color)), help="Colour channels.  [default: from the model]"),
    click.option(
        "--interpolation",
        type=choice(get_args(Interpolation)),
        help="Filter for --resize.  [default: bilinear]",
    ),
)


def take_recipe(preset: str | None, arguments: dict[str, Any]) -> Recipe | None:
    """Take the values of the preprocessing options out of `arguments`.

    Returns:
        The recipe; None if no option says how images are preprocessed.

    Raises:
        UsageError: both a preset and a file are given, or the file cannot be read.
    """
    from tna_onnx.data import PRESETS, Recipe, read_recipe  # noqa: PLC0415 - NumPy loads only when a command runs

    # popped: what is left are the API's own keywords
    values = {name: arguments.pop(name) for name in _PARTS}
    parts = {name: value for name, value in values.items() if value is not None}
    file = arguments.pop("preprocessing")
    if preset is not None and file is not None:
        raise UsageError("--preset and --preprocessing both say how images are preprocessed; give one of them")
    # None, not an empty recipe: arrays are used as they are
    if preset is None and file is None and not parts:
        return None
    if file:
        base = read_recipe(Path(file))
    elif preset:
        base = PRESETS[preset]
    else:
        base = Recipe()
    return base.override(**parts)
