"""Preprocessing of images: from an 8-bit image to the array of one model input, by a `Recipe` and what the input
determines.

1. Convert to RGB or to grey (ITU-R 601-2 luma).
2. Resize with Pillow's filters: to (height, width), or the shorter side to a length, the longer rounded down.
3. Cut (height, width) out of the centre; a half pixel is rounded to even. 2 and 3 are torchvision's on PIL images.
4. Order the channels as `color` says.
5. For floats, in float32: y[c] = (x[c] * scale - mean[c]) / std[c], x in 0..255; `per_image` as TensorFlow's
   per_image_standardization. For an integer input, y = x.
6. Lay out as (C, H, W) or (H, W, C).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from tna_onnx.data.choices import DEFAULT_LIMITS, PRESET_FIELDS, Color, Interpolation, Layout, Limits
from tna_onnx.data.source import AnyArray, InputSpec, shape_text
from tna_onnx.errors import DataError, UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

# The values of PIL.Image.Resampling (a test compares them), written out so that this file works without Pillow.
FILTERS: dict[Interpolation, int] = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}


@dataclass(frozen=True)
class ResolvedRecipe:
    """A `Recipe` with every choice made; and what the model takes.

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
        per_image: whether mean and std are those of each image.
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
    per_image: bool = False

    def __call__(self, image: Image, limits: Limits = DEFAULT_LIMITS) -> AnyArray:
        """Return the array (C, H, W) or (H, W, C), in `dtype`, of an image with 8 bits per channel.

        `limits`: how many pixels it may have after resizing.
        """
        mode = {"L": "L"}.get(self.color, "RGB")
        if image.mode != mode:  # step 1; `convert` copies even where the mode is the same
            image = image.convert(mode)
        image = self._crop(self._resize(image, limits))
        self._check_size(image)
        pixels = np.asarray(image)
        if self.color == "L":
            pixels = pixels[..., np.newaxis]
        # Step 6 goes before step 5: arithmetic in the final layout is twice as fast as in Pillow's.
        if self.layout == "NCHW":
            pixels = pixels.transpose(2, 0, 1)
        return self.values(pixels)

    def as_dict(self) -> dict[str, object]:
        """Return all fields as JSON-able values: sizes are [height, width], `dtype` is its name."""
        # JSON has no tuples: with lists, what is read back equals what was written.
        fields = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        if not self.per_image:
            del fields["per_image"]
        return fields | {"dtype": self.dtype.name}

    def _resize(self, image: Image, limits: Limits) -> Image:
        """Take step 2."""
        if self.resize is None:
            return image
        if isinstance(self.resize, tuple):
            height, width = self.resize
        else:
            short = min(image.size)
            width, height = (int(self.resize * side / short) for side in image.size)
        if width * height > limits.image_pixels:
            raise DataError(
                f"resizing from {_size(image)} (height x width) gives {height:,} x {width:,} pixels, more than "
                f"{int(limits.image_pixels):,}; correct --resize, or if this is intended, raise "
                "--limit image-pixels=NUMBER"
            )
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
        left_edge = round((image.width - width) / 2)
        return image.crop((left_edge, top, left_edge + width, top + height))

    def _check_size(self, image: Image) -> None:
        if self.height in (None, image.height) and self.width in (None, image.width):
            return
        sides = ["any" if side is None else str(side) for side in (self.height, self.width)]
        advice = "set --resize and --crop so that the sizes agree"
        if "any" not in sides:
            side = ",".join(dict.fromkeys(sides))
            advice = f"add --resize {side} --crop {side}, if the model was trained with that"
        raise DataError(
            f"the model takes images of {' x '.join(sides)} (height x width), but this one has {_size(image)} after "
            f"preprocessing; {advice}"
        )

    def values(self, pixels: AnyArray) -> AnyArray:
        """Take steps 4 and 5 for one image or a batch: (..., C, H, W) or (..., H, W, C), R G B or grey, in 0..255."""
        axis = {"NCHW": -3, "NHWC": -1}[self.layout]
        if self.color == "BGR":
            pixels = np.flip(pixels, axis)
        # np.array, not asarray: an unscaled image must not share memory with Pillow's buffer, which is read-only.
        if self.dtype.kind != "f":
            return np.array(pixels, dtype=self.dtype, order="C")
        values = np.array(pixels, dtype=np.float32, order="C")
        values *= np.float32(self.scale)
        mean, std = (np.array(numbers, np.float32) for numbers in (self.mean, self.std))
        if self.layout == "NCHW":
            mean, std = mean[:, None, None], std[:, None, None]
        if self.per_image:
            mean = values.mean((-3, -2, -1), keepdims=True)
            std = np.maximum(values.std((-3, -2, -1), keepdims=True), 1 / math.sqrt(math.prod(values.shape[-3:])))
        values -= mean
        values /= std
        return values.astype(self.dtype, copy=False)


