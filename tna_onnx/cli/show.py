"""Progress on stderr, results on stdout and in files."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from tna_onnx.errors import UsageError
from tna_onnx.extraction import Progress as Callback
from tna_onnx.report.as_json import to_json
from tna_onnx.report.figures import require_matplotlib, write_figures
from tna_onnx.report.report import Report
from tna_onnx.report.text import show
from tna_onnx.tracking import log_report, require_mlflow

__all__ = ["Extras", "finish", "progress_bars"]


@contextlib.contextmanager
def progress_bars(quiet: bool) -> Iterator[Callback]:
    """Give a progress callback; bars show on a terminal only."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def advance(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield advance


def finish(result: Any, text: RenderableType, json_file: str | None, quiet: bool, *, details: bool = False) -> None:
    """Print a result, and write its JSON, with the numbers behind the figures if asked.

    Raises:
        UsageError: the JSON file cannot be written.
    """
    if not quiet:
        show(Console(), text)
    if json_file is not None:
        try:
            Path(json_file).write_text(to_json(result, details=details), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{json_file}: cannot be written: {error.strerror}") from error


@dataclass(frozen=True)
class Extras:
    """What becomes of a report beside text, JSON and HTML: figures in a folder, a run of MLflow.

    Attributes:
        figures: folder, None for no figures.
        formats: of the figures.
        mlflow: whether to log to MLflow.
        experiment: of MLflow.
    """

    figures: str | None
    formats: tuple[str, ...]
    mlflow: bool
    experiment: str | None

    def check(self, *files: str | None) -> None:
        """Refuse what cannot work before the work.

        Args:
            files: other files of the command.

        Raises:
            UsageError: a missing library, or a folder that cannot be.
        """
        if self.figures is not None:
            _check_folder(self.figures, files)
            require_matplotlib()
        if self.mlflow:
            require_mlflow()

    def make(self, report: Report, html: str | None, quiet: bool) -> None:
        """Draw the figures, and log the run with what was written.

        Raises:
            UsageError: a figure cannot be written.
            TrackingError: MLflow did not take the run.
        """
        drawn: tuple[Path, ...] = ()
        if self.figures is not None:
            drawn = write_figures(report, Path(self.figures), self.formats)
            names = ", ".join(dict.fromkeys(path.stem for path in drawn))
            _say(f"figures  {self.figures}: {names} ({', '.join(self.formats)})", quiet)
        if self.mlflow:
            files: dict[str, Sequence[str | Path]] = {"": [html] if html else [], "figures": drawn}
            with contextlib.redirect_stdout(sys.stderr):  # stdout is for results; MLflow greets there
                where = log_report(report, self.experiment, files)
            _say(f"mlflow   {where}", quiet)


def _say(line: str, quiet: bool) -> None:
    if not quiet:
        show(Console(), Text(line))


def _check_folder(path: str, files: tuple[str | None, ...]) -> None:
    folder = Path(path).absolute()
    if any(file is not None and folder.resolve() == Path(file).resolve() for file in files):
        raise UsageError(f"{path}: is one of the other files of this command; choose another folder for the figures")
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UsageError(f"{path}: cannot be written; expected the name of a folder for the figures")
