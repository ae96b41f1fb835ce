"""Labelled samples as the user describes them (`Data`): opens the source, finds class names, checks the labels.

Class frequencies (`read_prior`) are `uniform`, numbers, or a file: JSON, a list or an object {class: number}; or text,
a number or `class,number` a line. Classes are named, if the model's names are known, or numbered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.choices import IGNORED, Limits
from tna_onnx.data.data_settings import DataFields
from tna_onnx.data.foreign import is_url, local_path, parse_json, read_text, text_lines
from tna_onnx.data.formats import open_request
from tna_onnx.data.images.preprocess import PRESETS, Recipe
from tna_onnx.data.images.recipe_files import read_recipe
from tna_onnx.data.labels import listed, metadata_class_names, read_class_names
from tna_onnx.data.positions import PositionOptions
from tna_onnx.data.request import BESIDE, Request, label_columns, names_of
from tna_onnx.data.source import ClassPrior, InputSpec, Source
from tna_onnx.data.suspicion import Suspicion, below_expectation, label_suspicion
from tna_onnx.errors import CheckFailed, DataError, UsageError
from tna_onnx.fields import check_settings, documented
from tna_onnx.files import name_problem
from tna_onnx.numerics.checks import check_share

_MAX_NAMES = 8  # in a message: enough to see which list it is


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

    def with_prior(self, n_classes: int, names: Sequence[str] | None) -> Data:
        """Return the same samples with `class_prior` as their weights, if it is stated."""
        if self.class_prior is None:
            return self
        frequencies = read_prior(self.class_prior, names, n_classes, "--class-prior", self.limits)
        return replace(self, weights=ClassPrior(frequencies), class_prior=None)

    def class_names(
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
                first = ", ".join(stated[:_MAX_NAMES])
                if len(stated) > _MAX_NAMES:
                    first += ", ..."
                raise UsageError(
                    f"{where}: {len(stated)} class names ({first}) for a model with {n_classes} classes; give one name "
                    "for each, in the order of the model's output"
                )
            return stated
        for names in (metadata_class_names(metadata), labels):
            # What the file says counts only where it fits the output: it may be left over from another model.
            if not names or len(names) != n_classes:
                continue
            # numbers are names too where they are no places: a model of grades 3 to 8, say
            if all(isinstance(name, str) for name in names) or list(names) != list(range(n_classes)):
                return tuple(str(name) for name in names)
        columns = label_columns(self.label_column)
        if len(columns) == n_classes:
            return columns
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
        """Compare a measured accuracy (a fraction, of n samples) with the expected one."""
        if self.expect_accuracy is None:
            return
        shortfall = below_expectation(accuracy, n, self.expect_accuracy / 100)
        if shortfall is not None:
            # What the labels look like says more than the general advice.
            advice = warning or "check the preprocessing, the labels and the order of the classes"
            raise CheckFailed(f"{shortfall}; {advice}")

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
        if self.expect_accuracy is not None and "weight" in self.beside:
            raise UsageError(f"--expect-accuracy does not use sample weights; leave it or {self._flag('weight')} out")
        if self.class_prior is not None and (several or multi_label):
            raise UsageError("--class-prior is for models that predict one class a sample; give weights instead")
        ignore_label = IGNORED if self.ignore_label is None else self.ignore_label
        same = ("labels", "label_column", "skip_bad", "data_root", "limits", "columns", "drop_columns", "tokenizer")
        return Request(
            inputs,
            n_classes,
            self.recipe(),
            class_names=names,
            model_file=model_file,
            several=PositionOptions(ignore_label, self.position or "all", n_features) if several else None,
            multi_label=multi_label,
            beside=self.with_prior(n_classes, names).beside,
            **{name: getattr(self, name) for name in same},
        )

    def open(self, inputs: Sequence[InputSpec], n_classes: int, names: tuple[str, ...] | None, **words: Any) -> Source:
        """Open the samples for a model's inputs; the arguments are those of `request`."""
        return open_request(self.samples, self.request(inputs, n_classes, names, **words), self.format)

    @property
    def beside(self) -> dict[str, Any]:
        """What is read beside inputs and labels, by its role: the name of a column, or values (N,)."""
        stated = {"group": self.group_column if self.groups is None else self.groups, "by": self.by}
        stated["weight"] = self.weight_column if self.weights is None else self.weights
        if self.class_prior is not None:
            stated["weight"] = self.class_prior
        return {role: column for role, column in stated.items() if column is not None}

    def refuse_beside(self, command: str, *roles: str) -> None:
        """Refuse what a command would ignore, by default all that is read beside inputs and labels."""
        for role in roles or BESIDE:
            if role in self.beside:
                noun, _ = BESIDE[role]
                raise UsageError(f"{command} does not take {noun} into account; leave {self._flag(role)} out")

    def _flag(self, role: str) -> str:
        """Return the flag by which what is read beside inputs and labels was asked for."""
        if role == "weight" and self.class_prior is not None:
            return "--class-prior"
        return BESIDE[role][1]


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


UNIFORM = "uniform"

# Figures rounded to three digits add up to 1 within this.
_SUM_TOLERANCE = 2e-3

