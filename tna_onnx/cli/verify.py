"""`tna-onnx verify`."""

from __future__ import annotations

from typing import Any

import click

from tna_onnx.cli.command import Command
from tna_onnx.cli.config import config_options
from tna_onnx.cli.options import data_options, model_options, run_options
from tna_onnx.cli.paths import check_result_file, named_files
from tna_onnx.cli.positional import DataOption, data_argument
from tna_onnx.cli.preprocessing import preprocessing_options, take_recipe
from tna_onnx.cli.written import watch
from tna_onnx.errors import CheckFailed

__all__ = ["verify"]


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
@click.option("--labels", type=click.Path(), help="File with the labels, if they are stored separately.")
@data_options
@preprocessing_options
@model_options  # and no --bins: no metric is computed
@run_options
@config_options
def verify(preset: str | None, json_file: str | None, quiet: bool, **arguments: Any) -> None:
    """Show what differs between ORIGINAL and RECALIBRATED.

    The exit code is 0 if nothing but the head and the appended block differs, and 1 otherwise.

    \b
    Example:
      tna-onnx verify model.onnx model.tna.onnx --data heldout/
    """  # noqa: D301 - click reads the backspace: a paragraph that is not rewrapped
    from tna_onnx.api.verify import verify as run  # noqa: PLC0415 - NumPy loads only when a command runs
    from tna_onnx.cli.show import finish, json_step, ready  # noqa: PLC0415
    from tna_onnx.render.difference_text import difference_text  # noqa: PLC0415
    from tna_onnx.render.progress import progress_shown  # noqa: PLC0415

    check_result_file(json_file, *named_files(arguments))
    recipe = take_recipe(preset, arguments)
    ready()
    watch([json_file])
    with progress_shown(not quiet) as progress:
        difference = run(preprocessing=recipe, progress=progress, **arguments)
    finish(difference_text(difference), [json_step(json_file, difference)], quiet or json_file == "-")
    # after the table, which says in what the files differ
    if not difference.passed:
        raise CheckFailed(f"{difference.recalibrated}: {difference.verdict}")