def _size(image: Image) -> str:
    return f"{image.height} x {image.width}"


MAX_SIDE = 2**16
"""Pixels on each side of a resized or cut image: no JPEG has more, and no network takes it."""

_CHANNELS: dict[Color, int] = {"RGB": 3, "BGR": 3, "L": 1}
_DEFAULT_COLOR: dict[int, Color] = {3: "RGB", 1: "L"}
_CHANNEL_AXIS: dict[Layout, int] = {"NCHW": 1, "NHWC": 3}
_HEIGHT_AXIS: dict[Layout, int] = {"NCHW": 2, "NHWC": 1}  # the width is the next axis


@dataclass(frozen=True)
class Recipe:
    """Preprocessing of images; the steps and their order are those of `tna_onnx.data.images.preprocess`.

    Attributes:
        resize: pixels of the shorter side, or exact (height, width); None keeps the size.
        crop: side of a centred square, or (height, width) of a centred rectangle; None keeps everything.
        crop_pct: share of the shorter side that the crop keeps, as timm counts it: the shorter side becomes
            floor(side of the crop / crop_pct), and `crop` is by default the size that the model takes. In place of
            `resize`; square crops only.
        scale: factor on pixel values 0..255; None is 1/255 for floating-point inputs and 1 for integer inputs.
        mean: subtracted after scaling, one value per channel or one for all; None is 0.
        std: divisor after that, likewise; None is 1.
        layout: order of the input's axes; None reads it from the axis that has 1 or 3 channels.
        color: order of the channels; None is RGB for 3 channels and L (grey) for 1.
        interpolation: filter for resizing; None is bilinear.
        per_image: whether mean and std are those of each image, in place of `mean` and `std`.
    """

    resize: int | tuple[int, int] | None = None
    crop: int | tuple[int, int] | None = None
    crop_pct: float | None = None
    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    layout: Layout | None = None
    color: Color | None = None
    interpolation: Interpolation | None = None
    per_image: bool = False

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            value = getattr(self, name)
            if value is not None:  # one number for all channels, as a refusal from Python prints it, or a list
                object.__setattr__(self, name, tuple(np.atleast_1d(value).tolist()))

    def resolve(self, spec: InputSpec) -> ResolvedRecipe:
        """Return the recipe for the model input `spec`, with every automatic value decided.

        Raises:
            UsageError: a value is not usable, does not fit the input, or is missing where the input leaves it open.
            DataError: the input does not take images (its rank, dtype or number of channels).

        >>> from tna_onnx.data.source import InputSpec
        >>> spec = InputSpec("x", (None, 3, 224, 224), np.dtype(np.float32))
        >>> PRESETS["imagenet"].resolve(spec).layout
        'NCHW'
        """
        # What the user wrote is checked before the input: a wrong flag is wrong for every model.
        self._check_stated()
        _check_input(spec)
        layout = self.layout or _layout(spec)
        color = _color(self.color, spec, layout)
        scale, mean, std = self._normalisation(spec, _CHANNELS[color])
        axis = _HEIGHT_AXIS[layout]
        height, width = spec.shape[axis : axis + 2]
        resize, crop = self._sizes(spec, height, width)
        interpolation = self.interpolation or "bilinear"
        sides = (height, width)
        return ResolvedRecipe(
            resize, crop, scale, mean, std, layout, color, interpolation, *sides, spec.dtype, self.per_image
        )

    def override(self, **fields: Any) -> Recipe:
        """Return the recipe with some fields replaced; setting `resize` clears `crop_pct`, and the reverse.

        >>> PRESETS["clip"].override(resize=256).crop_pct is None
        True
        """
        if fields.get("resize") is not None:  # None stands for a flag that was not given
            fields.setdefault("crop_pct", None)
        elif fields.get("crop_pct") is not None:
            fields.setdefault("resize", None)
        return replace(self, **fields)

    def _check_stated(self) -> None:
        for flag, value, choices in [
            ("layout", self.layout, (None, *get_args(Layout))),
            ("--color", self.color, (None, *get_args(Color))),
            ("--interpolation", self.interpolation, (None, *get_args(Interpolation))),
        ]:
            if value not in choices:
                allowed = ", ".join(choice for choice in choices if choice)
                raise UsageError(f"{flag} must be one of {allowed}, got {value!r}")
        for flag, size in [("--resize", self.resize), ("--crop", self.crop)]:
            if size is not None and not 1 <= min(_height_width(size)) <= max(_height_width(size)) <= MAX_SIDE:
                raise UsageError(f"{flag} must be 1 to {MAX_SIDE:,} pixels on each side, got {size}")

    def _sizes(
        self, spec: InputSpec, height: int | None, width: int | None
    ) -> tuple[int | tuple[int, int] | None, tuple[int, int] | None]:
        """Return resize and crop, with `crop_pct` worked out."""
        crop: tuple[int, int] | None = None
        if self.crop is not None:
            crop = _height_width(self.crop)
        if self.crop_pct is None:
            return self.resize, crop
        if not 0 < self.crop_pct <= 1:
            raise UsageError(f"crop_pct must be above 0 and at most 1, got {self.crop_pct}")
        if self.resize is not None:
            raise UsageError("resize and crop_pct both say to what size images are brought; leave one out")
        sides = crop or (height, width)
        if sides[0] is None or sides[1] is None or sides[0] != sides[1]:
            raise UsageError(
                f"crop_pct needs the side of a square crop, but input {spec.name!r} has shape "
                f"{shape_text(spec.shape)} and --crop is {self.crop}; give --crop SIDE, or --resize and --crop"
            )
        if sides[0] > MAX_SIDE * self.crop_pct:
            raise UsageError(
                f"crop_pct {self.crop_pct:g} of a crop of {sides[0]:,} pixels makes images of more than {MAX_SIDE:,} "
                "pixels on each side"
            )
        return math.floor(sides[0] / self.crop_pct), (sides[0], sides[0])

    def _normalisation(self, spec: InputSpec, n_channels: int) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
        """Return scale, and mean and std per channel."""
        is_float = spec.dtype.kind == "f"
        scale = 1.0
        if self.scale is not None:
            scale = _float(self.scale)
        elif is_float:
            scale = 1 / 255
        mean = _per_channel("--mean", self.mean, 0.0, n_channels)
        std = _per_channel("--std", self.std, 1.0, n_channels)
        if self.per_image and (not is_float or (set(mean), set(std)) != ({0.0}, {1.0})):
            raise UsageError(
                f"--preset per-image takes mean and std of each image, so --mean and --std contradict it, and so does "
                f"an input of {spec.dtype}; leave one out"
            )
        if not (math.isfinite(scale) and scale != 0):
            raise UsageError(f"--scale must be a finite number other than 0, got {self.scale}")
        if not all(map(math.isfinite, mean)):
            raise UsageError(f"--mean must be finite, got {self.mean}")
        if not all(math.isfinite(value) and value > 0 for value in std):
            raise UsageError(f"--std must be finite and above 0, got {self.std}")
        if not is_float and (scale, set(mean), set(std)) != (1.0, {0.0}, {1.0}):
            # Rounding normalised values to integers would leave nothing of the image.
            raise UsageError(
                f"input {spec.name!r} takes {spec.dtype} pixels as they are, so --scale, --mean and --std cannot "
                "apply; leave them out (the model normalises by itself)"
            )
        return scale, mean, std


