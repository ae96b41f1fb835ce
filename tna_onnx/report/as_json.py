"""Results as JSON: the fields of the dataclasses by name, plus `schema` and what the result is."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

__all__ = ["SCHEMA", "to_json"]

SCHEMA = 1
"""Raised when a field changes its meaning or goes away."""


def to_json(result: Any) -> str:
    """Return a result dataclass as a JSON text; floats keep all their digits."""
    entries = {"schema": SCHEMA, "kind": type(result).__name__.lower(), **dataclasses.asdict(result)}
    if hasattr(result, "verdict"):
        entries["verdict"] = result.verdict
    return json.dumps(entries, indent=2, allow_nan=False) + "\n"
