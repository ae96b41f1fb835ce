"""What a calibration map is. Its laws, which one test runs over every map:

1. softmax(forward(...)) is the calibrated distribution, so that a Softmax, LogSoftmax or ArgMax behind a map keeps
   working. For several labels a sample (`for_labels`) it is the sigmoid of each logit.
2. `fit` needs the data only through `reduce`: the fit of chunks is the fit of the whole.
3. `forward` is written in the words of `numerics.ops` alone: NumPy, torch and ONNX nodes run the same formula.
4. A map that says `keeps_order` never changes which class comes first; of several labels, which are above 1/2.
5. A map that says `foldable` has a `folded()`: weight and bias changed by it give what `forward` gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.numerics.ops import ArrayOps, Ops, joined_labels

FloatArray = NDArray[np.float64]

Found = TypeVar("Found")


class Reduce(Protocol):
    """Reduce over chunks of samples, in order."""

    def __call__(self, of: Any, *aligned: NDArray[Any]) -> Any:
        """Return the sum over chunks of of(logits, labels, features, *slices).

        Logits are (B, C), labels (B,), features (B, n), or None for a map that says it needs none; `aligned` are arrays
        of all N samples, cut like the chunks.
        """


@dataclass(frozen=True, eq=False)
class Folding:
    """What a map does to weight and bias in place of nodes of its own: W' = A W + D, b' = A b + c."""

    scale: float | FloatArray  # A: a number, (C,) for a diagonal matrix, or a (C, C) matrix
    shift: FloatArray | None = None  # (C,) c; None for zeros
    delta: FloatArray | None = None  # (C, n) D; None for zeros

    @property
    def factor(self) -> float | None:
        """The number that weight and bias are multiplied by, where that is all."""
        if self.shift is None and self.delta is None and np.ndim(self.scale) == 0:
            return float(self.scale)
        return None

    def weight(self, weight: NDArray[Any]) -> NDArray[Any]:
        """Return W' in the dtype of W, (C, n)."""
        turned = self._times(weight)
        if self.delta is not None:
            turned = turned + np.asarray(self.delta, weight.dtype)
        return turned

    def bias(self, bias: NDArray[Any]) -> NDArray[Any]:
        """Return b' in the dtype of b, (C,)."""
        moved = self._times(bias)
        if self.shift is not None:
            moved = moved + np.asarray(self.shift, bias.dtype)
        return moved

    def _times(self, value: NDArray[Any]) -> NDArray[Any]:
        # in the value's own dtype: float64 would round twice
        scale = np.asarray(self.scale, value.dtype)
        if scale.ndim == 2:
            product: NDArray[Any] = scale @ value
            return product
        if scale.ndim == 1 and value.ndim == 2:
            scale = scale[:, None]
        scaled: NDArray[Any] = value * scale
        return scaled


