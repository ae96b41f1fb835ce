"""Each label of a model with several labels a sample, by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.stats import SampleScores

__all__ = ["LabelMetrics"]


@dataclass(frozen=True)
class LabelMetrics:
    """Metrics of one label on N samples; its ECE is that of its probability.

    Attributes:
        label: its name; its number where names are not known.
        positives: samples for which it holds.
        before: metrics of the model.
        after: metrics of the recalibrated model; None where there is one model only. Cross-fitted, its ECE is not
            corrected, unlike that of all labels.
        shared: whether a map by label has the numbers that all labels share for it, for lack of samples of its own.
    """

    label: str
    positives: int
    before: Metrics
    after: Metrics | None = None
    shared: bool = False

    @classmethod
    def of(
        cls,
        before: SampleScores,
        after: SampleScores | None,
        bins: int,
        names: Sequence[str] | None,
        shared: Sequence[int] = (),
    ) -> tuple[LabelMetrics, ...]:
        """Reduce scores, label by label; nothing for one class a sample.

        Args:
            before: scores of N samples.
            after: scores of the same samples, if there are two models.
            bins: of the errors.
            names: of the labels, if known.
            shared: places of the labels without numbers of their own.
        """
        if before.predicted is None:
            return ()
        positives = np.sum(before.hit == before.predicted, axis=0).tolist()
        first = _metrics(before, bins)
        second: Sequence[Metrics | None] = [None] * len(first)
        if after is not None:
            second = _metrics(after, bins)
        return tuple(
            cls(names[c] if names else str(c), positives[c], first[c], second[c], c in shared)
            for c in range(len(first))
        )


def _metrics(scores: SampleScores, bins: int) -> list[Metrics]:
    # the scores of a label say whether it holds, not whether it was predicted
    right = scores.hit.mean(axis=0).tolist()
    return [
        replace(Metrics.of(label, bins), accuracy=accuracy)
        for label, accuracy in zip(scores.by_label(), right, strict=True)
    ]
