"""Clamp: any map, with every prediction kept: the class that the input puts first is raised just above the others.

With s the logits, n = map(s) - max map(s), i the first class of the largest s, and d = 1e-3 (1e-2 in float16):

    s'_i = clip(max over j != i of n_j, + d, 0, d)        s'_j = n_j for the others

Two classes and several labels keep their side of 1/2, and their order; with both centred (labels are as they are),

    s' = max(n, d s) where s > 0        s' = min(n, d s) where s < 0        0 where s = 0
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tna_onnx.maps import CLAMPED
from tna_onnx.maps.base import CalibrationMap, Reduce
from tna_onnx.numerics.ops import Ops

# Numbers of classes are exact in float16 up to twice as many.
_MOST_IN_FLOAT16 = 1000


@dataclass(frozen=True, eq=False)
class Clamped(CalibrationMap):
    """A map whose predictions are the input's; `clamped_class` gives the class for a map."""

    inner: CalibrationMap  # what the others get
    classes: int  # C; 0 for several labels a sample

    keeps_order: ClassVar[bool] = True
    of: ClassVar[type[CalibrationMap]]
    """The class of `inner`."""

    @property
    def brief(self) -> dict[str, Any]:
        """What there is to know of the map."""
        return self.inner.brief

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:
        """Return the logits of the map with the prediction of `logits`."""
        new = self.inner.forward(op, logits, features)
        if self.classes > 2:
            return self._first_kept(op, new, logits)
        if self.classes:
            new, logits = (_less(op, values, op.mean(values)) for values in (new, logits))
        return _side_kept(op, new, logits)

    def near_ties(self, logits: NDArray[np.float64], moved: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which rows of (N, C) logits may have another prediction, (N,): `moved`, (N, 1) or (N, C), at most."""
        if not self.classes:
            return np.asarray(np.any(np.abs(logits) <= moved, axis=1))
        rows, first = np.arange(len(logits)), logits.argmax(axis=1)
        lowest, highest = logits - moved, logits + moved
        highest[rows, first] = -np.inf
        return np.asarray(lowest[rows, first] <= highest.max(axis=1))

    def _first_kept(self, op: Ops, new: Any, old: Any) -> Any:
        first = self._first(op, old)
        new = _less(op, new, _max(op, new))
        not_first = op.add(op.mul(first, op.const(-1)), op.const(1))
        lower = op.mul(new, not_first)
        # the first one has the least value there, so that the largest is another's
        rest = _max(op, op.add(lower, op.mul(op.min(new), first)))
        distance = distance_of(op.tiny)
        return op.add(lower, op.mul(op.clip(op.add(rest, op.const(distance)), 0.0, distance), first))

    def _first(self, op: Ops, old: Any) -> Any:
        """Return 1 for the class that comes first, of equal ones the one with the lowest number, and 0 for others."""
        below = _step(op, _less(op, old, _max(op, old)))  # 0 for the largest, -1 for others
        place = op.add(op.mul(below, op.const(self.classes)), op.const(-np.arange(self.classes)))
        return op.clip(op.add(_less(op, place, _max(op, place)), op.const(1)), 0.0, 1.0)

    @classmethod
    def fit(cls, reduce: Reduce, *, start: Any = None, **options: Any) -> Clamped:
        """Fit the map, with its options."""
        inner = cls.of.fit(reduce, start=start.inner if start is not None else None, **options)
        return cls(inner, _classes(reduce))

    @classmethod
    def fit_path(cls, reduce: Reduce) -> Iterator[Clamped]:
        """Yield the fits along the path of a map that has one."""
        path: Any = cls.of
        classes = _classes(reduce)
        return (cls(inner, classes) for inner in path.fit_path(reduce))


def distance_of(tiny: float) -> float:
    """Return d, by the smallest normal number of the dtype."""
    return 1e-2 if tiny > 1e-6 else 1e-3


def can_clamp(classes: int, dtype: str) -> bool:
    """Whether so many classes can be told apart in the dtype of the logits."""
    return dtype != "float16" or classes <= _MOST_IN_FLOAT16


@functools.cache
def clamped_class(of: type[CalibrationMap]) -> type[Clamped]:
    """Return the class of a map that keeps predictions."""
    same = ("needs_features", "binary", "for_classes", "for_labels", "soft", "weighted", "few_parameters",
            "wide_range", "starts_anywhere", "max_classes_of_auto", "platt_of_two", "options")  # fmt: skip
    facts = {name: getattr(of, name) for name in same}
    if hasattr(of, "strengths"):
        facts["strengths"] = of.strengths
    # behind all that fold or keep predictions by themselves: of equals, those are simpler
    changed = {"of": of, "name": CLAMPED + of.name, "rank": 1000 + of.rank}
    title = f"{of.title or of.name}, predictions kept"
    return type(f"Clamped{of.__name__}", (Clamped,), {**facts, **changed, "title": title, "__module__": __name__})


def clamped_fit(fitted: CalibrationMap, classes: int) -> Clamped:
    """Return a fitted map with predictions kept; `classes` as in `Clamped`."""
    return clamped_class(type(fitted))(fitted, classes)


def _classes(reduce: Reduce) -> int:
    columns, multi_label, count = reduce(_shape)
    return 0 if multi_label else int(columns // count)


def _shape(logits: Any, labels: Any, *_: Any) -> NDArray[np.int64]:
    count, columns = logits.shape
    return np.array([count * columns, count * (labels.ndim == 2), count])


def _less(op: Ops, a: Any, b: Any) -> Any:
    return op.add(a, op.mul(b, op.const(-1)))


def _max(op: Ops, a: Any) -> Any:
    return op.mul(op.min(op.mul(a, op.const(-1))), op.const(-1))


def _step(op: Ops, a: Any) -> Any:
    """Return -1 where a number is negative, and 0 elsewhere; however small it is, and without an infinite number."""
    large = op.const(1 / op.tiny)
    for _ in range(2):
        a = op.mul(op.clip(a, -1.0, 0.0), large)
    return op.clip(a, -1.0, 0.0)


def _side_kept(op: Ops, new: Any, old: Any) -> Any:
    """Return values on the side of 0 that the old ones are on, in the order of both."""
    least = op.mul(old, op.const(distance_of(op.tiny)))
    beyond, largest = _less(op, new, least), 1 / op.tiny
    up = op.mul(_step(op, op.mul(old, op.const(-1))), op.clip(beyond, 0.0, largest))
    down = op.mul(_step(op, old), op.clip(beyond, -largest, 0.0))
    return _less(op, least, op.add(up, down))
