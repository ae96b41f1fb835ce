"""`tna-onnx` itself: the group, and the one table of its commands."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping

import click

import tna_onnx
from tna_onnx.cli.command import Group
from tna_onnx.cli.terminal import shortage

# Each is a module of this package and, under the same name, the command in it.
COMMANDS = (
    "apply",
    "calibrate",
    "card",
    "compare",
    "evaluate",
    "features",
    "fit",
    "guard",
    "inspect",
    "shift",
    "study",
    "verify",
)


class _Commands(Mapping[str, click.Command]):
    """The commands by name. Each loads when it is asked for: a run needs the options of one, `--version` of none."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in COMMANDS:
            raise KeyError(name)
        try:
            command: click.Command = getattr(importlib.import_module(f"tna_onnx.cli.{name}"), name)
        except (ImportError, OSError, MemoryError) as error:
            raise shortage(error) or error from error
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@click.group(
    cls=Group, commands=_Commands(), context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(tna_onnx.__version__, prog_name="tna-onnx")
def group() -> None:
    """Recalibrate a trained ONNX classifier: a drop-in file with confidences that can be trusted.

    Exit codes: 0 done, 1 a check failed, 2 wrong usage, 3 unsupported model, 4 unusable data,
    5 device or runtime not available, 6 a result other than the model could not be written or logged,
    70 a bug in tna-onnx, 130 interrupted.
    """
