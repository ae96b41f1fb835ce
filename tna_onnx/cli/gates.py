"""Gates: their options, and a run whose result is shown even if it misses one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from tna_onnx.cli.channels import complain
from tna_onnx.cli.options import together
from tna_onnx.cli.types import Number
from tna_onnx.errors import CheckFailed, ResultError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from tna_onnx.cli.show import Step

__all__ = ["change_options", "finish_gated", "limit_options", "run_gated"]

limit_options = together(
    click.option(
        "--max-ece",
        metavar="PERCENT",
        type=Number(0, 100),
        help="Gate: exit with code 1 and write no model if the ECE (expected calibration error) is above this.",
    ),
    click.option(
        "--max-nll", metavar="NATS", type=Number(0), help="Gate: as --max-ece, for the negative log-likelihood."
    ),
    click.option(
        "--min-accuracy",
        metavar="PERCENT",
        type=Number(0, 100),
        help="Gate: exit with code 1 and write no model if the accuracy is below this.",
    ),
)

change_options = together(
    click.option(
        "--require-improvement/--no-require-improvement",
        default=False,
        show_default=True,
        help="Gate: exit with code 1 and write no model unless the result is significantly better. Accuracy, NLL, "
        "ECE and the objective are judged together, each by its whole interval.",
    ),
    click.option(
        "--fail-if-worse/--no-fail-if-worse",
        default=True,
        show_default=True,
        help="Gate: exit with code 1 and write no model if the result is significantly worse: in NLL; or in "
        "accuracy, ECE or the objective, if nothing that counts more is better.",
    ),
)


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
