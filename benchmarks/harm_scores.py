"""Scores of probabilities on test data, by their definitions, and the test that calls a change for the worse.

None of it comes from the package: the judge is nobody's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

__all__ = ["BINS", "METRICS", "Scores", "ece", "ece_of_parts", "exact_interval", "significant"]

BINS = 15
METRICS = ("nll", "brier", "ece", "accuracy")

# Smaller probabilities count as this one, as in scikit-learn's log loss.
_LEAST = float(np.finfo(np.float64).eps)

# Mean changes up to this are rounding: logits are float32.
_ROUNDING = 1e-6

# Two-sided 95 %: a change in one direction is seen by chance in 2.5 % of runs.
_Z = 1.959963984540054


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of N samples, all (N,) float64: log loss in nats, Brier score, confidence, and 1 for a hit."""

    nll: NDArray[np.float64]
    brier: NDArray[np.float64]
    confidence: NDArray[np.float64]
    hit: NDArray[np.float64]

    @classmethod
    def of(cls, probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> Scores:
        """Score (N, C) probabilities.

        Raises:
            ValueError: numbers that are not finite, or rows that do not sum to 1.
        """
        if not np.isfinite(probabilities).all() or np.abs(probabilities.sum(1) - 1).max() > 1e-3:
            raise ValueError("probabilities are not finite or do not sum to 1")
        p = probabilities.astype(np.float64)
        rows = np.arange(len(labels))
        one_hot = np.zeros_like(p)
        one_hot[rows, labels] = 1
        return cls(
            nll=-np.log(np.maximum(p[rows, labels], _LEAST)),
            brier=((p - one_hot) ** 2).sum(1),
            confidence=p.max(1),
            hit=(p.argmax(1) == labels).astype(np.float64),
        )

    def metrics(self) -> dict[str, float]:
        """Means over the samples, and the ECE."""
        values = {"nll": self.nll.mean(), "brier": self.brier.mean(), "accuracy": self.hit.mean()}
        return {name: float(value) for name, value in values.items()} | {"ece": ece(self.confidence, self.hit)}


def ece(confidence: NDArray[np.float64], hit: NDArray[np.float64]) -> float:
    """Expected calibration error over bins of equal width, (j/B, (j+1)/B]."""
    bins = np.clip(np.ceil(confidence * BINS).astype(np.intp) - 1, 0, BINS - 1)
    return float(np.abs(np.bincount(bins, hit - confidence, BINS)).sum() / len(hit))


def ece_of_parts(scores: Scores, size: int) -> float | None:
    """Mean ECE of parts of `size` samples; None if there are fewer.

    Binning makes the ECE of few samples larger, so values compare only between equal numbers of samples.
    """
    parts = range(0, len(scores.hit) - size + 1, size)
    values = [ece(scores.confidence[k : k + size], scores.hit[k : k + size]) for k in parts]
    return float(np.mean(values)) if values else None


def significant(change: NDArray[np.float64]) -> int:
    """Return the sign of the mean of paired changes if it lies beyond two-sided 95 % of a normal law, else 0."""
    mean = change.mean()
    error = change.std(ddof=1) / np.sqrt(len(change))
    return int(np.sign(mean)) if abs(mean) > max(_Z * error, _ROUNDING) else 0


def exact_interval(hits: int, runs: int) -> tuple[float, float]:
    """95 % interval of a share, from the binomial law.

    Source: Clopper & Pearson (1934).
    """
    low = 0.0 if hits == 0 else float(beta.ppf(0.025, hits, runs - hits + 1))
    high = 1.0 if hits == runs else float(beta.ppf(0.975, hits + 1, runs - hits))
    return low, high
