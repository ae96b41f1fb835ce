"""`tna-onnx evaluate`, `compare`, `inspect`, `verify` and `study`: the commands that look at models and write none."""

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tna_onnx.cli import options
from tna_onnx.cli.command import Command
from tna_onnx.cli.process import check_result_file
from tna_onnx.errors import CheckFailed
from tna_onnx.graph.options import ModelOptions
from tna_onnx.pipeline.settings import Settings
from tna_onnx.results.gates import LIMITS, Gates
from tna_onnx.shifting.shift_settings import ShiftSettings
from tna_onnx.studies.settings import EXPERIMENTS, StudySettings


@click.command(cls=Command)
@options.model_argument
@options.data_argument
@options.labelled_data_options
@options.field_options(Gates, *LIMITS, "min_recall")
@options.page_option
@options.field_options(Settings, "bins", "positive")
@options.sample_options()
@options.config_options
def evaluate(**arguments: Any) -> None:
    """Measure accuracy, ECE, AdaECE, NLL and Brier score of MODEL on labelled data, and what a guarded model decides.

    On data without labels, estimate the accuracy of a file that calibrate wrote, and test whether anything but the
    class frequencies has changed. If a gate is missed, the exit code is 1.

    \b
    Example:
      tna-onnx evaluate model.onnx heldout/ --report evaluation.html
    """
    from tna_onnx.api.evaluate import evaluate as run
    from tna_onnx.cli.show import run_command
    from tna_onnx.render.terminal import evaluation_text

    run_command(run, evaluation_text, arguments)


@click.command(cls=Command)
@click.argument("models", metavar="MODEL MODEL... [DATA]", nargs=-1, required=True, type=click.Path())
@options.path_option("--data", "--calib", "data", help="Labelled data: file, folder or URL.  [required]")
@options.labels_option
@options.field_options(ShiftSettings, "confidence_level")
@options.page_option
@options.field_options(Settings, "bins", "positive")
@options.sample_options()
@options.config_options
def compare(**arguments: Any) -> None:
    """Measure several models on the same labelled data, with paired differences to the first.

    --head, --output-name and --output-kind apply to all models, --expect-accuracy to the first.

    \b
    Example:
      tna-onnx compare model.onnx model.tna.onnx other.onnx heldout/ --report comparison.html
    """
    from tna_onnx.api.compare import compare as run
    from tna_onnx.cli.show import run_command
    from tna_onnx.render.terminal import model_comparison_text

    arguments["models"], arguments["data"] = options.last_word(arguments["models"], arguments["data"])
    run_command(run, model_comparison_text, arguments)


@click.command(cls=Command)
@click.argument("model", type=click.Path())
@options.field_options(ModelOptions, "model_limits")
@options.result_options
def inspect(model: str, json_file: str | None, quiet: bool, **arguments: Any) -> None:
    """Show which node of MODEL is the head, or why there is none."""
    from tna_onnx.api.inspect import inspect as run
    from tna_onnx.cli.process import loaded
    from tna_onnx.cli.show import finish, text_step
    from tna_onnx.render.verify_text import inspection_text
    from tna_onnx.results.as_json import to_json

    check_result_file(json_file, model)
    loaded()  # the runtime is not needed here, so nothing else loads
    inspection = run(model, **arguments)
    write_json = text_step(json_file, lambda: to_json(inspection))
    finish(inspection_text(inspection), [write_json], quiet or json_file == "-")
    # Raises if nothing can be calibrated, but only after the description, which says why.
    inspection.require_scores()


_OF_SAMPLES = ("labels", "expect_accuracy", *LIMITS, "preset", *options.RECIPE_PARTS)


@click.command(cls=Command)
@click.argument("original", type=click.Path())
@click.argument("recalibrated", type=click.Path())
@options.data_argument
# Not required, unlike in other commands: the files alone show what differs.
@options.data_option("data", "Labelled data to run both files on: file, folder or URL.", required=False)
@options.labels_option
@options.field_options(Gates, *LIMITS)
@options.sample_options(*options.ALL_ALIKE)
@options.config_options
def verify(**arguments: Any) -> None:
    """Prove that RECALIBRATED was made from ORIGINAL.

    RECALIBRATED is rebuilt from ORIGINAL and its own record of the change, and compared byte by byte. With --data, both
    files are run and compared too. The exit code is 0 if the file is intact and, with --data, no gate is missed, and 1
    otherwise.

    \b
    Example:
      tna-onnx verify model.onnx model.tna.onnx --data heldout/
    """
    from tna_onnx.api.verify import verify as run
    from tna_onnx.cli.show import run_command
    from tna_onnx.render.verify_text import difference_text

    if arguments["data"] is None:
        # what a file or the environment says of samples is for runs that have some
        ctx = click.get_current_context()
        unused = [name for name in _OF_SAMPLES if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE]
        arguments.update(dict.fromkeys(unused))
    difference = run_command(run, difference_text, arguments)
    # after the table, which says in what the files differ
    if not difference.passed:
        raise CheckFailed(f"{difference.recalibrated}: {difference.verdict}")


@click.command(cls=Command)
@options.model_argument
@options.data_argument
@options.calibration_data_options("Labelled calibration data", "Held-out data to score.", required=True)
@options.path_option(
    "-o",
    "--out",
    metavar="DIR",
    required=True,
    help="Folder for the results, created if missing.",
)
@options.path_option("--cache", help="Folder that keeps the features.")
@click.option(
    "--only",
    metavar="NAME,...",
    multiple=True,
    type=options.Words([*EXPERIMENTS]),
    callback=options.flat,
    help="Studies to make: "
    + "; ".join(f"{name} ({row.shows})" for name, row in EXPERIMENTS.items())
    + ".  [default: all]",
)
@options.field_options(StudySettings)
@options.sample_options(*options.ONE_PREDICTION, *options.ALL_ALIKE, "expect_accuracy")
@options.config_options
def study(**arguments: Any) -> None:
    """Repeat the paper's experiments on MODEL: tables, curves, and one page with all of them.

    Each study writes NAME.csv, NAME.json and NAME.svg into --out, and index.html shows them.

    \b
    Example:
      tna-onnx study model.onnx --calib data/ --eval heldout/ --out study/ --only table,angle
    """
    from tna_onnx.api.calibrate import study as run
    from tna_onnx.cli.show import run_command
    from tna_onnx.render.terminal import study_text

    folder = arguments["out"]
    run_command(run, study_text, {**arguments, "page": str(Path(folder) / "index.html"), "figures": folder})
