"""Words that several sections share."""

from __future__ import annotations

from html import escape

from tna_onnx.results.details import Details

__all__ = ["LABELS", "PERCENT", "data_of", "members"]

LABELS = {"accuracy": "Accuracy, %", "ece": "ECE, %", "adaece": "AdaECE, %", "nll": "NLL, nats", "brier": "Brier"}
"""Names of the metrics with their units."""

PERCENT = ("accuracy", "ece", "adaece")
"""Metrics that are fractions and shown in per cent."""


def members(size: int) -> str:
    """Write a number of members; 0 is the limit of many."""
    return f"{size:,}" if size else "infinitely many"


def data_of(details: Details) -> str:
    """Name the shown data, as HTML."""
    return f"Data: {escape(details.data)}, {'held-out' if details.held_out else 'which were fitted'}."
