"""What the calibration of the top label comes to without bins, and what of it may be chance."""

from __future__ import annotations

from dataclasses import dataclass

from tna_onnx.numerics.corp import Corp
from tna_onnx.numerics.cumulative import CumulativeTest
from tna_onnx.numerics.debiased import debiased_ece, expected_ece
from tna_onnx.numerics.stats import SampleScores

__all__ = ["BinFree"]


@dataclass(frozen=True)
class BinFree:
    """Calibration of the top label on N samples, beside the binned errors of `Metrics`.

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
    def of(cls, scores: SampleScores, bins: int = 15, seed: int = 0) -> BinFree:
        """Reduce scores.

        Args:
            scores: of N >= 1 samples.
            bins: of the ECE.
            seed: of the resamples under calibration.
        """
        return cls(
            debiased_ece(scores, bins), expected_ece(scores, bins), CumulativeTest.of(scores), Corp.of(scores, seed)
        )
