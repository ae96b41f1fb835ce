"""`tna-onnx inspect`."""

from __future__ import annotations

from typing import Any

import click

from tna_onnx.cli.command import Command
from tna_onnx.cli.options import field_options
from tna_onnx.cli.terminal import check_result_file
from tna_onnx.errors import UsageError
from tna_onnx.graph.options import ModelOptions


@click.command(cls=Command)
@click.argument("model", required=False, type=click.Path())
@field_options(ModelOptions, "isolate", "model_limits")
@click.option(
    "--json",
    "json_file",
    metavar="[FILE]",
    is_flag=False,
    flag_value="-",
    help="Write JSON to this file; without a file, or with -, print it.",
)
def inspect(model: str | None, json_file: str | None, **arguments: Any) -> None:
    """Show which node of MODEL is the head, or why there is none."""
    from tna_onnx.api.inspect import inspect as run  # noqa: PLC0415 - NumPy loads only when a command runs
    from tna_onnx.cli.show import finish, json_step  # noqa: PLC0415
    from tna_onnx.cli.terminal import loaded  # noqa: PLC0415
    from tna_onnx.render.verify_text import inspection_text  # noqa: PLC0415

    # `inspect --json MODEL`: click cannot tell whether the word belongs to the flag
    if model is None and json_file not in (None, "-"):
        model = json_file
        json_file = "-"
    if model is None:
        raise click.MissingParameter(ctx=click.get_current_context(), param_type="argument", param_hint="'MODEL'")
    if json_file is not None and json_file.lower().endswith(".onnx"):
        raise UsageError(f"{json_file}: expected the name of a file for the JSON, found that of a model")
    check_result_file(json_file, model)
    loaded()  # the runtime is not needed here, so nothing else loads
    inspection = run(model, **arguments)
    finish(inspection_text(inspection), [json_step(json_file, inspection)], json_file == "-")
    # Raises if nothing can be calibrated, but only after the description, which says why.
    inspection.require_scores()
