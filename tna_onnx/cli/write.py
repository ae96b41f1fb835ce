"""The commands that write models, and what goes in or comes with them: `tna-onnx calibrate`, `fit`, `features`,
`guard`, `shift` and `card`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from tna_onnx.cli import options
from tna_onnx.cli.command import Command
from tna_onnx.cli.config import VERBOSE
from tna_onnx.cli.process import check_result_file
from tna_onnx.data.options import Data, FeatureFields
from tna_onnx.errors import UsageError
from tna_onnx.fields import settings_of
from tna_onnx.guarding.guard_settings import GuardSettings
from tna_onnx.pipeline.settings import FIT_SETTINGS, Settings
from tna_onnx.results.gates import Gates
from tna_onnx.shifting.shift_settings import ShiftSettings


@click.command(cls=Command)
@options.model_argument
@options.data_argument
@options.calibration_data_options(
    "Labelled calibration data", "Labelled data for measuring the result. Without them, --calib is cross-validated."
)
@options.path_option(
    "--teacher",
    metavar="MODEL",
    help="Fit to the probabilities of this model instead of labels, such as the float model of a quantised one.",
)
@options.path_option("--cache", help="Folder that keeps the features, so that an interrupted run can resume.")
@options.written_options(
    ".tna.onnx",
    "Do everything, including checks and gates, but write no model. --json, --report and --cache still work.",
)
@options.field_options(Settings)
@options.field_options(Gates)
# half of the samples is kept for the thresholds; `guard` has the other settings
@options.field_options(GuardSettings, "add", "coverage", "risk", "decide", add=())
@options.page_option
@options.path_option(
    "--figures",
    metavar="DIR",
    help="Write the figures of the report as SVG files into this folder, which is created if missing.",
)
@options.sample_options()
@options.config_options
def calibrate(**arguments: Any) -> None:
    """Write a recalibrated copy of MODEL.

    Gates check the metrics after recalibration, measured on --eval or by cross-validation. If one is missed, no model
    is written, the exit code is 1, and each missed gate is reported on a line of its own. --json and --report are still
    written, and give the reason.

    \b
    Example:
      tna-onnx calibrate model.onnx data/ --eval heldout/ -o model.tna.onnx
    """
    from tna_onnx.api.calibrate import calibrate as run
    from tna_onnx.cli.show import run_command
    from tna_onnx.render.terminal import report_text

    # only the drawings need the details, which make the JSON much larger
    arguments["details"] = arguments["page"] is not None or arguments["figures"] is not None
    _check_decisions(arguments)
    detailed = bool(click.get_current_context().meta[VERBOSE])
    run_command(run, lambda report: report_text(report, detailed=detailed), arguments, ".tna.onnx")


def _check_decisions(arguments: Mapping[str, Any]) -> None:
    """Refuse settings of decisions where none is added."""
    if arguments["add"] or arguments["decide"]:
        return
    for name, (default, _) in settings_of(GuardSettings).items():
        if arguments.get(name, default) != default and name not in settings_of(Settings):
            raise UsageError(f"--{name} applies to decisions, and none is added; add one with --add or --decide")


@click.command(cls=Command)
@click.argument("data", type=click.Path())
@options.path_option("-o", "--output", required=True, help="Model to write: scores in, calibrated out.")
@click.option(
    "--scores",
    type=click.Choice(("logits", "probabilities"), case_sensitive=False),
    help="Which column or array to use, if the data have both.",
)
@options.field_options(Data, "label_column", "group_column", "weight_column", "class_prior")
@options.field_options(Settings, *FIT_SETTINGS)
@options.result_options
@options.config_options
def fit(**arguments: Any) -> None:
    """Fit on logits or probabilities with labels in DATA, and write a model that calibrates such scores.

    \b
    Example:
      tna-onnx fit logits.parquet -o calibrator.onnx
    """
    from tna_onnx.api.calibrator import fit as run
    from tna_onnx.cli.show import run_command
    from tna_onnx.render.terminal import report_text

    def use(report: Any) -> str:
        pair = ""
        if report.classes == 2:
            pair = ", for one logit z the pair (0, z), for one p the pair (1 - p, p)"
        return f"give it scores (N, {report.classes}) as `scores`{pair}; `calibrated` has the calibrated ones"

    run_command(run, lambda report: report_text(report, next_step=use(report)), arguments, ".onnx")


@click.command(cls=Command)
@options.model_argument
@options.data_argument
@options.labelled_data_options
@options.path_option("--cache", help="Folder of feature stores, for this machine; created if missing.")
@options.path_option(
    "-o",
    "--output",
    help="New folder or URL for Parquet files, which every machine can read. The alternative is --cache.",
)
@options.field_options(FeatureFields)
@options.sample_options(*options.ONE_PREDICTION, "by")
@options.config_options
def features(**arguments: Any) -> None:
    """Compute the features and labels of data once, for `calibrate MODEL FEATURES`.

    With --cache, an interrupted run resumes where it stopped.

    \b
    Example:
      tna-onnx features model.onnx data/ -o features/
      tna-onnx features model.onnx s3://bucket/data/ -o s3://bucket/features --engine ray
      tna-onnx calibrate model.onnx features/
    """
    from tna_onnx.api.features import features as run
    from tna_onnx.cli.show import run_command
    from tna_onnx.render.terminal import collection_text

    run_command(run, collection_text, arguments)


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
@options.field_options(GuardSettings)
@options.path_option(
    "--ood-data",
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
@options.sample_options(*options.ONE_PREDICTION, "by")
@options.config_options
def guard(**arguments: Any) -> None:
    """Write a copy of MODEL that also decides: answer or abstain, a set of classes, known or unknown.

    Each decision is an additional output, with a guarantee for samples from the same source as those of --calib. The
    other outputs do not change.

    \b
    Example:
      tna-onnx guard model.tna.onnx --calib fresh/ --add accept,set --risk 1 --coverage 95
    """
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
@options.path_option(
    "--target-data",
    "target",
    help="Data as the model will see them, for estimating class frequencies. Their labels are not read.",
)
@options.written_options(".shift.onnx")
@options.field_options(ShiftSettings)
@options.sample_options(*options.ONE_PREDICTION, *options.ALL_ALIKE)
@options.config_options
def shift(**arguments: Any) -> None:
    """Write a copy of MODEL for data in which classes are more or less frequent than before.

    Name the new class frequencies, or have them estimated on data without labels. Both assume that samples of a class
    look the same as before; with data, this is tested.

    \b
    Example:
      tna-onnx shift model.tna.onnx --calib calib/ --target-data unlabelled/
    """
    from tna_onnx.api.guard import shift as run
    from tna_onnx.cli.show import run_command
    from tna_onnx.render.terminal import shift_text

    run_command(run, shift_text, arguments, ".shift.onnx")


@click.command(cls=Command)
@click.argument("result", type=click.Path())
@options.path_option("-o", "--output", metavar="FILE", help="Markdown file to write.  [default: print it]")
@click.option("--task", metavar="NAME", help="Task on the Hugging Face Hub, such as image-classification.")
@click.option("--license", metavar="NAME", help="Licence of the model, by its name on the Hub, such as apache-2.0.")
@click.option("--base-model", metavar="NAME", help="Name of the input model on the Hub.")
@click.option("--overwrite", is_flag=True, help="Replace a file that is there.")
def card(result: str, output: str | None, **arguments: Any) -> None:
    """Write a model card from RESULT, the file of `calibrate --json`.

    \b
    Example:
      tna-onnx calibrate model.onnx data/ --json result.json
      tna-onnx card result.json -o README.md
    """
    from tna_onnx.api.calibrate import card as run
    from tna_onnx.cli.process import loaded, standard_output

    check_result_file(output, result, kind="card")
    loaded()
    result_card = run(result, output, **arguments)
    text = result_card.text
    if output is not None:
        text = f"wrote    {output}"
    with standard_output():
        click.echo(text)
