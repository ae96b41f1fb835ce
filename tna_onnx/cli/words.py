"""What people type, and what they mean: lists with spaces, and flags and commands that have another name here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import click

__all__ = ["joined_lists", "meant_command", "meant_flag"]

_NUMBER = re.compile(r"\[?[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?[],]*", re.IGNORECASE)

# Flags of other programs, and ours for the same; the first that a command has counts.
_FLAGS = {
    "gpu": ("device cuda",),
    "cuda": ("device cuda",),
    "cpu": ("device cpu",),
    "out": ("output",),
    "outfile": ("output",),
    "output-file": ("output",),
    "output-model": ("output",),
    "calibration": ("calib", "data"),
    "calibration-data": ("calib", "data"),
    "dataset": ("calib", "data"),
    "input": ("calib", "data"),
    "train": ("calib", "data"),
    "test": ("eval", "data"),
    "test-data": ("eval", "data"),
    "val": ("eval", "data"),
    "validation": ("eval", "data"),
    "heldout": ("eval", "data"),
    "held-out": ("eval", "data"),
    "holdout": ("eval", "data"),
    "label": ("labels", "label-column"),
    "target": ("label-column",),
    "class-names": ("classes",),
    "features": ("columns",),
    "normalize": ("mean", "preset"),
    "batch": ("batch-size",),
    "html": ("report",),
    "force": ("overwrite",),
}

_COMMANDS = {
    "version": "--version",
    "help": "--help",
    "recalibrate": "calibrate",
    "fit": "calibrate",
    "eval": "evaluate",
    "test": "evaluate",
    "measure": "evaluate",
    "score": "evaluate",
    "info": "inspect",
    "show": "inspect",
    "diff": "verify",
    "check": "verify",
    "extract": "features",
}


def joined_lists(words: Sequence[str], flags: Iterable[str]) -> list[str]:
    """Put commas between the numbers behind flags that take a list.

    >>> joined_lists(["--mean", "0.5", "0.4,", "0.3", "data/"], ["--mean"])
    ['--mean', '0.5,0.4,0.3', 'data/']
    """
    lists = set(flags)
    joined: list[str] = []
    todo = list(words)
    while todo:
        word = todo.pop(0)
        joined.append(word)
        if word == "--":
            return joined + todo
        if word not in lists:
            continue
        parts = []
        # a first value that is no number is for click to refuse
        while todo and _NUMBER.fullmatch(todo[0]):
            parts.append(todo.pop(0).strip("[],"))
        if parts:
            joined.append(",".join(parts))
    return joined


def meant_flag(command: click.Command, error: click.NoSuchOption, name: str) -> click.UsageError:
    """Return an error that says what an unknown flag may stand for.

    Args:
        command: that does not know it.
        error: of click, with what looks alike.
        name: of the command.
    """
    word = error.option_name.lstrip("-").lower().replace("_", "-")
    long = [[opt for opt in param.opts if opt.startswith("--")] for param in command.params]
    flags = [opts[0] for opts in long if opts]  # not the further names of an option
    if word == "model":
        return click.UsageError(
            f"No such option '{error.option_name}'. The model is the first word: tna-onnx {name} MODEL", error.ctx
        )
    if word == "version":
        return click.UsageError("No such option '--version'. Did you mean 'tna-onnx --version'?", error.ctx)
    for ours in _FLAGS.get(word, ()):
        if f"--{ours.partition(' ')[0]}" in flags:
            return click.UsageError(f"No such option '{error.option_name}'. Did you mean '--{ours}'?", error.ctx)
    # as it was meant to be typed: --label_column
    if f"--{word}" in flags:
        return click.UsageError(f"No such option '{error.option_name}'. Did you mean '--{word}'?", error.ctx)
    return error


def meant_command(word: str, rest: Sequence[str]) -> str | None:
    """Return the command line that an unknown command may stand for; None if there is no telling."""
    ours = _COMMANDS.get(word.lower())
    if word.lower().endswith(".onnx"):
        return f"tna-onnx calibrate {word} ..."
    if ours == "--help" and rest:
        return f"tna-onnx {rest[0]} --help"
    if ours is None:
        return None
    return f"tna-onnx {ours}"
