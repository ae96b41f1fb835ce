"""What a user says about a model where its graph leaves a choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ModelOptions:
    """
    Which head, which output, and what it holds, where a model has several or the graph
    does not tell.

    `None` leaves the choice to the graph.
    """

    head: str | None = None
    output_name: str | None = None
    output_kind: Literal["logits", "probabilities"] | None = None
