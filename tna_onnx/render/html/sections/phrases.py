"""Words on the shown data and on candidates that several sections share."""

from __future__ import annotations

from tna_onnx.results.details import Details

__all__ = ["data_text", "members_text"]


def members_text(size: int) -> str:
    """Write a number of members; 0 is the limit of many.

    >>> members_text(1024), members_text(0)
    ('1,024', 'infinitely many')
    """
    return f"{size:,}" if size else "infinitely many"


def data_text(details: Details) -> str:
    """Name the shown data in a sentence."""
    kind = "held-out" if details.held_out else "which were used for fitting"
    return f"Data: {details.data}, {kind}."
