"""`tna-onnx shift`."""

from __future__ import annotations

from typing import Any

import click

from tna_onnx.cli.command import Command
from tna_onnx.cli.config import config_options
from tna_onnx.cli.options import (
    calibration_data_options,
    data_argument,
    data_options,
    field_options,
    model_argument,
    model_options,
    preprocessing_options,
    run_options,
    together,
    written_options,
)
from tna_onnx.shifting.shift_settings import ShiftSettings

_shift_options = together(
    calibration_data_options(
        "Labelled data of the kind that MODEL was made for",
        "Labelled data as the model will see them, for measuring the result.",
    ),
    click.option(
        "--target-data",
        "target",
        type=click.Path(),
        help="Data as the model will see them, for estimating class frequencies. Their labels are not read.",
    ),
    written_options(".shift.onnx"),
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
def shift(**arguments: Any) -> None:
    """Write a copy of MODEL for data in which classes are more or less frequent than before.

    The new class frequencies are given, or estimated on data without labels. Both ways assume that samples of a class
    look the same as before. If data are given, this is tested.

    \b
    Example:
      tna-onnx shift model.tna.onnx --calib calib/ --target-data unlabelled/
    """  # noqa: D301 - click reads the backspace: a paragraph that is not rewrapped
    from tna_onnx.api.shift import shift as run  # noqa: PLC0415 - NumPy loads only when a command runs
    from tna_onnx.cli.show import carry_out  # noqa: PLC0415
    from tna_onnx.render.guard_text import shift_text  # noqa: PLC0415

    carry_out(run, shift_text, arguments, ".shift.onnx")
