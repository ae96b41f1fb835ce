"""Results as JSON: the fields of the dataclasses by name, plus `schema` and what the result is."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

__all__ = ["SCHEMA", "to_json"]

SCHEMA = 1
"""Raised when a field changes its meaning or goes away."""


def to_json(result: Any, *, details: bool = False) -> str:
    """Return a result dataclass as a JSON text, with the details of a report if asked; floats keep all their digits."""
    left_out = ("recalibrated",) if details else ("recalibrated", "details")
    names = [f.name for f in dataclasses.fields(result) if f.name not in left_out]
    values = {name: _plain(getattr(result, name)) for name in names}
    entries = {"schema": SCHEMA, "kind": type(result).__name__.lower(), **values}
    if hasattr(result, "verdict"):
        entries["verdict"] = result.verdict
    return json.dumps(entries, indent=2, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
