"""What head finding gives where it finds no head: the reason (`Refusal`)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Refusal"]


@dataclass(frozen=True)
class Refusal:
    """Why the walk from a graph output found no head.

    Attributes:
        output: name of the graph output.
        node: node at which the walk ended.
        reason: why it ended there.
        activation: what followed that node.
    """

    output: str
    node: str
    reason: str
    activation: str = "none"
