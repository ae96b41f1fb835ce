"""`tna-onnx calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tna_onnx.cli.command import Command
from tna_onnx.cli.config import config_options, setting_sources
from tna_onnx.cli.extras import Extras, extra_options, finish_gated, run_gated
from tna_onnx.cli.options import (
    calibration_data_options,
    data_argument,
    data_options,
    field_options,
    model_argument,
    model_options,
    preprocessing_options,
    run_options,
    take_recipe,
    together,
)
from tna_onnx.cli.terminal import check_result_file, default_output, named_files, watch
from tna_onnx.guarding.guard_settings import GuardSettings
from tna_onnx.pipeline.settings import Settings
from tna_onnx.results.gates import Gates

_file_options = together(
    calibration_data_options(
        "Labelled calibration data",
        "Labelled data for measuring the result. Without them, --calib is cross-validated.",
    ),
    click.option(
        "--teacher",
        metavar="MODEL",
        type=click.Path(),
        help="Fit the probabilities of this model in place of labels: of the float model, for a quantised one.",
    ),
    click.option(
        "--cache", type=click.Path(), help="Folder that keeps the features, so that an interrupted run can resume."
    ),
    click.option(
        "-o", "--output", type=click.Path(), help="File to write.  [default: MODEL.tna.onnx beside the model]"
    ),
    click.option(
        "--patch",
        metavar="FILE",
        type=click.Path(),
        help="Write the change alone too, .npz or .safetensors; `tna-onnx apply MODEL FILE` makes the new file of it.",
    ),
    # An earlier output is replaced without asking; only the model itself needs this.
    click.option("--overwrite", is_flag=True, help="Allow --output to replace the input model."),
)

# Half of the samples is kept for the thresholds; `guard` has the other settings.
_decision_options = field_options(
    GuardSettings, "add", "coverage", "risk", "decide", "positive", "if_unreachable", add=()
)

_result_options = together(
    click.option(
        "--dry-run",
        is_flag=True,
        help="Do everything, including checks and gates, but write no model. --json, --report and --cache still work.",
    ),
    # Named like the argument of `tna_onnx.calibrate` that it turns on.
    click.option(
        "--report", "details", metavar="FILE", type=click.Path(), help="Write an HTML report with figures, in one file."
    ),
    extra_options,
)


@click.command(cls=Command)
@model_argument
@data_argument
@_file_options
@field_options(Settings)
@field_options(Gates)
@_decision_options
@_result_options
@data_options
@preprocessing_options
@model_options
@run_options
@config_options
def calibrate(
    preset: str | None,
    json_file: str | None,
    details: str | None,
    figures: str | None,
    mlflow: bool,
    quiet: bool,
    **arguments: Any,
) -> None:
    """Write a recalibrated copy of MODEL.

    Gates check the metrics after recalibration, measured on --eval or by cross-validation. If one is missed, no model
    is written, the exit code is 1, and each missed gate is reported on a line of its own. --json and --report are still
    written, and give the reason.

    \b
    Example:
      tna-onnx calibrate model.onnx data/ --eval heldout/ -o model.tna.onnx
    """  # noqa: D301 - click reads the backspace: a paragraph that is not rewrapped
    from tna_onnx.api.calibrate import calibrate as run  # noqa: PLC0415 - NumPy loads only when a command runs
    from tna_onnx.cli.show import json_step, page_step, ready  # noqa: PLC0415
    from tna_onnx.render.progress import progress_shown  # noqa: PLC0415
    from tna_onnx.render.text import report_text  # noqa: PLC0415

    extras = Extras(figures, mlflow)
    # before the work: a mistyped path must not cost a run
    _check_paths(json_file, details, extras, arguments)
    # Only the drawings need the details, which make the JSON much larger.
    needs_details = details is not None or figures is not None
    recipe = take_recipe(preset, arguments)
    ready()
    output = Path(arguments["output"]) if arguments["output"] else default_output(arguments["model"])
    # Looked at before the work: afterwards it could not be told from a file that this run wrote.
    earlier = output if output is not None and output.is_file() and not arguments["dry_run"] else None
    # the last step before the work: what changes from here on was written by this run
    watch([output, arguments["patch"], json_file, details], arguments["cache"])
    with progress_shown(not quiet) as progress:
        report, missed = run_gated(run, preprocessing=recipe, details=needs_details, progress=progress, **arguments)
    # MLflow comes last: it takes the files that the other steps have written.
    steps = [
        json_step(json_file, report, details=needs_details),
        page_step(details, lambda: _page(report)),
        *extras.steps(report, details),
        lambda: () if report.patch is None else [f"patch    {arguments['patch']}: {len(report.patch):,} bytes"],
    ]
    detailed = bool(click.get_current_context().params.get("verbose"))
    text = report_text(report, detailed=detailed)
    finish_gated(text, steps, quiet or json_file == "-", report.output, missed, earlier)


def _check_paths(json_file: str | None, page: str | None, extras: Extras, arguments: dict[str, Any]) -> None:
    others = named_files(arguments, ".tna.onnx")
    check_result_file(arguments["patch"], *others, json_file, page, kind="patch")
    check_result_file(json_file, *others, page)
    check_result_file(page, *others, kind="HTML")
    extras.check(*others, json_file, page)


def _page(report: Any) -> str:
    from tna_onnx.cli.show import command_line  # noqa: PLC0415 - NumPy loads only when a command runs
    from tna_onnx.render.html.page import to_html  # noqa: PLC0415

    return to_html(report, command_line(), sources=setting_sources())
