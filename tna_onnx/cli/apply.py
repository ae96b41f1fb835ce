"""`tna-onnx apply`."""

from __future__ import annotations

from typing import Any

import click

from tna_onnx.cli.command import Command
from tna_onnx.cli.options import model_argument
from tna_onnx.cli.terminal import check_result_file, default_output, named_files, watch


@click.command(cls=Command, short_help="Write the file that a patch of MODEL stands for.")
@model_argument
@click.argument("patch", type=click.Path())
@click.option("-o", "--output", type=click.Path(), help="File to write.  [default: MODEL.tna.onnx beside the model]")
@click.option(
    "--checkpoint",
    metavar="FILE",
    type=click.Path(),
    help="The .safetensors file that MODEL was exported from; it is written with the new weight, instead of MODEL.",
)
@click.option("--overwrite", is_flag=True, help="Allow --output to replace the input model.")
@click.option("--json", "json_file", metavar="FILE", type=click.Path(), help="Write the result as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def apply(json_file: str | None, quiet: bool, **arguments: Any) -> None:
    """Write the file that `calibrate --patch` made PATCH of, byte for byte.

    MODEL is the model that was calibrated. Another one, and a patch that is damaged, are refused.

    \b
    Example:
      tna-onnx calibrate model.onnx data/ --patch head.npz
      tna-onnx apply model.onnx head.npz -o model.tna.onnx
    """  # noqa: D301 - click reads the backspace: a paragraph that is not rewrapped
    from tna_onnx.api.apply import apply as run  # noqa: PLC0415 - NumPy loads only when a command runs
    from tna_onnx.cli.show import finish, json_step, ready  # noqa: PLC0415
    from tna_onnx.render.verify_text import difference_text  # noqa: PLC0415

    check_result_file(json_file, *named_files(arguments, ".tna.onnx"), arguments["patch"])
    ready()
    origin, ending = arguments["model"], ".tna.onnx"
    if arguments["checkpoint"]:
        origin, ending = arguments["checkpoint"], ".tna.safetensors"
    watch([arguments["output"] or default_output(origin, ending), json_file])
    result = run(**arguments)
    finish(difference_text(result), [json_step(json_file, result)], quiet or json_file == "-", result.recalibrated)
