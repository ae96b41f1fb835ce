"""`tna-onnx fit`."""

from __future__ import annotations

from typing import Any

import click

from tna_onnx.cli.command import Command
from tna_onnx.cli.config import config_options
from tna_onnx.cli.options import field_options
from tna_onnx.data.choices import DataFields
from tna_onnx.pipeline.settings import FIT_SETTINGS, Settings


@click.command(cls=Command, short_help="Calibrate logits or probabilities in files.")
@click.argument("data", type=click.Path())
@click.option("-o", "--output", required=True, type=click.Path(), help="Model to write: scores in, calibrated out.")
@click.option(
    "--scores",
    type=click.Choice(("logits", "probabilities"), case_sensitive=False),
    help="Which column or array to use, where the data have both.",
)
@field_options(DataFields, "label_column", "group_column", "weight_column")
@field_options(Settings, *FIT_SETTINGS)
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    type=click.Path(allow_dash=True),
    help="Write the report as JSON to this file; with -, write it to standard output, and nothing else there.",
)
@click.option("-q", "--quiet", is_flag=True, help="Show no progress and print no table.")
@config_options
def fit(**arguments: Any) -> None:
    """Write a model by itself that calibrates scores, from logits or probabilities with labels in DATA.

    \b
    Example:
      tna-onnx fit logits.parquet -o calibrator.onnx
    """  # noqa: D301 - click reads the backspace: a paragraph that is not rewrapped
    from tna_onnx.api.calibrator import fit as run  # noqa: PLC0415 - NumPy loads only when a command runs
    from tna_onnx.cli.show import carry_out  # noqa: PLC0415
    from tna_onnx.render.text import report_text  # noqa: PLC0415

    carry_out(run, report_text, arguments, ".onnx")
