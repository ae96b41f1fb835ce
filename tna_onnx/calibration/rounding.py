"""How far rounding may move a probability: the bound of the check of a written file."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.calibration.task import Task
from tna_onnx.graph.floats import epsilon
from tna_onnx.maps.base import CalibrationMap, apply_map
from tna_onnx.numerics.ops import softmax

__all__ = ["magnified", "rounding_of"]


# Sign patterns of rounding tried in the bound.
_DRAWS = 4


def rounding_of(task: Task, features: NDArray[Any], logits: NDArray[Any]) -> tuple[NDArray[np.float64], float]:
    """Return how far rounding may move the logits of each sample, (R, 1), and a feature, relatively."""
    head, readout = task.head, task.readout
    eps = max(epsilon(readout.logits_type), epsilon(head.stored_weight.value.dtype.name) if head else 0.0)
    if head is None:
        size = np.abs(logits)
    elif task.probed.tail is None:
        size = _sum_size(features, head.weight.astype(np.float64), head.bias.astype(np.float64), eps)
    else:
        length = np.linalg.norm(features.reshape(len(features), -1), axis=1, keepdims=True)
        size = length * np.linalg.norm(head.weight.astype(np.float64), axis=1) + np.abs(head.bias)
    step = head.step if head else 0.0
    return 16 * eps * np.max(size, axis=1, keepdims=True) + step, 16 * eps


def _sum_size(
    features: NDArray[Any], weight: NDArray[np.float64], bias: NDArray[np.float64], eps: float
) -> NDArray[np.float64]:
    """Return the size of sums whose rounding counts: of all terms; where eps is coarse, as for signs at random."""
    if eps < 1e-4:
        return np.asarray(np.abs(features) @ np.abs(weight.T) + np.abs(bias))
    squares = np.sqrt(features**2 @ (weight**2).T + bias**2)
    return np.asarray((squares + np.abs(features @ weight.T + bias)) / 2)


def magnified(
    fitted: CalibrationMap, logits: NDArray[Any], features: NDArray[Any], rounding: NDArray[Any], relative: float
) -> NDArray[np.float64]:
    """Largest change of a probability per sample when logits and features are off by a rounding of random sign."""
    draws, exact = np.random.default_rng(0), softmax(apply_map(fitted, logits, features))
    largest = np.zeros(len(logits))
    for _ in range(_DRAWS):
        s = logits + rounding * draws.choice([-1.0, 1.0], logits.shape)
        z = features * (1 + relative * draws.choice([-1.0, 1.0], features.shape))
        largest = np.maximum(largest, np.max(np.abs(softmax(apply_map(fitted, s, z)) - exact), axis=1))
    return largest