class CalibrationMap(Protocol):
    """A fitted map, a frozen value; its class says what there is to know before a fit. Maps derive from this class."""

    name: ClassVar[str]
    """Its name in `MAPS`."""

    title: ClassVar[str] = ""
    """What it fits, in a few words for reports; its name by default."""

    rank: ClassVar[int]
    """Its place among the maps, from the simplest on; of two that do equally well, the smaller rank is chosen."""

    positive: ClassVar[str] = ""
    """Its field that is above 0: a number, or numbers."""

    keeps_order: ClassVar[bool] = False
    """Whether it never changes which class comes first, or which labels are predicted."""

    foldable: ClassVar[bool] = False
    """Whether it can go into the weight and bias of a linear head."""

    scales: ClassVar[bool] = False
    """Whether it multiplies all logits by one positive number, which passes whatever keeps ratios."""

    needs_features: ClassVar[bool] = False
    """Whether the formula reads the features."""

    binary: ClassVar[bool] = False
    """Whether it is for two classes only."""

    for_classes: ClassVar[bool] = True
    """Whether it is for models that give one class a sample."""

    for_labels: ClassVar[bool] = False
    """Whether it is for models that give several labels a sample, each with a sigmoid of its own."""

    soft: ClassVar[bool] = False
    """Whether a fit takes probabilities in place of labels (`numerics.ops.SoftLabels`)."""

    weighted: ClassVar[bool] = False
    """Whether a fit multiplies by the weights of samples (`numerics.ops.WeightedLabels`)."""

    few_parameters: ClassVar[bool] = False
    """Whether it fits one number a class at most, so that the samples of the fit look hardly better than others."""

    wide_range: ClassVar[bool] = False
    """Whether its formula has numbers that are too small for float16."""

    starts_anywhere: ClassVar[bool] = False
    """Whether `start` decides how long a fit takes and, within the tolerance of the fit, nothing else."""

    on_tilted: ClassVar[bool] = False
    """Whether `auto` also fits it to logits of a tilted weight."""

    max_classes_of_auto: ClassVar[int | None] = None
    """Most classes for which `auto` looks at it; None for any number."""

    platt_of_two: ClassVar[bool] = False
    """Whether it is the function of Platt scaling for two classes, which `auto` fits once."""

    options: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Keyword options of `fit` besides `start`: name -> words that it may be, the default first; () for a value."""

    # A map with a path of fits, from the simplest on, also has `strengths`, a ClassVar with a number for each, and
    # `fit_path(reduce)`, which yields them in this order while it is asked for more (see `maps.refit`).

    def __post_init__(self) -> None:
        """Refuse numbers that are not finite, or not positive; a map that has a range refuses what is outside, too.

        Raises:
            DataError: no fit gives these numbers.
        """
        self.require_finite(*vars(self))
        if self.positive and np.any(np.asarray(getattr(self, self.positive)) <= 0):
            value = getattr(self, self.positive)
            raise DataError(f"{self.name}: expected {self.positive} above 0, got {value}; use another map")

    def require_finite(self, *names: str) -> None:
        """Refuse fields with numbers that are not finite; for `__post_init__`.

        NaN in an array or a tuple stands for numbers that only a file has (`pipeline.record`).
        """
        for name in names:
            value = getattr(self, name)
            if (isinstance(value, float) and math.isnan(value)) or not _all_finite(value):
                raise DataError(f"{self.name}: {name} is not finite; use another map")

    @property
    def brief(self) -> dict[str, Any]:
        """What a reader wants to know of the parameters, JSON-able."""

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:
        """Return calibrated logits (N, C), written in the words of `op`."""

    def folded(self) -> Folding | None:
        """Return what the map does to weight and bias; None if it needs nodes of its own."""
        return None

    def simpler(self) -> CalibrationMap | None:
        """Return a simpler map with the same values for all logits, where the fit came to one; else None."""
        return None

    @classmethod
    def fit(cls, reduce: Reduce, *, start: Any = None) -> CalibrationMap:
        """Return the map that fits the samples best.

        A map that declares `options` takes these as keywords too.

        `start`: a map of the same class, of which a part may be tried first or taken over.
        """


def without_features(reduce: Reduce) -> Reduce:
    """Return the same sums for functions that read no features: those of chosen samples need not be gathered then."""
    bare: Reduce = getattr(reduce, "bare", reduce)
    return bare


def common(reduce: Reduce, find: Callable[..., Found], *start: Any) -> Found:
    """Return find(reduce, *start), which fits of several maps to the same samples look for once.

    `start`: where `find` begins, which changes nothing but how long it takes.
    """
    cache: dict[Any, Any] = getattr(reduce, "cache", {})
    if find not in cache:
        cache[find] = find(reduce, *start)
    result: Found = cache[find]
    return result


def apply_map(fitted: CalibrationMap | None, logits: Any, features: Any = None) -> Any:
    """Run a map on arrays, (N, C) -> (N, C); None is the identity."""
    if fitted is None:
        return logits
    # the same lines as write the nodes: law 3
    return fitted.forward(ArrayOps(logits), logits, features)


def _all_finite(value: Any) -> bool:
    """Whether no number, or one in an array or in tuples of them, is infinite; tuples hold neither texts nor None."""
    if isinstance(value, tuple):
        return all(item is not None and not isinstance(item, str) and _all_finite(item) for item in value)
    if isinstance(value, np.ndarray):
        return not np.isinf(value).any()
    return not (isinstance(value, float) and math.isinf(value))


@dataclass(frozen=True, eq=False)
class SampleColumns:
    """Columns with a row for each sample, in parts, for fits that need all samples together; `+` joins two chunks."""

    parts: tuple[tuple[Any, ...], ...]

    @classmethod
    def of(cls, *columns: Any) -> SampleColumns:
        """Return the columns of one chunk: arrays, or labels of any kind."""
        return cls((columns,))

    def __add__(self, addend: SampleColumns) -> SampleColumns:
        return SampleColumns(self.parts + addend.parts)

    @property
    def columns(self) -> tuple[Any, ...]:
        """The columns of all samples."""
        return tuple(map(joined_labels, zip(*self.parts, strict=True)))


MAX_LISTED = 20
"""Most classes that are listed one by one."""


def listed_classes(name: str, classes: Sequence[int]) -> dict[str, Any]:
    """Return some classes under a name: how many, where they are many; nothing for none."""
    if len(classes) > MAX_LISTED:
        return {name: len(classes)}
    if classes:
        return {name: list(classes)}
    return {}


def per_class(name: str, values: NDArray[np.float64]) -> dict[str, Any]:
    """Return the fields that describe (C,) values under a name.

    >>> per_class("bias", np.array([0.5, -0.25]))
    {'bias': [0.5, -0.25]}
    >>> per_class("bias", np.eye(30)[7] * -2)
    {'bias_norm': 2.0, 'bias_largest': -2.0, 'bias_largest_class': 7}
    """
    if len(values) <= MAX_LISTED:
        return {name: values.tolist()}
    largest = int(np.abs(values).argmax())
    return {
        f"{name}_norm": float(np.linalg.norm(values)),
        f"{name}_largest": float(values[largest]),
        f"{name}_largest_class": largest,
    }
