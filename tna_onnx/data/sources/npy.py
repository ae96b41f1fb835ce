"""Samples from `.npy` files, which are mapped, not loaded: they may be larger than memory.

A folder holds `<input name>.npy` for each input of the model, and `labels.npy`. For a model with one input the only
other `.npy` file is that input, whatever its name. A single file `x.npy` takes its labels from elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tna_onnx.data.digest import files_sha256
from tna_onnx.data.files import check_inside
from tna_onnx.data.labelfile import labels_apart
from tna_onnx.data.sources.columns import LABELS, ArraySource, check_names, only_other, open_columns
from tna_onnx.data.sources.npfiles import map_npy
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from tna_onnx.data.request import Request

__all__ = ["open_npy"]


def open_npy(path: Path, request: Request) -> ArraySource:
    """Map the arrays in the folder `path`, or the file `path` for a model with one input.

    Raises:
        UsageError: a recipe is given.
        DataError: a file is missing or cannot be read, or its shape, dtype, length or labels do not fit the model.
    """
    request.check_arrays(str(path))
    label = request.label_column or LABELS
    files = _files(path, request, label)
    used = [files[spec.name] for spec in request.inputs]
    if path.is_dir():
        named = [file.name for name, file in files.items() if file in used or name == label]
        check_inside(path, named, str(path), request.data_root)
    columns = {spec.name: map_npy(file) for spec, file in zip(request.inputs, used, strict=True)}
    stored = None
    if label in files:
        stored = np.array(map_npy(files[label]))  # in memory: they are needed all at once
    labels = labels_apart(request, stored)
    title = f"arrays {path.resolve().name}"
    return open_columns(title, str(path), request, columns, labels, hashed=lambda indices: files_sha256(used, indices))


def _files(path: Path, request: Request, label: str) -> dict[str, Path]:
    """Return input name or "labels" -> its file."""
    if not path.is_dir():
        return _one_file(path, request)
    files = {file.stem: file for file in sorted(path.glob("*.npy"))}
    if len(request.inputs) == 1:
        chosen = only_other(list(files), request.inputs[0])
        if chosen is not None:
            files[request.inputs[0].name] = files[chosen]
    apart = request.labels is not None
    check_names(str(path), list(files), request.inputs, need_labels=not apart, noun=".npy file", label=label)
    return files


def _one_file(path: Path, request: Request) -> dict[str, Path]:
    """Return input name -> its file."""
    if len(request.inputs) != 1:
        wanted = ", ".join(f"{spec.name}.npy" for spec in request.inputs)
        raise DataError(
            f"{path}: one array for a model with {len(request.inputs)} inputs; give a folder with {wanted} and "
            "labels.npy"
        )
    if request.labels is None:
        raise DataError(f"{path}: an array without labels; give them with --labels labels.npy")
    return {request.inputs[0].name: path}
