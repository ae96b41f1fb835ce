"""Options that several commands share, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from tna_onnx.cli.config import config_options
from tna_onnx.cli.types import Number, Words, batch_size, flat, numbers, size
from tna_onnx.data.formats import FORMATS
from tna_onnx.data.images.choices import PRESET_FIELDS, Color, Interpolation, Layout
from tna_onnx.errors import UsageError

if TYPE_CHECKING:
    from tna_onnx.data import Recipe

__all__ = [
    "FIGURE_FORMATS",
    "confidence_option",
    "data_options",
    "limit_options",
    "recipe_from",
    "result_options",
]

F = TypeVar("F", bound=Callable[..., Any])

FIGURE_FORMATS = ("svg", "png", "pdf")

_RECIPE = ("resize", "crop", "crop_pct", "scale", "mean", "std", "layout", "color", "interpolation")


def data_options(command: F) -> F:
    """Add the options on data, preprocessing, device and batches, and those on settings."""
    command = config_options(command)
    for option in reversed(
        [
            click.option("--format", type=click.Choice(FORMATS), help="What the data are.  [default: found out]"),
            click.option("--classes", type=click.Path(), help="File with the class names in the model's order."),
            click.option("--label-column", metavar="NAME", help="Column of a manifest or table with the labels."),
            click.option("--skip-bad", is_flag=True, help="Leave out images that cannot be read, and count them."),
            click.option(
                "--expect-accuracy",
                metavar="PERCENT",
                type=Number(0, 100),
                help="Fail if the model's accuracy on the data is more than two standard errors below.",
            ),
            click.option(
                "--preset", type=click.Choice(list(PRESET_FIELDS)), help="Preprocessing known by name; flags win."
            ),
            click.option(
                "--preprocessing",
                type=click.Path(),
                help="preprocessor_config.json (Hugging Face) or config.json (timm); flags win.",
            ),
            click.option("--resize", metavar="PIXELS", callback=size, help="Shorter side in pixels, or HEIGHT,WIDTH."),
            click.option(
                "--crop", metavar="PIXELS", callback=size, help="Centre crop: side in pixels, or HEIGHT,WIDTH."
            ),
            click.option(
                "--crop-pct", type=float, help="Share of the shorter side that the crop keeps; not with --resize."
            ),
            click.option("--scale", type=float, help="Factor on pixel values 0..255.  [default: 1/255]"),
            click.option(
                "--mean",
                metavar="NUMBERS",
                callback=numbers,
                help="Subtracted after scaling, per channel: 0.485,0.456,0.406.",
            ),
            click.option(
                "--std", metavar="NUMBERS", callback=numbers, help="Divisor after that, per channel: 0.229,0.224,0.225."
            ),
            click.option("--layout", type=click.Choice(get_args(Layout)), help="Axes.  [default: from the model]"),
            click.option("--color", type=click.Choice(get_args(Color)), help="Channels.  [default: from the model]"),
            click.option(
                "--interpolation",
                type=click.Choice(get_args(Interpolation)),
                help="Filter for --resize.  [default: bilinear]",
            ),
            click.option("--bins", type=click.IntRange(1), default=15, show_default=True, help="Bins of ECE, AdaECE."),
            click.option("--head", metavar="NODE", help="Node of the head, where a model has several."),
            click.option("--output-name", metavar="NAME", help="Graph output, where a model has several."),
            click.option(
                "--output-kind",
                type=click.Choice(["logits", "probabilities"]),
                help="What that output holds, where the graph does not tell.",
            ),
            click.option(
                "--device", default="auto", show_default=True, metavar="DEVICE", help="auto, cpu, cuda or cuda:INDEX."
            ),
            click.option(
                "--batch-size",
                metavar="N|auto",
                callback=batch_size,
                default="64",
                show_default=True,
                help="Samples per run; auto finds them by a short probe.",
            ),
            click.option("--json", "json_file", type=click.Path(), help="Write the result as JSON."),
            click.option("-q", "--quiet", is_flag=True, help="No progress, no table."),
        ]
    ):
        command = option(command)
    return command


def limit_options(command: F) -> F:
    """Add the gates on metrics."""
    for option in reversed(
        [
            click.option(
                "--max-ece",
                metavar="PERCENT",
                type=Number(0, 100),
                help="Gate: fail, exit code 1, if the ECE is above.",
            ),
            click.option("--max-nll", metavar="NATS", type=Number(0), help="Gate: fail if the NLL is above."),
            click.option(
                "--min-accuracy",
                metavar="PERCENT",
                type=Number(0, 100),
                help="Gate: fail if the accuracy is below.",
            ),
        ]
    ):
        command = option(command)
    return command


confidence_option = click.option(
    "--confidence-level",
    metavar="PERCENT",
    type=Number(50, 99.9),
    default=95.0,
    show_default=True,
    help="Of all intervals.",
)


def result_options(command: F) -> F:
    """Add what becomes of a report beside text and JSON: a diagram in the terminal, figures, MLflow."""
    for option in reversed(
        [
            click.option("--plot", is_flag=True, help="Print reliability diagrams, before and after."),
            click.option(
                "--figures",
                metavar="DIR",
                type=click.Path(),
                help="Write the figures of the report as files into this folder; made if it is missing.",
            ),
            click.option(
                "--figure-format",
                "figure_formats",
                multiple=True,
                type=Words(FIGURE_FORMATS),
                callback=flat,
                default=FIGURE_FORMATS,
                show_default=True,
                help="Format of them; several with commas, or given several times.",
            ),
            click.option("--mlflow", is_flag=True, help="Log the run to MLflow, at MLFLOW_TRACKING_URI."),
            click.option("--mlflow-experiment", metavar="NAME", help="Experiment of that run; implies --mlflow."),
        ]
    ):
        command = option(command)
    return command


def recipe_from(preset: str | None, given: dict[str, Any]) -> Recipe | None:
    """Take the preprocessing flags out of `given`; None if there are none."""
    from tna_onnx.data import PRESETS, Recipe, read_recipe  # noqa: PLC0415 - NumPy loads only when a command runs

    flags = {name: given.pop(name) for name in _RECIPE}
    flags = {name: value for name, value in flags.items() if value is not None}
    file = given.pop("preprocessing")
    if preset is not None and file is not None:
        raise UsageError("--preset and --preprocessing both say how images are preprocessed; give one of them")
    if preset is None and file is None and not flags:
        return None
    base = read_recipe(Path(file)) if file else PRESETS[preset] if preset else Recipe()
    return base.override(**flags)
