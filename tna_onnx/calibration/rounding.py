"""How far rounding may move a probability: the bound in the check of a written file.

Rounding moves a logit of sample i by at most k eps a_i, with a_i = max_c sum_f |z_if||w_cf| + |b_c| and k = 16 for the
order of summation, and a softmax moves by at most half of what its logits move. So

    |p - p'| <= 8 eps a_i + 1e-6

1. A map behind the logits can magnify that (isotonic functions have steps), and rounds in its own steps: four times
   what such a rounding of logits and features, with random signs, does to its formula in the graph's dtype is added.
2. Where only the graph computes the logits, a_i = |z_i| max_c |w_c| + |b_c| over all positions.
3. A step of the quantisation after the linear layer is added, if there is one; one of the output's, too, and what a
   Clip or a constant behind the probabilities changes.
4. A feature that is quantised may fall on the other side of a step where the runtime fuses other nodes. Each of the n
   features by a step d, with random signs, moves a logit by d |w_c|: that is added to what a logit moves.
5. The bound is never above 0.05.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tna_onnx.calibration.task import Task
from tna_onnx.engine.logits import HeadLogits, Logits
from tna_onnx.graph.floats import TF32_EPSILON, epsilon, numpy_type
from tna_onnx.graph.readout import Head
from tna_onnx.graph.requantize import features_step
from tna_onnx.maps.base import CalibrationMap, apply_map
from tna_onnx.numerics.class_blocks import class_blocks
from tna_onnx.numerics.ops import to_host

__all__ = ["logit_sizes", "probability_bounds"]

FloatArray = NDArray[np.float64]

_MAX_BOUND = 0.05
# Softmax and the report of float32 probabilities round too.
_FLOOR = 1e-6
# k: the runtime sums in another order, in blocks and with fused multiply-adds.
_ROUNDINGS = 16
# Sign patterns of rounding tried on a map.
_DRAWS = 4
# Types coarser than this (float16, bfloat16) are bounded as if their rounding errors had random signs: the sum of all
# terms would allow a wrong weight.
_COARSE = 1e-4


def probability_bounds(
    task: Task,
    features: FloatArray,
    logits: FloatArray,
    fitted: CalibrationMap | None,
    source: Logits | None = None,
    sizes: FloatArray | None = None,
) -> FloatArray:
    """Return the largest |p - p'| per sample that rounding explains, (R,).

    Args:
        task: what was opened.
        features: of R samples.
        logits: of the same, (R, C), before the map.
        fitted: the map that is not in the logits yet.
        source: what made the logits; the original head by default.
        sizes: their `logit_sizes`, if these are known.
    """
    # the formula of the module docstring from here on; rules where they apply
    eps = _unit(task)
    if sizes is None:
        sizes = logit_sizes(task, features, logits, source)
    moved = _ROUNDINGS * eps * sizes[:, None]
    if task.head:
        moved += task.head.step  # rule 3
        moved += _features_moved(task, task.head)  # rule 4
    bounds = _FLOOR + moved[:, 0] / 2
    if fitted is not None:
        bounds += 4 * _magnified(task, fitted, logits, features, moved, _ROUNDINGS * eps)  # rule 1
    bounds += task.readout.output_step + task.readout.slack  # rule 3
    bounded: FloatArray = np.minimum(_MAX_BOUND, bounds)
    return bounded  # rule 5


def _features_moved(task: Task, head: Head) -> float:
    step = features_step(task.model, head)
    if step == 0:
        return 0.0
    return step * max(float(np.max(np.linalg.norm(w, axis=1))) for _, w in class_blocks(head.weight))


def _unit(task: Task) -> float:
    """Unit of rounding of the logits: of their dtype or the weight's, whichever is coarser."""
    eps = epsilon(task.readout.logits_type)
    # the factors of a product are rounded, whatever its sum is in
    if task.tf32 and task.readout.logits_type == "float32":
        eps = max(eps, TF32_EPSILON)
    if task.head is None:
        return eps
    return max(eps, epsilon(task.head.stored_weight.value.dtype.name))


def logit_sizes(
    task: Task, features: FloatArray, logits: FloatArray | None = None, source: Logits | None = None
) -> FloatArray:
    """Return the largest a_i of any class, per sample, (R,): sizes of the terms that a logit is the sum of.

    A large weight is widened once for all samples, so many of them together cost little more than a few.

    Args:
        task: what was opened.
        features: of R samples.
        logits: of the same, (R, C), where there is no head.
        source: what made the logits; the original head by default.
    """
    head = task.head
    if head is None:
        assert logits is not None  # noqa: S101 - there is nothing else to look at
        return np.asarray(np.max(np.abs(logits), axis=1))
    eps = _unit(task)
    weight = head.weight
    bias = head.bias.astype(np.float64)
    # a folded map may have made them larger
    if isinstance(source, HeadLogits):
        weight = to_host(source.head.weight)
        bias = np.asarray(to_host(source.head.bias), np.float64)
    largest = np.zeros(len(features))
    for block, w in class_blocks(weight):
        size = _sizes_of(task, features, w, bias[block], eps)
        np.maximum(largest, np.max(size, axis=1), out=largest)
    return largest


def _sizes_of(task: Task, features: FloatArray, weight: FloatArray, bias: FloatArray, eps: float) -> FloatArray:
    """Return a_i per sample and class, (R, c), of some classes."""
    if task.probed.tail is not None:  # rule 2
        length = np.linalg.norm(features.reshape(len(features), -1), axis=1, keepdims=True)
        return np.asarray(length * np.linalg.norm(weight, axis=1) + np.abs(bias))
    # all rounding errors with one sign: the worst case
    if eps < _COARSE:
        return np.asarray(np.abs(features) @ np.abs(weight.T) + np.abs(bias))
    # random signs: errors add up like the root of the sum of squares
    squares = np.sqrt(features**2 @ (weight**2).T + bias**2)
    return np.asarray((squares + np.abs(features @ weight.T + bias)) / 2)


def _magnified(
    task: Task,
    fitted: CalibrationMap,
    logits: FloatArray,
    features: FloatArray,
    moved: FloatArray,
    relative: float,
) -> FloatArray:
    """Largest change of a probability per sample when logits and features are off by a rounding of random sign.

    The formula runs in the dtype of the graph, as there: its own steps round too. How far they do without any other
    change is known for all samples together, as chance may spare one of them.
    """
    # a fixed seed: the bound of a run is the same when it is repeated
    draws = np.random.default_rng(0)
    exact = task.readout.probabilities(apply_map(fitted, logits, features))
    own = np.max(np.abs(_in_dtype(task, fitted, logits, features) - exact))
    largest = np.full(len(logits), own)
    for _ in range(_DRAWS):
        s = logits + moved * draws.choice([-1.0, 1.0], logits.shape)
        z = features * (1 + relative * draws.choice([-1.0, 1.0], features.shape))
        change = np.abs(_in_dtype(task, fitted, s, z) - exact)
        largest = np.maximum(largest, np.max(change, axis=1))
    return largest


def _in_dtype(task: Task, fitted: CalibrationMap, logits: FloatArray, features: FloatArray) -> FloatArray:
    """Return probabilities that a map computes in the dtype of the graph."""
    dtype = numpy_type(task.readout.logits_type)
    with np.errstate(over="ignore"):
        mapped = apply_map(fitted, logits.astype(dtype), features.astype(dtype))
    return task.readout.probabilities(np.asarray(mapped, np.float64))
