"""Angles between features and class vectors, before and after: what tilting does (paper, figure on angles)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.calibration.outcome import Outcome
from tna_onnx.calibration.task import Collected, Task
from tna_onnx.graph.readout import Head
from tna_onnx.results.details import Angles
from tna_onnx.search.candidates import Candidate, candidate_weight
from tna_onnx.search.settings import SearchSettings

__all__ = ["angle_counts", "feature_angles"]

# Width of a bin: 90 of them show the shape of a distribution, and few of 5,000 samples' are empty.
_DEGREES = 2
_MAX_SAMPLES = 5000


def feature_angles(
    task: Task, shown: Collected, settings: SearchSettings, outcome: Outcome
) -> tuple[tuple[Angles, ...], int]:
    """Return the angles under the original weight, one tilted one and the average, and the number of samples.

    (nothing, 0) without a plain linear head.
    """
    head = task.head
    if head is None or task.probed.tail is not None:
        return (), 0
    rows = np.zeros(len(shown.table), bool)
    # spread over the data, because files often come sorted by class
    rows[:: -(-len(rows) // _MAX_SAMPLES)] = True
    angles = []
    for name, (weight, bias) in _layers(task, head, settings, outcome).items():
        totals = np.zeros((2, 180 // _DEGREES))
        for _, _, features in task.logits(head.weight, on=shown).chunks(rows, features=True):
            assert features is not None  # noqa: S101 - asked for
            totals += angle_counts(features, weight, bias)
        predicted, others = totals / np.maximum(totals.sum(axis=1, keepdims=True), 1)
        length = float(np.mean(np.linalg.norm(weight, axis=1)) / np.mean(np.linalg.norm(head.weight, axis=1)))
        angles.append(Angles(name, tuple(predicted.tolist()), tuple(others.tolist()), length))
    return tuple(angles), int(rows.sum())


def _layers(
    task: Task, head: Head, settings: SearchSettings, outcome: Outcome
) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    """Return weight and bias of what is shown, by the name of `Angles.weight`."""
    layers = {"original": (head.weight, head.bias)}
    chosen = outcome.chosen
    anchored = task.around(outcome.anchor)
    if chosen.angle and anchored.weight is not None:
        one = Candidate(chosen.angle, 1, 0.0, chosen.scores)
        layers["tilted"] = (candidate_weight(anchored.weight, one, settings), anchored.bias)
        if chosen.ensemble_size != 1 and outcome.weight is not None:
            layers["averaged"] = (outcome.weight, anchored.bias)
    return layers


def angle_counts(features: NDArray[Any], weight: NDArray[Any], bias: NDArray[Any]) -> NDArray[np.float64]:
    """Count angles between features (B, n) and class vectors (C, n) in 90 bins of 2 degrees.

    Returns:
        (2, 90): with the class that features @ weight.T + bias predicts, and with all others. Zero vectors have no
        direction and are left out.
    """
    z = np.asarray(features, np.float64)
    w = np.asarray(weight, np.float64)
    products = z @ w.T
    lengths = np.linalg.norm(z, axis=1)[:, None] * np.linalg.norm(w, axis=1)
    own = np.zeros(products.shape, bool)
    own[np.arange(len(z)), np.argmax(products + bias, axis=1)] = True
    cosine = np.clip(np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0), -1, 1)
    index = np.minimum(np.degrees(np.arccos(cosine)) // _DEGREES, 180 // _DEGREES - 1).astype(int)
    counts = [np.bincount(index[mask & (lengths > 0)], minlength=180 // _DEGREES) for mask in (own, ~own)]
    return np.array(counts, np.float64)
