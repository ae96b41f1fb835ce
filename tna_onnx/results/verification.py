"""How a written file was checked."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Verification"]


@dataclass(frozen=True)
class Verification:
    """What was compared: samples, largest |p - p'|, the bound at that sample, and whether the ONNX checker passed."""

    samples: int
    max_difference: float
    bound: float
    checker: bool
