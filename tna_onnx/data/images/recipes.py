"""Preprocessing in the files of other libraries (timm's `config.json`, Hugging Face's `preprocessor_config.json`).

These files are followed as the library itself does when it evaluates PIL images:

- timm (`transforms_imagenet_eval`): `crop_mode` center brings the shorter side to floor(size / crop_pct), squash both
  sides; then the centre is cut out, scaled to 0..1 and normalised.
- Hugging Face: the steps that `do_resize`, `do_center_crop`, `do_rescale` and `do_normalize` switch on. Only image
  processors with just these steps are supported (`_PROCESSORS`). Where an odd number of pixels is cut off, some
  versions of that library cut half a pixel further up and left than torchvision and this package do.

A value that cannot be followed is an error, never silently ignored.

`preprocessing_notes` describes the preprocessing for reports. Wrong preprocessing raises no error: the model runs, with
a lower accuracy. So two cases are warnings:

1. Nobody has stated how a floating-point input is normalised, so pixels were scaled to 0 to 1.
2. Values are far from those of any usual preprocessing: normalised pixels lie within -3 to 3, plain ones in 0 to 255.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.choices import DEFAULT_LIMITS
from tna_onnx.data.files import parse_json, read_text
from tna_onnx.data.images.preprocess import FILTERS, MAX_SIDE, Recipe
from tna_onnx.data.source import InputSpec, Source, source_notes
from tna_onnx.errors import DataError, UsageError

if TYPE_CHECKING:
    from tna_onnx.data.choices import Interpolation, Limits

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
    """Return the preprocessing in a `config.json` of timm or a `preprocessor_config.json` of Hugging Face.

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
            if max(size) > MAX_SIDE * share:
                raise self.refusal("crop_pct", f"a share that makes images of at most {MAX_SIDE:,} pixels on each side")
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
        """Return the filter, stored as Pillow's number; a missing value depends on the version of that library."""
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
        if not isinstance(value, (list, tuple)) or not all(
            type(part) in (int, float) and math.isfinite(part) for part in value
        ):
            raise self.refusal(key, "a list of numbers, one per channel")
        return tuple(float(part) for part in value)

    def whole(self, value: object, key: str) -> int:
        """Return a number of pixels."""
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIDE:
            raise self.refusal(key, f"a positive number of pixels, at most {MAX_SIDE:,},")
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
            f"{self.path}: expected {expected} for {key!r}, found {self.config.get(key)!r:.200}; state the "
            "preprocessing with flags instead"
        )


_MAX_PIXEL = 255.0
_NORMALISED = 16.0  # normalised pixels lie within 3, and even a small --std keeps them below
_PROBED = 32  # samples: what is wrong with the scale of a data set is wrong with each of them
_MIN_SIDE = 8  # smaller ones are no images


def preprocessing_notes(source: Source, inputs: Sequence[InputSpec], stated: Recipe | str | Path | None) -> list[str]:
    """Return a source's notes, one line on the preprocessing of its images, and the warnings.

    Args:
        source: the samples.
        inputs: of the model.
        stated: how the user says that images are preprocessed.

    Raises:
        DataError: a sample cannot be read.
    """
    recipe = source.recipe()
    notes = [*source_notes(source)]
    if recipe is not None:
        notes.append(f"preprocessing: {recipe_text(recipe)}")
    return [*notes, *preprocessing_warnings(source, inputs, stated)]


def preprocessing_warnings(
    source: Source, inputs: Sequence[InputSpec], stated: Recipe | str | Path | None
) -> list[str]:
    """Return the warnings alone; see `preprocessing_notes`."""
    recipe = source.recipe()
    if recipe is None:
        return _array_warnings(source, inputs)
    if not str(recipe.get("dtype")).startswith("float"):
        return []
    if _says_nothing(stated):
        return [
            "WARNING: nothing says how the model's images are normalised, so pixels went in as 0 to 1, without mean "
            "and std; give --preset, --preprocessing or --mean and --std, or --scale 0.00392157 if this is right"
        ]
    low, high = _range(recipe)
    if max(-low, high) > _MAX_PIXEL:
        return [
            f"WARNING: preprocessing takes pixels to {low:.4g} to {high:.4g}, which no usual recipe does; --mean and "
            "--std count in scaled pixels: with --scale 1 they must be 255 times as large"
        ]
    return []


def other_scale(values: np.ndarray[Any, Any]) -> float:
    """Return by what stored images may have to be multiplied; 1 where no other scale is plausible.

    Fractions may belong to a model of pixels of 0 to 255; values beyond those of normalised pixels to one of fractions.

    >>> [other_scale(np.array(values)) for values in ([0.0, 0.98], [-2.1, 2.6], [0.0, 249.9])]
    [255.0, 1.0, 0.00392156862745098]
    """
    low = float(values.min())
    high = float(values.max())
    if max(-low, high) > _NORMALISED:
        return 1 / _MAX_PIXEL
    return _MAX_PIXEL if low >= 0 and 0 < high <= 1 else 1.0


def recipe_text(recipe: Mapping[str, object]) -> str:
    """Write a resolved recipe.

    >>> recipe_text({"crop": [224, 224], "mean": [0.485], "resize": None})
    'crop (224, 224), mean (0.485)'
    """
    return ", ".join(f"{key} {_plain(value)}" for key, value in recipe.items() if value is not None)


def _says_nothing(stated: Recipe | str | Path | None) -> bool:
    if isinstance(stated, (str, Path)):
        return False
    return stated is None or (stated.mean, stated.std, stated.scale) == (None, None, None)


def _range(recipe: Mapping[str, Any]) -> tuple[float, float]:
    """Return what pixels of 0 and 255 become, over all channels."""
    ends = np.array([[0.0], [_MAX_PIXEL]]) * recipe["scale"]
    values = (ends - np.array(recipe["mean"])) / np.array(recipe["std"])
    return float(values.min()), float(values.max())


def _array_warnings(source: Source, inputs: Sequence[InputSpec]) -> list[str]:
    """Return a warning about the values of the first stored samples, for inputs that take images."""
    images = [spec.name for spec in inputs if takes_images(spec)]
    if not images or not len(source):
        return []
    rows = np.arange(min(_PROBED, len(source)))
    batch = next(iter(source.batches(len(rows), rows)))
    return [warning for name in images if (warning := _value_warnings(name, batch[name]))]


def takes_images(spec: InputSpec) -> bool:
    """Tell whether an input takes images of floats."""
    if spec.dtype.kind != "f" or len(spec.shape) != 4:
        return False
    sides = {1: spec.shape[2:], 3: spec.shape[1:3]}
    return any(
        spec.shape[axis] in (1, 3) and all(side is None or side >= _MIN_SIDE for side in sides[axis]) for axis in sides
    )


def _value_warnings(name: str, values: np.ndarray[Any, Any]) -> str:
    low = float(values.min())
    high = float(values.max())
    if max(-low, high) > _MAX_PIXEL:
        return (
            f"WARNING: {name!r} has values from {low:.4g} to {high:.4g}, which no usual preprocessing of images gives; "
            "store the samples as the model was trained on them"
        )
    if low >= 0 and high > _NORMALISED and np.array_equal(values, np.trunc(values)):
        return (
            f"{name!r} holds whole numbers from {low:g} to {high:g}, like pixels that nothing has normalised; this is "
            "right only for a model that does so by itself"
        )
    return ""


def _plain(value: object) -> str:
    """Write a value of the recipe: 0.485, (224, 224)."""
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(_plain(v) for v in value) + ")"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)
