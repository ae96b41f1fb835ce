"""Scores for the statistics: of confidences and hits alone, and of logits that are too large."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.scores import SampleScores


def scores(confidence: Any, hit: Any) -> SampleScores:
    """Score two classes, so that the NLL of a miss is -log(1 - c)."""
    c = np.asarray(confidence, np.float32)
    own = np.where(hit, np.maximum(c, 1e-12), np.maximum(1 - c.astype(np.float64), 1e-12))
    return SampleScores(
        c, np.asarray(hit, bool), -np.log(own).astype(np.float32), (2 * (1 - own) ** 2).astype(np.float32)
    )


def confidences(n: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Draw confidences from 0.1 to 1, most of them high, and hits with these probabilities."""
    rng = np.random.default_rng(seed)
    confidence = 0.1 + 0.9 * rng.beta(6, 1.2, n)
    return confidence, rng.random(n) < confidence


def sharpened(n: int, factor: float, seed: int = 0, classes: int = 4) -> SampleScores:
    """Scores of logits that are `factor` times too large, with their labels; the same samples for the same seed."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.normal(size=(n, classes))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return SampleScores.of_logits(factor * logits, labels).labelled(labels)


def equal(one: SampleScores, other: SampleScores) -> bool:
    """Whether two scores are the same to the bit; what is missing, such as clusters, is missing on both sides."""
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return all(a is b is None or (a.dtype == b.dtype and np.array_equal(a, b)) for a, b in pairs)
