"""What a source of labelled samples is asked for: `Request`, what the model needs and what the user stated."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.choices import DEFAULT_LIMITS, Limits
from tna_onnx.data.foreign import any_array
from tna_onnx.data.images.decode import require_pillow
from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.data.labels import class_names_from_one_hot, label_indices, listed
from tna_onnx.data.source import NO_LABELS, ClassPrior, source_beside
from tna_onnx.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from tna_onnx.data.images.preprocess import ResolvedRecipe
    from tna_onnx.data.positions import PositionOptions
    from tna_onnx.data.source import AnyArray, InputSpec, IntArray, Source

BESIDE = {"group": ("groups", "--group-column"), "by": ("subgroups", "--by"), "weight": ("weights", "--weight-column")}
"""What may be read beside inputs and labels, by its role: what messages call it, and its flag."""

STORED = ("group", "weight")
"""What stays with a sample where its features are stored, under these names."""

# What libraries write where a value is missing; "none" is a word.
_EMPTY = frozenset({"", "nan", "NaN", "None", "NaT", "<NA>"})


def label_columns(label_column: str | None) -> tuple[str, ...]:
    """Return the names of the label columns of a multi-label table; empty if at most one column is named.

    >>> label_columns("sea, ship"), label_columns("label")
    (('sea', 'ship'), ())
    """
    if label_column is None or "," not in label_column:
        return ()
    return tuple(name.strip() for name in label_column.split(","))


@dataclass(frozen=True, eq=False)
class Request:
    """How to open labelled samples.

    Fields without a description are what the user states, as in `tna_onnx.data.choices.DataFields`.
    """

    inputs: Sequence[InputSpec]  # the model's inputs, all of which the samples must provide
    n_classes: int  # the number of classes of the model; labels are indices below it
    recipe: Recipe | None = None  # preprocessing for images; None is `Recipe()`
    labels: Path | npt.ArrayLike | None = None
    # the model's class names, in the order of its output; labels may then be names. None if not known.
    class_names: Sequence[str] | None = None
    label_column: str | None = None
    skip_bad: bool = False
    data_root: Path | None = None
    limits: Limits = DEFAULT_LIMITS
    columns: tuple[str, ...] = ()
    tokenizer: Path | str | None = None
    model_file: Path | None = None  # the model's file, perhaps beside a `tokenizer.json`; None for a model in memory
    # what a model with several predictions a sample wants of labels; None for one prediction a sample
    several: PositionOptions | None = None
    multi_label: bool = False  # whether each class is a label of 0 or 1 (`tna_onnx.data.multi_label`)
    # what is read beside inputs and labels: `group` -> name of a column, or values (N,)
    beside: Mapping[str, Any] = field(default_factory=dict)
    drop_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Make paths of texts, arrays of labels and tuples of names; check the number of class names."""
        labels: Any = self.labels
        if isinstance(labels, (str, Path)):
            labels = Path(labels)
        elif labels is not None:
            labels = any_array(labels) if self.multi_label else class_names_from_one_hot(labels)
        changed = {
            "labels": labels,
            "data_root": None if self.data_root is None else Path(self.data_root),
            "columns": names_of(self.columns),
            "drop_columns": names_of(self.drop_columns),
        }
        for name, value in changed.items():
            object.__setattr__(self, name, value)
        if self.class_names is not None and len(self.class_names) != self.n_classes:
            raise DataError(
                f"{len(self.class_names)} class names for a model with {self.n_classes} classes "
                f"({listed(self.class_names)}); give the name of every class, in the order of the model's output"
            )

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns of several labels, one each, where the user names more than one: `a,b,c`."""
        return label_columns(self.label_column)

    @property
    def no_inputs(self) -> frozenset[str]:
        """Columns that are read beside the inputs or dropped; they fill inputs only if the user names them for that."""
        beside = {column for column in self.beside.values() if isinstance(column, str)}
        beside -= {*self.columns, *(spec.name for spec in self.inputs)}
        return frozenset(beside | {*self.drop_columns})

    def columns_beside(self, where: str, names: Collection[str]) -> list[str]:
        """Return the columns to read beside inputs and labels."""
        wanted = {role: column for role, column in self.beside.items() if isinstance(column, str)}
        for role, column in wanted.items():
            if column not in names:
                raise _no_column(where, role, column, names)
        return list(wanted.values())

    def values_beside(
        self, where: str, columns: Mapping[str, Any], n: int, paths: Sequence[str] = ()
    ) -> dict[str, AnyArray]:
        """Return what belongs to each of n samples beside inputs and label, by its role: texts (n,), weights float64.

        `columns`: name -> values (n,). `paths`: of the samples, (n,), that a group may be a part of; empty where they
        have none.
        """
        values: dict[str, Any] = {}
        for role, column in self.beside.items():
            read = _weights if role == "weight" else _texts
            if isinstance(column, ClassPrior):
                values[role] = column  # `source_beside` has the labels too
            elif not isinstance(column, str):
                values[role] = read(column, n, f"{where}: {BESIDE[role][0]}")
            elif column in columns:
                values[role] = read(columns[column], n, f"{where}: column {column!r}")
            elif role == "weight":
                raise _no_column(where, role, column, columns)
            elif len(paths):
                values[role] = np.array(_parts_of(column, paths, where, columns, BESIDE[role][1]))
        return values

    def require_beside(self, source: Source) -> None:
        """Refuse samples that lack what is to be read beside inputs and labels."""
        for role in self.beside:
            if role not in source_beside(source):
                noun, _ = BESIDE[role]
                raise UsageError(
                    f"{source.describe()}: no {noun} can be read from such data; expected a table, a manifest, arrays "
                    f"or features with a column of that name, or in Python a value for each sample"
                )

    def check_one_class(self, where: str) -> None:
        """Check that samples need exactly one class each, for sources that can give no more."""
        if self.multi_label:
            raise DataError(
                f"{where}: each sample has one class, but the model predicts {self.n_classes} independent labels; "
                "store the samples as arrays (.npz), with labels of 0 and 1 of shape (N, "
                f"{self.n_classes})"
            )

    @property
    def takes_images(self) -> bool:
        """Whether the model has one input, of the four axes that images have."""
        return len(self.inputs) == 1 and len(self.inputs[0].shape) == 4

    def image_input(self, where: str) -> tuple[str, ResolvedRecipe]:
        """Return the name and the preprocessing of the only input, which takes images."""
        # With several, nothing says which of them takes the image and what the others get.
        if len(self.inputs) != 1:
            names = ", ".join(repr(spec.name) for spec in self.inputs)
            raise DataError(
                f"{where}: images need a model with one input, but this one has {len(self.inputs)} ({names}); "
                "store the samples as .npz, with one array per input"
            )
        require_pillow()
        return self.inputs[0].name, (self.recipe or Recipe()).resolve(self.inputs[0])

    def check_arrays(self, where: str) -> None:
        """Check that samples stored as arrays can be used."""
        if self.recipe not in (None, Recipe()):  # a recipe of defaults asks for nothing
            raise UsageError(
                f"{where}: preprocessing applies to images only; stored arrays are used as they are, leave it out"
            )
        if not self.inputs:
            raise DataError(f"{where}: the model has no inputs, so it cannot run on samples; check the model file")

    def check_no_table(self, where: str) -> None:
        """Refuse options that apply only to tables, which would be ignored."""
        if self.columns or self.drop_columns:
            raise UsageError(
                f"{where}: --columns and --drop-columns choose columns of a table, found no table; leave them out, and "
                "name the arrays after the model's inputs"
            )
        if self.tokenizer is not None:
            raise UsageError(
                f"{where}: --tokenizer is for text in a column of a table (.csv .tsv .jsonl .parquet), found no table; "
                "write the texts into one, with a column for the label"
            )

    def labels_where(self, stored: str) -> str:
        """Return what messages about labels start with: the separate label file, else `stored`."""
        if isinstance(self.labels, Path):
            return str(self.labels)
        return stored

    def class_indices(self, labels: AnyArray, n_samples: int, where: str) -> IntArray:
        """Return stored labels, numbers or names, as class indices, (N,); -1 for each if labels are not to be read."""
        if self.labels is NO_LABELS:
            labels = NO_LABELS
        return label_indices(labels, n_samples, self.n_classes, where, self.class_names)

    def no_labels_apart(self, where: str) -> None:
        """Refuse separate labels for samples that contain their own."""
        if self.labels is not None and self.labels is not NO_LABELS:
            raise UsageError(f"{where}: contains its labels; leave --labels out")


def names_of(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return one name, several or none as a tuple of texts."""
    if names is None:
        return ()
    if isinstance(names, str):
        return (names,)
    return tuple(map(str, names))


