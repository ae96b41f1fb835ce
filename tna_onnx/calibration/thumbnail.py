"""Small pictures of samples: model inputs that are images, undone by their recipe, as PNG data URIs.

A model input (B, C, H, W) or (B, H, W, C) with 1 or 3 channels counts as images. With a recipe, pixel = (y * std +
mean) / scale; without one, bytes are pixels and other values are stretched so that the smallest and largest of the
samples shown are black and white.
"""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Source

__all__ = ["png", "thumbnails"]

_SIDE = 96  # longest side of a thumbnail, pixels
_SMALLEST = 6  # fewer pixels on a side are no picture


def thumbnails(source: Source, rows: NDArray[np.int64]) -> dict[int, str]:
    """Return a data URI for each row; nothing if the samples are no images.

    Raises:
        DataError: a sample cannot be read.
    """
    if not len(rows):
        return {}
    batches = list(source.batches(len(rows), rows))
    arrays = [np.concatenate([batch[name] for batch in batches]) for name in batches[0]]
    pictures = [_pixels(array, source.recipe()) for array in arrays if _is_image(array)]
    # with several inputs that look like images, none is known to be the picture
    if len(pictures) != 1:
        return {}
    return {row: png(_reduced(picture)) for row, picture in zip(rows.tolist(), pictures[0], strict=True)}


def png(pixels: NDArray[np.uint8]) -> str:
    """Write (H, W) grey or (H, W, 3) RGB pixels as the data URI of a PNG file."""
    height, width = pixels.shape[:2]
    lines = pixels.reshape(height, -1)
    raw = np.concatenate([np.zeros((height, 1), np.uint8), lines], axis=1).tobytes()  # filter 0 before each line
    # 8 bits a sample; colour type 2 is RGB, 0 is grey
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b"")]
    chunks = [struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d)) for t, d in parts]
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode()


def _is_image(array: NDArray[Any]) -> bool:
    if array.ndim != 4 or array.dtype.kind not in "fiu":
        return False
    if array.shape[1] in (1, 3):
        return bool(min(array.shape[2:]) >= _SMALLEST)
    if array.shape[3] in (1, 3):
        return bool(min(array.shape[1:3]) >= _SMALLEST)
    return False


def _pixels(array: NDArray[Any], recipe: dict[str, Any] | None) -> NDArray[np.uint8]:
    """Return (B, H, W) or (B, H, W, 3) pixels of (B, C, H, W) or (B, H, W, C) values."""
    first = array.shape[1] in (1, 3) if recipe is None else recipe["layout"] == "NCHW"
    values = np.moveaxis(array, 1, -1) if first else array
    kept_as_is = values.dtype == np.uint8
    values = values.astype(np.float64)
    if recipe is not None and array.dtype.kind == "f":
        values = (values * np.array(recipe["std"]) + np.array(recipe["mean"])) / recipe["scale"]
    elif recipe is None and not kept_as_is:
        low = values.min()
        span = (values.max() - low) or 1  # all pixels alike: any factor will do
        values = (values - low) * (255 / span)
    # PNG has RGB
    if recipe is not None and recipe["color"] == "BGR":
        values = values[..., ::-1]
    pixels = np.clip(np.round(values), 0, 255).astype(np.uint8)
    return pixels[..., 0] if pixels.shape[-1] == 1 else pixels


def _reduced(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Average blocks of pixels so that the longest side is at most 96, up to a rest that is cut off."""
    block = -(-max(picture.shape[:2]) // _SIDE)
    height, width = (max(1, side // block) for side in picture.shape[:2])
    block_h = min(block, picture.shape[0])
    block_w = min(block, picture.shape[1])
    cut = picture[: height * block_h, : width * block_w].astype(np.float64)
    blocks = cut.reshape(height, block_h, width, block_w, *picture.shape[2:])
    return np.asarray(np.round(blocks.mean(axis=(1, 3))), np.uint8)
