"""Enough samples for the bins of the ECE."""

from __future__ import annotations

from tna_onnx.data import Source
from tna_onnx.errors import DataError, UsageError

__all__ = ["require_samples"]


def require_samples(source: Source, bins: int, held_out: int = 0) -> None:
    """Refuse fewer samples than bins.

    Args:
        source: the data.
        bins: of ECE.
        held_out: samples that a fold leaves out.

    Raises:
        DataError: too few samples.
    """
    if bins < 1:
        raise UsageError(f"bins must be at least 1, got {bins}")
    if len(source) - held_out < bins:
        rest = f" outside a fold of {held_out}" if held_out else ""
        raise DataError(
            f"{source.describe()}: {len(source) - held_out} samples{rest}, fewer than the {bins} bins of the ECE; "
            "give more samples, or fewer --bins"
        )
