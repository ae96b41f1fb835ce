"""What the user says of labelled samples (`Data`), and with it what a model wants of them (`Request`).

It loads without NumPy: the command line makes its options of these fields.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tna_onnx.data.choices import BESIDE, DEFAULT_LIMITS, Frequencies, Limits
from tna_onnx.errors import CheckFailed, DataError, UsageError
from tna_onnx.fields import check_settings, check_share, documented, setting
from tna_onnx.files import is_url, local_path, name_problem

if TYPE_CHECKING:
    from tna_onnx.data.images.preprocess import Recipe
    from tna_onnx.data.source import InputSpec

_SECTION = "Data"


@documented
@dataclass(frozen=True, eq=False)
class Data:
    """Labelled samples as the user describes them: accepted wherever a path to data is.

    `samples` are the samples themselves, in any of the forms of docs/data.md; without them it says how to read some.

    Raises:
        UsageError: `expect_accuracy` is not a number from 0 to 100, or a path is no name of a file.
    """

    samples: Any = None
    labels: Any = setting(None, "Labels that are not stored with the samples: the path of a file, or values (N,).")
    preprocessing: Recipe | str | Path | None = setting(
        None,
        "Recipe for images, a name in PRESETS, or the path of a preprocessor_config.json (Hugging Face) or config.json "
        "(timm).",
    )
    classes: Sequence[str] | str | Path | None = setting(
        None, "File with the class names in the model's order.", section=_SECTION, parse="path"
    )
    label_column: str | None = setting(
        None,
        "Column of a table or manifest, or array, with the labels; a,b,c for several labels a sample.",
        section=_SECTION,
        unit="NAME",
    )
    group_column: str | None = setting(
        None,
        "Column with the group of each sample, such as its patient, video or query: folds, intervals and thresholds "
        "are then computed over groups. For image files also a regular expression on their paths.",
        section=_SECTION,
        unit="NAME",
    )
    groups: Any = setting(None, "The group of each sample in place of a column: values (N,).")
    weight_column: str | None = setting(
        None,
        "Column with the weight of each sample: how many samples of the population it stands for, in an enriched or "
        "stratified set.",
        section=_SECTION,
        unit="NAME",
    )
    weights: Any = setting(None, "The weight of each sample in place of a column: values (N,).")
    class_prior: Frequencies | None = setting(
        None,
        "Class frequencies of the population, if those of the data differ: samples are weighted to match them.",
        section=_SECTION,
        unit="FILE|uniform",
        parse="text",
    )
    by: Any = setting(
        None,
        "Column that splits the samples into subgroups (sites, devices, ages): metrics of each, the worst first.",
        unit="COLUMN",
        section=_SECTION,
    )
    columns: Sequence[str] = setting(
        (),
        "Columns of a table that fill the model's inputs, in the model's order; several with commas, or repeat the "
        "option.",
        section=_SECTION,
        unit="NAMES",
        parse="names",
        note="by name, else all numbers",
    )
    drop_columns: Sequence[str] = setting(
        (),
        "Columns of a table that hold neither inputs nor labels; several with commas, or repeat the option.",
        section=_SECTION,
        unit="NAMES",
        parse="names",
        note="none",
    )
    tokenizer: str | Path | None = setting(
        None,
        "Turn text into tokens. Give the folder of a tokenizer.json.",
        section=_SECTION,
        unit="FOLDER",
        parse="path",
    )
    skip_bad: bool = setting(False, "Skip images that cannot be read, and count them.", section=_SECTION)
    expect_accuracy: float | None = setting(
        None,
        "Fail if the model's accuracy on the data is more than two standard errors below this.",
        section=_SECTION,
        unit="PERCENT",
        low=0,
        high=100,
    )
    data_root: str | Path | None = setting(
        None,
        "Also read files below this folder, if the data refer to them by absolute paths, .. or links.",
        section=_SECTION,
        unit="DIR",
        parse="path",
    )
    limits: Limits = setting(
        DEFAULT_LIMITS,
        "Raise a limit: image-pixels, text-bytes, expansion, download-bytes, overlap of the data; inlined-nodes, "
        "inlined-bytes, constant-elements of the model. Several with commas, or repeat the option.",
        section=_SECTION,
        flag="limit",
        unit="NAME=NUMBER",
        parse="limits",
    )
    ignore_label: int | None = setting(
        None,
        'Label that stands for "no label", in models with a prediction for each token or pixel.',
        section=_SECTION,
        unit="NUMBER",
        note="-100",
    )

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
        check_share(expect_accuracy=self.expect_accuracy)
        if self.class_prior is not None and not (self.weights is None and self.weight_column is None):
            raise UsageError("--class-prior and --weight-column both say how much each sample counts; give one")

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns of several labels, one each, where the user names more than one: `a,b,c`."""
        if self.label_column is None or "," not in self.label_column:
            return ()
        return tuple(name.strip() for name in self.label_column.split(","))

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
    several: bool = False  # whether the model gives several predictions a sample: each labelled position is a row
    n_features: int = 0  # numbers that are kept for each of these positions; 0 if none are
    multi_label: bool = False  # whether each class is a label of 0 or 1 (`tna_onnx.data.several`)

    def __post_init__(self) -> None:
        """Also make paths of texts."""
        super().__post_init__()
        if isinstance(self.labels, str):
            object.__setattr__(self, "labels", Path(self.labels))

    @property
    def no_inputs(self) -> frozenset[str]:
        """Columns that are read beside the inputs or dropped; they fill inputs only if the user names them for that."""
        sample_info = {column for column in self.sample_info.values() if isinstance(column, str)}
        sample_info -= {*self.columns, *(spec.name for spec in self.inputs)}
        return frozenset(sample_info | {*self.drop_columns})

    def check_one_class(self, where: str) -> None:
        """Check that samples need exactly one class each, for sources that can give no more."""
        if self.multi_label:
            raise DataError(
                f"{where}: each sample has one class, but the model predicts {self.n_classes} independent labels; "
                "store the samples as arrays (.npz), with labels of 0 and 1 of shape (N, "
                f"{self.n_classes})"
            )

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


