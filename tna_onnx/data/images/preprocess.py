"""How images become model inputs, as the user states it, and the choices that follow from the model.

A `Recipe` says as much as the user wants to say; `Recipe.resolve` fills in what the model's input settles (layout,
number of channels, dtype) and refuses what it leaves open or contradicts. `transform` does the work on pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from tna_onnx.data.images.choices import PRESET_FIELDS, Color, Interpolation, Layout
from tna_onnx.data.images.transform import ResolvedRecipe
from tna_onnx.data.source import shape_text
from tna_onnx.errors import DataError, UsageError

if TYPE_CHECKING:
    from tna_onnx.data.source import InputSpec

__all__ = ["PRESETS", "Recipe", "ResolvedRecipe"]

_CHANNELS: dict[Color, int] = {"RGB": 3, "BGR": 3, "L": 1}
_DEFAULT_COLOR: dict[int, Color] = {3: "RGB", 1: "L"}
_CHANNEL_AXIS: dict[Layout, int] = {"NCHW": 1, "NHWC": 3}
_HEIGHT_AXIS: dict[Layout, int] = {"NCHW": 2, "NHWC": 1}  # the width is the next axis


@dataclass(frozen=True)
class Recipe:
    """Preprocessing of images; the steps and their order are those of `tna_onnx.data.images.transform`.

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
        interpolation: filter for resizing.
    """

    resize: int | tuple[int, int] | None = None
    crop: int | tuple[int, int] | None = None
    crop_pct: float | None = None
    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    layout: Layout | None = None
    color: Color | None = None
    interpolation: Interpolation = "bilinear"

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
        self._check_choices()
        self._check_sizes()
        _check_input(spec)
        layout = self.layout or _layout(spec)
        color = _color(self.color, spec, layout)
        scale, mean, std = self._normalisation(spec, _CHANNELS[color])
        axis = _HEIGHT_AXIS[layout]
        height, width = spec.shape[axis : axis + 2]
        resize, crop = self._sizes(spec, height, width)
        return ResolvedRecipe(
            resize, crop, scale, mean, std, layout, color, self.interpolation, height, width, spec.dtype
        )

    def override(self, **fields: Any) -> Recipe:
        """Return the recipe with `fields` in place of its own; of `resize` and `crop_pct`, one displaces the other.

        >>> PRESETS["clip"].override(resize=256).crop_pct is None
        True
        """
        if fields.get("resize") is not None:  # None stands for a flag that was not given
            fields.setdefault("crop_pct", None)
        elif fields.get("crop_pct") is not None:
            fields.setdefault("resize", None)
        return replace(self, **fields)

    def _check_choices(self) -> None:
        for flag, value, choices in [
            ("--layout", self.layout, (None, *get_args(Layout))),
            ("--color", self.color, (None, *get_args(Color))),
            ("--interpolation", self.interpolation, get_args(Interpolation)),
        ]:
            if value not in choices:
                known = ", ".join(choice for choice in choices if choice)
                raise UsageError(f"{flag} must be one of {known}, got {value!r}")

    def _check_sizes(self) -> None:
        for flag, size in [("--resize", self.resize), ("--crop", self.crop)]:
            if size is not None and min(_height_width(size)) < 1:
                raise UsageError(f"{flag} must be at least 1 pixel on each side, got {size}")

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
            raise UsageError(f"--crop-pct must be above 0 and at most 1, got {self.crop_pct}")
        if self.resize is not None:
            raise UsageError("--resize and --crop-pct both say to what size images are brought; leave one out")
        sides = crop or (height, width)
        if sides[0] is None or sides[1] is None or sides[0] != sides[1]:
            raise UsageError(
                f"--crop-pct needs the side of a square crop, but input {spec.name!r} has shape "
                f"{shape_text(spec.shape)} and --crop is {self.crop}; give --crop SIDE, or --resize and --crop"
            )
        return math.floor(sides[0] / self.crop_pct), (sides[0], sides[0])

    def _normalisation(self, spec: InputSpec, n_channels: int) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
        """Return scale, and mean and std per channel."""
        is_float = spec.dtype.kind == "f"
        scale = self.scale
        if scale is None:
            scale = 1 / 255 if is_float else 1.0
        mean = _per_channel("--mean", self.mean, 0.0, n_channels)
        std = _per_channel("--std", self.std, 1.0, n_channels)
        if not (math.isfinite(scale) and scale != 0):
            raise UsageError(f"--scale must be a finite number other than 0, got {scale}")
        if not all(map(math.isfinite, mean)):
            raise UsageError(f"--mean must be finite, got {self.mean}")
        if not all(math.isfinite(value) and value > 0 for value in std):
            raise UsageError(f"--std must be finite and above 0, got {self.std}")
        # An input of half precision overflows at 65504, which pixels of 255 reach with a small --std.
        if is_float:
            _check_overflow(spec, scale, mean, std)
        elif (scale, set(mean), set(std)) != (1.0, {0.0}, {1.0}):
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
            "axes 1 and 3 can be the channels (1 or 3); say which with --layout NCHW or --layout NHWC"
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
        raise DataError(
            f"{where} has {n_channels} channels, but images have 1 or 3; correct --layout, or store the samples as .npz"
        )
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
    return tuple(map(float, values))


def _check_overflow(spec: InputSpec, scale: float, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """Refuse what would turn pixels into infinity or NaN."""
    # The map is affine, so what it does to 0 and 255 bounds what it does to the pixels between.
    with np.errstate(all="ignore"):  # overflow is tested for below
        ends = np.array([[0], [255]], np.float32) * np.float32(scale)
        ends = ((ends - np.array(mean, np.float32)) / np.array(std, np.float32)).astype(spec.dtype)
    if not np.isfinite(ends).all():
        raise UsageError(
            f"--scale {scale:g}, --mean {mean} and --std {std} take pixels of 0 and 255 to {ends.tolist()}, which "
            f"input {spec.name!r} ({spec.dtype}) cannot hold; correct them, they are for pixels of 0 to 255"
        )
