"""Options that several commands share, in groups that become decorators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tna_onnx.calibration.settings import Settings
from tna_onnx.cli.positional import DataOption
from tna_onnx.cli.types import Number, batch_size, choice, data_limits, model_limits, names, one_or_more
from tna_onnx.data.formats import FORMATS
from tna_onnx.data.words import POSITION_WORDS
from tna_onnx.graph.options import OUTPUT_KINDS
from tna_onnx.numerics.checks import MAX_LEVEL

__all__ = [
    "bins_option",
    "calibration_data_options",
    "confidence_option",
    "data_options",
    "engine_option",
    "foreign_model_options",
    "labelled_data_options",
    "labels_option",
    "model_argument",
    "model_options",
    "run_options",
    "several_heads_options",
    "together",
]

F = TypeVar("F", bound=Callable[..., Any])


def together(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return one decorator that adds options in the order in which the help shows them."""

    def add(command: F) -> F:
        # The decorator next to the function runs first, and click puts its option last.
        for option in reversed(options):
            command = option(command)
        return command

    return add


model_argument = click.argument("model", type=click.Path())


def calibration_data_options(calib: str, held_out: str, *, required: bool = False) -> Callable[[F], F]:
    """Return the options on two sets of samples and their labels.

    Args:
        calib: what `--calib` is, in the help.
        held_out: what `--eval` is, likewise.
        required: whether `--eval` has to be given.
    """
    return together(
        click.option(
            "--calib",
            "--data",
            "calib",
            cls=DataOption,
            required=True,
            type=click.Path(),
            help=f"{calib}: file, folder or URL; may also be given as DATA, after MODEL.",
        ),
        click.option("--eval", required=required, type=click.Path(), help=held_out),
        click.option(
            "--labels", type=click.Path(), help="File with the labels of --calib, if they are stored separately."
        ),
        click.option(
            "--eval-labels", type=click.Path(), help="File with the labels of --eval, if they are stored separately."
        ),
    )


labels_option = click.option("--labels", type=click.Path(), help="File with the labels, if they are stored separately.")

labelled_data_options = together(
    click.option(
        "--data",
        "--calib",
        "data",
        cls=DataOption,
        required=True,
        type=click.Path(),
        help="Labelled data: file, folder or URL.",
    ),
    labels_option,
)

data_options = together(
    click.option("--format", type=choice(FORMATS), help="Format of the data.  [default: detected]"),
    click.option("--classes", type=click.Path(), help="File with the class names in the model's order."),
    click.option(
        "--label-column",
        metavar="NAME",
        help="Column of a table or manifest, or array, with the labels; a,b,c for several labels a sample.",
    ),
    click.option(
        "--columns",
        metavar="NAMES",
        multiple=True,
        callback=names,
        help="Columns of a table that fill the model's inputs, in the model's order; several with commas, or repeat "
        "the option.  [default: by name, else all numbers]",
    ),
    click.option(
        "--tokenizer",
        metavar="FOLDER",
        type=click.Path(),
        help="Turn text into tokens. Give the folder of a tokenizer.json, or the name of a tokenizer in the cache "
        "of Hugging Face.",
    ),
    click.option(
        "--ignore-label",
        metavar="NUMBER",
        type=int,
        help='Label that stands for "no label", in models with a prediction for each token or pixel.  [default: -100]',
    ),
    click.option(
        "--position",
        type=choice(POSITION_WORDS),
        help="Which predictions count if a sample has several: all with a label, or only the last one, as in "
        "next-token models.  [default: all]",
    ),
    click.option("--skip-bad", is_flag=True, help="Skip images that cannot be read, and count them."),
    click.option(
        "--expect-accuracy",
        metavar="PERCENT",
        type=Number(0, 100),
        help="Fail if the model's accuracy on the data is more than two standard errors below this.",
    ),
    click.option(
        "--data-root",
        metavar="DIR",
        type=click.Path(),
        help="Also read files below this folder, if the data refer to them by absolute paths, .. or links.",
    ),
    click.option(
        "--data-limit",
        "limits",
        metavar="NAME=NUMBER",
        multiple=True,
        callback=data_limits,
        help="Raise a limit on the data: image-pixels, text-bytes, expansion, download-bytes, overlap. Several with "
        "commas, or repeat the option.",
    ),
)

foreign_model_options = together(
    click.option(
        "--isolate",
        is_flag=True,
        help="Open the model in a child process first, so that a crash or an endless loop in ONNX or ONNX Runtime "
        "becomes an error (exit code 3). Off by default: it takes half a second, and the time to open the "
        "model twice.",
    ),
    click.option(
        "--model-limit",
        "model_limits",
        metavar="NAME=NUMBER",
        multiple=True,
        callback=model_limits,
        help="Raise a limit on the model: name-length, sparse-bytes, inlined-nodes, inlined-bytes, constant-elements, "
        "isolate-seconds. Several with commas, or repeat the option.",
    ),
)

_output_options = together(
    click.option("--output-name", metavar="NAME", help="Name of the output to calibrate, if the model has several."),
    click.option(
        "--output-kind",
        type=choice(OUTPUT_KINDS),
        help="What the output holds, if the graph does not show it; label-... for several labels a sample.",
    ),
    foreign_model_options,
)

model_options = together(
    click.option("--head", metavar="NAME", help="Head to use, for a model with several: its output, or its node."),
    _output_options,
)

several_heads_options = together(
    click.option(
        "--head",
        metavar="NAME",
        multiple=True,
        callback=one_or_more,
        help="Head to calibrate, for a model with several: its output, or its node. Repeat the option to calibrate "
        "several in one file; labels have the names of the outputs then.",
    ),
    _output_options,
)

run_options = together(
    click.option(
        "--device", default="auto", show_default=True, metavar="DEVICE", help="auto, cpu, cuda (or gpu) or cuda:INDEX."
    ),
    click.option(
        "--tf32",
        type=choice(("as-deployed", "off")),
        help="On CUDA: round the factors of float32 products to TF32, as ONNX Runtime does where models are deployed "
        "(the default), or keep them in float32.",
    ),
    click.option(
        "--gpu-memory",
        metavar="GIB",
        type=Number(0, 4096, min_open=True),
        help="Memory of the CUDA device that a run may take; all that is free by default.",
    ),
    click.option(
        "--batch-size",
        metavar="N|auto",
        callback=batch_size,
        default="64",  # a text, because the callback reads texts
        show_default=True,
        help="Samples per run of the model; auto measures which number is fastest.",
    ),
    click.option(
        "--json",
        "json_file",
        metavar="FILE",
        type=click.Path(allow_dash=True),
        help="Write the result as JSON to this file; with -, write it to standard output, and nothing else there.",
    ),
    click.option("-q", "--quiet", is_flag=True, help="Show no progress and print no table."),
)


def engine_option(what: str) -> Callable[[F], F]:
    """Return `--engine`, with what is said of it besides the words that it takes."""
    return click.option(
        "--engine",
        default="local",
        show_default=True,
        metavar="ENGINE",
        help="Where the model runs over the data: local, processes:N (N processes of this machine), ray or "
        f"ray:HOST:PORT (a Ray cluster). {what}",
    )


bins_option = click.option(
    "--bins", type=click.IntRange(1), default=Settings.bins, show_default=True, help="Number of bins of ECE and AdaECE."
)

confidence_option = click.option(
    "--confidence-level",
    metavar="PERCENT",
    type=Number(50, MAX_LEVEL),  # the same range that `check_level` allows
    default=Settings.confidence_level,
    show_default=True,
    help="Level of the intervals in the report. At 95, about 95 of 100 such intervals contain the true value.",
)
