"""Images of a few classes, and networks that classify them under one recipe and no other.

A class is one of two smooth patterns of colours, in low or in high contrast; its images are that and noise. A network
undoes its recipe with one multiplication and one addition, so that all of them are one function of pixels of 0 to 1,
which a layer of tanh makes sensitive to scale and shift: five steps for each pixel. The last layer is a ridge
regression.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from PIL import Image

from tests.builders import nodes_of, small_model

CLASSES = 4
SIDE = 8
STEPS = np.linspace(0.1, 0.9, 5)
STEEP = 10

Array = NDArray[Any]


def _same(images: Array) -> Array:
    return images


@cache
def make_images(
    count: int, seed: int = 0, size: tuple[int, int] = (SIDE, SIDE), channels: int = 3
) -> tuple[Array, Array]:
    """Return images (N, height, width, 3), or (N, height, width) of one channel, of 8 bits, and classes (N,)."""
    patterns = np.random.default_rng(99).normal(size=(CLASSES // 2, 4, 4, 3)) * [0.5, 0.8, 0.6]
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    contrast = (30 + 25 * (labels % 2) + 6 * rng.normal(size=count)).reshape(-1, 1, 1, 1)
    small = patterns[labels // 2] + rng.normal(size=(count, 4, 4, 3)) * 1.1
    pixels = np.clip(small * contrast + [130, 110, 90], 4, 255).astype(np.uint8)
    images = [Image.fromarray(array).resize(size[::-1], Image.Resampling.BICUBIC) for array in pixels]
    if channels == 1:
        images = [image.convert("L") for image in images]
    made = np.stack([np.asarray(image) for image in images])
    made.flags.writeable = labels.flags.writeable = False
    return made, labels


def write_folder(folder: Path, images: Array, labels: Array) -> Path:
    """Write images as PNG, one folder a class."""
    for k, (image, label) in enumerate(zip(images, labels, strict=True)):
        place = folder / f"class{label}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{k:04}.png")
    return folder


@cache
def _ridge(resized: Callable[[Array], Array], source: tuple[int, int], channels: int, bgr: bool) -> Array:
    """Return class vectors of the steps of images, and in the last row what is added."""
    images, labels = make_images(1500, seed=1, size=source, channels=channels)
    pixels = resized(images).reshape(len(images), SIDE, SIDE, channels) / 255
    if bgr:
        pixels = pixels[..., ::-1]
    hidden = np.tanh(STEEP * (pixels[..., np.newaxis] - STEPS)).reshape(len(pixels), -1)
    features = np.concatenate([hidden, np.ones((len(hidden), 1))], axis=1)
    gram = features.T @ features + 100 * np.eye(features.shape[1])
    return np.linalg.solve(gram, features.T @ np.eye(CLASSES)[labels]) * 6


def network(
    mean: Any = 0.0,
    std: Any = 1.0,
    scale: float = 1 / 255,
    *,
    bgr: bool = False,
    channels: int = 3,
    dtype: Any = np.float32,
    size: tuple[int | str, int | str] = (SIDE, SIDE),
    resized: Callable[[Array], Array] = _same,
    source: tuple[int, int] = (SIDE, SIDE),
) -> onnx.ModelProto:
    """Return a network for inputs (pixels * scale - mean) / std, each one number or one a channel of its order.

    Args:
        mean: subtracted.
        std: divides.
        scale: multiplies.
        bgr: whether its first channel is blue.
        channels: 1 or 3.
        dtype: of its input.
        size: of its input; words are open axes.
        resized: what brings images of the training, of size `source`, to its size.
        source: height and width of those.
    """
    solution = _ridge(resized, source, channels, bgr)
    weight, bias = solution[:-1].T.astype(np.float32), solution[-1].astype(np.float32)
    # x = (y std + mean) / scale / 255, and STEEP (x - step) of that for each step
    times = np.broadcast_to(np.asarray(std) / scale / 255 * STEEP, (channels,))[:, np.newaxis]
    middle = np.broadcast_to(np.asarray(mean) / scale / 255, (channels,))[:, np.newaxis]
    plus = (middle - STEPS) * STEEP
    nodes = nodes_of(
        "Cast image > float to=FLOAT; Transpose float > last perm=[0,2,3,1]; Unsqueeze last end > column; "
        "Mul column times > scaled; Add scaled plus > shifted; Tanh shifted > hidden; Flatten hidden > z; "
        "Gemm z weight bias > logits name=head transB=1"
    )
    return small_model(
        nodes,
        inputs={"image": (["N", channels, *size], dtype)},
        outputs={"logits": ["N", CLASSES]},
        tensors={
            "times": times.astype(np.float32),
            "plus": plus.astype(np.float32),
            "end": np.array([-1], np.int64),
            "weight": weight,
            "bias": bias,
        },
    )
