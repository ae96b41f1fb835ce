"""Words and numbers that data options may be, and limits on what they name; it loads without NumPy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tna_onnx.errors import UsageError
from tna_onnx.fields import check_limits

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

BATCH_SIZE = 64
"""Samples per run of the network by default."""

Frequencies: TypeAlias = str | Path | Sequence[float] | Mapping[str, float]
"""Class frequencies: the path of a file, C numbers in the model's order, or a number for each class by name."""

TRUST_LABELS = "Proceed even if labels look wrong."
"""What it means to trust labels that no map is fitted to, in the help."""

BESIDE = {"group": ("groups", "--group-column"), "by": ("subgroups", "--by"), "weight": ("weights", "--weight-column")}
"""What may be read beside inputs and labels, by its role: what messages call it, and its flag."""

STORED = ("group", "weight")
"""What stays with a sample where its features are stored, under these names."""
