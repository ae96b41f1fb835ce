"""Columns of a table as inputs, labels, groups and weights. The first rule that applies decides what fills the inputs:

1. Columns that the user names fill the inputs in the model's order, n of them an input of shape (N, n).
2. Every input has a column of its name; case, spaces and signs do not count where that is unambiguous.
3. The model has one input: the only column that there is, or the only one with lists.
4. The model has one input (N, n): all n columns of numbers but the label, in the order of the table; for text those of
   text as well, or alone. Where n is open, a column that is called as row numbers are (`id`, ...) is refused.

Row numbers that pandas has stored as a column without a name are never an input.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import numbers
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from tna_onnx.data.choices import BESIDE
from tna_onnx.data.digest import files_sha256
from tna_onnx.data.foreign import MISSING, cell_array, plain_column, repeated
from tna_onnx.data.labelfile import find_label_column, holds_classes
from tna_onnx.data.labels import named_labels
from tna_onnx.data.mapped import GrowingRows
from tna_onnx.data.options import Request
from tna_onnx.data.sample_info import columns_beside
from tna_onnx.data.several import check_label_columns, joined_labels, marked_labels
from tna_onnx.data.source import NO_LABELS, AnyArray, InputSpec, shape_text
from tna_onnx.data.sources.arrays import LABELS, ArraySource, check_arrays, open_columns, stack
from tna_onnx.data.sources.tokens import text_columns, tokenized, with_tokenizer
from tna_onnx.errors import DataError, NoLabels, listed

Kind: TypeAlias = Literal["number", "list", "text", "image", "other"]
"""What the cells of a column hold."""

_ROW_NUMBERS = ("", "Unnamed: 0", "__index_level_0__")  # what pandas calls an index that has no name
_LABELS = ("label", "labels")  # columns that are never features, unless --columns or an input names them
_ID = re.compile(r"(.*_)?(id|ids|idx|index|uuid|guid)|row|rownumber|row_number|rowid|key", re.IGNORECASE)
_MAX_NAMED = 4  # names in a note before they are cut


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of one length."""

    where: str  # what messages start with
    kinds: Mapping[str, Kind]  # in the order of the table
    parts: Callable[[Sequence[str]], Iterator[Mapping[str, AnyArray]]]  # gives these columns, some rows at a time
    files: Sequence[Path] = ()  # whose bytes are hashed; the values are, if there are none
    # names that the table itself has for the classes which a column numbers
    class_names: Callable[[str], Sequence[str] | None] = lambda _: None

    def distinct(self, name: str, limit: int) -> AnyArray:
        """Return the values of a column, each once; of more than `limit`, some.

        Of fractions, which name no classes, there is nothing.
        """
        values: dict[Any, None] = {}
        for part in self.parts([name]):
            if part[name].dtype.kind == "f" or len(values) > limit:
                break
            values.update(dict.fromkeys(part[name].tolist()))
        return plain_column(cell_array([*values]))

    def columns(self, names: Sequence[str]) -> dict[str, AnyArray]:
        """Read columns whole."""
        return _read(self, (), {}, names)[1]

    def labels(self, name: str, values: AnyArray) -> AnyArray:
        """Return the values of a column as labels: numbers, or names."""
        values = plain_column(values)
        if values.dtype.kind in "iu" and (names := self.class_names(name)) is not None:
            return named_labels(values, names, f"{self.where}: column {name!r}")
        return values


def open_in_memory(
    title: str, where: str, columns: Mapping[str, AnyArray], request: Request, files: Sequence[Path] = ()
) -> ArraySource:
    """Open columns in memory, as `plain_column` returns them."""
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"{where}: every column must have one row per sample, found lengths {lengths}; store them alike"
        )
    kinds = {name: _kind(values) for name, values in columns.items()}
    return open_columns_of(Table(where, kinds, lambda _: iter([columns]), files), title, request)


