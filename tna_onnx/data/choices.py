"""What the user may say of data, as settings: the command line makes its options of them. It loads without NumPy.

The first row of `DATA_FORMATS` that fits a path counts; text files are a table where the model takes no images.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tna_onnx.errors import UsageError
from tna_onnx.fields import setting
from tna_onnx.numerics.checks import check_limits

if TYPE_CHECKING:
    from tna_onnx.data.images.preprocess import Recipe


@dataclass(frozen=True)
class DataFormat:
    """One format."""

    # `module:function` in `tna_onnx.data.sources`; the function takes a path and a `tna_onnx.data.options.Request`,
    # and returns a `tna_onnx.data.source.Source`
    opener: str
    files: tuple[str, ...] = ()  # suffixes of its files
    in_folder: tuple[str, ...] = ()  # endings of files that make a folder one of this format


_TABLES = (".parquet", ".arrow", ".feather", ".ipc")
SAVED = ("state.json", "dataset_dict.json")
"""What `datasets` writes into the folder of a data set that it saves, or of several."""

# In the order in which they are tried.
DATA_FORMATS: dict[str, DataFormat] = {
    "npz": DataFormat("arrays:open_arrays", files=(".npz",)),
    "table": DataFormat("tables:open_table", files=_TABLES, in_folder=(*_TABLES, *SAVED)),
    "manifest": DataFormat("image_files:open_manifest", files=(".csv", ".tsv", ".json", ".jsonl", ".txt")),
    # What a folder is if none of the others fits.
    "folder": DataFormat("image_files:open_folder"),
}

_EXPANSION_FLOOR = 2**30  # bytes: small archives of zeros, such as attention masks, honestly expand a thousand times


@dataclass(frozen=True)
class Limits:
    """Limits on the size of data, each of which `--limit NAME=NUMBER` sets.

    Attributes:
        image_pixels: width times height of one image before preprocessing. The default is that of Pillow.
        text_bytes: size of a file that is read as text: manifests, labels, class names, recipes.
        expansion: bytes that a file may stand for, in multiples of its size; 1 GiB is always allowed.
        download_bytes: size of all files that are copied from one URL.
        overlap: share of the held-out samples, in per cent, that may be calibration samples too.
    """

    image_pixels: int = 89_478_485
    text_bytes: int = 2**28
    expansion: int = 100
    download_bytes: int = 2**36
    overlap: float = 1.0

    def __post_init__(self) -> None:
        check_limits("data", dataclasses.asdict(self))
        if self.overlap > 100:
            raise UsageError(f"data limit overlap must lie in 0 to 100 per cent, got {self.overlap!r}")

    def expanded_bytes(self, size: int) -> int:
        """Return how many bytes a file of `size` bytes may stand for."""
        return max(_EXPANSION_FLOOR, int(self.expansion * size))


DEFAULT_LIMITS = Limits()

Color: TypeAlias = Literal["RGB", "BGR", "L"]
Layout: TypeAlias = Literal["NCHW", "NHWC"]
Interpolation: TypeAlias = Literal["bilinear", "bicubic", "nearest", "lanczos"]


PRESET_FIELDS: dict[str, dict[str, Any]] = {
    # Arguments of `tna_onnx.data.images.preprocess.Recipe`.
    # All in RGB order. The evaluation transform of torchvision's ImageNet classifiers (first weights of each).
    "imagenet": {"resize": 256, "crop": 224, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
    # timm: IMAGENET_INCEPTION_MEAN and _STD (data/constants.py) with crop_pct and interpolation of `tf_inception_v3`;
    # pixels go to -1..1. Its vision transformers have the same mean and std, but crop_pct 0.9.
    "imagenet-inception": {"crop_pct": 0.875, "mean": (0.5,), "std": (0.5,), "interpolation": "bicubic"},
    # OpenAI's CLIP (`_transform` in clip/clip.py).
    "clip": {
        "crop_pct": 1.0,
        "mean": (0.48145466, 0.4578275, 0.40821073),
        "std": (0.26862954, 0.26130258, 0.27577711),
        "interpolation": "bicubic",
    },
    # Mean and standard deviation of all pixels of the 50,000 training images, per channel (four places). Much CIFAR-10
    # code has std (0.2023, 0.1994, 0.2010), the mean of the deviations of single images: then give --std.
    "cifar10": {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)},
    "cifar100": {"mean": (0.5071, 0.4865, 0.4409), "std": (0.2673, 0.2564, 0.2762)},
    # pytorch/examples, mnist/main.py; the mean and standard deviation of all training pixels.
    "mnist": {"color": "L", "mean": (0.1307,), "std": (0.3081,)},
    # tf.image.per_image_standardization, as of TensorFlow's CIFAR-10 tutorial.
    "per-image": {"per_image": True},
}

IGNORED = -100
"""What stands where there is no label, in transformers and torch."""

Position: TypeAlias = Literal["all", "last"]

BATCH_SIZE = 64
"""Samples per run of the network by default."""

Frequencies: TypeAlias = str | Path | Sequence[float] | Mapping[str, float]
"""Class frequencies: the path of a file, C numbers in the model's order, or a number for each class by name."""

TRUST_LABELS = "Proceed even if labels look wrong."
"""What it means to trust labels that no map is fitted to, in the help."""

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
        "Raise a limit: image-pixels, text-bytes, expansion, download-bytes, overlap of the data; name-length, "
        "inlined-nodes, inlined-bytes, constant-elements of the model. Several with commas, or repeat "
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

    @property
    def on_ray(self) -> bool:
        """Whether Ray runs the model; words for Ray without it are refused."""
        ray = self.engine.partition(":")[0] == "ray"
        if not ray and (self.engine != "local" or self.ray_options):
            raise UsageError(
                f"engine '{self.engine}' is not known, or takes no --ray-option; expected local, ray[:ADDRESS]"
            )
        return ray
