"""`tna-onnx verify`."""

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
    labels_option,
    model_options,
    preprocessing_options,
    run_options,
)
from tna_onnx.errors import CheckFailed
from tna_onnx.results.gates import Gates


@click.command(cls=Command)
@click.argument("original", type=click.Path())
@click.argument("recalibrated", type=click.Path())
@data_argument
# Not required, unlike in other commands: the files alone show what differs.
@click.option(
    "--data",
    "--calib",
    "data",
    cls=DataOption,
    type=click.Path(),
    help="Labelled data to run both files on: file, folder or URL.",
)
@labels_option
@field_options(Gates, "max_ece", "max_nll", "min_accuracy")
@data_options
@preprocessing_options
@model_options
@run_options
@config_options
def verify(**arguments: Any) -> None:
    """Prove that RECALIBRATED was made of ORIGINAL.

    It is made again, of ORIGINAL and of what it says of its making, and all of it is compared. With --data, both are
    run and compared, too. The exit code is 0 if it is intact and, with --data, no gate is missed; and 1 otherwise.

    \b
    Example:
      tna-onnx verify model.onnx model.tna.onnx --data heldout/
    """  # noqa: D301 - click reads the backspace: a paragraph that is not rewrapped
    from tna_onnx.api.verify import verify as run  # noqa: PLC0415 - NumPy loads only when a command runs
    from tna_onnx.cli.show import carry_out  # noqa: PLC0415
    from tna_onnx.render.verify_text import difference_text  # noqa: PLC0415

    difference = carry_out(run, difference_text, arguments)
    # after the table, which says in what the files differ
    if not difference.passed:
        raise CheckFailed(f"{difference.recalibrated}: {difference.verdict}")
