"""`tna-onnx guard` and `tna-onnx shift`: decisions for a model, and other class frequencies."""

from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from tna_onnx.cli import options
from tna_onnx.cli.command import Command
from tna_onnx.cli.config import config_options
from tna_onnx.guarding.guard_settings import GuardSettings
from tna_onnx.shifting.shift_settings import ShiftSettings

# What may stand beside --set-threshold.
_EDITS = ("set_threshold", "model", "output", "overwrite", "json_file", "quiet", "verbose", "config")


@click.command(cls=Command)
@options.model_argument
@options.data_argument
@options.calibration_data_options(
    "Labelled data that neither training nor calibration used",
    "Further labelled data, to measure what the file decides.",
    calib_required=False,
)
@options.written_options(".guard.onnx")
@options.dry_run_option
@options.field_options(GuardSettings)
@click.option(
    "--ood-data",
    type=click.Path(),
    help="ood: samples that the model should not know. The report says how many raise the alarm; their labels are "
    "not used.",
)
@click.option(
    "--set-threshold",
    multiple=True,
    metavar="CLASS=NUMBER",
    callback=options.passed_on,
    help="Set the threshold of a class in the output decision of MODEL, without samples and without a guarantee.",
)
@options.sample_options(*options.ONE_PREDICTION)
@config_options
def guard(**arguments: Any) -> None:
    """Write a copy of MODEL that also decides: answer or abstain, a set of classes, known or unknown.

    Each decision is an additional output, with a guarantee for samples from the same source as those of --calib. The
    other outputs do not change.

    \b
    Example:
      tna-onnx guard model.tna.onnx --calib fresh/ --add accept,set --risk 1 --coverage 95
    """  # noqa: D301 - click reads the backspace: a paragraph that is not rewrapped
    thresholds = arguments.pop("set_threshold")
    if thresholds:
        _edit(thresholds, arguments)
        return
    if arguments["calib"] is None:
        raise click.UsageError("Missing data. Add them after the model, or as --calib DATA.")
    from tna_onnx.api.guard import guard as run
    from tna_onnx.cli.show import run_command
    from tna_onnx.render.terminal import guard_text

    run_command(run, guard_text, arguments, ".guard.onnx")


def _edit(thresholds: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Change thresholds of the output `decision` of a file."""
    from tna_onnx.api.guard import edit_decision
    from tna_onnx.cli.show import run_command
    from tna_onnx.render.verify_text import inspection_text

    ctx = click.get_current_context()
    typed = [name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    unused = [name.replace("_", "-") for name in typed if name not in _EDITS]
    if unused:
        raise click.UsageError(f"--set-threshold takes no samples and changes nothing else; leave out --{unused[0]}")

    def edit(model: str, output: str | None, overwrite: bool, **_: Any) -> Any:
        return edit_decision(model, thresholds, output=output, overwrite=overwrite)

    run_command(edit, inspection_text, arguments, ".guard.onnx", written="model")


@click.command(cls=Command)
@options.model_argument
@options.data_argument
@options.calibration_data_options(
    "Labelled data of the kind that MODEL was made for",
    "Labelled data as the model will see them, for measuring the result.",
)
@click.option(
    "--target-data",
    "target",
    type=click.Path(),
    help="Data as the model will see them, for estimating class frequencies. Their labels are not read.",
)
@options.written_options(".shift.onnx")
@options.dry_run_option
@options.field_options(ShiftSettings)
@options.sample_options(*options.ONE_PREDICTION, *options.ALL_ALIKE)
@config_options
def shift(**arguments: Any) -> None:
    """Write a copy of MODEL for data in which classes are more or less frequent than before.

    Name the new class frequencies, or have them estimated on data without labels. Both assume that samples of a class
    look the same as before; with data, this is tested.

    \b
    Example:
      tna-onnx shift model.tna.onnx --calib calib/ --target-data unlabelled/
    """  # noqa: D301 - click reads the backspace: a paragraph that is not rewrapped
    from tna_onnx.api.guard import shift as run
    from tna_onnx.cli.show import run_command
    from tna_onnx.render.terminal import shift_text

    run_command(run, shift_text, arguments, ".shift.onnx")
