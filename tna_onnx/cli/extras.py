"""What a report becomes besides text, JSON and HTML: a diagram in the terminal, figures, a run of MLflow."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tna_onnx.cli.options import together
from tna_onnx.cli.terminal import check_figure_folder, complain

if TYPE_CHECKING:
    from tna_onnx.results.report import Report

__all__ = ["Extras", "extra_options"]

FIGURE_FORMATS = ("svg", "png", "pdf")

extra_options = together(
    click.option("--plot", is_flag=True, help="Print the reliability diagrams before and after."),
    click.option(
        "--figures",
        metavar="DIR",
        type=click.Path(),
        help="Write the figures of the report as files into this folder, which is created if missing.",
    ),
    click.option(
        "--mlflow",
        is_flag=True,
        help="Log the run to the MLflow server or store that MLFLOW_TRACKING_URI names, in the experiment of "
        "MLFLOW_EXPERIMENT_NAME.",
    ),
)


@dataclass(frozen=True)
class Extras:
    """What `extra_options` ask for.

    Attributes:
        figures: folder, None for no figures.
        mlflow: whether to log to MLflow.
    """

    figures: str | None
    mlflow: bool

    def check(self, *files: str | None) -> None:
        """Refuse before the work what would fail after it.

        Args:
            files: other files of the command.

        Raises:
            UsageError: a library is missing, or the folder cannot be used.
        """
        from tna_onnx.render.figures import require_matplotlib  # noqa: PLC0415 - NumPy loads only when a command runs
        from tna_onnx.render.mlflow import require_mlflow  # noqa: PLC0415

        if self.figures is not None:
            check_figure_folder(self.figures, *files)
            require_matplotlib()
        if self.mlflow:
            warning = require_mlflow()
            if warning:
                complain(warning)

    def steps(self, report: Report, html: str | None) -> list[Callable[[], Sequence[str]]]:
        """Return steps that draw the figures and then log the run, with the files that were written.

        Args:
            report: of the run.
            html: path of its HTML page, if one is written.
        """
        # filled by the first step and read by the second, once both run
        drawn: list[Path] = []
        steps: list[Callable[[], Sequence[str]]] = []
        # In this order: the figures are part of what is logged.
        if self.figures is not None:
            steps.append(functools.partial(self._draw, report, Path(self.figures), drawn))
        if self.mlflow:
            steps.append(functools.partial(self._log, report, html, drawn))
        return steps

    def _draw(self, report: Report, folder: Path, drawn: list[Path]) -> Sequence[str]:
        from tna_onnx.render.figures import write_figures  # noqa: PLC0415

        drawn.extend(write_figures(report, folder, FIGURE_FORMATS))
        names = ", ".join(dict.fromkeys(path.stem for path in drawn))
        return [f"figures  {self.figures}: {names} ({', '.join(FIGURE_FORMATS)})"]

    def _log(self, report: Report, html: str | None, drawn: list[Path]) -> Sequence[str]:
        from tna_onnx.render.mlflow import log_report  # noqa: PLC0415

        # A page that could not be written, or went to a pipe, is not there to be logged.
        pages = [html] if html and Path(html).is_file() else []
        files: dict[str, Sequence[str | Path]] = {"": pages, "figures": drawn}
        # Standard output is for results, and MLflow prints a greeting there.
        with contextlib.redirect_stdout(sys.stderr):
            return [f"mlflow   {log_report(report, None, files)}"]