def label_of(table: Table, request: Request) -> str | None:
    """Return the column with the labels; None where they are given apart."""
    if request.labels is not None:
        return None
    kinds = table.kinds
    not_labels = {*(spec.name for spec in request.inputs), *request.columns, *request.drop_columns}
    names = [name for name in kinds if name not in not_labels]

    def classes_in(name: str) -> bool:
        if kinds[name] not in ("number", "text"):
            return False
        with contextlib.suppress(DataError):  # empty cells, say
            # a column of texts may be long, and all different
            return holds_classes(table.distinct(name, request.n_classes), request)
        return False

    try:
        return find_label_column(
            names, request.label_column, table.where, sample_info=request.no_inputs, classes_in=classes_in
        )
    except DataError as error:
        needed = sum(_width(spec) or math.inf for spec in request.inputs)
        n_columns = len({*kinds} - {*_ROW_NUMBERS, *request.no_inputs})
        # with a column more than the inputs need, that may be the label under an unknown name
        if request.label_column is None and n_columns in (1, needed):
            raise NoLabels(str(error)) from error
        raise


def open_columns_of(table: Table, title: str, request: Request) -> ArraySource:
    """Take columns of a table as the inputs of the model, and one of them as the labels."""
    where, kinds = table.where, dict(table.kinds)
    check_arrays(request, where)
    marks: Sequence[str] = ()
    if request.labels is None:
        marks = request.label_columns
    if marks:
        check_label_columns(where, kinds, marks, request)
        kinds = {**{name: kind for name, kind in kinds.items() if name not in marks}, LABELS: "list"}
        request = replace(request, label_column=LABELS)
    further = columns_beside(request, where, kinds)
    label = label_of(replace(table, kinds=kinds), request)
    if label is not None and request.multi_label and kinds[label] == "number":
        # before the columns of the inputs, which the other labels may be taken for
        of_label = table.columns([label])[label]
        marked_labels(plain_column(of_label), len(of_label), request.n_classes, f"{where}: column {label!r}")
    request = with_tokenizer(request, kinds, label)
    of_labels = marks or ([] if label is None else [label])
    if request.tokenizer is None:
        columns, note = lay_out(where, kinds, request, label)
        arrays, stored = _read(table, request.inputs, columns, [*of_labels, *further])
    else:
        left_out = _no_inputs(where, kinds, request, label)
        texts = [name for name, kind in kinds.items() if kind == "text" and name not in left_out]
        used = text_columns(where, texts, request)
        stored = table.columns([*used, *of_labels, *further])
        arrays, note = tokenized(where, [(name, stored[name].tolist()) for name in used], request)
    labels = None
    if marks:
        labels = joined_labels(stored, marks, where)
    elif label is not None:
        labels = table.labels(label, stored[label])
    hashed = None
    if table.files and request.tokenizer is None:
        hashed = functools.partial(files_sha256, table.files)
    return open_columns(
        title,
        where,
        request,
        arrays,
        labels,
        hashed=hashed,
        noun="column",
        label=label,
        notes=tuple(filter(None, [note])),
        sample_info={name: stored[name] for name in further},
    )


def _read(
    table: Table, inputs: Sequence[InputSpec], columns: Mapping[str, tuple[str, ...]], further: Sequence[str]
) -> tuple[dict[str, AnyArray], dict[str, AnyArray]]:
    """Read a table once; return the values of each input, whose `columns` are named, and of other columns."""
    names = dict.fromkeys([*itertools.chain.from_iterable(columns.values()), *further])
    values = {spec.name: GrowingRows(f"{table.where}: column {columns[spec.name][0]!r}") for spec in inputs}
    stored = {name: GrowingRows(f"{table.where}: column {name!r}") for name in further}
    start = 0
    for part in table.parts([*names]):
        for spec in inputs:
            values[spec.name].append(_filled(table, spec, columns[spec.name], part, start))
        for name, column in stored.items():
            column.append(part[name])
        start += len(next(iter(part.values()), ()))
    return {name: rows.array() for name, rows in values.items()}, {name: rows.array() for name, rows in stored.items()}


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
    table: Table, spec: InputSpec, names: tuple[str, ...], columns: Mapping[str, AnyArray], start: int
) -> AnyArray:
    """Return some rows of one input, from row `start` on, of columns of a table."""
    where, kinds = table.where, table.kinds
    if all(kinds[name] in _plain_kinds(spec) for name in names):
        return stack(where, spec, {name: columns[name] for name in names}, start)
    if len(names) > 1 or kinds[names[0]] != "list":
        wrong = next(name for name in names if kinds[name] != "number")
        cells = enumerate(columns[wrong].tolist())
        odd = (f"{cell!r:.80} in row {row}" for row, cell in cells if not isinstance(cell, numbers.Real))
        example = next(odd, str(columns[wrong].dtype))
        raise DataError(f"{where}: column {wrong!r}: expected numbers, found {example}; store numbers")
    values = columns[names[0]]
    if values.dtype.kind == "O":
        values = _joined(f"{where}: column {names[0]!r}", values)
    integers = values.dtype in (np.int32, np.int64)
    if not (integers and spec.dtype.kind in "iuf") and not values.dtype.kind == spec.dtype.kind == "f":
        return values
    with np.errstate(over="ignore"):
        cast = values.astype(spec.dtype)  # text, lists of Python and pandas know no dtypes of the model
    wrong = cast != values if integers else np.isinf(cast) & np.isfinite(values)
    if wrong.any():
        raise DataError(
            f"{where}: column {names[0]!r}: {values[wrong][0]} does not fit into {spec.dtype}, the input's dtype; "
            "correct it"
        )
    return cast


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


