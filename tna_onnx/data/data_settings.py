"""What there is to say of labelled samples (`DataFields`), and of what runs a model over them, as settings.

The command line makes its options of them, so this file loads without NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tna_onnx.data.choices import DEFAULT_LIMITS, Frequencies, Limits, Position
from tna_onnx.errors import UsageError
from tna_onnx.fields import setting

if TYPE_CHECKING:
    from tna_onnx.data.images.preprocess import Recipe

_SECTION = "Data"


@dataclass(frozen=True, eq=False)
class DataFields:
    """The samples and what there is to say of them; `data.options.Data` is what opens them, and loads NumPy."""

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
        "Turn text into tokens. Give the folder of a tokenizer.json, or the name of a tokenizer in the cache of "
        "Hugging Face.",
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
        "Raise a limit: image-pixels, text-bytes, expansion, download-bytes, overlap of the data; name-length, "
        "sparse-bytes, inlined-nodes, inlined-bytes, constant-elements of the model. Several with commas, or repeat "
        "the option.",
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
    position: Position | None = setting(
        None,
        "Which predictions count if a sample has several: all with a label, or only the last one, as in next-token "
        "models.",
        section=_SECTION,
        note="all",
    )


@dataclass(frozen=True)
class EngineFields:
    """What runs a model over samples; the words of Ray Data are passed on."""

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

    @property
    def on_ray(self) -> bool:
        """Whether Ray runs the model; words for Ray without it are refused."""
        ray = self.engine.partition(":")[0] == "ray"
        if not ray and (self.engine != "local" or self.ray_options):
            raise UsageError(
                f"engine '{self.engine}' is not known, or takes no --ray-option; expected local, ray[:ADDRESS]"
            )
        return ray


@dataclass(frozen=True)
class FeatureFields(EngineFields):
    """What computes the features of which samples."""

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
