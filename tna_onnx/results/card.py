"""The result of `card`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Card"]


@dataclass(frozen=True)
class Card:
    """What describes a recalibrated model to others.

    Attributes:
        text: the model card: Markdown behind a header of YAML, as the Hugging Face Hub reads it.
        bom: the bill of materials, CycloneDX JSON; empty if none was asked for.
    """

    text: str
    bom: str = ""
