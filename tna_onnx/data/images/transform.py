"""Turn one 8-bit image into the array of one model input, with every choice already made.

Steps, in order:

1. Convert to RGB or to grey (L, ITU-R 601-2 luma).
2. Resize: to (height, width), or so that the shorter side has the given length and the aspect ratio stays (the longer
   side is rounded down). Pillow's filters, which are antialiased.
3. Cut (height, width) out of the centre; a half pixel is rounded to even.
4. Order the channels as `color` says, R G B or B G R or one grey channel.
5. For a floating-point input, in float32 and per channel c of that order: y[c] = (x[c] * scale - mean[c]) / std[c],
   with x in 0..255. For an integer input, y = x.
6. Lay out as (C, H, W) or (H, W, C).

Steps 2 and 3 are those of torchvision's `Resize` and `CenterCrop` on PIL images.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.images.choices import Color, Interpolation, Layout
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

    from tna_onnx.data.source import AnyArray

__all__ = ["FILTERS", "ResolvedRecipe"]

# The values of PIL.Image.Resampling (a test compares them), written out so that this file works without Pillow.
FILTERS: dict[Interpolation, int] = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}


@dataclass(frozen=True)
class ResolvedRecipe:
    """What was done to every image, in this order, with no choice left open; made by `Recipe.resolve`.

    Attributes:
        resize: pixels of the shorter side, or (height, width), each at least 1; None keeps the size.
        crop: centre crop, (height, width) in pixels, each at least 1; None keeps everything.
        scale: factor on pixel values 0..255; no unit.
        mean: subtracted after scaling, one value for each channel in the order of `color`, in units of scaled pixels.
        std: divisor after that, one value for each channel in the order of `color`, in units of scaled pixels.
        layout: order of the input's axes.
        color: order of the channels.
        interpolation: filter for resizing.
        height: height that the model takes, pixels, at least 1; None for any.
        width: width that the model takes, pixels, at least 1; None for any.
        dtype: NumPy's name of the input's dtype.
    """

    resize: int | tuple[int, int] | None
    crop: tuple[int, int] | None
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    layout: Layout
    color: Color
    interpolation: Interpolation
    height: int | None
    width: int | None
    dtype: np.dtype[Any]

    def __call__(self, image: Image) -> AnyArray:
        """Return the array (C, H, W) or (H, W, C), in `dtype`, of an image with 8 bits per channel.

        Raises:
            DataError: the crop is larger than the image, or the result is not of the size that the model takes.
        """
        mode = "L" if self.color == "L" else "RGB"
        if image.mode != mode:  # step 1; `convert` copies even where the mode is the same
            image = image.convert(mode)
        image = self._crop(self._resize(image))
        self._check_size(image)
        return self._values(np.asarray(image))

    def as_dict(self) -> dict[str, object]:
        """Return all fields as JSON-able values: sizes are [height, width], `dtype` is its name."""
        # JSON has no tuples: with lists, what is read back equals what was written.
        fields = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return fields | {"dtype": self.dtype.name}

    def _resize(self, image: Image) -> Image:
        """Take step 2."""
        if self.resize is None:
            return image
        if isinstance(self.resize, tuple):
            height, width = self.resize
        else:
            short = min(image.size)
            width, height = (int(self.resize * side / short) for side in image.size)
        return image.resize((width, height), FILTERS[self.interpolation])

    def _crop(self, image: Image) -> Image:
        """Take step 3."""
        if self.crop is None:
            return image
        height, width = self.crop
        if height > image.height or width > image.width:
            raise DataError(
                f"the crop of {height} x {width} (height x width) is larger than the image, which has {_size(image)} "
                "after resizing; use a smaller --crop or a larger --resize"
            )
        top = round((image.height - height) / 2)
        left = round((image.width - width) / 2)
        return image.crop((left, top, left + width, top + height))

    def _check_size(self, image: Image) -> None:
        if self.height in (None, image.height) and self.width in (None, image.width):
            return
        wanted = " x ".join("any" if side is None else str(side) for side in (self.height, self.width))
        raise DataError(
            f"the model takes images of {wanted} (height x width), but this one has {_size(image)} after "
            "preprocessing; set --resize and --crop so that the sizes agree"
        )

    def _values(self, pixels: AnyArray) -> AnyArray:
        """Take steps 4 to 6: pixels (H, W) or (H, W, 3) -> (C, H, W) or (H, W, C)."""
        mean = np.array(self.mean, np.float32)
        std = np.array(self.std, np.float32)
        channels = pixels
        if self.color == "L":
            channels = channels[..., np.newaxis]
        if self.color == "BGR":
            channels = channels[..., ::-1]
        # Step 6 goes before step 5: arithmetic in the final layout is twice as fast as in Pillow's.
        if self.layout == "NCHW":
            channels = channels.transpose(2, 0, 1)
            mean = mean[:, None, None]
            std = std[:, None, None]
        # np.array, not asarray: an unscaled image must not share memory with Pillow's buffer, which is read-only.
        if self.dtype.kind != "f":
            return np.array(channels, dtype=self.dtype, order="C")
        values = np.array(channels, dtype=np.float32, order="C")
        values *= np.float32(self.scale)
        values -= mean
        values /= std
        return values.astype(self.dtype, copy=False)


def _size(image: Image) -> str:
    return f"{image.height} x {image.width}"
