"""`tna-onnx evaluate`."""

from __future__ import annotations

from typing import Any

import click

from tna_onnx.cli.command import Command
from tna_onnx.cli.config import config_options
from tna_onnx.cli.extras import run_gated
from tna_onnx.cli.options import (
    bins_option,
    by_option,
    data_argument,
    data_options,
    field_options,
    labelled_data_options,
    model_argument,
    model_options,
    ood_data_option,
    preprocessing_options,
    run_options,
    take_recipe,
)
from tna_onnx.cli.terminal import check_result_file, named_files, watch
from tna_onnx.cli.types import options
from tna_onnx.results.gates import Gates

__all__ = ["evaluate"]


@click.command(cls=Command, short_help="Measure the accuracy and calibration of MODEL.")
@model_argument
@data_argument
@labelled_data_options
@ood_data_option
@field_options(Gates, "max_ece", "max_nll", "min_accuracy")
@click.option(
    "--min-recall",
    multiple=True,
    metavar="CLASS=SHARE",
    callback=options,
    help="Gate: exit with code 1 if the output decision finds less than this share of the samples of a class.",
)
@data_options
@by_option
@preprocessing_options
@bins_option
@model_options
@run_options
@config_options
def evaluate(preset: str | None, json_file: str | None, quiet: bool, **arguments: Any) -> None:
    """Measure MODEL on labelled data: accuracy, ECE, AdaECE, NLL, Brier score; and what a guarded model decides."""
    from tna_onnx.api.evaluate import evaluate as run  # noqa: PLC0415 - NumPy loads only when a command runs
    from tna_onnx.cli.show import finish, json_step, ready  # noqa: PLC0415
    from tna_onnx.render.progress import progress_shown  # noqa: PLC0415
    from tna_onnx.render.text import evaluation_text  # noqa: PLC0415

    # before the work: a mistyped path must not cost a run
    check_result_file(json_file, *named_files(arguments))
    recipe = take_recipe(preset, arguments)
    ready()
    watch([json_file])
    with progress_shown(not quiet) as progress:
        evaluation, missed = run_gated(run, preprocessing=recipe, progress=progress, **arguments)
    finish(evaluation_text(evaluation), [json_step(json_file, evaluation)], quiet or json_file == "-")
    # The numbers are shown first: whoever misses a gate wants to know by how much.
    if missed:
        raise missed
