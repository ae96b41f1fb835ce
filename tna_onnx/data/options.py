"""Labelled samples as the user describes them (`Data`), and as a model wants them (`Request`)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.choices import IGNORED, DataFields
from tna_onnx.data.foreign import any_array, is_url, local_path
from tna_onnx.data.formats import open_request
from tna_onnx.data.frequencies import read_prior
from tna_onnx.data.images.decode import require_pillow
from tna_onnx.data.images.preprocess import PRESETS, Recipe
from tna_onnx.data.images.recipe_files import read_recipe
from tna_onnx.data.labels import (
    class_names_from_one_hot,
    label_indices,
    listed,
    metadata_class_names,
    read_class_names,
)
from tna_onnx.data.positions import PositionOptions
from tna_onnx.data.source import NO_LABELS, ClassPrior, InputSpec, Source, sample_info_of
from tna_onnx.data.suspicion import Suspicion, label_suspicion
from tna_onnx.errors import CheckFailed, DataError, UsageError
from tna_onnx.fields import check_settings, documented
from tna_onnx.files import name_problem
from tna_onnx.numerics.checks import check_share

if TYPE_CHECKING:
    from tna_onnx.data.images.preprocess import ResolvedRecipe
    from tna_onnx.data.source import AnyArray, IntArray

BESIDE = {"group": ("groups", "--group-column"), "by": ("subgroups", "--by"), "weight": ("weights", "--weight-column")}
"""What may be read beside inputs and labels, by its role: what messages call it, and its flag."""

STORED = ("group", "weight")
"""What stays with a sample where its features are stored, under these names."""

# What libraries write where a value is missing; "none" is a word.
_EMPTY = frozenset({"", "nan", "NaN", "None", "NaT", "<NA>"})


@documented
@dataclass(frozen=True, eq=False)
class Data(DataFields):
    """Labelled samples as the user describes them: accepted wherever a path to data is.

    `samples` are the samples themselves, in any of the forms of docs/data.md; without them it says how to read some.

    Raises:
        UsageError: `expect_accuracy` is not a number from 0 to 100, `position` is not known, or a path is no name
            of a file.
    """

    def __post_init__(self) -> None:
        check_settings(self)
        _refuse_closed(self.samples)
        if isinstance(self.samples, str):
            object.__setattr__(self, "samples", local_path(self.samples))
        for name in (self.samples, self.labels, self.preprocessing, self.classes, self.tokenizer, self.data_root):
            is_path = isinstance(name, str) and not is_url(local_path(name))
            if (is_path or isinstance(name, Path)) and (problem := name_problem(local_path(str(name)))):
                raise UsageError(problem)
        object.__setattr__(self, "columns", names_of(self.columns))
        object.__setattr__(self, "drop_columns", names_of(self.drop_columns))
        for role in ("label_column", "group_column", "weight_column", "by"):  # pandas calls columns 0, 1, 2, ...
            if isinstance(getattr(self, role), Integral):
                object.__setattr__(self, role, str(getattr(self, role)))
        _check_rows(self)
        expected = self.expect_accuracy
        if expected is not None and not 0 <= expected <= 100:
            raise UsageError(f"expected accuracy must lie in 0 to 100 per cent, got {expected!r}")
        check_share(expect_accuracy=expected)
        if self.class_prior is not None and not (self.weights is None and self.weight_column is None):
            raise UsageError("--class-prior and --weight-column both say how much each sample counts; give one")

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns of several labels, one each, where the user names more than one: `a,b,c`."""
        if self.label_column is None or "," not in self.label_column:
            return ()
        return tuple(name.strip() for name in self.label_column.split(","))

    def with_prior(self, n_classes: int, names: Sequence[str] | None) -> Data:
        """Return the same samples with `class_prior` as their weights, if it is stated."""
        if self.class_prior is None:
            return self
        frequencies = read_prior(self.class_prior, names, n_classes, "--class-prior", self.limits)
        return replace(self, weights=ClassPrior(frequencies), class_prior=None)

    def names_for(
        self, metadata: Mapping[str, str], labels: Sequence[int | str], n_classes: int
    ) -> tuple[str, ...] | None:
        """Return the model's class names: those of `classes`, else of its metadata or classifier node; None if unknown.

        Several label columns (`a,b,c`) name the labels of a model that does not.

        `labels`: of the model's classifier node; the numbers 0 to C - 1 are indices, not names.
        """
        if self.classes is not None:
            where, listed_names = "classes", self.classes
            if isinstance(listed_names, (str, Path)):
                where = str(listed_names)
                listed_names = read_class_names(Path(where), self.limits)
            stated = tuple(map(str, listed_names))
            if len(stated) != n_classes:
                raise UsageError(
                    f"{where}: {len(stated)} class names ({listed(stated)}) for a model with {n_classes} classes; give "
                    "one name for each, in the order of the model's output"
                )
            return stated
        for names in (metadata_class_names(metadata), labels):
            # What the file says counts only where it fits the output: it may be left over from another model.
            if not names or len(names) != n_classes:
                continue
            # numbers are names too where they are no places: a model of grades 3 to 8, say
            if all(isinstance(name, str) for name in names) or list(names) != list(range(n_classes)):
                return tuple(str(name) for name in names)
        if len(self.label_columns) == n_classes:
            return self.label_columns
        return None

    def check(
        self,
        predicted: NDArray[Any],
        labels: NDArray[np.int64],
        names: Sequence[str] | None,
        n_classes: int,
        confidence: Callable[[], NDArray[Any]] | None = None,
    ) -> Suspicion | None:
        """Return why labels look wrong when compared with the model's predictions; None if they look right.

        `predicted`: predicted classes (N,). `confidence`: of `label_suspicion`.
        """
        suspicion = None
        warning = ""
        if labels.ndim == 1:  # of several labels, each holds or does not: there is no order of classes
            suspicion = label_suspicion(predicted.astype(np.int64), labels, n_classes, confidence)
        if suspicion is not None:
            warning = suspicion.text(names)
        self.check_accuracy(float(np.mean(predicted == labels)), len(labels), warning)
        return suspicion

    def check_accuracy(self, accuracy: float, n: int, warning: str = "") -> None:
        """Refuse an accuracy (a fraction, of n samples) more than two standard errors below the expected one.

        The standard error is that of a share of n samples, sqrt(p (1 - p) / n) with p the expected accuracy.
        """
        if self.expect_accuracy is None:
            return
        expected = self.expect_accuracy / 100
        least = expected - 2 * math.sqrt(expected * (1 - expected) / n)
        if accuracy < least:
            # What the labels look like says more than the general advice.
            advice = warning or "check the preprocessing, the labels and the order of the classes"
            raise CheckFailed(
                f"accuracy is {100 * accuracy:.2f} % on {n:,} samples; expected {100 * expected:.2f} %, or at least "
                f"{100 * least:.2f} % (two standard errors below); {advice}"
            )

    def recipe(self) -> Recipe | None:
        """Return the preprocessing that is stated; None if none is."""
        if isinstance(self.preprocessing, str) and self.preprocessing in PRESETS:
            return PRESETS[self.preprocessing]
        if isinstance(self.preprocessing, (str, Path)):
            return read_recipe(Path(self.preprocessing), self.limits)
        return self.preprocessing

    def request(
        self,
        inputs: Sequence[InputSpec],
        n_classes: int,
        names: tuple[str, ...] | None,
        *,
        model_file: Path | None = None,
        several: bool = False,
        n_features: int = 0,
        multi_label: bool = False,
    ) -> Request:
        """Return what a model's inputs need of the samples.

        `several`: whether the model gives several predictions a sample: each labelled position is a row then.
        `n_features`: numbers that are kept for each of those; 0 if none are. `multi_label`: whether each of the model's
        classes is a label by itself: labels are (N, C) of 0 and 1 then.
        """
        if not several and (self.ignore_label is not None or self.position is not None):
            raise UsageError(
                "--ignore-label and --position are for models with several predictions a sample (tokens, pixels), and "
                "this one gives one; leave them out"
            )
        if self.expect_accuracy is not None and "weight" in self.sample_info:
            raise UsageError(f"--expect-accuracy does not use sample weights; leave it or {self._flag('weight')} out")
        if self.class_prior is not None and (several or multi_label):
            raise UsageError("--class-prior is for models that predict one class a sample; give weights instead")
        positions = None
        if several:
            ignore_label = IGNORED if self.ignore_label is None else self.ignore_label
            positions = PositionOptions(ignore_label, self.position or "all", n_features)
        said = self.with_prior(n_classes, names)
        return Request(
            **{**vars(said), "preprocessing": self.recipe()},
            inputs=inputs,
            n_classes=n_classes,
            class_names=names,
            model_file=model_file,
            several=positions,
            multi_label=multi_label,
        )

    def open(self, inputs: Sequence[InputSpec], n_classes: int, names: tuple[str, ...] | None, **words: Any) -> Source:
        """Open the samples for a model's inputs; the arguments are those of `request`."""
        return open_request(self.request(inputs, n_classes, names, **words))

    @property
    def sample_info(self) -> dict[str, Any]:
        """What is read beside inputs and labels, by its role: the name of a column, or values (N,)."""
        stated = {"group": self.group_column if self.groups is None else self.groups, "by": self.by}
        stated["weight"] = self.weight_column if self.weights is None else self.weights
        if self.class_prior is not None:
            stated["weight"] = self.class_prior
        return {role: column for role, column in stated.items() if column is not None}

    def refuse_beside(self, command: str, *roles: str) -> None:
        """Refuse what a command would ignore, by default all that is read beside inputs and labels."""
        for role in roles or BESIDE:
            if role in self.sample_info:
                noun, _ = BESIDE[role]
                raise UsageError(f"{command} does not take {noun} into account; leave {self._flag(role)} out")

    def _flag(self, role: str) -> str:
        """Return the flag by which what is read beside inputs and labels was asked for."""
        if role == "weight" and self.class_prior is not None:
            return "--class-prior"
        return BESIDE[role][1]


