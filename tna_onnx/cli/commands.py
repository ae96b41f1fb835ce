"""The commands of `tna-onnx`."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

import tna_onnx
from tna_onnx.cli.channels import ResultError, complain, drop, standard_output
from tna_onnx.cli.options import confidence_option, data_options, limit_options, recipe_from, result_options
from tna_onnx.cli.types import Number, members
from tna_onnx.cli.written import interruption, watch
from tna_onnx.errors import CheckFailed, TnaError, UsageError

__all__ = ["group"]

_MODEL = click.Path()


class _Command(click.Command):
    """A command whose help may be cut off, and whose unexpected errors reach `main`."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse."""
        with _help_cut_off():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (EOFError, OSError) as error:  # click would end with 1, as if an input or a pipe had ended
            raise RuntimeError(f"unexpected {type(error).__name__}") from error


class _Group(click.Group):
    """Turns this package's errors into messages with their exit codes."""

    command_class = _Command

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse."""
        with _help_cut_off():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except TnaError as error:
            complain(f"Error: {error}")
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            complain(interruption(ctx))
            ctx.exit(130)


@contextlib.contextmanager
def _help_cut_off() -> Iterator[None]:
    """Take it for a normal end if the reader of `--help` goes away."""
    try:
        yield
    except BrokenPipeError:
        drop(sys.stdout)
        raise click.exceptions.Exit(0) from None


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(tna_onnx.__version__, prog_name="tna-onnx")
def group() -> None:
    """Recalibrate a trained ONNX classifier: a drop-in file with confidences that can be trusted.

    Exit codes: 0 done, 1 a check failed, 2 usage, 3 model not supported, 4 data, 5 device,
    6 MLflow or another place did not take a result (the model is written), 70 a bug in tna-onnx,
    130 interrupted.
    """


@group.command()
@click.argument("model", type=_MODEL)
@click.option("--calib", required=True, type=click.Path(), help="Labelled calibration data: file, folder or URL.")
@click.option("--eval", type=click.Path(), help="Held-out data for the report; cross-fitting without it.")
@click.option("--labels", type=click.Path(), help="File with the labels of --calib, where they stand apart.")
@click.option("--eval-labels", type=click.Path(), help="The same for --eval.")
@click.option("--cache", type=click.Path(), help="Folder in which features are kept; an interrupted run goes on there.")
@click.option("-o", "--output", type=click.Path(), help="New file.  [default: MODEL.tna.onnx beside the model]")
@click.option("--overwrite", is_flag=True, help="Let the output replace the input.")
@click.option(
    "--search",
    type=click.Choice(["sparse", "complete", "none"]),
    default="sparse",
    show_default=True,
    help="Tilt and average the class vectors, then fit the map; try all pairs of both; or keep the vectors.",
)
@click.option(
    "--map",
    type=click.Choice(["none", "ts", "ets", "irova", "aar", "auto"]),
    default="ts",
    show_default=True,
    help="Calibration map: none, temperature, ensemble temperature, isotonic one-vs-all, atypicality-aware; auto takes "
    "the one with the least cross-validated NLL.",
)
@click.option(
    "--fold/--no-fold", default=True, show_default=True, help="Put TS into weight and bias, or append a node."
)
@click.option(
    "--ets-loss",
    type=click.Choice(["squared", "nll"]),
    default="squared",
    show_default=True,
    help="What the weights of ETS minimise.",
)
@click.option(
    "--objective",
    type=click.Choice(["ece", "adaece", "nll"], case_sensitive=False),
    default="ece",
    show_default=True,
    help="What the search minimises.",
)
@click.option(
    "--max-accuracy-drop",
    type=Number(0, 100),
    default=0.3,
    show_default=True,
    help="Accuracy that may be lost on the calibration data, percentage points. Also a gate: fail if the whole "
    "interval of the loss lies beyond it.",
)
@click.option(
    "--ensemble-size",
    metavar="N|inf|auto",
    callback=members,
    default="auto",
    show_default=True,
    help="Tilted weights averaged (n_e). auto: the paper's 10, more if accuracy asks for it "
    "(10 in a complete search); inf: the limit of many.",
)
@click.option(
    "--max-ensemble-size",
    type=click.IntRange(1),
    default=2560,
    show_default=True,
    help="Cap on them under auto.",
)
@click.option("--antithetic", is_flag=True, help="Average pairs of a rotation and its transpose.")
@click.option(
    "--angle-step",
    type=click.FloatRange(0, 90, min_open=True, max_open=True),
    default=2.0,
    show_default=True,
    help="Step of the angle grid, degrees.",
)
@click.option(
    "--adaptive/--full-grid",
    default=True,
    show_default=True,
    help="Look at the angles from coarse to fine, or at the whole grid first.",
)
@click.option("--alpha", type=float, default=5.0, show_default=True, help="First shape of the Beta distribution.")
@click.option("--beta", type=float, default=1.0, show_default=True, help="Second shape of the Beta distribution.")
@click.option("--theta-s", type=float, default=0.9, show_default=True, help="Largest angle of a rotation, radians.")
@click.option(
    "--n-t", type=click.IntRange(1), default=50, show_default=True, help="Rotations drawn at a time; speed only."
)
@click.option(
    "--quantized-head",
    type=click.Choice(["requantize", "float"]),
    default="requantize",
    show_default=True,
    help="A weight stored quantised (QDQ): quantise the new one, or keep it in float.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of all random draws.")
@limit_options
@click.option(
    "--require-improvement/--no-require-improvement",
    default=False,
    show_default=True,
    help="Gate: fail if the objective does not improve by its whole interval.",
)
@click.option(
    "--fail-if-worse/--no-fail-if-worse",
    default=True,
    show_default=True,
    help="Gate: fail if the objective gets worse by its whole interval; or the NLL does, and the objective does not "
    "improve.",
)
@confidence_option
@click.option(
    "--dry-run",
    is_flag=True,
    help="Do everything, checks and gates included, but write no model; say what would be written. --json, --report "
    "and --cache still work.",
)
@click.option(
    "--report", "details", metavar="FILE", type=click.Path(), help="Write an HTML report with figures, in one file."
)
@result_options
@data_options
def calibrate(
    preset: str | None,
    json_file: str | None,
    details: str | None,
    plot: bool,
    figures: str | None,
    figure_formats: tuple[str, ...],
    mlflow: bool,
    mlflow_experiment: str | None,
    quiet: bool,
    **given: Any,
) -> None:
    """Write a recalibrated copy of MODEL.

    Gates read the numbers after recalibration, on --eval or cross-fitted. A missed one is an error with exit code 1,
    one line each, and no file is written; --json and --report still say why.

    \b
    Example:
      tna-onnx calibrate model.onnx --calib data/ --eval heldout/ -o model.tna.onnx
    """  # noqa: D301 - click reads the backspace: a paragraph that is not rewrapped
    from tna_onnx.api.calibrate import calibrate as run  # noqa: PLC0415
    from tna_onnx.cli.show import Extras, finish, json_step, page_step, progress_bars, ready  # noqa: PLC0415
    from tna_onnx.render.text import report_text  # noqa: PLC0415

    others = [given["model"], given["calib"], given["eval"], given["output"]]
    _check_result(json_file, *others, details)
    _check_result(details, *others, kind="HTML")
    extras = Extras(figures, figure_formats, mlflow or mlflow_experiment is not None, mlflow_experiment)
    extras.check(*others, json_file, details)
    drawn = details is not None or figures is not None
    recipe = recipe_from(preset, given)
    ready()
    output = Path(given["output"]) if given["output"] else _default_output(given["model"])
    watch([output, json_file, details], given["cache"])
    with progress_bars(quiet) as progress:
        report, missed = _gated(run, preprocessing=recipe, details=drawn, progress=progress, **given)

    def page() -> str:
        from tna_onnx.render.html.calibration import to_html  # noqa: PLC0415

        return to_html(report, _command_line(), sources=_sources())

    steps = [json_step(json_file, report, details=drawn), page_step(details, page), *extras.steps(report, details)]
    try:
        finish(report_text(report, plot=plot), steps, quiet, report.output)
    except ResultError as error:
        if not missed:
            raise
        complain(f"Error: {error}")  # a missed gate decides on the exit code
    if missed:
        earlier = output is not None and output.is_file() and not given["dry_run"]
        raise CheckFailed(f"{missed}; the earlier {output} is unchanged") if earlier else missed


@group.command()
@click.argument("model", type=_MODEL)
@click.option("--data", required=True, type=click.Path(), help="Labelled data: file, folder or URL.")
@click.option("--labels", type=click.Path(), help="File with the labels, where they stand apart.")
@limit_options
@click.option("--plot", is_flag=True, help="Print a reliability diagram.")
@data_options
def evaluate(preset: str | None, json_file: str | None, plot: bool, quiet: bool, **given: Any) -> None:
    """Measure MODEL on labelled data: accuracy, ECE, AdaECE, NLL, Brier."""
    from tna_onnx.api.evaluate import evaluate as run  # noqa: PLC0415
    from tna_onnx.cli.show import finish, json_step, progress_bars, ready  # noqa: PLC0415
    from tna_onnx.render.text import evaluation_text  # noqa: PLC0415

    _check_result(json_file, given["model"], given["data"])
    recipe = recipe_from(preset, given)
    ready()
    watch([json_file])
    with progress_bars(quiet) as progress:
        evaluation, missed = _gated(run, preprocessing=recipe, progress=progress, **given)
    finish(evaluation_text(evaluation, plot=plot), [json_step(json_file, evaluation)], quiet)
    if missed:
        raise missed


@group.command()
@click.argument("model", type=_MODEL)
@click.option("--data", required=True, type=click.Path(), help="Labelled data: file, folder or URL.")
@click.option("--labels", type=click.Path(), help="File with the labels, where they stand apart.")
@click.option("--cache", required=True, type=click.Path(), help="Folder of feature stores; made if it is missing.")
@data_options
def features(preset: str | None, json_file: str | None, quiet: bool, **given: Any) -> None:
    """Keep the features, logits and labels of DATA, for `calibrate --calib CACHE`.

    An interrupted run goes on where it stopped.

    \b
    Example:
      tna-onnx features model.onnx --data data/ --cache features/
      tna-onnx calibrate model.onnx --calib features/
    """  # noqa: D301 - click reads the backspace: a paragraph that is not rewrapped
    from tna_onnx.api.features import features as run  # noqa: PLC0415
    from tna_onnx.cli.show import finish, json_step, progress_bars, ready  # noqa: PLC0415
    from tna_onnx.render.text import collection_text  # noqa: PLC0415

    _check_result(json_file, given["model"], given["data"])
    recipe = recipe_from(preset, given)
    ready()
    watch([json_file], given["cache"])
    with progress_bars(quiet) as progress:
        collection = run(preprocessing=recipe, progress=progress, **given)
    finish(collection_text(collection), [json_step(json_file, collection)], quiet)


features.params = [option for option in features.params if option.name != "bins"]  # nothing here is binned


@group.command()
@click.argument("model", type=_MODEL)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(model: str, as_json: bool) -> None:
    """Show which node of MODEL is the head, or why none is."""
    from tna_onnx.api.inspect import inspect as run  # noqa: PLC0415
    from tna_onnx.cli.show import say  # noqa: PLC0415
    from tna_onnx.cli.signals import loaded  # noqa: PLC0415
    from tna_onnx.render.text import inspection_text  # noqa: PLC0415
    from tna_onnx.results.as_json import to_json  # noqa: PLC0415

    loaded()
    inspection = run(model)
    if as_json:
        with standard_output():
            click.echo(to_json(inspection), nl=False)
    else:
        say(inspection_text(inspection))
    inspection.require_head()


@group.command()
@click.argument("original", type=_MODEL)
@click.argument("recalibrated", type=_MODEL)
@click.option("--data", type=click.Path(), help="Labelled data to run both files on: file, folder or URL.")
@click.option("--labels", type=click.Path(), help="File with the labels, where they stand apart.")
@data_options
def verify(preset: str | None, json_file: str | None, quiet: bool, **given: Any) -> None:
    """Show what differs between ORIGINAL and RECALIBRATED.

    Exit code 0 if only the head and the appended block do, 1 otherwise.

    \b
    Example:
      tna-onnx verify model.onnx model.tna.onnx --data heldout/
    """  # noqa: D301 - click reads the backspace: a paragraph that is not rewrapped
    from tna_onnx.api.verify import verify as run  # noqa: PLC0415
    from tna_onnx.cli.show import finish, json_step, progress_bars, ready  # noqa: PLC0415
    from tna_onnx.render.text import difference_text  # noqa: PLC0415

    _check_result(json_file, given["original"], given["recalibrated"], given["data"])
    recipe = recipe_from(preset, given)
    ready()
    watch([json_file])
    with progress_bars(quiet) as progress:
        found = run(preprocessing=recipe, progress=progress, **given)
    finish(difference_text(found), [json_step(json_file, found)], quiet)
    if not found.passed:
        raise CheckFailed(f"{found.recalibrated}: {found.verdict}")


verify.params = [option for option in verify.params if option.name != "bins"]  # nothing here is binned


@group.command()
@click.argument("models", metavar="MODEL MODEL...", nargs=-1, required=True, type=_MODEL)
@click.option("--data", required=True, type=click.Path(), help="Labelled data: file, folder or URL.")
@click.option("--labels", type=click.Path(), help="File with the labels, where they stand apart.")
@click.option(
    "--baseline",
    metavar="NAME|INDEX",
    default="1",
    show_default=True,
    help="Model that the others are compared with: file name, or position from 1.",
)
@confidence_option
@click.option("--report", "page", metavar="FILE", type=click.Path(), help="Write an HTML report, in one file.")
@data_options
def compare(preset: str | None, json_file: str | None, page: str | None, quiet: bool, **given: Any) -> None:
    """Measure several models on the same labelled data, with paired differences to one of them.

    --head, --output-name and --output-kind are for all models; --expect-accuracy is for the baseline.

    \b
    Example:
      tna-onnx compare model.onnx model.tna.onnx other.onnx --data heldout/ --report comparison.html
    """  # noqa: D301 - click reads the backspace: a paragraph that is not rewrapped
    from tna_onnx.api.compare import compare as run  # noqa: PLC0415
    from tna_onnx.cli.show import finish, json_step, page_step, progress_bars, ready  # noqa: PLC0415
    from tna_onnx.render.comparison_text import model_comparison_text  # noqa: PLC0415

    _check_result(json_file, *given["models"], given["data"], page)
    _check_result(page, *given["models"], given["data"], kind="HTML")
    recipe = recipe_from(preset, given)
    ready()
    watch([json_file, page])
    with progress_bars(quiet) as progress:
        found = run(preprocessing=recipe, progress=progress, **given)

    def html() -> str:
        from tna_onnx.render.html.comparison import comparison_page  # noqa: PLC0415

        return comparison_page(found, _command_line())

    finish(model_comparison_text(found), [json_step(json_file, found), page_step(page, html)], quiet)


def _default_output(model: str) -> Path | None:
    path = Path(model)
    return path.with_suffix(".tna.onnx") if path.name else None


def _command_line() -> str:
    return shlex.join(["tna-onnx", *sys.argv[1:]])


def _sources() -> dict[str, str]:
    """Return the settings that files and the environment gave: flag -> value and source."""
    ctx = click.get_current_context()
    kinds = {str(p.name): ctx.get_parameter_source(str(p.name)) for p in ctx.command.params}
    recipes = ("preset", "preprocessing")  # one on the command line takes the place of the other
    replaced = recipes if any(kinds[name] == ParameterSource.COMMANDLINE for name in recipes) else ()
    found = {}
    for param in ctx.command.params:
        name = str(param.name)
        setting = ctx.meta.get("tna_onnx.settings", {}).get(name)
        if setting is not None and kinds[name] == ParameterSource.DEFAULT_MAP and name not in replaced:
            value = ",".join(setting.value) if isinstance(setting.value, list) else setting.value
            found[max(param.opts, key=len).lstrip("-")] = f"{value} ({setting.source})"
    return found


def _gated(run: Callable[..., Any], **given: Any) -> tuple[Any, CheckFailed | None]:
    """Run; where gates are missed, return the result all the same, with the error to raise once it is shown."""
    from tna_onnx.results.gates import GateMissed  # noqa: PLC0415

    try:
        return run(**given), None
    except GateMissed as missed:
        return missed.result, missed


def _check_result(path: str | None, *others: str | None, kind: str = "JSON") -> None:
    """Refuse the path of a result before the work, not after: a missing folder, a directory, one of the other files."""
    if path is None:
        return
    if path == "-":
        raise UsageError(f"-: expected the name of a file for the {kind}")
    file = Path(path).absolute()
    if not file.parent.is_dir():
        raise UsageError(f"{path}: folder {file.parent} does not exist; create it or choose another")
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UsageError(f"{path}: cannot be written; expected the name of a file for the {kind}")
    if file.is_socket() or file.is_block_device():
        raise UsageError(f"{path}: is not a regular file; expected the name of a file for the {kind}")
    if any(other is not None and file.resolve() == Path(other).resolve() for other in others):
        raise UsageError(f"{path}: is one of the other files of this command; choose another name for the {kind} file")
