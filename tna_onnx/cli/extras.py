"""What `calibrate` and `evaluate` do with a result besides showing it: figures, MLflow, the exit code of gates."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tna_onnx.cli.options import together
from tna_onnx.cli.terminal import check_figure_folder, complain
from tna_onnx.errors import CheckFailed, ResultError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from tna_onnx.cli.show import Step
    from tna_onnx.results.report import Report

FIGURE_FORMATS = ("svg", "png", "pdf")

extra_options = together(
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


def run_gated(function: Callable[..., Any], **arguments: Any) -> tuple[Any, CheckFailed | None]:
    """Call a function of the API.

    Returns:
        Its result, and the error to raise once the result is shown if a gate is missed.
    """
    from tna_onnx.results.gates import GateMissed  # noqa: PLC0415 - NumPy loads only when a command runs

    try:
        return function(**arguments), None
    except GateMissed as missed:
        return missed.result, missed


def finish_gated(
    text: RenderableType,
    steps: Iterable[Step],
    quiet: bool,
    output: str,
    missed: CheckFailed | None,
    earlier: Path | None,
) -> None:
    """Write and print the results of a command, then raise the gate that it missed.

    Args:
        text: as for `finish`.
        steps: likewise.
        quiet: likewise.
        output: likewise.
        missed: the error of the gate, if one was missed.
        earlier: the output's path, if a file was there before: it could be taken for the result.

    Raises:
        CheckFailed: the missed gate.
        ResultError: a step failed, and no gate was missed.
    """
    from tna_onnx.cli.show import finish  # noqa: PLC0415 - NumPy loads only when a command runs

    try:
        finish(text, steps, quiet, output)
    except ResultError as error:
        if not missed:
            raise
        complain(f"Error: {error}")  # the missed gate is raised below: it decides on the exit code
    if missed and earlier is not None:
        raise CheckFailed(f"{missed}; the earlier {earlier} is unchanged")
    if missed:
        raise missed