@dataclass(frozen=True, eq=False)
class Request(Data):
    """Labelled samples as a model wants them: what the user says of them, and what the model says."""

    inputs: Sequence[InputSpec] = ()  # of the model; the samples must provide all of them
    n_classes: int = 0  # number of classes of the model; labels are indices below it
    # the model's class names, in the order of its output; labels may then be names. None if not known.
    class_names: Sequence[str] | None = None
    model_file: Path | None = None  # the model's file, perhaps beside a `tokenizer.json`; None for a model in memory
    # what a model with several predictions a sample wants of labels; None for one prediction a sample
    several: PositionOptions | None = None
    multi_label: bool = False  # whether each class is a label of 0 or 1 (`tna_onnx.data.multi_label`)

    def __post_init__(self) -> None:
        """Also make paths of texts and arrays of labels; check the number of class names."""
        super().__post_init__()
        if isinstance(self.labels, (str, Path)):
            object.__setattr__(self, "labels", Path(self.labels))
        elif self.labels is not None:
            labels = any_array(self.labels) if self.multi_label else class_names_from_one_hot(self.labels)
            object.__setattr__(self, "labels", labels)
        if self.class_names is not None and len(self.class_names) != self.n_classes:
            raise DataError(
                f"{len(self.class_names)} class names for a model with {self.n_classes} classes "
                f"({listed(self.class_names)}); give the name of every class, in the order of the model's output"
            )

    @property
    def no_inputs(self) -> frozenset[str]:
        """Columns that are read beside the inputs or dropped; they fill inputs only if the user names them for that."""
        sample_info = {column for column in self.sample_info.values() if isinstance(column, str)}
        sample_info -= {*self.columns, *(spec.name for spec in self.inputs)}
        return frozenset(sample_info | {*self.drop_columns})

    def columns_beside(self, where: str, names: Collection[str]) -> list[str]:
        """Return the columns to read beside inputs and labels."""
        wanted = {role: column for role, column in self.sample_info.items() if isinstance(column, str)}
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
        for role, column in self.sample_info.items():
            read = _weights if role == "weight" else _texts
            if isinstance(column, ClassPrior):
                values[role] = column  # `sample_info_of` has the labels too
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
        for role in self.sample_info:
            if role not in sample_info_of(source):
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
        return self.inputs[0].name, (self.recipe() or Recipe()).resolve(self.inputs[0])

    def check_arrays(self, where: str) -> None:
        """Check that samples stored as arrays can be used."""
        if self.preprocessing not in (None, Recipe()):  # a recipe of defaults asks for nothing
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


