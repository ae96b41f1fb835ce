"""`tna-onnx inspect`."""

from __future__ import annotations

from typing import Any

import click

from tna_onnx.cli.channels import standard_output
from tna_onnx.cli.command import Command
from tna_onnx.cli.options import foreign_model_options, model_argument

__all__ = ["inspect"]


@click.command(cls=Command)
@model_argument
@foreign_model_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(model: str, as_json: bool, **arguments: Any) -> None:
    """Show which node of MODEL is the head, or why there is none."""
    from tna_onnx.api.inspect import inspect as run  # noqa: PLC0415 - NumPy loads only when a command runs
    from tna_onnx.cli.show import say  # noqa: PLC0415
    from tna_onnx.cli.signals import loaded  # noqa: PLC0415
    from tna_onnx.render.text import inspection_text  # noqa: PLC0415
    from tna_onnx.results.as_json import to_json  # noqa: PLC0415

    loaded()  # the runtime is not needed here, so nothing else loads
    inspection = run(model, **arguments)
    if as_json:
        with standard_output():
            click.echo(to_json(inspection), nl=False)
    else:
        say(inspection_text(inspection))
    # Raises if there is no head, but only after the description, which says why.
    inspection.require_head()
