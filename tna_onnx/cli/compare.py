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
    take_recipe,
)
from tna_onnx.cli.terminal import check_result_file, named_files, watch

__all__ = ["compare"]


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
def compare(preset: str | None, json_file: str | None, page: str | None, quiet: bool, **arguments: Any) -> None:
    """Measure several models on the same labelled data, with paired differences to one of them.

    --head, --output-name and --output-kind apply to all models, --expect-accuracy to the baseline.

    \b
    Example:
      tna-onnx compare model.onnx model.tna.onnx other.onnx heldout/ --report comparison.html
    """  # noqa: D301 - click reads the backspace: a paragraph that is not rewrapped
    from tna_onnx.api.compare import compare as run  # noqa: PLC0415 - NumPy loads only when a command runs
    from tna_onnx.cli.show import command_line, finish, json_step, page_step, ready  # noqa: PLC0415
    from tna_onnx.render.progress import progress_shown  # noqa: PLC0415
    from tna_onnx.render.text import model_comparison_text  # noqa: PLC0415

    arguments["models"], arguments["data"] = last_word(arguments["models"], arguments["data"])
    inputs = [*arguments["models"], *named_files(arguments)]
    # before any model runs; the two results must not be one file either
    check_result_file(json_file, *inputs, page)
    check_result_file(page, *inputs, kind="HTML")
    recipe = take_recipe(preset, arguments)
    ready()
    watch([json_file, page])
    with progress_shown(not quiet) as progress:
        comparison = run(preprocessing=recipe, progress=progress, **arguments)

    def html() -> str:
        from tna_onnx.render.html.comparison import comparison_page  # noqa: PLC0415 - only if it is asked for

        return comparison_page(comparison, command_line())

    steps = [json_step(json_file, comparison), page_step(page, html)]
    finish(model_comparison_text(comparison), steps, quiet or json_file == "-")
