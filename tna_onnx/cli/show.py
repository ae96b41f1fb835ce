"""Progress on stderr, results on stdout and in files."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from tna_onnx.cli.channels import ResultError, standard_output
from tna_onnx.cli.signals import loaded
from tna_onnx.errors import DeviceError, TnaError, UsageError
from tna_onnx.progress import Progress as Callback
from tna_onnx.render.figures import require_matplotlib, write_figures
from tna_onnx.render.mlflow import TrackingError, log_report, require_mlflow
from tna_onnx.render.text import show
from tna_onnx.results.as_json import to_json
from tna_onnx.results.report import Report
from tna_onnx.runtime import runtime_version

__all__ = ["Extras", "Step", "finish", "json_step", "page_step", "progress_bars", "ready", "say"]


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


def ready() -> None:
    """Load the runtime too, if it is there, and make Ctrl-C an ordinary interruption again."""
    with contextlib.suppress(DeviceError):  # the work says so where it needs one
        runtime_version()
    loaded()


Step = Callable[[], Sequence[str]]
"""Writes one kind of result, and returns lines to print about it."""


def finish(text: RenderableType, steps: Iterable[Step], quiet: bool, output: str = "") -> None:
    """Write the results of a command, then print them: what a reader of standard output does must not cost a file.

    A step that fails keeps no other from its work.

    Args:
        text: what is printed.
        steps: the other results.
        quiet: print nothing.
        output: model that the command has written.

    Raises:
        ResultError: something could not be written or logged; a line for each.
    """
    lines: list[str] = []
    failed: list[str] = []
    ending = f"; {output} is written" if output else ""

    def done(step: Step) -> Sequence[str]:
        try:
            return step()
        except TrackingError as error:  # which says what is written
            failed.append(str(error))
        except TnaError as error:
            failed.append(f"{error}{ending}")
        return ()

    def shown() -> Sequence[str]:
        if not quiet:
            say(Group(text, *map(Text, lines)))
        return ()

    for step in steps:
        lines += done(step)
    done(shown)
    if failed:
        raise ResultError("\n".join(failed))


def say(text: RenderableType) -> None:
    """Print on standard output.

    Raises:
        ResultError: it cannot be written.
    """
    with standard_output():
        show(_Console(), text)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704 - rich calls this while it handles the error, and would exit with 1


def json_step(path: str | None, result: Any, *, details: bool = False) -> Step:
    """Write a result as JSON, with the numbers behind the figures if asked; without a path do nothing."""
    return page_step(path, lambda: to_json(result, details=details))


def page_step(path: str | None, make: Callable[[], str]) -> Step:
    """Write a text that is made only then; without a path do nothing."""

    def step() -> Sequence[str]:
        if path is None:
            return ()
        text = make()
        try:
            if _is_standard_output(path):
                sys.stdout.buffer.write(text.encode())
                sys.stdout.flush()
            else:
                Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise ResultError(f"{path}: cannot be written: {error.strerror}") from error
        return ()

    return step


def _is_standard_output(path: str) -> bool:
    """Whether a path leads to the file that standard output goes to; opened twice, one text would cover the other."""
    try:
        return Path(path).is_file() and os.path.samestat(Path(path).stat(), os.fstat(sys.stdout.fileno()))
    except (AttributeError, OSError):  # closed, or no file
        return False


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

    def steps(self, report: Report, html: str | None) -> Sequence[Step]:
        """Steps that draw the figures, and log the run with what was written.

        Args:
            report: of the run.
            html: page of it.
        """
        drawn: list[Path] = []

        def draw(folder: str) -> Sequence[str]:
            drawn.extend(write_figures(report, Path(folder), self.formats))
            names = ", ".join(dict.fromkeys(path.stem for path in drawn))
            return [f"figures  {folder}: {names} ({', '.join(self.formats)})"]

        def log() -> Sequence[str]:
            pages = [html] if html and Path(html).is_file() else []
            files: dict[str, Sequence[str | Path]] = {"": pages, "figures": drawn}
            with contextlib.redirect_stdout(sys.stderr):  # stdout is for results; MLflow greets there
                return [f"mlflow   {log_report(report, self.experiment, files)}"]

        steps: list[Step] = []
        if self.figures is not None:
            steps.append(functools.partial(draw, self.figures))
        if self.mlflow:
            steps.append(log)
        return steps


def _check_folder(path: str, files: tuple[str | None, ...]) -> None:
    folder = Path(path).absolute()
    if any(file is not None and folder.resolve() == Path(file).resolve() for file in files):
        raise UsageError(f"{path}: is one of the other files of this command; choose another folder for the figures")
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UsageError(f"{path}: cannot be written; expected the name of a folder for the figures")
