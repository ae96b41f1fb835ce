"""`tna-onnx guard`."""

from __future__ import annotations

from typing import Any

import click

from tna_onnx.cli.command import Command
from tna_onnx.cli.config import config_options
from tna_onnx.cli.options import confidence_option, data_options, model_argument, model_options, run_options, together
from tna_onnx.cli.paths import check_result_file, default_output
from tna_onnx.cli.positional import DataOption, data_argument
from tna_onnx.cli.preprocessing import preprocessing_options, take_recipe
from tna_onnx.cli.types import Number, Words, choice, flat
from tna_onnx.cli.written import watch
from tna_onnx.guarding.settings import ADDITIONS, OOD_SCORES, SET_SCORES, GuardSettings

__all__ = ["guard"]


def _per_cent(name: str, help_: str) -> Any:
    return click.option(
        f"--{name.replace('_', '-')}",
        metavar="PERCENT",
        type=Number(0, 100),
        default=getattr(GuardSettings, name),
        show_default=True,
        help=help_,
    )


_guard_options = together(
    click.option(
        "--calib",
        "--data",
        "calib",
        cls=DataOption,
        required=True,
        type=click.Path(),
        help="Labelled data that neither the model nor its calibration has seen: file, folder or URL; the word behind "
        "MODEL says the same.",
    ),
    click.option("--labels", type=click.Path(), help="File with the labels of --calib, if they are stored separately."),
    click.option("--eval", type=click.Path(), help="Further labelled data, to measure what the file decides."),
    click.option("--eval-labels", type=click.Path(), help="File with the labels of --eval, likewise."),
    click.option("-o", "--output", type=click.Path(), help="File to write.  [default: MODEL.guard.onnx]"),
    click.option("--overwrite", is_flag=True, help="Allow the output to replace the input model."),
    click.option("--dry-run", is_flag=True, help="Do everything, but write no model."),
    click.option(
        "--add",
        type=Words(ADDITIONS),
        multiple=True,
        callback=flat,
        default=[",".join(GuardSettings.add)],
        show_default=True,
        help="Outputs to add, with commas or repeated.",
    ),
    _per_cent("coverage", "set: how often it holds the true class, at least."),
    click.option(
        "--set-score",
        type=choice(SET_SCORES),
        default=GuardSettings.set_score,
        show_default=True,
        help="set: lac gives the smallest sets; aps and raps larger ones where the model is unsure.",
    ),
    click.option("--per-class", is_flag=True, help="set: the coverage holds for the samples of each class."),
    _per_cent("risk", "accept: largest share of accepted samples that are classified wrong."),
    _per_cent("delta", "accept: probability with which that share may be larger."),
    click.option(
        "--ood-score",
        type=choice(OOD_SCORES),
        default=GuardSettings.ood_score,
        show_default=True,
        help="ood: how the distance from known samples is measured.",
    ),
    _per_cent("false_alarm", "ood: largest share of known samples that raise the alarm."),
    click.option(
        "--prefix", default="", metavar="TEXT", help="What the names of the new outputs begin with.  [default: nothing]"
    ),
    click.option(
        "--seed",
        type=click.IntRange(0),
        default=GuardSettings.seed,
        show_default=True,
        help="Of the split that --add ood needs.",
    ),
    confidence_option,
)


@click.command(cls=Command)
@model_argument
@data_argument
@_guard_options
@data_options
@preprocessing_options
@model_options  # and no --bins: no metric is computed
@run_options
@config_options
def guard(preset: str | None, json_file: str | None, quiet: bool, **arguments: Any) -> None:
    """Write a copy of MODEL that also decides: answer or abstain, a set of classes, known or unknown.

    Each decision is one more output with a guarantee for samples that come as those of --calib did. Outputs that the
    model had stay as they are.

    \b
    Example:
      tna-onnx guard model.tna.onnx --calib fresh/ --add accept,set --risk 1 --coverage 95
    """  # noqa: D301 - click reads the backspace: a paragraph that is not rewrapped
    from tna_onnx.api.guard import guard as run  # noqa: PLC0415 - NumPy loads only when a command runs
    from tna_onnx.cli.show import finish, json_step, ready  # noqa: PLC0415
    from tna_onnx.render.guard_text import guard_text  # noqa: PLC0415
    from tna_onnx.render.progress import progress_shown  # noqa: PLC0415

    # before the work: a mistyped path must not cost a run
    check_result_file(json_file, *(arguments[name] for name in ("model", "calib", "eval", "output")))
    recipe = take_recipe(preset, arguments)
    ready()
    output = arguments["output"] or default_output(arguments["model"], ".guard.onnx")
    watch([output, json_file])
    with progress_shown(not quiet) as progress:
        result = run(preprocessing=recipe, progress=progress, **arguments)
    finish(guard_text(result), [json_step(json_file, result)], quiet or json_file == "-", result.output)
