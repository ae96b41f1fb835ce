"""The threshold that keeps today's decisions: where a map takes the probability 1/2 of one logit, or of each label.

A rising map of the logit s takes s = 0 to one number t; one that is constant around 0 has none. Samples show which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.engine.logits import Logits
from tna_onnx.graph.readout import Readout
from tna_onnx.maps.base import CalibrationMap, apply_map
from tna_onnx.numerics.ops import sigmoid, to_host
from tna_onnx.numerics.positive import positive_scores
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline.writing import Shipped
from tna_onnx.results.report import KeptDecision

FloatArray = NDArray[np.float64]

# A float32 probability has no more digits.
_DIGITS = 8


def has_own_threshold(readout: Readout) -> bool:
    """Whether callers compare a probability with a threshold of theirs: one sigmoid, or several labels a sample."""
    return readout.multi_label or (readout.binary and not readout.paired)


@dataclass(frozen=True, eq=False)
class _Sides:
    """Largest new value of what was not predicted, and smallest of what was, (L,) each, of L labels or one class."""

    below: FloatArray
    above: FloatArray

    def __add__(self, addend: _Sides) -> _Sides:
        return _Sides(np.maximum(self.below, addend.below), np.minimum(self.above, addend.above))


def _column(logits: Any, positive: int | None) -> NDArray[Any]:
    """Return the logit of each label, (N, L), or of the positive one of two classes, (N, 1)."""
    values = to_host(logits)
    return values if positive is None else values[:, [positive]] - values[:, [1 - positive]]


def thresholds_of(
    fitted: CalibrationMap | None, old: Logits, new: Shipped, *, positive: int | None, in_logits: bool = False
) -> list[float | None]:
    """Return the value that keeps the decisions of s > 0 on all samples, for each label; None where there is none.

    There is none where the map is constant around 0. One that reads features is no map of one logit.

    `old`: logits of the input model. `new`: of the result, for the same samples. `positive`: of two classes; None for
    labels. `in_logits`: for an output that holds logits; else the values are probabilities.
    """
    sides: _Sides | None = None
    for (before, _, _), (after, _, _) in zip(old.chunks(), new.logits.chunks(), strict=True):
        s = _column(before, positive)
        mapped = _values(_column(apply_map(new.fitted, after), positive), in_logits=in_logits)
        below = np.where(s > 0, -np.inf, mapped).max(axis=0)
        above = np.where(s > 0, mapped, np.inf).min(axis=0)
        part = _Sides(below.astype(np.float64), above.astype(np.float64))
        sides = part if sides is None else sides + part
        classes = np.shape(before)[1]
    assert sides is not None  # noqa: S101 - there are samples
    middle = _values(_column(apply_map(fitted, np.zeros((1, classes))), positive), in_logits=in_logits)[0]
    return [_between(*ends) for ends in zip(middle.tolist(), sides.below, sides.above, strict=True)]


def _values(logits: NDArray[Any], *, in_logits: bool) -> NDArray[Any]:
    if in_logits:
        return logits
    return np.asarray(sigmoid(logits), logits.dtype)


def _between(middle: float, below: float, above: float) -> float | None:
    """Return a number t with below <= t < above, as it is printed: the middle, where rounding does not hide it."""
    if not below < above:
        return None
    far = middle if below <= middle < above else (below + above) / 2
    for digits in (_DIGITS, _DIGITS + 2, 17):
        text = float(f"{far:.{digits}g}")
        if below <= text < above:
            return text
    return None


def kept_decisions(
    values: Sequence[float | None], before: SampleScores, after: SampleScores, names: Sequence[str], *, in_logits: bool
) -> tuple[KeptDecision, ...]:
    """Say what happens at 1/2 to each label, or to the second class, beside the threshold that keeps decisions.

    `before`, `after`: scores of the same samples, with their labels where there are two classes.
    """
    called = names if before.predicted is not None else names[1:]
    sides = [positive_scores(scores, len(names)) for scores in (before, after)]
    found = []
    for name, value, *pair in zip(called, values, *sides, strict=True):
        found.append(
            KeptDecision(
                name,
                0.0 if in_logits else 0.5,
                value,
                *(share for scores in pair for share in recall_and_precision(scores)),
            )
        )
    return tuple(found)


def recall_and_precision(scores: SampleScores) -> tuple[float | None, float | None]:
    """Return recall and precision where the probability is above 1/2, fractions; None where there is nothing to share.

    `scores`: of one label, or of the positive class (`positive_scores`).
    """
    predicted = scores.confidence > 0.5
    right = float(np.sum(scores.weigh((predicted & scores.hit).astype(np.float64))))
    came, decided = (float(np.sum(scores.weigh(mask.astype(np.float64)))) for mask in (scores.hit, predicted))
    return right / came if came else None, right / decided if decided else None
