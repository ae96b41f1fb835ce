"""Paths of results, checked before the work: a mistyped one must not cost an hour of computing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tna_onnx.errors import UsageError
from tna_onnx.files import is_replaced

__all__ = ["check_figure_folder", "check_result_file", "default_output", "named_files"]

_FILES = (
    "model",
    "original",
    "recalibrated",
    "data",
    "labels",
    "calib",
    "eval",
    "eval_labels",
    "ood_data",
    "train_features",
    "target",
)
_PRIORS = ("target_prior", "source_prior")


def default_output(model: str, suffix: str = ".tna.onnx") -> Path | None:
    """Return the path beside the model that a command writes to; None where the model's path names no file."""
    path = Path(model)
    return path.with_suffix(suffix) if path.name else None


def named_files(arguments: Mapping[str, Any], ending: str | None = None) -> list[str | None]:
    """Return the files that a command reads or writes besides its results, as far as its options name them.

    Args:
        arguments: of the command, by name.
        ending: of the model that it writes where no --output is given; None for commands that write no model.
    """
    files = [arguments.get(name) for name in _FILES]
    files += [arguments[name] for name in _PRIORS if arguments.get(name) != "uniform" and name in arguments]
    output = arguments.get("output")
    if not output and ending is not None:
        default = default_output(arguments["model"], ending)
        output = None if default is None else str(default)
    return [*files, output]


def check_result_file(path: str | None, *others: str | None, kind: str = "JSON") -> None:
    """Check that a result can be written to `path`.

    Args:
        path: of the result; None is not checked.
        others: files that the command reads or writes besides.
        kind: of the result, for the message.

    Raises:
        UsageError: `path` is in a missing folder, cannot be written, or is one of the other files.
    """
    if path is None:
        return
    if path == "-" and kind == "JSON":
        return
    # A page is not for a terminal, and a file of this name is hard to remove.
    if path == "-":
        raise UsageError(f"-: expected the name of a file for the {kind}")
    file = Path(path).absolute()
    if not file.parent.is_dir():
        raise UsageError(f"{path}: folder {file.parent} does not exist; create it or choose another")
    if file.is_dir() or (file.exists() and not os.access(file, os.W_OK)):
        raise UsageError(f"{path}: cannot be written; expected the name of a file for the {kind}")
    # A new file needs the right to the folder, behind a link too; one that is there can be written as it is.
    if is_replaced(file) and not file.exists() and not os.access(file.resolve().parent, os.W_OK):
        raise UsageError(f"{path}: cannot be written: the folder {file.resolve().parent} is not writable")
    # Pipes and character devices are fine: --json /dev/stdout is common in scripts.
    if file.is_socket() or file.is_block_device():
        raise UsageError(f"{path}: is not a regular file; expected the name of a file for the {kind}")
    if _is_one_of(file, others):
        raise UsageError(f"{path}: is one of the other files of this command; choose another name for the {kind} file")


def check_figure_folder(path: str, *files: str | None) -> None:
    """Check that figures can be written into a folder, which need not exist yet.

    Args:
        path: of the folder.
        files: that the command reads or writes besides.

    Raises:
        UsageError: the folder cannot be made or written, or is one of the files.
    """
    folder = Path(path).absolute()
    if _is_one_of(folder, files):
        raise UsageError(f"{path}: is one of the other files of this command; choose another folder for the figures")
    # the folder need not exist: the nearest one above decides whether it can be made
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise UsageError(f"{path}: cannot be written; expected the name of a folder for the figures")


def _is_one_of(path: Path, others: tuple[str | None, ...]) -> bool:
    return any(other is not None and path.resolve() == Path(other).resolve() for other in others)
