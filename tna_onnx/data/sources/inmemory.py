"""Tables in memory (of a text file, a data frame or a mapping of arrays) as inputs of a model (`layout`)."""

from __future__ import annotations

import math
import numbers
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.digest import arrays_sha256, files_sha256
from tna_onnx.data.foreign import MISSING
from tna_onnx.data.labelfile import labels_apart
from tna_onnx.data.multi_label import joined_columns, marked_labels
from tna_onnx.data.sample_info import columns_beside
from tna_onnx.data.sources.columns import LABELS, ArraySource, check_arrays, open_columns, stack
from tna_onnx.data.sources.layout import Kind, by_user, folded, label_in, lay_out, no_inputs, plain_kinds
from tna_onnx.data.sources.tokens import text_columns, tokenized, with_tokenizer
from tna_onnx.data.textfile import read_columns
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tna_onnx.data.options import Request
    from tna_onnx.data.source import AnyArray, InputSpec, IntArray


def open_in_memory(
    title: str,
    where: str,
    columns: Mapping[str, AnyArray],
    request: Request,
    *,
    hashed: Callable[[IntArray], str] | None = None,
) -> ArraySource:
    """Take columns of one length as the inputs of the model, and one of them as the labels.

    `columns`: name -> values (N,), as `plain_column` returns them. `hashed`: computes the digest, given the class
    indices; None hashes the values.
    """
    check_arrays(request, where)
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"{where}: every column must have one row per sample, found lengths {lengths}; store them alike"
        )
    if request.labels is None and request.label_columns:
        columns = joined_columns(columns, request.label_columns, LABELS, where, request.n_classes, request.class_names)
        request = replace(request, label_column=LABELS)
    kinds: dict[str, Kind] = {name: _kind(values) for name, values in columns.items()}
    further = columns_beside(request, where, columns)
    label = label_in(where, kinds, request, columns.__getitem__)
    if label is not None and request.multi_label and columns[label].dtype.kind != "O":
        # before the columns of the inputs, which the other labels may be taken for
        marked_labels(columns[label], len(columns[label]), request.n_classes, f"{where}: column {label!r}")
    request = with_tokenizer(request, kinds, label)
    arrays, note = _input_arrays(where, columns, kinds, request, label)
    return open_columns(
        title,
        where,
        request,
        arrays,
        labels_apart(request, None if label is None else columns[label]),
        hashed=hashed or (lambda indices: arrays_sha256(arrays, indices)),
        noun="column",
        label=label,
        notes=(note,) if note else (),
        sample_info={name: columns[name] for name in further},
    )


def _input_arrays(
    where: str, columns: Mapping[str, AnyArray], kinds: Mapping[str, Kind], request: Request, label: str | None
) -> tuple[Mapping[str, Any], str]:
    """Return the values of the inputs, from numbers or from texts; and a note on them."""
    if request.tokenizer is None:
        layout = lay_out(where, kinds, request, label)
        names = layout.columns
        arrays = {spec.name: _filled(where, spec, names[spec.name], columns, kinds) for spec in request.inputs}
        return arrays, layout.note
    left_out = no_inputs(where, kinds, request, label)
    texts = [name for name, kind in kinds.items() if kind == "text" and name not in left_out]
    cells = [(name, columns[name].tolist()) for name in text_columns(where, texts, request)]
    return tokenized(where, cells, request)


def _kind(values: AnyArray) -> Kind:
    if values.ndim > 1:
        return "list"
    if values.dtype.kind in "biuf":
        return "number"
    if values.dtype.kind != "O":
        return "other"
    # a column has few types, and many cells
    kinds = {type(cell) for cell in values.tolist() if not (isinstance(cell, float) and math.isnan(cell))}
    filled = tuple(kind for kind in kinds if kind.__name__ not in MISSING)
    if filled and all(issubclass(kind, str) for kind in filled):
        return "text"
    if filled and all(issubclass(kind, (list, tuple, np.ndarray)) for kind in filled):
        return "list"
    return "other"


def _filled(
    where: str, spec: InputSpec, names: tuple[str, ...], columns: Mapping[str, AnyArray], kinds: Mapping[str, Kind]
) -> AnyArray:
    """Return the values of one input."""
    if all(kinds[name] in plain_kinds(spec) for name in names):
        stacked = stack(where, spec, names, [columns[name] for name in names])
        return stacked[np.arange(stacked.shape[0])]
    values = columns[names[0]]
    if len(names) > 1 or kinds[names[0]] != "list":
        wrong = next(name for name in names if kinds[name] != "number")
        raise DataError(f"{where}: column {wrong!r}: expected numbers, found {_example(columns[wrong])}; store numbers")
    if values.dtype.kind == "O":
        values = _joined(f"{where}: column {names[0]!r}", values)
    if values.dtype.kind == spec.dtype.kind == "f" or (values.dtype.kind in "iu" and spec.dtype.kind in "iuf"):
        cast = values.astype(spec.dtype)  # text and lists of Python know no dtypes of the model
        if values.dtype.kind in "iu" and not np.array_equal(cast, values):
            wrong = values[cast != values][0]
            raise DataError(
                f"{where}: column {names[0]!r}: {wrong} does not fit into {spec.dtype}, the input's dtype; correct it"
            )
        return cast
    return values


def _joined(where: str, cells: AnyArray) -> AnyArray:
    """Stack lists of one shape into one array."""
    try:
        arrays = [np.asarray(cell) for cell in cells]
    except ValueError as error:  # a list whose parts differ in length
        raise DataError(
            f"{where}: holds lists that do not form an array ({error}); pad or cut them to one length"
        ) from error
    shapes = [array.shape for array in arrays]
    odd_row = next((row for row, shape in enumerate(shapes) if shape != shapes[0]), None)
    if odd_row is not None:
        raise DataError(
            f"{where}: every row must have the shape of row 0, {shapes[0]}, but row {odd_row} has {shapes[odd_row]}; "
            "pad or cut the lists to one length"
        )
    joined = np.stack(arrays)
    if joined.dtype.kind not in "biuf":
        raise DataError(f"{where}: expected lists of numbers, found {cells[0]!r:.80} in row 0; store numbers")
    return joined


def _example(values: AnyArray) -> str:
    """Format a non-numeric cell for a message."""
    for row, cell in enumerate(values.tolist()):
        if not isinstance(cell, numbers.Real):
            return f"{cell!r:.80} in row {row}"
    return str(values.dtype)


# ---- text files


def open_delimited(path: Path, request: Request) -> ArraySource:
    """Read the table in the text file `path`."""
    columns = read_columns(path, request.limits, texts_for(request))
    return open_in_memory(
        f"table {path.name}", str(path), columns, request, hashed=lambda indices: files_sha256([path], indices)
    )


def texts_for(request: Request) -> Callable[[str], bool]:
    """Return which columns fill inputs of text, as far as names tell: their cells are text, also where they are digits.

    In CSV "0150" may be a number or a code, and only the model can tell which.
    """
    texts = [spec for spec in request.inputs if spec.dtype == object]
    if not texts:
        return lambda _: False
    if request.columns:
        columns = by_user("columns", dict.fromkeys(request.columns, "text"), request.inputs, request.columns)
        named = {name for spec in texts for name in columns[spec.name]}
        return lambda name: name in named
    if len(request.inputs) == 1 and len(texts[0].shape) == 2 and (texts[0].shape[1] or 1) > 1:
        return lambda name: name not in (request.label_column, "label", "labels")
    named = {folded(spec.name) for spec in texts}
    return lambda name: folded(name) in named
