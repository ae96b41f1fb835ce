"""What is chosen by name in preprocessing: axes, channels, filters, presets.

The command line offers these, so this file loads without NumPy.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict

__all__ = ["PRESET_FIELDS", "Color", "Interpolation", "Layout"]

Color: TypeAlias = Literal["RGB", "BGR", "L"]
Layout: TypeAlias = Literal["NCHW", "NHWC"]
Interpolation: TypeAlias = Literal["bilinear", "bicubic", "nearest", "lanczos"]


class _Fields(TypedDict, total=False):
    """Arguments of `tna_onnx.data.images.preprocess.Recipe` that presets set."""

    resize: int
    crop: int
    crop_pct: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    color: Color
    interpolation: Interpolation


PRESET_FIELDS: dict[str, _Fields] = {
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
}
