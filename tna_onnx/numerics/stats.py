"""Per-sample scores of a classifier: all that accuracy, ECE, AdaECE, NLL and Brier need to know.

With logits s (natural log), p = softmax(s) and label y, one sample gives

    confidence = max_c p_c        hit = (argmax_c s_c == y)
    nll        = -log p_y         brier = sum_c (p_c - [c == y])^2

Where each of C labels holds or not, by itself, a sample gives these of every label (`numerics.label_terms`): the fields
are (N, C) then, and a metric is the mean over labels of the metric of each.

13 bytes a sample. Scores of chunks add up to the scores of the whole (`+` concatenates), so every later sum runs over
the same float32 terms in the same order, however the data were split.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.label_terms import label_terms, probability_terms
from tna_onnx.numerics.ops import own_column, row_max, row_sum, to_host
from tna_onnx.numerics.sample_terms import numpy_terms, terms

__all__ = ["SampleScores"]

# Probabilities below this count as this one: their logarithm would be infinite at 0.
_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, eq=False)
class SampleScores:
    """Scores of N samples, NumPy arrays of shape (N,); (N, C) where a sample has several labels.

    Attributes:
        confidence: float32 in (0, 1], probability of the predicted class.
        hit: bool, whether the predicted class is the label.
        nll: float32 in nats, negative log-likelihood of the label.
        brier: float32 in [0, 2], squared distance of the probabilities from the one-hot label.
        clusters: which of them depend on one another, (N,) integers, equal within a cluster: predictions for the parts
            of one text, say. None where all are independent.
        predicted: of several labels, (N, C) bool, whether each is predicted; None for one class a sample.
    """

    confidence: NDArray[np.float32]
    hit: NDArray[np.bool_]
    nll: NDArray[np.float32]
    brier: NDArray[np.float32]
    clusters: NDArray[np.int64] | None = None
    predicted: NDArray[np.bool_] | None = None

    @classmethod
    def of_logits(cls, logits: Any, labels: Any) -> SampleScores:
        """Score (N, C) logits (NumPy or torch, any float dtype) against (N,) integer labels.

        Labels (N, C) of 0 and 1 are several a sample, each with a logit of its own.

        Source: notation of the paper, section "Background"; Brier (1950).

        >>> SampleScores.of_logits(np.log([[0.8, 0.2]]), np.array([0])).confidence.round(4).tolist()
        [0.800000011920929]
        """
        if np.ndim(labels) == 2:
            values, predicted = label_terms(to_host(logits), to_host(labels))
            return cls(*values, predicted=predicted)
        if isinstance(logits, np.ndarray):
            return cls(*numpy_terms(logits, labels))
        xp = array_api_compat.array_namespace(logits)
        # exponentials of float16 would have three digits
        if logits.dtype == xp.float16:
            logits = xp.astype(logits, xp.float32)
        # the largest is 0: no exponential overflows, and their sum cannot vanish
        shifted = logits - row_max(logits)
        own = own_column(shifted, labels)
        weights = xp.exp(shifted)
        total = row_sum(weights, double=True)
        squares = row_sum(weights * weights, double=True)
        columns = (xp.squeeze(each, axis=1) for each in (own, total, squares))
        own, total, squares = (to_host(each) for each in columns)
        return cls(*terms(own, total, squares, _hits(xp.argmax(logits, axis=1), labels)))

    @classmethod
    def of_probabilities(cls, probabilities: Any, labels: Any) -> SampleScores:
        """Score (N, C) probabilities as a model gave them; log p is cut at the smallest normal float32."""
        if np.ndim(labels) == 2:
            values, predicted = probability_terms(to_host(probabilities), to_host(labels))
            return cls(*values, predicted=predicted)
        xp = array_api_compat.array_namespace(probabilities)
        # probabilities are not divided by their sum: they are scored as the model gives them
        p = xp.astype(probabilities, xp.float64)
        own = xp.squeeze(own_column(p, labels), axis=1)
        return cls(
            confidence=_host(row_max(p)[:, 0], np.float32),
            hit=_hits(xp.argmax(p, axis=1), labels),
            nll=_host(-xp.log(xp.clip(own, _TINY, None)), np.float32),
            brier=_host(row_sum(p * p)[:, 0] - 2 * own + 1, np.float32),
        )

    def __add__(self, other: SampleScores) -> SampleScores:
        """Concatenate the scores of two chunks."""
        return SampleScores.concatenate([self, other])

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.confidence)

    @classmethod
    def concatenate(cls, chunks: list[SampleScores]) -> SampleScores:
        """Join chunks in their order; one copy however many there are."""
        return cls(
            np.concatenate([chunk.confidence for chunk in chunks]),
            np.concatenate([chunk.hit for chunk in chunks]),
            np.concatenate([chunk.nll for chunk in chunks]),
            np.concatenate([chunk.brier for chunk in chunks]),
            _joined([chunk.clusters for chunk in chunks]),
            _joined([chunk.predicted for chunk in chunks]),
        )

    def take(self, rows: NDArray[Any]) -> SampleScores:
        """Return the scores of the chosen rows: integer indices, or a (N,) bool mask."""
        clusters = None if self.clusters is None else self.clusters[rows]
        predicted = None if self.predicted is None else self.predicted[rows]
        return SampleScores(
            self.confidence[rows], self.hit[rows], self.nll[rows], self.brier[rows], clusters, predicted
        )

    def clustered(self, clusters: NDArray[np.int64] | None) -> SampleScores:
        """Return the same scores with their clusters, (N,)."""
        return self if clusters is None else replace(self, clusters=clusters)

    def by_label(self) -> Iterator[SampleScores]:
        """Yield the scores of each label, (N,): its probability as the confidence, whether it holds as the hit.

        Scores of one class a sample are yielded as they are.
        """
        if self.predicted is None:
            yield self
            return
        probability = np.where(self.predicted, self.confidence, 1 - self.confidence)
        holds = self.hit == self.predicted
        for c in range(probability.shape[1]):
            yield SampleScores(probability[:, c], holds[:, c], self.nll[:, c], self.brier[:, c], self.clusters)

    def decisions(self) -> SampleScores:
        """Return the same with each label's prediction as a sample of its own, (N C,)."""
        if self.predicted is None:
            return self
        owners = np.repeat(np.arange(len(self)), self.hit.shape[1])
        return SampleScores(
            self.confidence.reshape(-1), self.hit.reshape(-1), self.nll.reshape(-1), self.brier.reshape(-1), owners
        )

    def pooled(self) -> SampleScores:
        """Return the scores of all labels as one set, (N C,), those of a sample in a cluster; see `by_label`."""
        if self.predicted is None:
            return self
        together = SampleScores.concatenate(list(self.by_label()))
        return together.clustered(np.tile(np.arange(len(self)), self.predicted.shape[1]))


def _joined(parts: list[NDArray[Any] | None]) -> NDArray[Any] | None:
    """Join what chunks may have; None where a chunk does not have it."""
    known = [each for each in parts if each is not None]
    return np.concatenate(known) if len(known) == len(parts) else None


def _host(array: Any, dtype: Any) -> NDArray[Any]:
    return np.asarray(to_host(array), dtype)


def _hits(predicted: Any, labels: Any) -> NDArray[np.bool_]:
    hits: NDArray[np.bool_] = to_host(predicted) == to_host(labels)
    return hits