def texts_for(request: Request) -> Callable[[str], bool]:
    """Return which columns fill inputs of text, as far as names tell: their cells are text, also where they are digits.

    In CSV "0150" may be a number or a code, and only the model can tell which.
    """
    texts = [spec for spec in request.inputs if spec.dtype == object]
    if not texts:
        return lambda _: False
    if request.columns:
        columns = _by_user("columns", dict.fromkeys(request.columns, "text"), request.inputs, request.columns)
        named = {name for spec in texts for name in columns[spec.name]}
        return lambda name: name in named
    if len(request.inputs) == 1 and len(texts[0].shape) == 2 and (texts[0].shape[1] or 1) > 1:
        return lambda name: name not in (request.label_column, "label", "labels")
    named = {_folded(spec.name) for spec in texts}
    return lambda name: _folded(name) in named


# ---- Which columns fill which inputs


def lay_out(
    where: str, kinds: Mapping[str, Kind], request: Request, label: str | None
) -> tuple[dict[str, tuple[str, ...]], str]:
    """Return the columns of each input, of which one of lists stands alone, and what reports say about the choice.

    `kinds`: name of a column -> what it holds, in the order of the table. `label`: the column with the labels; None if
    they are not in the table.
    """
    inputs = list(request.inputs)
    require_columns(where, request.drop_columns, kinds, "--drop-columns")
    left_out = _no_inputs(where, kinds, request, label)
    by = request.sample_info.get("by")
    if isinstance(by, str) and kinds.get(by) == "number" and len(inputs) == 1:
        numbers = [name for name, kind in kinds.items() if kind == "number" and name not in left_out]
        # an age, say, by which subgroups are made, is a feature where the others are too few
        if len(numbers) + 1 == _width(inputs[0]):
            left_out -= {by} - {label, *request.drop_columns}
    data_columns = {name: kind for name, kind in kinds.items() if name not in left_out}
    if request.columns:
        columns = _by_user(where, kinds, inputs, request.columns)
        order = "in the order of --columns"
    elif by_name := _by_name(data_columns, inputs):
        columns = by_name
        order = "by name"
    elif len(inputs) == 1:
        columns = _for_one_input(where, data_columns, inputs[0])
        order = "in the order of the table"
    else:
        raise _missing(where, kinds, inputs, data_columns)
    for spec in inputs:
        _check(where, spec, columns[spec.name], kinds)
    return columns, _note(columns, kinds, request, label, order)


def _no_inputs(where: str, kinds: Mapping[str, Kind], request: Request, label: str | None) -> set[str | None]:
    """Return the columns that fill no input unless the user names them for that."""
    left_out = {label, *_ROW_NUMBERS, *request.no_inputs}
    if label is not None:
        return left_out
    # labels apart do not make a feature of those in the table: unlabelled data may still have that column
    unread = set(_LABELS)
    if request.labels is NO_LABELS:
        with contextlib.suppress(DataError):
            unread.add(find_label_column([*kinds], request.label_column, where))
    return left_out | (unread - {spec.name for spec in request.inputs})


