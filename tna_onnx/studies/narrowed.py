"""Features projected to fewer dimensions, with a head that is fitted on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tna_onnx.extraction.table import FeatureTable
from tna_onnx.numerics.softmax_regression import principal_axes, ridge_path
from tna_onnx.studies.data import StudyData, rows_of, stratified

__all__ = ["narrowed"]

# The last strength of the path is what the head has; those before it are where it starts from.
_STRENGTHS = (1e-2, 1e-3, 1e-4, 1e-5)


def narrowed(data: StudyData, dimension: int, rng: np.random.Generator) -> StudyData:
    """Return features projected to some dimensions, with a head that is fitted on half of all samples.

    Args:
        data: both sets of samples are joined and split anew.
        dimension: at most n; n keeps the features as they are.
        rng: of the projection and the splits.
    """
    features = np.concatenate([data.calibration.features, data.held_out.features]).astype(np.float32)
    labels = np.concatenate([data.calibration.labels, data.held_out.labels])
    n = features.shape[1]
    if dimension < n:
        basis, _ = np.linalg.qr(rng.standard_normal((n, dimension)))
        features = features @ basis.astype(np.float32)
    both = FeatureTable(features, labels)
    fitted = stratified(labels, len(labels) // 2, rng)
    weight, bias = _head(rows_of(both, fitted), len(data.weight))
    rest = rows_of(both, np.setdiff1d(np.arange(len(labels)), fitted))
    first = stratified(rest.labels, len(rest) // 2, rng)
    others = np.setdiff1d(np.arange(len(rest)), first)
    return replace(data, weight=weight, bias=bias, calibration=rows_of(rest, first), held_out=rows_of(rest, others))


def _head(table: FeatureTable, classes: int) -> tuple[Any, Any]:
    """Fit a (C, n) weight and a (C,) bias."""
    features = np.asarray(table.features, np.float32)
    # one for all: scaled by its own, a feature that is hardly ever active would get a weight so large that a tilt,
    # which carries a part of it to all the others, would leave nothing but that
    scale = np.float32(np.sqrt(np.mean(np.square(features), dtype=np.float64))) or np.float32(1)
    axes = principal_axes(np.hstack([features / scale, np.ones((len(features), 1), np.float32)]))
    scores = np.zeros((len(features), classes), np.float32)
    solution = list(ridge_path(scores, table.labels, axes, _STRENGTHS))[-1] @ axes.axes.T
    return np.ascontiguousarray(solution[:, :-1] / scale), np.ascontiguousarray(solution[:, -1])
