"""`tna-onnx evaluate`."""

from __future__ import annotations

from typing import Any

import click

from tna_onnx.cli.command import Command
from tna_onnx.cli.config import config_options
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
)
from tna_onnx.results.gates import Gates


@click.command(cls=Command, short_help="Measure the accuracy and calibration of MODEL.")
@model_argument
@data_argument
@labelled_data_options
@ood_data_option
@field_options(Gates, "max_ece", "max_nll", "min_accuracy", "min_recall")
@data_options
@by_option
@preprocessing_options
@bins_option
@model_options
@run_options
@config_options
def evaluate(**arguments: Any) -> None:
    """Measure MODEL on labelled data: accuracy, ECE, AdaECE, NLL, Brier score; and what a guarded model decides."""
    from tna_onnx.api.evaluate import evaluate as run  # noqa: PLC0415 - NumPy loads only when a command runs
    from tna_onnx.cli.show import carry_out  # noqa: PLC0415
    from tna_onnx.render.text import evaluation_text  # noqa: PLC0415

    carry_out(run, evaluation_text, arguments)