def open_source(
    data: Any, inputs: Sequence[InputSpec], n_classes: int, recipe: Recipe | None = None, **words: Any
) -> Source:
    """Open labelled samples, of any kind, for the inputs of a model; `words` are fields of `Request`."""
    return open_request(Request(data, preprocessing=recipe, inputs=inputs, n_classes=n_classes, **words))


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


def _refuse_closed(samples: Any) -> None:
    """Refuse an archive of NumPy that is closed, as it is behind its `with` block."""
    for part in samples if isinstance(samples, tuple) else [samples]:
        if isinstance(part, Mapping) and getattr(part, "zip", samples) is None:
            raise DataError("the .npz archive is closed; give its path, or the arrays in it: dict(np.load(PATH))")


def _check_rows(data: Data) -> None:
    """Refuse values of pandas whose rows have one index in different orders: by position, they would be mixed up."""
    parts = {"labels": data.labels, "groups": data.groups, "weights": data.weights, "by": data.by}
    samples = data.samples
    if isinstance(samples, Mapping):
        parts = {**parts, **samples}
    elif isinstance(samples, tuple) and len(samples) == 2:
        parts = {**parts, **dict(zip("Xy", samples, strict=True))}
    else:
        parts = {"samples": samples, **parts}
    indexes = {name: part.index for name, part in parts.items() if hasattr(getattr(part, "index", None), "equals")}
    first, *others = indexes or [""]
    for name in others:
        if not indexes[name].equals(indexes[first]) and set(indexes[name]) == set(indexes[first]):
            raise DataError(
                f"{name!r} has the rows of {first!r} in another order, by their index; bring them into one order "
                "(.loc), or drop the index (.reset_index(drop=True)) if rows belong together by position"
            )
