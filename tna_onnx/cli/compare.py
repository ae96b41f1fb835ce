"""`tna-onnx compare`."""

from __future__ import annotations

from typing import Any

import click

from tna_onnx.cli.command import Command
from tna_onnx.cli.config import config_options
from tna_onnx.cli.options import (
    bins_option,
    by_option,
    confidence_option,
    data_options,
    labels_option,
    last_word,
    model_options,
    ood_data_option,
    preprocessing_options,
    run_options,
)
from tna_onnx.cli.terminal import check_result_file, named_files


@click.command(cls=Command, short_help="Measure several models on the same data.")
@click.argument("models", metavar="MODEL MODEL... [DATA]", nargs=-1, required=True, type=click.Path())
@click.option("--data", "--calib", "data", type=click.Path(), help="Labelled data: file, folder or URL.  [required]")
@labels_option
@click.option(
    "--baseline",
    metavar="NAME|INDEX",
    default="1",
    show_default=True,
    help="Model that the others are compared with: its file name, or its position counted from 1.",
)
@ood_data_option
@confidence_option
@click.option("--report", "page", metavar="FILE", type=click.Path(), help="Write an HTML report, in one file.")
@data_options
@by_option
@preprocessing_options
@bins_option
@model_options
@run_options
@config_options
def compare(page: str | None, **arguments: Any) -> None:
    """Measure several models on the same labelled data, with paired differences to one of them.

    --head, --output-name and --output-kind apply to all models, --expect-accuracy to the baseline.

    \b
    Example:
      tna-onnx compare model.onnx model.tna.onnx other.onnx heldout/ --report comparison.html
    """  # noqa: D301 - click reads the backspace: a paragraph that is not rewrapped
    from tna_onnx.api.compare import compare as run  # noqa: PLC0415 - NumPy loads only when a command runs
    from tna_onnx.cli.show import Step, carry_out, command_line, page_step  # noqa: PLC0415
    from tna_onnx.render.text import model_comparison_text  # noqa: PLC0415

    arguments["models"], arguments["data"] = last_word(arguments["models"], arguments["data"])
    # before any model runs
    check_result_file(page, *named_files(arguments), kind="HTML")

    def steps(comparison: Any) -> list[Step]:
        if page is None:
            return []
        from tna_onnx.render.html.comparison import comparison_page  # noqa: PLC0415 - only if it is asked for

        return [page_step(page, lambda: comparison_page(comparison, command_line()))]

    carry_out(run, model_comparison_text, arguments, page=page, steps=steps)