@dataclass(frozen=True)
class FeatureFields:
    """What computes the features of which samples."""

    engine: str = setting(
        "local",
        "What runs the model: this process (local), or Ray Data on a cluster or on this machine.",
        section="Running",
        unit="local|ray[:ADDRESS]",
    )
    ray_options: Mapping[str, Any] | None = setting(
        None,
        "Pass an option to Ray's map_batches: num_cpus, num_gpus, memory, concurrency, accelerator_type. Repeatable.",
        section="Running",
        flag="ray-option",
        unit="NAME=VALUE",
        parse="options",
    )
    max_samples: int | None = setting(
        None,
        "Choose this many samples at random, before the network runs. With --output.",
        section="Data",
        unit="N",
        low=1,
        note="all",
    )
    stratify: bool = setting(
        False,
        "With --max-samples: choose class by class, so that each keeps its share, and at least one sample.",
        section="Data",
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def on_ray(self) -> bool:
        """Whether Ray runs the model; words for Ray without it are refused."""
        ray = self.engine.partition(":")[0] == "ray"
        if not ray and (self.engine != "local" or self.ray_options):
            raise UsageError(
                f"engine '{self.engine}' is not known, or takes no --ray-option; expected local, ray[:ADDRESS]"
            )
        return ray


def names_of(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return one name, several or none as a tuple of texts."""
    if names is None:
        return ()
    if isinstance(names, str):
        return (names,)
    return tuple(map(str, names))


def _refuse_closed(samples: Any) -> None:
    """Refuse an archive of NumPy that is closed, as it is behind its `with` block."""
    for part in samples if isinstance(samples, tuple) else [samples]:
        if isinstance(part, Mapping) and getattr(part, "zip", samples) is None:
            raise DataError("the .npz archive is closed; give its path, or the arrays in it: dict(np.load(PATH))")


def _check_rows(data: Data) -> None:
    """Refuse values of pandas whose rows have one index in different orders: by position, they would be mixed up."""
    samples = data.samples
    if isinstance(samples, tuple) and len(samples) == 2:
        samples = dict(zip("Xy", samples, strict=True))
    elif not isinstance(samples, Mapping):
        samples = {"samples": samples}
    beside = {"labels": data.labels, "groups": data.groups, "weights": data.weights, "by": data.by}
    parts = [*samples.items(), *beside.items()]  # no mapping, as that of the samples may hold arrays of these names
    indexes = [(name, part.index) for name, part in parts if hasattr(getattr(part, "index", None), "equals")]
    for name, index in indexes[1:]:
        first, expected = indexes[0]
        if not index.equals(expected) and set(index) == set(expected):
            raise DataError(
                f"{name!r} has the rows of {first!r} in another order, by their index; bring them into one order "
                "(.loc), or drop the index (.reset_index(drop=True)) if rows belong together by position"
            )
