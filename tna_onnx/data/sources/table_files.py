"""The files of a table: one file, those of a folder, or those that Hugging Face's `datasets` saved."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tna_onnx.data.files import check_inside, read_text
from tna_onnx.data.formats import ROWS
from tna_onnx.data.parsing import parsing
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from tna_onnx.data.limits import Limits

__all__ = ["table_files", "table_folder"]

_SUFFIXES = ROWS["table"].files
# What `datasets` writes beside its Arrow files: how a data set is stored, and the names of its splits.
_STATE = "state.json"
_SPLITS = "dataset_dict.json"


def table_folder(path: Path) -> Path:
    """Return the folder that paths in a table count from."""
    if path.is_dir():
        return path
    return path.parent


def table_files(path: Path, limits: Limits, data_root: Path | None) -> tuple[Path, ...]:
    """Return the files of a table in their order.

    Raises:
        DataError: there are none, or not those of one table; or what `datasets` wrote of them cannot be used.
    """
    if path.is_file():
        return (path,)
    if (path / _SPLITS).is_file():
        splits = sorted(entry.name for entry in path.iterdir() if (entry / _STATE).is_file())
        raise DataError(
            f"{path}: holds several data sets; choose one: {', '.join(str(path / name) for name in splits)}"
        )
    if (path / _STATE).is_file():
        check_inside(path, [_STATE], str(path), data_root)
        with parsing(str(path / _STATE), "cannot be read", "save the data set again"):
            state = json.loads(read_text(path / _STATE, limits))
            names = [str(entry["filename"]) for entry in state["_data_files"]]
        if state.get("_indices_data_files"):  # left by `shuffle` and `select`, which do not move the rows
            raise DataError(f"{path}: its rows are not stored in their order; save data_set.flatten_indices() instead")
        files = tuple(path / name for name in names)
    else:
        files = tuple(sorted(file for suffix in _SUFFIXES for file in path.glob(f"*{suffix}")))
    if not files:
        raise DataError(f"{path}: no files {' '.join(_SUFFIXES)} in this folder; give the folder that holds them")
    check_inside(path, [str(file.absolute()) for file in files], str(path), data_root)
    return files
