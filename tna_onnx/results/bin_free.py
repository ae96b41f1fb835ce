"""What the calibration of the top label comes to without bins, and what of it may be chance."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from tna_onnx.numerics.corp import Corp
from tna_onnx.numerics.cumulative import CumulativeTest
from tna_onnx.numerics.debiased import debiased_ece, expected_ece
from tna_onnx.numerics.stats import SampleScores

__all__ = ["BinFree"]


@dataclass(frozen=True)
class BinFree:
    """Calibration of the top label on N samples, beside the binned errors of `Metrics`.

    Of several labels a sample: of each label's probability, all labels together; the two errors are means over labels.

    Attributes:
        ece_debiased: ECE less the bias that noise adds, over the same bins, a fraction.
        ece_expected: ECE that a calibrated model with these confidences has by chance, on average, a fraction.
        cumulative: test on the cumulative differences of hits and confidences.
        corp: isotonic recalibration of the top label: parts of NLL and Brier score, and the reliability curve.
    """

    ece_debiased: float
    ece_expected: float
    cumulative: CumulativeTest
    corp: Corp

    @classmethod
    def of(cls, scores: SampleScores, bins: int = 15, seed: int = 0, *, cross_fitted: bool = False) -> BinFree:
        """Reduce scores.

        Args:
            scores: of N >= 1 samples.
            bins: of the ECE.
            seed: of the resamples under calibration.
            cross_fitted: whether fits of other folds gave the scores. Their errors cancel where folds are pooled
                (`numerics.crossfitted`), so that p-values would be too large: there are none. Of clusters of samples
                they would be too small: there are none either.
        """
        if scores.predicted is not None:
            return cls._of_labels(scores, bins, seed, cross_fitted=cross_fitted)
        test = CumulativeTest.of(scores)
        if cross_fitted or scores.clusters is not None:
            test = dataclasses.replace(test, kolmogorov_smirnov_p=None, kuiper_p=None)
        return cls(debiased_ece(scores, bins), expected_ece(scores, bins), test, Corp.of(scores, seed))

    @classmethod
    def _of_labels(cls, scores: SampleScores, bins: int, seed: int, *, cross_fitted: bool) -> BinFree:
        """Reduce scores of several labels a sample: the means of the first two, the rest of all labels together."""
        together = cls.of(scores.pooled(), bins, seed, cross_fitted=cross_fitted)
        debiased = [debiased_ece(label, bins) for label in scores.by_label()]
        expected = [expected_ece(label, bins) for label in scores.by_label()]
        return dataclasses.replace(
            together, ece_debiased=float(np.mean(debiased)), ece_expected=float(np.mean(expected))
        )
