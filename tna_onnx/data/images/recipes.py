"""Preprocessing as other libraries write it down: timm's `config.json`, Hugging Face's `preprocessor_config.json`.

What is read is what the library does when it evaluates on PIL images:

- timm (`transforms_imagenet_eval`): `crop_mode` center brings the shorter side to floor(size / crop_pct), squash both
  sides; then the centre is cut out, scaled to 0..1 and normalised.
- Hugging Face: the steps that `do_resize`, `do_center_crop`, `do_rescale` and `do_normalize` switch on. Only image
  processors that do just these steps are known (`_PROCESSORS`). Where an odd number of pixels is cut off, some versions
  of that library cut half a pixel further up and left than torchvision and this package do.

A value that cannot be followed is an error, never left out in silence.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tna_onnx.data.files import read_text
from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.data.images.transform import FILTERS
from tna_onnx.data.limits import DEFAULT_LIMITS
from tna_onnx.data.parsing import parse_json
from tna_onnx.errors import DataError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from tna_onnx.data.images.choices import Interpolation
    from tna_onnx.data.limits import Limits

__all__ = ["read_recipe"]

# timm: `resolve_data_config`, for what a configuration leaves out.
_TIMM_DEFAULTS: dict[str, Any] = {
    "interpolation": "bicubic",
    "crop_pct": 0.875,
    "crop_mode": "center",
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
}

# Image processor -> what a bare number under `size` means, the shorter side or both sides; whether it cuts by default.
_PROCESSORS: dict[str, tuple[str, bool]] = {
    "ViT": ("both", False),
    "DeiT": ("both", True),
    "Beit": ("both", False),
    "Siglip": ("shorter", False),
    "CLIP": ("shorter", True),
    "ConvNext": ("shorter", False),
    "Bit": ("shorter", True),
    "MobileNetV1": ("shorter", True),
    "MobileNetV2": ("shorter", True),
    "MobileViT": ("shorter", True),
}
_ENDINGS = ("ImageProcessorFast", "ImageProcessorPil", "ImageProcessor", "FeatureExtractor")
_CONVNEXT_WARPS = 384  # from this side on, ConvNextImageProcessor resizes both sides and cuts nothing

_FOLLOWED = {
    "do_resize", "size", "resample", "do_center_crop", "crop_size", "crop_pct", "do_rescale", "rescale_factor",
    "do_normalize", "image_mean", "image_std", "do_flip_channel_order",
}  # fmt: skip
# Say nothing about pixels: images are always RGB here, and read by this package.
_IGNORED = {
    "image_processor_type", "feature_extractor_type", "processor_class", "do_convert_rgb", "data_format",
    "input_data_format", "return_tensors", "device", "disable_grouping", "default_to_square", "_processor_class",
    "_valid_processor_keys",
}  # fmt: skip


def read_recipe(path: Path, limits: Limits = DEFAULT_LIMITS) -> Recipe:
    """Return the preprocessing that a `config.json` of timm or a `preprocessor_config.json` of Hugging Face describes.

    Raises:
        UsageError: there is no such file.
        DataError: it cannot be read, is neither of the two, or asks for something that this package does not do.
    """
    if not path.is_file():
        raise UsageError(f"{path}: no such file; give timm's config.json or Hugging Face's preprocessor_config.json")
    config = parse_json(read_text(path, limits, "utf-8"), str(path), "download it again")
    # Older files of timm have the values at the top, newer ones under a key beside the architecture.
    if isinstance(config, dict):
        inner = config.get("pretrained_cfg", config)
        if isinstance(inner, dict) and "input_size" in inner:
            return _Reader(path, _TIMM_DEFAULTS | {k: v for k, v in inner.items() if v is not None}).timm()
        if any(key.startswith("do_") or key in ("image_mean", "image_processor_type") for key in config):
            return _Reader(path, config).hugging_face()
    raise DataError(
        f"{path}: expected timm's config.json (with 'input_size', at the top or under 'pretrained_cfg') or Hugging "
        "Face's preprocessor_config.json (with 'do_resize', 'image_mean', ...); state the preprocessing with flags "
        "instead"
    )


class _Reader:
    """Takes values out of one configuration, with errors that name file and key."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path = path
        self.config = config

    def timm(self) -> Recipe:
        """Follow `transforms_imagenet_eval`."""
        shape = self.config.get("input_size")
        if not isinstance(shape, (list, tuple)) or len(shape) != 3 or shape[0] not in (1, 3):
            raise self.refusal("input_size", "channels (1 or 3), height and width")
        size = (self.whole(shape[1], "input_size"), self.whole(shape[2], "input_size"))
        share = self.number("crop_pct")
        mode = self.config["crop_mode"]
        interpolation = self.config["interpolation"]
        if not isinstance(interpolation, str) or interpolation not in FILTERS:
            raise self.refusal("interpolation", f"one of {', '.join(FILTERS)}")
        if not 0 < share <= 1:
            raise self.refusal("crop_pct", "a number above 0 and at most 1")
        common: dict[str, Any] = {
            "crop": size,
            "mean": self.numbers("mean"),
            "std": self.numbers("std"),
            "interpolation": interpolation,
            "scale": 1 / 255,
        }
        if mode == "squash":
            return Recipe(resize=(math.floor(size[0] / share), math.floor(size[1] / share)), **common)
        if mode != "center" or size[0] != size[1]:
            raise self.refusal("crop_mode", "squash, or center with a square input_size")
        return Recipe(crop_pct=share, **common)

    def hugging_face(self) -> Recipe:
        """Follow the processor's `preprocess`."""
        kind = self.processor()
        unknown = [k for k, v in self.config.items() if k not in _FOLLOWED | _IGNORED and v not in (None, False)]
        if unknown:
            raise self.unsupported(unknown[0], "this package does not know what it does")
        resize, crop, share = self.sizes(kind)
        mean = std = None
        # MobileViTImageProcessor takes BGR and never normalises.
        if kind == "MobileViT" and self.config.get("do_normalize"):
            raise self.unsupported("do_normalize", f"{kind} does not normalise")
        if kind != "MobileViT" and self.on("do_normalize"):
            mean = self.numbers("image_mean")
            std = self.numbers("image_std")
        flip = self.config.get("do_flip_channel_order", kind == "MobileViT")
        return Recipe(
            resize=resize,
            crop=crop,
            crop_pct=share,
            scale=self.number("rescale_factor", 1 / 255) if self.on("do_rescale") else 1.0,
            mean=mean,
            std=std,
            color="BGR" if flip else "RGB",
            # Without resizing the filter is not used, and need not be known.
            interpolation=self.resample() if self.on("do_resize") else "bilinear",
        )

    def processor(self) -> str:
        """Return the name of the image processor without its ending."""
        name = str(self.config.get("image_processor_type") or self.config.get("feature_extractor_type"))
        kind = next((name.removesuffix(ending) for ending in _ENDINGS if name.endswith(ending)), name)
        if kind not in _PROCESSORS:
            raise DataError(
                f"{self.path}: image processor {name!r} is not known; expected one of {', '.join(_PROCESSORS)}. State "
                "the preprocessing with flags instead"
            )
        return kind

    def sizes(self, kind: str) -> tuple[int | tuple[int, int] | None, tuple[int, int] | None, float | None]:
        """Return resize, crop and crop_pct."""
        bare, cuts = _PROCESSORS[kind]
        resize: int | tuple[int, int] | None = None
        if self.on("do_resize"):
            resize = self.size("size", bare)
        if kind == "ConvNext":
            if not isinstance(resize, int):
                raise self.refusal("size", 'do_resize and {"shortest_edge": pixels}')
            if resize >= _CONVNEXT_WARPS:
                return (resize, resize), None, None
            return None, (resize, resize), self.number("crop_pct")
        if self.config.get("crop_pct") is not None:
            raise self.unsupported("crop_pct", f"{kind} does not read it")
        if not self.on("do_center_crop", default=cuts):
            return resize, None, None
        crop = self.size("crop_size", "both")
        if isinstance(crop, int):  # {"shortest_edge": pixels} does not say what is cut
            raise self.refusal("crop_size", "a number, or height and width")
        return resize, crop, None

    def size(self, key: str, bare: str) -> int | tuple[int, int]:
        """Return the shorter side, or (height, width)."""
        value = self.config.get(key)
        if isinstance(value, dict) and set(value) == {"shortest_edge"}:
            return self.whole(value["shortest_edge"], key)
        if isinstance(value, dict) and set(value) == {"height", "width"}:
            return self.whole(value["height"], key), self.whole(value["width"], key)
        if isinstance(value, (list, tuple)) and len(value) == 2:
            return self.whole(value[1], key), self.whole(value[0], key)  # legacy: (width, height)
        side = self.whole(value, key)
        if bare == "shorter":
            return side
        return side, side

    def resample(self) -> Interpolation:
        """Return the filter, whose number is Pillow's; what is not said depends on the version of that library."""
        value = self.config.get("resample")
        for name, number in FILTERS.items():
            if value == number:
                return name
        raise self.refusal("resample", f"one of {', '.join(f'{number} ({name})' for name, number in FILTERS.items())}")

    def on(self, key: str, *, default: bool = True) -> bool:
        """Return a switch."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refusal(key, "true or false")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number."""
        value = self.config.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.refusal(key, "a number")
        return float(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return one number per channel."""
        value = self.config.get(key)
        if not isinstance(value, (list, tuple)) or not all(type(part) in (int, float) for part in value):
            raise self.refusal(key, "a list of numbers, one per channel")
        return tuple(float(part) for part in value)

    def whole(self, value: object, key: str) -> int:
        """Return a number of pixels."""
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.refusal(key, "a positive number of pixels")
        return value

    def unsupported(self, key: str, reason: str) -> DataError:
        """Return the error on a key that should not be there."""
        return DataError(
            f"{self.path}: expected no {key!r}, found {self.config.get(key)!r}: {reason}; state the preprocessing with "
            "flags instead"
        )

    def refusal(self, key: str, expected: str) -> DataError:
        """Return the error on the value of `key`."""
        return DataError(
            f"{self.path}: expected {expected} for {key!r}, found {self.config.get(key)!r}; state the preprocessing "
            "with flags instead"
        )
