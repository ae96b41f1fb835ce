"""`tna-onnx` itself: the group, and the one table of its commands."""

from __future__ import annotations

import click

import tna_onnx
from tna_onnx.cli.calibrate import calibrate
from tna_onnx.cli.card import card
from tna_onnx.cli.command import Group
from tna_onnx.cli.compare import compare
from tna_onnx.cli.evaluate import evaluate
from tna_onnx.cli.features import features
from tna_onnx.cli.guard import guard
from tna_onnx.cli.inspect import inspect
from tna_onnx.cli.shift import shift
from tna_onnx.cli.study import study
from tna_onnx.cli.verify import verify

__all__ = ["group"]

COMMANDS = (calibrate, card, compare, evaluate, features, guard, inspect, shift, study, verify)


@click.group(
    cls=Group, commands=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(tna_onnx.__version__, prog_name="tna-onnx")
def group() -> None:
    """Recalibrate a trained ONNX classifier: a drop-in file with confidences that can be trusted.

    Exit codes: 0 done, 1 a check failed, 2 wrong usage, 3 unsupported model, 4 unusable data,
    5 device or runtime not available, 6 a result other than the model could not be written or logged,
    70 a bug in tna-onnx, 130 interrupted.
    """
