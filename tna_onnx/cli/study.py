"""`tna-onnx study`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tna_onnx.cli import options
from tna_onnx.cli.command import Command
from tna_onnx.cli.config import config_options
from tna_onnx.cli.terminal import check_figure_folder, named_files
from tna_onnx.studies.settings import EXPERIMENTS, StudySettings


@click.command(cls=Command, short_help="Repeat the paper's experiments on MODEL.")
@options.model_argument
@options.data_argument
@options.calibration_data_options("Labelled calibration data", "Held-out data to score.", required=True)
@click.option(
    "-o",
    "--out",
    metavar="DIR",
    required=True,
    type=click.Path(),
    help="Folder for the results, created if missing.",
)
@click.option("--cache", type=click.Path(), help="Folder that keeps the features.")
@click.option(
    "--only",
    metavar="NAME,...",
    multiple=True,
    type=options.Words([*EXPERIMENTS]),
    callback=options.flat,
    help="Studies to make: "
    + "; ".join(f"{name} ({row.measures} against {row.varies})" for name, row in EXPERIMENTS.items())
    + ".  [default: all]",
)
@options.field_options(StudySettings)
@options.sample_options(*options.ONE_PREDICTION, *options.ALL_ALIKE, "expect_accuracy")
@config_options
def study(**arguments: Any) -> None:
    """Repeat the paper's experiments on MODEL: tables, curves, and one page with all of them.

    Each study writes NAME.csv, NAME.json and NAME.svg into --out, and index.html shows them.

    \b
    Example:
      tna-onnx study model.onnx --calib data/ --eval heldout/ --out study/ --only table,angle
    """  # noqa: D301 - click reads the backspace: a paragraph that is not rewrapped
    from tna_onnx.api.study import study as run
    from tna_onnx.cli.show import command_line, page_step, run_command
    from tna_onnx.render.figures import write_figures
    from tna_onnx.render.html.pages import study_page
    from tna_onnx.render.terminal import study_text

    # before the work: a mistyped path must not cost a run
    check_figure_folder(arguments["out"], *named_files(arguments))
    folder = Path(arguments["out"])
    page = str(folder / "index.html")
    run_command(
        run,
        study_text,
        arguments,
        page=page,
        steps=lambda studies: [
            page_step(page, lambda: study_page(studies, command_line())),
            lambda: [f"figures  {folder}: {', '.join(path.name for path in write_figures(studies, folder))}"],
        ],
    )
