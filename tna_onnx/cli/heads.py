"""`tna-onnx calibrate` with several heads: --head A --head B."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tna_onnx.cli.config import setting_sources
from tna_onnx.cli.gates import finish_gated, run_gated
from tna_onnx.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from tna_onnx.cli.extras import Extras

__all__ = ["calibrate_several", "require_plain"]

# Of the command, as they are called in the API.
_ARGUMENTS = (
    "model", "calib", "eval", "train_features", "output", "dry_run", "device", "batch_size", "cache", "overwrite",
)  # fmt: skip

# What is for one head, and what to do instead.
_OF_ONE_HEAD = {
    "add": "--add puts decisions on one head; calibrate all heads first, and then add them: tna-onnx guard NEW.onnx "
    "FRESH_DATA --head NAME --label-column NAME",
    "ood_data": "--ood-data is for decisions on one head; calibrate all heads first, then use tna-onnx guard "
    "--head NAME",
    "engine": "--engine collects the features of one head; leave it out. All heads that read the same features share "
    "one run, and --cache keeps it",
}


def require_plain(arguments: dict[str, Any]) -> None:
    """Refuse what `calibrate` does for one head only.

    Raises:
        UsageError: such an option.
    """
    given = {**arguments, "engine": arguments["engine"] != "local"}
    for name, reason in _OF_ONE_HEAD.items():
        if given.get(name):
            raise UsageError(reason)


def calibrate_several(
    json_file: str | None,
    page: str | None,
    extras: Extras,
    recipe: Any,
    *,
    quiet: bool,
    plot: bool,
    earlier: Path | None,
    arguments: dict[str, Any],
) -> None:
    """Recalibrate several heads, and write a report on each.

    Args:
        json_file: file for the result as JSON, if any.
        page: file for the result as HTML, if any.
        extras: figures and runs of MLflow, one set and one run a head.
        recipe: of images.
        quiet: print nothing.
        plot: print the reliability diagrams.
        earlier: path of the output, if a file was there before.
        arguments: of the command.

    Raises:
        CheckFailed: a head missed a gate.
    """
    from tna_onnx.api.calibrate_heads import calibrate_heads as run  # noqa: PLC0415 - NumPy loads only when needed
    from tna_onnx.api.words import SearchWords  # noqa: PLC0415
    from tna_onnx.cli.show import json_step, page_step  # noqa: PLC0415
    from tna_onnx.render.heads_text import heads_text  # noqa: PLC0415
    from tna_onnx.render.progress import progress_shown  # noqa: PLC0415

    known = {*SearchWords.__annotations__, *_ARGUMENTS}
    words = {name: value for name, value in arguments.items() if name in known}
    heads = words.pop("head")
    details = page is not None or extras.figures is not None
    with progress_shown(not quiet) as progress:
        result, missed = run_gated(run, heads=heads, preprocessing=recipe, details=details, progress=progress, **words)
    steps = [json_step(json_file, result), page_step(page, lambda: _page(result))]
    for output, folder in result.folders.items():
        steps += extras.within(folder).steps(result.heads[output], page, output)
    finish_gated(heads_text(result, plot=plot), steps, quiet or json_file == "-", result.output, missed, earlier)


def _page(result: Any) -> str:
    from tna_onnx.cli.show import command_line  # noqa: PLC0415 - NumPy loads only when a command runs
    from tna_onnx.render.html.heads import heads_page  # noqa: PLC0415

    return heads_page(result, command_line(), setting_sources())
