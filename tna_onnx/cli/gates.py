"""A run whose result is shown even if it misses a gate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tna_onnx.cli.terminal import complain
from tna_onnx.errors import CheckFailed, ResultError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from tna_onnx.cli.show import Step

__all__ = ["finish_gated", "run_gated"]


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
