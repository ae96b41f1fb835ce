"""What a report becomes besides text, JSON and HTML: a diagram in the terminal, figures, a run of MLflow."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tna_onnx.cli.channels import complain
from tna_onnx.cli.options import together
from tna_onnx.cli.paths import check_figure_folder
from tna_onnx.cli.types import Words, flat

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
        "--figure-format",
        "figure_formats",
        multiple=True,
        type=Words(FIGURE_FORMATS),
        callback=flat,
        default=FIGURE_FORMATS,
        show_default=True,
        help="Format of the figures; several separated by commas, or repeat the option.",
    ),
    click.option(
        "--mlflow", is_flag=True, help="Log the run to the MLflow server or store that MLFLOW_TRACKING_URI names."
    ),
    click.option("--mlflow-experiment", metavar="NAME", help="Name of the MLflow experiment; implies --mlflow."),
)


@dataclass(frozen=True)
class Extras:
    """What `extra_options` ask for.

    Attributes:
        figures: folder, None for no figures.
        formats: of the figures.
        mlflow: whether to log to MLflow.
        experiment: of MLflow, None for its default.
    """

    figures: str | None
    formats: tuple[str, ...]
    mlflow: bool
    experiment: str | None

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

    def within(self, name: str) -> Extras:
        """Return the same with the figures in a folder of theirs, for one of several reports."""
        return self if self.figures is None else replace(self, figures=str(Path(self.figures, name)))

    def steps(self, report: Report, html: str | None, head: str | None = None) -> list[Callable[[], Sequence[str]]]:
        """Return steps that draw the figures and then log the run, with the files that were written.

        Args:
            report: of the run.
            html: path of its HTML page, if one is written.
            head: which of several heads the report is about; None where there is one.
        """
        # filled by the first step and read by the second, once both run
        drawn: list[Path] = []
        steps: list[Callable[[], Sequence[str]]] = []
        # In this order: the figures are part of what is logged.
        if self.figures is not None:
            steps.append(functools.partial(self._draw, report, Path(self.figures), drawn))
        if self.mlflow:
            steps.append(functools.partial(self._log, report, html, drawn, head))
        return steps

    def _draw(self, report: Report, folder: Path, drawn: list[Path]) -> Sequence[str]:
        from tna_onnx.render.figures import write_figures  # noqa: PLC0415

        drawn.extend(write_figures(report, folder, self.formats))
        names = ", ".join(dict.fromkeys(path.stem for path in drawn))
        return [f"figures  {self.figures}: {names} ({', '.join(self.formats)})"]

    def _log(self, report: Report, html: str | None, drawn: list[Path], head: str | None) -> Sequence[str]:
        from tna_onnx.render.mlflow import log_report  # noqa: PLC0415

        # A page that could not be written, or went to a pipe, is not there to be logged.
        pages = [html] if html and Path(html).is_file() else []
        files: dict[str, Sequence[str | Path]] = {"": pages, "figures": drawn}
        # Standard output is for results, and MLflow prints a greeting there.
        with contextlib.redirect_stdout(sys.stderr):
            return [f"mlflow   {log_report(report, self.experiment, files, head)}"]