PRESETS: dict[str, Recipe] = {name: Recipe(**fields) for name, fields in PRESET_FIELDS.items()}


def _check_input(spec: InputSpec) -> None:
    """Refuse an input that cannot hold images with pixel values 0..255."""
    description = f"input {spec.name!r} has shape {shape_text(spec.shape)} and dtype {spec.dtype}"
    if len(spec.shape) != 4:
        raise DataError(
            f"images need a model input of 4 axes (NCHW or NHWC), but {description}; store the samples as .npz"
        )
    if spec.dtype.kind != "f" and not (spec.dtype.kind in "iu" and np.can_cast(np.uint8, spec.dtype)):
        raise DataError(
            f"images need a floating-point input or an integer one that holds 0 to 255, but {description}; "
            "store the samples as .npz"
        )


def _layout(spec: InputSpec) -> Layout:
    # An open axis fits neither layout: a guess would hold for one image and not for the next.
    fitting = [layout for layout, axis in _CHANNEL_AXIS.items() if spec.shape[axis] in _DEFAULT_COLOR]
    if len(fitting) != 1:
        which = "both" if fitting else "neither"
        raise UsageError(
            f"input {spec.name!r} has shape {shape_text(spec.shape)}, where {which} of "
            "axes 1 and 3 can be the channels (1 or 3); fix the number of channels in the model, or in Python name the "
            "layout: tna_onnx.Recipe(layout='NCHW')"
        )
    return fitting[0]


