"""Options on decisions, which `guard` and `calibrate` share; defaults and choices are those of `GuardSettings`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tna_onnx.cli.options import together
from tna_onnx.cli.types import Number, Words, choice, flat
from tna_onnx.guarding.settings import ADDITIONS, OOD_SCORES, SET_SCORES, GuardSettings

__all__ = ["add_option", "level_options", "ood_data_option"]


def add_option(default: tuple[str, ...], help_: str) -> Callable[[Any], Any]:
    """Return the option that says which decisions are added."""
    return click.option(
        "--add",
        metavar="OUTPUT,...",
        type=Words(ADDITIONS),
        multiple=True,
        callback=flat,
        default=[",".join(default)] if default else [],
        show_default=bool(default),
        help=f"{help_}: {', '.join(ADDITIONS)}. Several with commas, or repeat the option.",
    )


def _per_cent(name: str, help_: str) -> Any:
    return click.option(
        f"--{name.replace('_', '-')}",
        metavar="PERCENT",
        type=Number(0, 100),
        default=getattr(GuardSettings, name),
        show_default=True,
        help=help_,
    )


def _temperature(_ctx: click.Context, _param: click.Parameter, text: str) -> float | str:
    """Parse a temperature, or auto."""
    if text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"expected a number or auto, got '{text}'") from None


_set_options = together(
    _per_cent("coverage", "set: how often the set has to contain the true class."),
    click.option(
        "--set-score",
        type=choice(SET_SCORES),
        default=GuardSettings.set_score,
        show_default=True,
        help="set: lac gives the smallest sets; aps and raps give larger sets where the model is unsure.",
    ),
    click.option(
        "--set-temperature",
        metavar="NUMBER|auto",
        # a word or a number, which no type of click's covers
        callback=_temperature,
        default=f"{GuardSettings.set_temperature:g}",  # a text, because the callback reads texts
        show_default=True,
        help="set: temperature to apply before sets are made; auto chooses the one with the smallest sets, on "
        "samples that are not used for the threshold.",
    ),
    click.option("--per-class", is_flag=True, help="set: reach --coverage in each class, not only on average."),
)

level_options = together(
    _set_options,
    _per_cent("risk", "accept: at most this share of the accepted samples is classified wrong."),
    _per_cent("delta", "accept: probability that the share is above --risk all the same."),
    click.option(
        "--ood-score",
        type=choice(OOD_SCORES),
        default=GuardSettings.ood_score,
        show_default=True,
        help="ood: how to measure the distance from known samples.",
    ),
    _per_cent("false_alarm", "ood: at most this share of known samples raises the alarm."),
    click.option(
        "--dials",
        is_flag=True,
        help="Also make coverage, risk and class_prior inputs of the model. Callers may leave them out: then the "
        "levels given here hold, with the class frequencies of the samples.",
    ),
    click.option(
        "--prefix",
        default="",
        metavar="TEXT",
        help="Prefix for the names of the new outputs and inputs.  [default: none]",
    ),
)

ood_data_option = click.option(
    "--ood-data",
    type=click.Path(),
    help="ood: samples that the model should not know. The report says how many raise the alarm; their labels are "
    "not used.",
)
