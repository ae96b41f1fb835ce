"""What the terminal and the page say of decisions."""

from __future__ import annotations

from tna_onnx.render.rows import off
from tna_onnx.results.outcomes import ConfidenceCalibration


def test_a_confidence_without_intervals() -> None:
    assert off(ConfidenceCalibration(0.012, (0.0, 0.03), 0.2, (0.1, 0.3), 0.95)) == (
        "ECE 1.20 % (0.00 to 3.00), NLL of being right 0.2000 (0.1000 to 0.3000)"
    )
    assert off(ConfidenceCalibration(0.012, None, 0.2, None, 0.95)) == (
        "ECE 1.20 % (one sample: no interval), NLL of being right 0.2000 (too few errors for an interval)"
    )
