"""How a written file was checked."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Verification"]


@dataclass(frozen=True)
class Verification:
    """The written file against the numerics.

    Attributes:
        samples: samples run through the file, at least 1.
        max_difference: largest |p - p'| over samples and classes, a probability as a fraction.
        bound: what rounding may make of it at that sample, a probability as a fraction.
        checker: whether the ONNX checker accepts the file; false only where it refuses the input model too.
        other_class: samples to which the file gives another first class than the numerics: ties, to the bound.
    """

    samples: int
    max_difference: float
    bound: float
    checker: bool
    other_class: int = 0
