"""`tna-onnx calibrate` with several heads: --head A --head B."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tna_onnx.cli.gates import run_gated
from tna_onnx.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from tna_onnx.cli.extras import Extras

__all__ = ["calibrate_several", "require_plain"]

# What is about one head, or about one run of the network, by the flag.
_OF_ONE_HEAD = {
    "add": "--add",
    "ood_data": "--ood-data",
    "train_features": "--train-features",
    "cache": "--cache",
}


def require_plain(arguments: dict[str, Any], page: str | None, extras: Extras) -> None:
    """Refuse what `calibrate` does for one head only.

    Raises:
        UsageError: such an option.
    """
    given = [flag for name, flag in _OF_ONE_HEAD.items() if arguments.get(name)]
    given += ["--report"] if page else []
    given += ["--figures"] if extras.figures else []
    given += ["--mlflow"] if extras.mlflow else []
    given += ["--engine"] if arguments["engine"] != "local" else []
    if given:
        raise UsageError(f"{given[0]} is for one head; leave it out, or give one --head")


def calibrate_several(
    json_file: str | None, recipe: Any, *, quiet: bool, plot: bool, earlier: bool, arguments: dict[str, Any]
) -> None:
    """Recalibrate several heads, and print a report on each.

    Args:
        json_file: file for the result as JSON, if any.
        recipe: of images.
        quiet: print nothing.
        plot: print the reliability diagrams.
        earlier: a file was at the path of the output before.
        arguments: of the command.

    Raises:
        CheckFailed: a head missed a gate.
    """
    from tna_onnx.api.calibrate_heads import calibrate_heads as run  # noqa: PLC0415 - NumPy loads only when needed
    from tna_onnx.api.words import SearchWords  # noqa: PLC0415
    from tna_onnx.cli.show import finish, json_step  # noqa: PLC0415
    from tna_onnx.render.heads_text import heads_text  # noqa: PLC0415
    from tna_onnx.render.progress import progress_shown  # noqa: PLC0415

    known = {*SearchWords.__annotations__, "model", "calib", "eval", "output", "dry_run", "device", "batch_size"}
    known |= {"overwrite"}
    words = {name: value for name, value in arguments.items() if name in known}
    heads = words.pop("head")
    with progress_shown(not quiet) as progress:
        result, missed = run_gated(run, heads=heads, preprocessing=recipe, progress=progress, **words)
    finish(heads_text(result, plot=plot), [json_step(json_file, result)], quiet or json_file == "-", result.output)
    if missed and earlier:
        raise CheckFailed(f"{missed}; the earlier file is unchanged")
    if missed:
        raise missed