def _texts(values: Any, n: int, where: str) -> AnyArray:
    """Return n values as texts, (n,): 7, 7.0 and "7" are one."""
    array = any_array(values)
    if array.shape != (n,):
        raise DataError(f"{where}: expected one value for each of {n:,} samples, found shape {array.shape}")
    texts = []
    for row, cell in enumerate(array.tolist()):
        if isinstance(cell, bytes):
            text = cell.decode("utf-8", "backslashreplace").strip()
        elif isinstance(cell, float) and cell.is_integer():
            text = str(int(cell))
        else:
            text = str(cell).strip()
        if text in _EMPTY:
            raise DataError(f"{where}: is empty in row {row}; fill it, or leave the sample out")
        texts.append(text)
    return np.array(texts)


def _no_column(where: str, role: str, column: str, names: Iterable[str]) -> DataError:
    text = f"{where}: no column {column!r} for {BESIDE[role][1]}; found {listed(names) or 'none'}"
    if role == "weight":
        text += "; where all samples count alike, as in held-out data of the population, add a column of ones"
    return DataError(text)


def _weights(values: Any, n: int, where: str) -> AnyArray:
    """Return n weights as float64, (n,)."""
    array = any_array(values)
    if array.shape != (n,):
        raise DataError(f"{where}: expected one weight for each of {n:,} samples, found shape {array.shape}")
    cells = array.tolist()
    for row, cell in enumerate(cells):
        try:
            valid = 0 <= float(cell) < np.inf
        except (TypeError, ValueError):
            valid = False
        if not valid:
            raise DataError(f"{where}: row {row} has the weight {cell!r}; expected a number that is zero or more")
    weights = np.array(cells, np.float64)
    if not weights.any():
        raise DataError(f"{where}: all {n:,} weights are zero; expected some samples that count")
    top = weights.max()
    weights[weights < top * 1e-100] = 0  # adds to no sum
    return weights if 1e-50 < top < 1e50 else weights / top  # squares of others are zero or infinite


def _parts_of(pattern: str, paths: Sequence[str], where: str, columns: Iterable[str], flag: str) -> list[str]:
    """Return what a regular expression finds in each path: its first group, or all of it."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"{flag} {pattern}: no column, and no regular expression ({error})") from error
    parts = []
    for path in paths:
        match = expression.search(path)
        if match is None:
            names = f" (columns: {listed(columns)})" if columns else ""
            raise DataError(
                f"{where}: {flag} {pattern!r} is no column{names}, and as a regular expression it does not "
                f"match the path {path!r}"
            )
        parts.append(str(match[1] if expression.groups else match[0]))
    return parts
