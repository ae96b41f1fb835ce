"""What the commands share that write one model, and print a text on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tna_onnx.cli.paths import check_result_file, default_output, named_files
from tna_onnx.cli.preprocessing import take_recipe
from tna_onnx.cli.written import watch

__all__ = ["write_model"]


def write_model(
    run: Callable[..., Any],
    text: Callable[[Any], Any],
    ending: str,
    options: Mapping[str, Any],
    *,
    preset: str | None,
    json_file: str | None,
    quiet: bool,
) -> None:
    """Run a function of the API on the options of a command, and print what it did.

    Args:
        run: the function.
        text: writes its result.
        ending: of the name of the new file, by default.
        options: of the command, by name.
        preset: of preprocessing.
        json_file: JSON file to write.
        quiet: print nothing.

    Raises:
        TnaError: of the function; or a file cannot be written.
    """
    from tna_onnx.cli.show import finish, json_step, ready  # noqa: PLC0415 - NumPy loads only when a command runs
    from tna_onnx.render.progress import progress_shown  # noqa: PLC0415

    arguments = dict(options)
    # before the work: a mistyped path must not cost a run
    check_result_file(json_file, *named_files(arguments, ending))
    recipe = take_recipe(preset, arguments)
    ready()
    watch([arguments["output"] or default_output(arguments["model"], ending), json_file])
    with progress_shown(not quiet) as progress:
        result = run(preprocessing=recipe, progress=progress, **arguments)
    finish(text(result), [json_step(json_file, result)], quiet or json_file == "-", result.output)
