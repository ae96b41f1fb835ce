"""Running a command's function, and showing its result: on standard output, in files, and by the exit code of gates."""

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import click
from rich.console import Console, Group, RenderableType
from rich.text import Text

from tna_onnx.cli.config import setting_flags
from tna_onnx.cli.options import take_recipe
from tna_onnx.cli.process import (
    CACHE,
    check_figure_folder,
    check_result_file,
    default_output,
    loaded,
    named_files,
    print_error,
    standard_output,
)
from tna_onnx.errors import CheckFailed, DeviceError, ResultError, TnaError, writing
from tna_onnx.files import printable, write_file
from tna_onnx.render.progress_bars import progress_shown
from tna_onnx.render.wording import show
from tna_onnx.results.as_json import to_json
from tna_onnx.results.gates import GateMissed
from tna_onnx.runtime import runtime_version

Step: TypeAlias = Callable[[], Sequence[str]]
"""Writes one kind of result, and returns lines to print about it."""


def finish(text: RenderableType, steps: Iterable[Step], quiet: bool, output: str = "") -> None:
    """Write the results of a command, then print them.

    The text comes last, so that a reader of standard output who leaves early costs no file. A step that fails does not
    keep the others from their work.
    """
    lines: list[str] = []
    failures: list[str] = []
    ending = ""
    if output:
        ending = f"; {output} is written"

    def print_text() -> Sequence[str]:
        with standard_output():
            show(_Console(), Group(text, *(Text(printable(line)) for line in lines)))
        return ()

    every = [*steps]
    if not quiet:
        every.append(print_text)
    for step in every:
        try:
            lines.extend(step())
        except TnaError as error:
            failures.append(f"{error}{ending}")
    if failures:
        raise ResultError("\n".join(failures))


def run_command(
    run: Callable[..., Any],
    text: Callable[[Any], RenderableType],
    options: Mapping[str, Any],
    ending: str | None = None,
    written: str = "output",
) -> Any:
    """Run a function of the API on the options of a command, show its result, and return it.

    `ending`: of the name of the model that it writes; None for commands that write none. `written`: the attribute of
    the result that names the model.
    """
    arguments = dict(options)
    json_file = arguments.pop("json_file")
    page = arguments.pop("page", None)
    figures = arguments.pop("figures", None)
    quiet = arguments.pop("quiet")
    # before the work: a mistyped path must not cost a run
    files = named_files(arguments, ending)
    if figures is not None:
        check_figure_folder(figures, *files, json_file, page)
    check_result_file(json_file, *files, page)
    # a page beside the figures may wait for their folder
    if page is None or figures is None or Path(page).parent != Path(figures) or Path(figures).exists():
        check_result_file(page, *files, json_file, kind="HTML")
    if "preset" in arguments:
        recipe = take_recipe(arguments.pop("preset"), arguments)
        arguments["preprocessing"] = recipe
    # Ctrl-C must end the process at once while modules load, and loading the runtime takes longest. Without a runtime
    # some commands still work; the others raise this error themselves.
    with contextlib.suppress(DeviceError):
        runtime_version()
    loaded()
    from tna_onnx.api.arguments import grouped  # behind the runtime, which Ctrl-C must end at once

    arguments = grouped(run, _with_labels(arguments))
    output = None
    if ending is not None:
        output = arguments["output"] or default_output(arguments["model"], ending)
    # looked at before the work: afterwards it could not be told from a file that this run wrote
    earlier = output is not None and Path(output).is_file() and not arguments.get("dry_run")
    click.get_current_context().meta[CACHE] = arguments.get("cache")
    missed: GateMissed | None = None
    with progress_shown(not quiet) as progress:
        try:
            result = run(progress=progress, **arguments)
        except GateMissed as error:
            result = error.result
            missed = error
    detailed = getattr(result, "details", None) is not None
    every_step = [
        text_step(json_file, lambda: to_json(result, details=detailed)),
        lambda: _draw(result, figures),
        text_step(page, lambda: _page(result)),
    ]
    file = ""
    if ending is not None:
        file = getattr(result, written)
    try:
        finish(text(result), every_step, quiet or json_file == "-", file)
    except ResultError as error:
        if missed is None:
            raise
        print_error(f"Error: {error}")  # the missed gate decides on the exit code
    # the numbers are shown first: whoever misses a gate wants to know by how much
    if missed is not None and earlier:
        raise CheckFailed(f"{missed}; the earlier {output} is unchanged")
    if missed is not None:
        raise missed
    return result


def _page(result: Any) -> str:
    from tna_onnx.render.html.pages import page_of

    # what repeats the run: as typed, and what came from elsewhere as flags; it can be pasted into a shell
    return page_of(result, shlex.join(["tna-onnx", *sys.argv[1:], *setting_flags()]))


def _draw(result: Any, folder: str | None) -> Sequence[str]:
    """Write the figures, and say which."""
    if folder is None:
        return ()
    from tna_onnx.render.figures import write_figures

    names = ", ".join(path.stem for path in write_figures(result, Path(folder)))
    return [f"figures  {folder}: {names}"]


def _with_labels(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments in which held-out samples carry their labels."""
    from tna_onnx.data.options import Data  # behind the runtime, as above

    labels = arguments.pop("eval_labels", None)
    if labels is not None and arguments["eval"] is not None:
        arguments["eval"] = Data(arguments["eval"], labels=labels)
    return arguments


def text_step(path: str | None, make: Callable[[], str]) -> Step:
    """Return a step that makes a text and writes it to a file; without a path it does nothing."""

    def step() -> Sequence[str]:
        if path is None:
            return ()
        text = make()  # outside of the block: an OSError in here would be a bug
        with writing(path):
            _write(path, text)
        return ()

    return step


def _write(path: str, text: str) -> None:
    if path == "-":
        if sys.stdout is None:  # closed before the command ran
            raise ResultError("standard output: cannot be written: it is closed; name a file for --json")
        with standard_output():
            sys.stdout.write(text)
        return
    if _is_standard_output(path):
        # Opened twice, the file would keep two positions, and the printed text would overwrite this one.
        sys.stdout.buffer.write(text.encode())
        sys.stdout.flush()
    else:
        write_file(Path(path), text.encode())


def _is_standard_output(path: str) -> bool:
    """Whether a path leads to the file that standard output goes to."""
    try:
        return Path(path).is_file() and os.path.samestat(Path(path).stat(), os.fstat(sys.stdout.fileno()))
    except (AttributeError, OSError):  # standard output is closed, or is no file
        return False


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704 - rich calls this while it handles the error, and would exit with 1
