"""`tna-onnx features`."""

from __future__ import annotations

from typing import Any

import click

from tna_onnx.cli.command import Command
from tna_onnx.cli.config import config_options
from tna_onnx.cli.options import (
    data_argument,
    data_options,
    engine_options,
    labelled_data_options,
    model_argument,
    model_options,
    preprocessing_options,
    run_options,
)


@click.command(cls=Command, short_help="Store features, for later runs of `calibrate`.")
@model_argument
@data_argument
@labelled_data_options
@click.option("--cache", type=click.Path(), help="Folder of feature stores, for this machine; created if missing.")
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    help="New folder or URL of Parquet files, for every machine and engine; or --cache.",
)
@engine_options
@data_options
@preprocessing_options
@model_options  # and no --bins: no metric is computed
@run_options
@config_options
def features(**arguments: Any) -> None:
    """Compute the features and labels of data once, for `calibrate MODEL FEATURES`.

    Into a cache an interrupted run resumes where it stopped.

    \b
    Example:
      tna-onnx features model.onnx data/ -o features/
      tna-onnx features model.onnx s3://bucket/data/ -o s3://bucket/features --engine ray
      tna-onnx calibrate model.onnx features/
    """  # noqa: D301 - click reads the backspace: a paragraph that is not rewrapped
    from tna_onnx.api.features import features as run  # noqa: PLC0415 - NumPy loads only when a command runs
    from tna_onnx.cli.show import carry_out  # noqa: PLC0415
    from tna_onnx.render.text import collection_text  # noqa: PLC0415

    carry_out(run, collection_text, arguments)