def _color(color: Color | None, spec: InputSpec, layout: Layout) -> Color:
    n_channels = spec.shape[_CHANNEL_AXIS[layout]]
    where = f"input {spec.name!r} of shape {shape_text(spec.shape)}, read as {layout},"
    if n_channels is None:
        if color is None:
            raise UsageError(f"{where} leaves the number of channels open; say which with --color RGB, BGR or L")
        return color
    if n_channels not in _DEFAULT_COLOR:
        raise DataError(f"{where} has {n_channels} channels, but images have 1 or 3; store the samples as .npz")
    if color is not None and _CHANNELS[color] != n_channels:
        raise UsageError(
            f"{where} has {n_channels} channels, but --color {color} gives {_CHANNELS[color]}; leave it out"
        )
    return color or _DEFAULT_COLOR[n_channels]


def _height_width(size: int | tuple[int, int]) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    return size


def _per_channel(flag: str, values: tuple[float, ...] | None, default: float, n_channels: int) -> tuple[float, ...]:
    if values is None:
        values = (default,)
    if len(values) not in (1, n_channels):
        channels = "1 channel"
        expected = "1 value"
        if n_channels > 1:
            channels = f"{n_channels} channels"
            expected = f"1 or {n_channels} values"
        raise UsageError(
            f"{flag} has {len(values)} values, but the input has {channels}; give {expected}, or another --preset"
        )
    if len(values) == 1:
        values = values * n_channels
    return tuple(map(_float, values))


def _float(value: float) -> float:
    """Return a number as a float: infinite, or 0, where it is so in float32, in which pixels are prepared."""
    with np.errstate(over="ignore"):  # bounded first: a whole number of hundreds of digits has no float
        single = float(np.float32(min(max(value, -1e39), 1e39)))
    if single and math.isfinite(single):
        return float(value)
    return single


def recipe_text(recipe: Mapping[str, object]) -> str:
    """Write a resolved recipe.

    >>> recipe_text({"crop": [224, 224], "mean": [0.485], "resize": None})
    'crop (224, 224), mean (0.485)'
    """
    return ", ".join(f"{key} {plain(value)}" for key, value in recipe.items() if value is not None)


def plain(value: object) -> str:
    """Write a value of a recipe, or of another setting.

    >>> plain(0.485), plain([224, 224])
    ('0.485', '(224, 224)')
    """
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(plain(v) for v in value) + ")"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)
