"""`tna-onnx guard`."""

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
    ood_data_option,
    preprocessing_options,
    run_options,
    together,
    write_model,
)
from tna_onnx.guarding.settings import GuardSettings

__all__ = ["guard"]


_guard_options = together(
    calibration_data_options(
        "Labelled data that neither the model nor its calibration has seen",
        "Further labelled data, to measure what the file decides.",
    ),
    click.option("-o", "--output", type=click.Path(), help="File to write.  [default: MODEL.guard.onnx]"),
    click.option("--overwrite", is_flag=True, help="Allow the output to replace the input model."),
    click.option("--dry-run", is_flag=True, help="Do everything, but write no model."),
    field_options(GuardSettings),
    ood_data_option,
)


@click.command(cls=Command, short_help="Write a copy of MODEL that also decides.")
@model_argument
@data_argument
@_guard_options
@data_options
@preprocessing_options
@model_options  # and no --bins: no metric is computed
@run_options
@config_options
def guard(preset: str | None, json_file: str | None, quiet: bool, **arguments: Any) -> None:
    """Write a copy of MODEL that also decides: answer or abstain, a set of classes, known or unknown.

    Each decision is an additional output, with a guarantee for samples from the same source as those of --calib. The
    other outputs do not change.

    \b
    Example:
      tna-onnx guard model.tna.onnx --calib fresh/ --add accept,set --risk 1 --coverage 95
    """  # noqa: D301 - click reads the backspace: a paragraph that is not rewrapped
    from tna_onnx.api.guard import guard as run  # noqa: PLC0415 - NumPy loads only when a command runs
    from tna_onnx.render.guard_text import guard_text  # noqa: PLC0415

    write_model(run, guard_text, ".guard.onnx", arguments, preset=preset, json_file=json_file, quiet=quiet)
