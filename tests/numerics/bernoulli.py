"""Top-label scores from confidences and hits alone, for the statistics that need no more."""

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.scores import SampleScores


def scores(confidence: NDArray[np.floating], hit: NDArray[np.bool_]) -> SampleScores:
    """Score two classes, so that the NLL of a miss is -log(1 - c)."""
    c = np.asarray(confidence, np.float32)
    own = np.where(hit, c, np.maximum(1 - c.astype(np.float64), 1e-12))
    return SampleScores(c, hit, -np.log(own).astype(np.float32), (2 * (1 - own) ** 2).astype(np.float32))


def confidences(n: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Draw confidences from 0.1 to 1, most of them high, and hits with these probabilities."""
    rng = np.random.default_rng(seed)
    confidence = 0.1 + 0.9 * rng.beta(6, 1.2, n)
    return confidence, rng.random(n) < confidence
