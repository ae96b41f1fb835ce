"""What the scores of a sample with several labels are made of: each label holds or does not, whatever the others do.

With s the logit of a label (natural log), p = 1 / (1 + exp -s) and y in {0, 1}, one label of one sample gives

    predicted = (s > 0)        confidence = max(p, 1 - p)        hit = (predicted == y)
    nll       = -log p         of y = 1, -log (1 - p) of y = 0   brier = (p - y)^2

These are the log loss and the Brier score of one label; the two-class score of `numerics.stats` adds up both classes,
and is twice this Brier score.
"""

from __future__ import annotations

from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.sample_terms import Terms

__all__ = ["as_two_classes", "label_logits", "label_terms", "probability_terms"]


# Sums of floats end a little outside of 0 to 1.
_ROUNDING = 1e-5


def label_terms(logits: NDArray[Any], labels: NDArray[Any]) -> tuple[Terms, NDArray[np.bool_]]:
    """Return the scores of (N, C) logits against (N, C) labels, and whether each label is predicted.

    >>> (confidence, hit, nll, brier), predicted = label_terms(np.log([[4.0, 0.25]]), np.array([[1, 1]]))
    >>> confidence.round(4).tolist(), hit.tolist(), brier.round(4).tolist()
    ([[0.800000011920929, 0.800000011920929]], [[True, False]], [[0.03999999910593033, 0.6399999856948853]])
    """
    s = logits.astype(np.float64)
    predicted = s > 0
    holds = labels == 1
    # the exponential of the smaller of s and -s: none overflows
    small = np.exp(-np.abs(s))
    confidence = 1 / (1 + small)
    hit = predicted == holds
    # where the label is the other one, its logit is -|s|
    nll = np.log1p(small) + np.where(hit, 0, np.abs(s))
    brier = np.where(hit, small * confidence, confidence) ** 2
    return (confidence.astype(np.float32), hit, nll.astype(np.float32), brier.astype(np.float32)), predicted


def probability_terms(probabilities: NDArray[Any], labels: NDArray[Any]) -> tuple[Terms, NDArray[np.bool_]]:
    """Return the same of (N, C) probabilities as a model gave them.

    Logarithms are cut at half of the dtype's step below 1: a p that was rounded to 1 says no more than that, and one
    near 0 that a runtime's sigmoid gives is as far off.
    """
    step = np.finfo(probabilities.dtype).eps / 4
    p = probabilities.astype(np.float64)
    predicted = p > 0.5
    holds = labels == 1
    own = np.where(holds, p, 1 - p)
    confidence = np.maximum(p, 1 - p).astype(np.float32)
    nll = -np.log(np.maximum(own, step))
    return (confidence, predicted == holds, nll.astype(np.float32), ((1 - own) ** 2).astype(np.float32)), predicted


def as_two_classes(logits: Any, labels: NDArray[np.int64]) -> tuple[Any, NDArray[np.int64]]:
    """Return the C labels of each sample as samples of two classes: logits (N C, 2), the first 0, and labels (N C,).

    Logits (N, C) of one class a sample, with labels (N,), are returned as they are.

    >>> as_two_classes(np.array([[0.5, -2.0]]), np.array([[1, 0]]))[0].tolist()
    [[0.0, 0.5], [0.0, -2.0]]
    """
    if labels.ndim == 1:
        return logits, labels
    xp = array_api_compat.array_namespace(logits)
    column = xp.reshape(logits, (-1, 1))
    return xp.concat([xp.zeros_like(column), column], axis=1), labels.reshape(-1)


def label_logits(p: NDArray[Any]) -> NDArray[Any]:
    """Return log p - log (1 - p) of (N, C) probabilities, cut as in `probability_terms`; `graph.adapted` writes it so.

    Raises:
        ValueError: the values are no probabilities.
    """
    if np.any(p < -_ROUNDING) or np.any(p > 1 + _ROUNDING):
        raise ValueError("the values are no probabilities: some are negative, or larger than 1")
    least = np.finfo(p.dtype).eps / 4
    logits: NDArray[Any] = np.log(np.clip(p, least, 1)) - np.log(np.clip(1 - p, least, 1))
    return logits
