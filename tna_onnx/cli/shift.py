"""`tna-onnx shift`."""

from __future__ import annotations

from typing import Any

import click

from tna_onnx.cli.command import Command
from tna_onnx.cli.config import config_options
from tna_onnx.cli.options import (
    DataOption,
    data_argument,
    data_options,
    field_options,
    model_argument,
    model_options,
    preprocessing_options,
    run_options,
    together,
    write_model,
)
from tna_onnx.shifting.settings import ShiftSettings

__all__ = ["shift"]

_shift_options = together(
    click.option(
        "--calib",
        "--data",
        "calib",
        cls=DataOption,
        required=True,
        type=click.Path(),
        help="Labelled data of the kind that MODEL was made for: file, folder or URL; may also be given as DATA, after "
        "MODEL.",
    ),
    click.option("--labels", type=click.Path(), help="File with the labels of --calib, if they are stored separately."),
    click.option(
        "--target-data",
        "target",
        type=click.Path(),
        help="Data as the model will see them, for estimating class frequencies. Their labels are not read.",
    ),
    click.option(
        "--eval", type=click.Path(), help="Labelled data as the model will see them, for measuring the result."
    ),
    click.option(
        "--eval-labels", type=click.Path(), help="File with the labels of --eval, if they are stored separately."
    ),
    click.option("-o", "--output", type=click.Path(), help="File to write.  [default: MODEL.shift.onnx]"),
    click.option("--overwrite", is_flag=True, help="Allow the output to replace the input model."),
    click.option("--dry-run", is_flag=True, help="Do everything, but write no model."),
    field_options(ShiftSettings),
)


@click.command(cls=Command, short_help="Write a copy of MODEL for other class frequencies.")
@model_argument
@data_argument
@_shift_options
@data_options
@preprocessing_options
@model_options
@run_options
@config_options
def shift(preset: str | None, json_file: str | None, quiet: bool, **arguments: Any) -> None:
    """Write a copy of MODEL for data in which classes are more or less frequent than before.

    The new class frequencies are given, or estimated on data without labels. Both ways assume that samples of a class
    look the same as before. If data are given, this is tested.

    \b
    Example:
      tna-onnx shift model.tna.onnx --calib calib/ --target-data unlabelled/
    """  # noqa: D301 - click reads the backspace: a paragraph that is not rewrapped
    from tna_onnx.api.shift import shift as run  # noqa: PLC0415 - NumPy loads only when a command runs
    from tna_onnx.render.guard_text import shift_text  # noqa: PLC0415

    write_model(run, shift_text, ".shift.onnx", arguments, preset=preset, json_file=json_file, quiet=quiet)
