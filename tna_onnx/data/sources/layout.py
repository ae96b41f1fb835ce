"""Which columns of a table fill which inputs of the model. The first of these rules that applies decides:

1. Columns that the user names fill the inputs in the model's order, n of them an input of shape (N, n).
2. Every input has a column of its name; case, spaces and signs do not count where that is unambiguous.
3. The model has one input: the only column that there is, or the only one with lists.
4. The model has one input (N, n): all n columns of numbers but the label, in the order of the table; for text those of
   text as well, or alone. Where n is open, a column that is called as row numbers are (`id`, ...) is refused.

Row numbers that pandas has stored as a column without a name are never an input.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import TYPE_CHECKING, Literal, TypeAlias

from tna_onnx.data.foreign import repeated
from tna_onnx.data.labelfile import find_label_column
from tna_onnx.data.labels import listed
from tna_onnx.data.options import BESIDE
from tna_onnx.data.source import NO_LABELS, shape_text
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tna_onnx.data.options import Request
    from tna_onnx.data.source import InputSpec

Kind: TypeAlias = Literal["number", "list", "text", "other"]
"""What the cells of a column hold."""

ROW_NUMBERS = ("", "Unnamed: 0", "__index_level_0__")  # what pandas calls an index that has no name
_LABELS = ("label", "labels")  # columns that are never features, unless --columns or an input names them
_ID = re.compile(r"(.*_)?(id|ids|idx|index|uuid|guid)|row|rownumber|row_number|rowid|key", re.IGNORECASE)
_MAX_NAMED = 4  # names in a note before they are cut


def lay_out(
    where: str, kinds: Mapping[str, Kind], request: Request, label: str | None
) -> tuple[dict[str, tuple[str, ...]], str]:
    """Return the columns of each input, of which one of lists stands alone, and what reports say about the choice.

    `kinds`: name of a column -> what it holds, in the order of the table. `label`: the column with the labels; None if
    they are not in the table.
    """
    inputs = list(request.inputs)
    _require(where, request.drop_columns, kinds, "--drop-columns")
    left_out = no_inputs(where, kinds, request, label)
    by = request.sample_info.get("by")
    if isinstance(by, str) and kinds.get(by) == "number" and len(inputs) == 1:
        numbers = [name for name, kind in kinds.items() if kind == "number" and name not in left_out]
        # an age, say, by which subgroups are made, is a feature where the others are too few
        if len(numbers) + 1 == width_of(inputs[0]):
            left_out -= {by} - {label, *request.drop_columns}
    data_columns = {name: kind for name, kind in kinds.items() if name not in left_out}
    if request.columns:
        columns = by_user(where, kinds, inputs, request.columns)
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


def no_inputs(where: str, kinds: Mapping[str, Kind], request: Request, label: str | None) -> set[str | None]:
    """Return the columns that fill no input unless the user names them for that."""
    left_out = {label, *ROW_NUMBERS, *request.no_inputs}
    if label is not None:
        return left_out
    # labels apart do not make a feature of those in the table: unlabelled data may still have that column
    unread = set(_LABELS)
    if request.labels is NO_LABELS:
        with contextlib.suppress(DataError):
            unread.add(find_label_column([*kinds], request.label_column, where))
    return left_out | (unread - {spec.name for spec in request.inputs})


def plain_kinds(spec: InputSpec) -> tuple[Kind, ...]:
    """Return what columns hold that stand side by side in an input: of text, both text and numbers."""
    if spec.dtype == object:
        return ("number", "text")
    return ("number",)


def by_user(
    where: str, kinds: Mapping[str, Kind], inputs: Sequence[InputSpec], names: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Return the columns of each input where the user names them, in the model's order."""
    _require(where, names, kinds, "--columns")
    if twice := repeated(names):
        raise DataError(f"{where}: --columns names {listed(twice)} several times; name each column once")
    widths = [width_of(spec) for spec in inputs]
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
    left = iter(names)
    taken = zip(inputs, widths, strict=True)
    return {spec.name: tuple(itertools.islice(left, width or 1)) for spec, width in taken}


def _require(where: str, names: Sequence[str], kinds: Mapping[str, Kind], flag: str) -> None:
    unknown = [name for name in names if name not in kinds]
    if unknown:
        raise DataError(f"{where}: no column {listed(unknown)}, which {flag} names; the columns are {listed(kinds)}")


def _by_name(data_columns: Mapping[str, Kind], inputs: Sequence[InputSpec]) -> dict[str, tuple[str, ...]] | None:
    columns: dict[str, tuple[str, ...]] = {spec.name: (spec.name,) for spec in inputs}
    if not set(columns) <= set(data_columns):
        spelled: dict[str, list[str]] = {}
        for name in data_columns:
            spelled.setdefault(folded(name), []).append(name)
        columns = {spec.name: tuple(spelled.get(folded(spec.name), ())) for spec in inputs}
        # two columns that differ in signs only: which of them is meant is not for us to say
        if any(len(names) != 1 for names in columns.values()) or len(set(columns.values())) < len(columns):
            return None
    spec = inputs[0]
    several_numbers = len(inputs) == 1 and len(spec.shape) == 2 and spec.shape[1] not in (None, 1)
    # they are not in one column of numbers; with one column alone there is nothing else that the name could mean
    if several_numbers and len(data_columns) > 1 and data_columns[columns[spec.name][0]] in plain_kinds(spec):
        return None
    return columns


def _for_one_input(where: str, data_columns: Mapping[str, Kind], spec: InputSpec) -> dict[str, tuple[str, ...]]:
    lists = [name for name, kind in data_columns.items() if kind == "list"]
    if len(data_columns) == 1 or len(lists) == 1:
        return {spec.name: tuple(lists or data_columns)}
    numbers = [name for name, kind in data_columns.items() if kind in plain_kinds(spec)]
    texts = [name for name in numbers if data_columns[name] == "text"]
    if len(numbers) != width_of(spec) and len(texts) == (width_of(spec) or 1):
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
    rest = [name for name, kind in data_columns.items() if kind not in plain_kinds(spec)]
    without = f"; not all values are numbers in {listed(rest)}" if rest else ""
    if len(spec.shape) != 2 or not numbers:
        raise DataError(
            f"{where}: no column for the model's input {spec.name!r} {shape_text(spec.shape)}; the table has "
            f"{listed(data_columns) or 'none besides the label'}; name the column after the input, or store arrays as "
            ".npz"
        )
    raise DataError(
        f"{where}: the model's input {spec.name!r} takes {spec.shape[1]} columns of numbers, the table has "
        f"{len(numbers)} ({listed(numbers)}{without}); name those {spec.shape[1]}, in the order of the training, with "
        "--columns"
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
        if kinds[name] == "text" and "text" not in plain_kinds(spec):
            advice = "store numbers"
            if spec.dtype.kind == "i":
                advice = "--tokenizer FOLDER turns text into tokens"
            raise DataError(
                f"{where}: column {name!r} holds text, and the model's input {spec.name!r} takes {spec.dtype}; {advice}"
            )
    if any(kinds[name] not in plain_kinds(spec) for name in columns):
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


def width_of(spec: InputSpec) -> int | None:
    """Return the number of values in one row of an input; None if its shape leaves that open."""
    if len(spec.shape) == 2:
        return spec.shape[1]
    return 1


def folded(name: str) -> str:
    """Return a name without case, spaces and signs.

    >>> folded("Sepal length (cm)")
    'sepallengthcm'
    """
    return re.sub(r"[\W_]+", "", name.casefold())