def _plain_kinds(spec: InputSpec) -> tuple[Kind, ...]:
    """Return what columns hold that stand side by side in an input: of text, both text and numbers."""
    if spec.dtype == object:
        return ("number", "text")
    return ("number",)


def _by_user(
    where: str, kinds: Mapping[str, Kind], inputs: Sequence[InputSpec], names: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Return the columns of each input where the user names them, in the model's order."""
    require_columns(where, names, kinds, "--columns")
    if twice := repeated(names):
        raise DataError(f"{where}: --columns names {listed(twice)} several times; name each column once")
    widths = [_width(spec) for spec in inputs]
    if all(kinds[name] == "list" for name in names):
        widths = [1 for _ in inputs]
    if len(inputs) == 1 and widths[0] is None:
        widths = [len(names)]
    total = sum(width or 1 for width in widths)
    if total != len(names):
        shapes = [f"{spec.name!r} {shape_text(spec.shape)}" for spec in inputs[:_MAX_NAMED]]
        if len(inputs) > _MAX_NAMED:
            shapes.append("...")
        raise DataError(
            f"{where}: --columns names {len(names)} columns, the model takes {total} ({', '.join(shapes)}); name each "
            "one, in the order in which the model was trained on them"
        )
    rest = iter(names)
    return {spec.name: tuple(itertools.islice(rest, width or 1)) for spec, width in zip(inputs, widths, strict=True)}


def require_columns(where: str, names: Sequence[str], kinds: Mapping[str, Kind], flag: str) -> None:
    """Refuse names that an option gives and no column has."""
    unknown = [name for name in names if name not in kinds]
    if unknown:
        raise DataError(f"{where}: no column {listed(unknown)}, which {flag} names; the columns are {listed(kinds)}")


def _by_name(data_columns: Mapping[str, Kind], inputs: Sequence[InputSpec]) -> dict[str, tuple[str, ...]] | None:
    columns: dict[str, tuple[str, ...]] = {spec.name: (spec.name,) for spec in inputs}
    if not set(columns) <= set(data_columns):
        spelled: dict[str, list[str]] = {}
        for name in data_columns:
            spelled.setdefault(_folded(name), []).append(name)
        columns = {spec.name: tuple(spelled.get(_folded(spec.name), ())) for spec in inputs}
        # two columns that differ in signs only: which of them is meant is not for us to say
        if any(len(names) != 1 for names in columns.values()) or len(set(columns.values())) < len(columns):
            return None
    spec = inputs[0]
    several_numbers = len(inputs) == 1 and len(spec.shape) == 2 and spec.shape[1] not in (None, 1)
    # they are not in one column of numbers; with one column alone there is nothing else that the name could mean
    if several_numbers and len(data_columns) > 1 and data_columns[columns[spec.name][0]] in _plain_kinds(spec):
        return None
    return columns


def _for_one_input(where: str, data_columns: Mapping[str, Kind], spec: InputSpec) -> dict[str, tuple[str, ...]]:
    lists = [name for name, kind in data_columns.items() if kind == "list"]
    if len(data_columns) == 1 or len(lists) == 1:
        return {spec.name: tuple(lists or data_columns)}
    numbers = [name for name, kind in data_columns.items() if kind in _plain_kinds(spec)]
    texts = [name for name in numbers if data_columns[name] == "text"]
    if len(numbers) != _width(spec) and len(texts) == (_width(spec) or 1):
        numbers = texts
    if len(numbers) == 1 and len(spec.shape) == 1:
        return {spec.name: tuple(numbers)}
    if len(spec.shape) == 2 and numbers and spec.shape[1] in (None, len(numbers)):
        rows = [name for name in numbers if _ID.fullmatch(name.strip())]
        if rows and spec.shape[1] is None:
            raise DataError(
                f"{where}: the model's input {spec.name!r} does not say how many columns it takes, and {listed(rows)} "
                "may not be a feature; name the features, in the order of the training, with --columns"
            )
        return {spec.name: tuple(numbers)}
    rest = [name for name, kind in data_columns.items() if kind not in _plain_kinds(spec)]
    without = ""
    if rest:
        without = f"; not all values are numbers in {listed(rest)}"
    if len(spec.shape) != 2 or not numbers:
        raise DataError(
            f"{where}: no column for the model's input {spec.name!r} {shape_text(spec.shape)}; the table has "
            f"{listed(data_columns) or 'none besides the label'}; name the column after the input, or store arrays as "
            ".npz"
        )
    or_drop = ""
    if len(numbers) > (spec.shape[1] or 0):
        or_drop = ", or leave the others out with --drop-columns"
    raise DataError(
        f"{where}: the model's input {spec.name!r} takes {spec.shape[1]} columns of numbers, the table has "
        f"{len(numbers)} ({listed(numbers)}{without}); name those {spec.shape[1]} with --columns, in the order of the "
        f"training{or_drop}"
    )


def _missing(
    where: str, kinds: Mapping[str, Kind], inputs: Sequence[InputSpec], data_columns: Mapping[str, Kind]
) -> DataError:
    missing = [spec.name for spec in inputs if spec.name not in data_columns]
    input_names = [spec.name for spec in inputs]
    advice = "name the columns after the model's inputs, or say which fill them, in the model's order, with --columns"
    if "text" in data_columns.values() and all(spec.dtype.kind in "iu" for spec in inputs):
        advice = "--tokenizer FOLDER turns text into tokens"
    return DataError(
        f"{where}: no column for the model's input {listed(missing)}; the model wants {listed(input_names)}, the file "
        f"has {listed(kinds)}; {advice}"
    )


def _check(where: str, spec: InputSpec, columns: Sequence[str], kinds: Mapping[str, Kind]) -> None:
    """Check that columns of single numbers have an input that takes them."""
    for name in columns:
        if kinds[name] == "text" and "text" not in _plain_kinds(spec):
            advice = "store numbers"
            if spec.dtype.kind == "i":
                advice = "--tokenizer FOLDER turns text into tokens"
            raise DataError(
                f"{where}: column {name!r} holds text, and the model's input {spec.name!r} takes {spec.dtype}; {advice}"
            )
    if any(kinds[name] not in _plain_kinds(spec) for name in columns):
        return  # one column of lists, whose shape is checked when it is read, or one that is refused there
    fits = len(spec.shape) == 1 or (len(spec.shape) == 2 and spec.shape[1] in (None, len(columns)))
    if not fits:
        raise DataError(
            f"{where}: column {columns[0]!r} holds one number a row; expected shape {shape_text(spec.shape)} for the "
            f"model's input {spec.name!r}; store lists of that shape, or arrays as .npz"
        )


def _note(
    columns: Mapping[str, tuple[str, ...]], kinds: Mapping[str, Kind], request: Request, label: str | None, order: str
) -> str:
    used = [name for names in columns.values() for name in names]
    if not any(kinds[name] in ("number", "text") for name in used):
        return ""
    sample_info = {
        role: column for role, column in request.sample_info.items() if isinstance(column, str) and column in kinds
    }
    used_columns = {*used, label, *sample_info.values()}
    unused = [name or "(no name)" for name in kinds if name not in used_columns]
    parts = [f"columns: {_few(used)} {order}"]
    if len(columns) == 1:
        parts = [f"columns of input {next(iter(columns))!r}: {_few(used)} {order}"]
    if label is not None:
        parts.append(f"label {label!r}")
    parts += [f"{BESIDE[role][0]} {column!r}" for role, column in sample_info.items()]
    if unused:
        parts.append(f"not used: {_few(unused)}")
    return "; ".join(parts)


def _few(names: Sequence[str]) -> str:
    """List names for a message; of many, only the first two, the last and their number.

    >>> _few(["a", "b"]), _few(["a", "b", "c", "d", "e"])
    ("'a', 'b'", "'a', 'b', ..., 'e' (5)")
    """
    if len(names) <= _MAX_NAMED:
        return listed(names)
    return f"{listed(names[:2])}, ..., {listed(names[-1:])} ({len(names)})"


def _width(spec: InputSpec) -> int | None:
    """Return the number of values in one row of an input; None if its shape leaves that open."""
    if len(spec.shape) == 2:
        return spec.shape[1]
    return 1


def _folded(name: str) -> str:
    """Return a name without case, spaces and signs.

    >>> _folded("Sepal length (cm)")
    'sepallengthcm'
    """
    return re.sub(r"[\W_]+", "", name.casefold())
