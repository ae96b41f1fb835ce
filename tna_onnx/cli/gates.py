"""Gates: their options, and a run whose result is shown even if it misses one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from tna_onnx.cli.options import together
from tna_onnx.cli.types import Number

if TYPE_CHECKING:
    from tna_onnx.errors import CheckFailed

__all__ = ["change_options", "limit_options", "run_gated"]

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
