"""What a function of the API shows and writes besides its result: progress, JSON, pages and figures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from tna_onnx.errors import ResultError, UsageError
from tna_onnx.files import write_file
from tna_onnx.progress import Progress, silent
from tna_onnx.results.as_json import to_json
from tna_onnx.results.gates import GateMissed

__all__ = ["ProgressWord", "check_targets", "kept", "run_shown", "shown", "with_json", "write_text"]

ProgressWord = Progress | bool | None
"""A callback that gets (stage, done, total); True for bars on standard error; None and False for nothing."""

J = TypeVar("J")
R = TypeVar("R")


@contextlib.contextmanager
def shown(progress: ProgressWord) -> Iterator[Progress]:
    """Give the callback that a word for progress stands for."""
    if progress is not True:
        yield progress or silent
        return
    from tna_onnx.render.progress import progress_shown  # noqa: PLC0415 - rich loads only where bars are wanted

    with progress_shown() as callback:
        yield callback


def check_targets(*paths: str | Path | None) -> None:
    """Refuse files that cannot be written, before the work.

    Raises:
        UsageError: a folder is missing, or the path is a folder.
    """
    for path in paths:
        if path is None:
            continue
        file = Path(path).absolute()
        if not file.parent.is_dir():
            raise UsageError(f"{path}: folder {file.parent} does not exist; create it or choose another")
        if file.is_dir():
            raise UsageError(f"{path}: is a folder; expected the name of a file")


def write_text(path: str | Path, text: str) -> None:
    """Write a result.

    Raises:
        ResultError: it cannot be written.
    """
    try:
        write_file(Path(path), text.encode())
    except OSError as error:
        raise ResultError(f"{path}: cannot be written: {error.strerror}") from error


def kept(path: str | Path | None, result: R) -> R:
    """Write a result as JSON, if that is wanted, and return it.

    Raises:
        ResultError: the file cannot be written.
    """
    if path is not None:
        write_text(path, to_json(result, details=getattr(result, "details", None) is not None))
    return result


def run_shown(run: Callable[[J, Progress], R], job: J, progress: ProgressWord, json: str | Path | None) -> R:
    """Run a job with its progress shown, and write its result as JSON if that is asked for.

    Raises:
        TnaError: of the job; or `json` cannot be written.
    """
    with shown(progress) as advance:
        return with_json(json, lambda: run(job, advance))


def with_json(path: str | Path | None, run: Callable[[], R], write: Callable[[Any], None] | None = None) -> R:
    """Run, and write the result as JSON; also that of a run that missed gates.

    Args:
        path: of the JSON; None for none.
        run: gives the result.
        write: writes what else is wanted of the result.

    Raises:
        ResultError: a file cannot be written.
    """

    def finish(result: Any) -> None:
        kept(path, result)
        if write is not None:
            write(result)

    check_targets(path)
    try:
        result = run()
    except GateMissed as missed:
        finish(missed.result)
        raise
    finish(result)
    return result
