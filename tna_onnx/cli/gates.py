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
        help="Gate, a check for pipelines: end with exit code 1, and without a model, if the calibration error ECE is "
        "above this.",
    ),
    click.option(
        "--max-nll", metavar="NATS", type=Number(0), help="Gate: the same if the negative log-likelihood is above this."
    ),
    click.option(
        "--min-accuracy",
        metavar="PERCENT",
        type=Number(0, 100),
        help="Gate: the same if the accuracy is below this.",
    ),
)

change_options = together(
    click.option(
        "--require-improvement/--no-require-improvement",
        default=False,
        show_default=True,
        help="Gate: the same unless the result is better by more than chance explains: accuracy, NLL, ECE and the "
        "objective judged together, each by its whole confidence interval.",
    ),
    click.option(
        "--fail-if-worse/--no-fail-if-worse",
        default=True,
        show_default=True,
        help="Gate: the same if the result is worse by more than chance explains: the NLL is; or accuracy, ECE or the "
        "objective is, and nothing that weighs more is better.",
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
