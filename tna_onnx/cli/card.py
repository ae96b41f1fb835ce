"""`tna-onnx card`."""

from __future__ import annotations

from typing import Any

import click

from tna_onnx.cli.command import Command
from tna_onnx.cli.terminal import check_result_file


@click.command(cls=Command, short_help="Write a model card from a result.")
@click.argument("result", type=click.Path())
@click.option("-o", "--output", metavar="FILE", type=click.Path(), help="Markdown file to write.  [default: print it]")
@click.option(
    "--figures",
    metavar="DIR",
    type=click.Path(),
    help="Folder of `calibrate --figures`.  [default: figures beside RESULT]",
)
@click.option("--task", metavar="NAME", help="Task on the Hugging Face Hub, such as image-classification.")
@click.option("--license", metavar="NAME", help="Licence of the model, by its name on the Hub, such as apache-2.0.")
@click.option("--base-model", metavar="NAME", help="Name of the input model on the Hub.")
@click.option(
    "--dataset",
    metavar="NAME",
    help="Name of the data set on the Hub. The metrics then also go into .eval_results/ beside --output.",
)
@click.option("--overwrite", is_flag=True, help="Replace a card that was not written by this command.")
def card(result: str, output: str | None, **arguments: Any) -> None:
    """Write a model card from RESULT, the file of `calibrate --json`.

    \b
    Example:
      tna-onnx calibrate model.onnx data/ --json result.json --figures figures/
      tna-onnx card result.json -o README.md
    """  # noqa: D301 - click reads the backspace: a paragraph that is not rewrapped
    from tna_onnx.api.card import card as run  # noqa: PLC0415 - NumPy loads only when a command runs
    from tna_onnx.cli.terminal import loaded, standard_output  # noqa: PLC0415

    check_result_file(output, result, kind="card")
    loaded()
    result_card = run(result, output, **arguments)
    with standard_output():
        click.echo(result_card.text if output is None else f"wrote    {output}")