_SMALLEST = 1e-100  # squares of much smaller frequencies are 0

_PRIOR_ADVICE = "give one positive number for each class, which add up to 1"


def read_prior(prior: Any, names: Sequence[str] | None, n_classes: int, option: str, limits: Limits) -> NDArray[Any]:
    """Return (C,) frequencies, float64, which add up to 1."""
    where = option
    if isinstance(prior, str) and prior == UNIFORM:
        return np.full(n_classes, 1 / n_classes)
    if isinstance(prior, (str, Path)):
        where = f"{prior}"
        prior = _from_file(Path(prior), option, limits)
    elif hasattr(prior, "to_dict"):  # a series of pandas, such as y.value_counts(normalize=True), by class
        prior = prior.to_dict()
    if isinstance(prior, Mapping):
        prior = _by_class(prior, names, n_classes, where)
    return _checked_frequencies(prior, n_classes, where)


def restricted(source: NDArray[np.float64], only: Sequence[str], names: Sequence[str] | None) -> NDArray[np.float64]:
    """Return frequencies (C,) that are 0 but for some classes, whose ratios stay."""
    known = _known_names([*map(str, only)], names, len(source), "--only")
    kept = np.isin(known, [*map(str, only)])
    target: NDArray[np.float64] = np.where(kept, source, 0.0) / source[kept].sum()
    return target


def _from_file(path: Path, where: str, limits: Limits) -> Any:
    if not path.is_file():
        raise UsageError(f"{path}: no such file; {where} takes '{UNIFORM}' or a file of class frequencies")
    text = read_text(path, limits)
    if path.suffix.lower() == ".json":
        return parse_json(text, str(path), "write a list of numbers")
    lines = [line.strip() for line in text_lines(text) if line.strip()]
    cells = [[cell.strip() for cell in line.rsplit(",", 1)] for line in lines]
    numbers = [_is_number(row[-1]) for row in cells]
    if len(cells) > 1 and not numbers[0] and all(numbers[1:]):  # the first row names the columns
        cells = cells[1:]
    if cells and all(len(row) == 2 for row in cells):
        twice = [name for name, _ in cells if sum(name == second for second, _ in cells) > 1]
        if twice:
            raise DataError(f"{path}: class {twice[0]!r} has several lines; {_PRIOR_ADVICE}")
        return {name: _number(value, str(path)) for name, value in cells}
    return [_number(",".join(row), str(path)) for row in cells]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise DataError(f"{where}: expected a number, found {text[:80]!r}; {_PRIOR_ADVICE}") from error


def _by_class(frequencies: Mapping[Any, Any], names: Sequence[str] | None, n_classes: int, where: str) -> list[Any]:
    keys = [str(key) for key in frequencies]
    names_known = _known_names(keys, names, n_classes, where)
    missing = [name for name in names_known if name not in keys]
    if missing:
        raise DataError(f"{where}: no number for the classes {listed(missing)}; {_PRIOR_ADVICE}")
    values = dict(zip(keys, frequencies.values(), strict=True))
    return [values[name] for name in names_known]


def _known_names(keys: Sequence[str], names: Sequence[str] | None, n_classes: int, where: str) -> list[str]:
    """Return what the C classes are called by keys: names or indices."""
    indices = [str(k) for k in range(n_classes)]
    names_known = indices
    # names go first: a class may be called "1" and not be the one with that index
    if names is not None and (set(keys) <= set(names) or not set(keys) <= set(indices)):
        names_known = list(names)
    unknown = [key for key in keys if key not in names_known]
    if unknown:
        raise DataError(f"{where}: unknown classes {listed(unknown)}; the model's classes are {listed(names_known)}")
    return names_known


def _checked_frequencies(raw: Any, n_classes: int, where: str) -> NDArray[Any]:
    values = list(raw) if isinstance(raw, (Sequence, np.ndarray)) else None
    if values is None or any(isinstance(v, bool) or not isinstance(v, (int, float, np.number)) for v in values):
        raise DataError(f"{where}: expected numbers, found {str(raw)[:80]!r}; {_PRIOR_ADVICE}")
    if len(values) != n_classes:
        raise DataError(f"{where}: {len(values)} numbers for a model with {n_classes} classes; {_PRIOR_ADVICE}")
    prior = np.array([float(value) for value in values])
    if not np.all(np.isfinite(prior)) or np.any(prior < 0):
        wrong = int(np.argmin(np.where(np.isfinite(prior), prior, -math.inf)))
        raise DataError(f"{where}: class {wrong} has the frequency {prior[wrong]:g}; {_PRIOR_ADVICE}")
    if np.any(prior < _SMALLEST):
        raise DataError(
            f"{where}: class {int(np.argmin(prior))} has the frequency {prior.min():g}, which would rule it out "
            "whatever the model sees; give a small number, such as 1e-6, in its place; for shift, --only says which "
            "classes can occur"
        )
    total = float(prior.sum())
    if abs(total - 1) > _SUM_TOLERANCE:
        hint = "; if these are counts, divide them by their sum" if total > 1 + _SUM_TOLERANCE else ""
        raise DataError(f"{where}: the numbers add up to {total:.6g}; expected 1{hint}")
    return prior / total
