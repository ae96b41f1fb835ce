"""Precomputed features or logits with labels: fitting on them needs neither samples nor a session.

Read from a `.npz` file, a folder of `.npy` files or a mapping, with `labels` and either `features` (N, n), the input
of the head, or `logits` (N, C), natural logarithms before any softmax. If both are present, features are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from tna_onnx.data.digest import arrays_sha256, files_sha256
from tna_onnx.data.files import check_inside, is_url, local_path
from tna_onnx.data.labelfile import labels_apart
from tna_onnx.data.source import AnyArray, InputSpec, IntArray
from tna_onnx.data.sources.columns import LABELS, ArraySource, check_names, open_columns
from tna_onnx.data.sources.npfiles import map_npy, read_npz
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tna_onnx.data.choices import Limits
    from tna_onnx.data.request import Request

Kind: TypeAlias = Literal["features", "logits"]


@dataclass(frozen=True, eq=False)
class Precomputed:
    """Features or logits of N samples.

    Attributes:
        kind: which of the two.
        source: the values and labels.
    """

    kind: Kind
    source: ArraySource

    @property
    def values(self) -> AnyArray:
        """Features (N, n) or logits (N, C), mapped where they lie in a file of their own."""
        values = self.source.columns[self.kind]
        assert isinstance(values, np.ndarray)  # noqa: S101 - for the type checker: opened below
        return values

    @property
    def labels(self) -> IntArray:
        """Class indices (N,); of several labels a sample, 0 or 1 for each, (N, C)."""
        return self.source.labels if self.source.placed is None else self.source.placed


def open_precomputed(data: Any, request: Request) -> Precomputed | None:
    """Open features or logits; return None if `data` are something else, or hold an input of the model.

    Args:
        data: `.npz` file, also behind a URL; folder with `.npy` files; or mapping of arrays.
        request: what the model wants.

    Raises:
        UsageError: a library for the URL is missing.
        DataError: the file cannot be read, or values or labels cannot be used.
    """
    if isinstance(data, str):
        data = local_path(data)
    if isinstance(data, str) and is_url(data):
        return _open_url(data, request)
    if isinstance(data, str):
        data = Path(data)
    if not isinstance(data, (Path, Mapping)):
        return None
    names = _names(data, request.limits)
    # In the order of `Kind`, features come first: logits follow from them, and only they allow a search.
    kind = next((kind for kind in get_args(Kind) if kind in names), None)
    if kind is None or any(
        spec.name in names for spec in request.inputs
    ):  # a model may have an input called "features"
        return None
    title = kind
    where = "arrays"
    if isinstance(data, Path):
        title = f"{kind} {data.resolve().name}"
        where = str(data)
    check_names(where, names, [], need_labels=request.labels is None)
    array_names = [kind]
    if request.labels is None:
        array_names.append(LABELS)
    array_names += request.columns_beside(where, names)
    if isinstance(data, Path) and data.is_dir():
        check_inside(data, [f"{name}.npy" for name in array_names], where, request.data_root)
    arrays, hashed = _read(data, array_names, request.limits)
    values = arrays[kind]
    columns = (request.n_classes,) if request.multi_label else (request.n_classes, 1)
    _check_values(values, kind, columns, where)
    # The values themselves are the only input, so the checks of stored arrays apply to them.
    request = replace(request, inputs=[InputSpec(kind, (None, values.shape[1]), values.dtype)], recipe=None)
    indices = labels_apart(request, arrays.get(LABELS))
    return Precomputed(kind, open_columns(title, where, request, {kind: values}, indices, hashed=hashed, beside=arrays))


def _open_url(url: str, request: Request) -> Precomputed | None:
    """Open a file behind a URL; return None if it is not a `.npz` file."""
    # Only a single file is fetched to be looked at; a folder may be large and hold something else.
    if not url.endswith(".npz"):
        return None
    from tna_onnx.data.sources.remote import Copy  # noqa: PLC0415 - most data are no URL

    copy = Copy(url, request.limits)
    precomputed = open_precomputed(copy.path, request)
    copy.keep_for(precomputed or copy)
    return precomputed


def _check_values(values: AnyArray, kind: Kind, columns: tuple[int, ...], where: str) -> None:
    form = "(N, n), the vectors in front of the head"
    fits = values.ndim == 2 and values.dtype.kind == "f"
    if kind == "logits":
        form = f"(N, {columns[0]}), one per class"
        fits = fits and values.shape[1] in columns  # one column: the logit of a binary model's second class
    if not fits:
        raise DataError(
            f"{where}: {kind!r} must be floating-point {form}; found {values.shape} {values.dtype}. Store them as the "
            "model computes them"
        )


def _names(data: Path | Mapping[str, Any], limits: Limits) -> list[str]:
    """Return the names of the arrays in a file, folder or mapping; none if it holds something else."""
    if isinstance(data, Mapping):
        return list(data)
    if data.is_dir():
        return [file.stem for file in data.glob("*.npy")]
    if data.suffix.lower() != ".npz" or not data.is_file():
        return []
    listing: list[str] = []

    def choose(names: list[str]) -> list[str]:
        listing.extend(names)
        return []  # the arrays are read when it is clear which

    read_npz(data, choose, limits)
    return listing


def _read(
    data: Path | Mapping[str, Any], array_names: list[str], limits: Limits
) -> tuple[dict[str, AnyArray], Callable[[IntArray], str]]:
    """Return the named arrays, and the function that computes the digest from the class indices."""
    if isinstance(data, Mapping):
        arrays = {name: np.asarray(data[name]) for name in array_names}
        return arrays, lambda labels: arrays_sha256({array_names[0]: arrays[array_names[0]]}, labels)
    if data.is_dir():
        files = {name: data / f"{name}.npy" for name in array_names}
        arrays = {name: map_npy(file) for name, file in files.items()}
        return arrays, lambda labels: files_sha256([files[array_names[0]]], labels)
    arrays, sha256 = read_npz(data, lambda _: array_names, limits)
    return arrays, lambda _: sha256
