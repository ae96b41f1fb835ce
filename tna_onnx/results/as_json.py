"""Results as JSON: the fields of the dataclasses by name, plus `schema`, `kind`, and the verdict where there is one.

`schema.json` beside this file describes every key (JSON Schema 2020-12). JSON has no NaN and no infinity: numbers that
are not finite become null.
"""

from __future__ import annotations

import dataclasses
import json
import math
from importlib.resources import files
from typing import Any

import numpy as np

__all__ = ["SCHEMA", "json_schema", "to_json"]

SCHEMA = 1
"""Raised when a field changes its meaning or goes away."""


def to_json(result: Any, *, details: bool = False) -> str:
    """Return a result dataclass as a JSON text, with the details of a report if asked; floats keep all their digits."""
    # allow_nan: should one have slipped through, fail rather than write what no parser reads
    return json.dumps(_entries(result, details), indent=2, allow_nan=False) + "\n"


def _entries(result: Any, details: bool) -> dict[str, Any]:
    kind = type(result).__name__.lower()
    entries: dict[str, Any] = {"schema": f"tna-onnx/{kind}/{SCHEMA}", "kind": kind}
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        if field.repr or (details and field.name == "details" and value is not None):  # without repr: no plain values
            entries[field.name] = _plain(value)
    if hasattr(result, "verdict"):
        entries["verdict"] = result.verdict
    return entries


def json_schema(kind: str | None = None) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of what `--json` writes.

    Args:
        kind: `report`, `evaluation`, ..., as in the `kind` of a result; any of them by default.

    Raises:
        ValueError: no such kind.

    >>> json_schema("evaluation")["$ref"]
    '#/$defs/evaluation'
    """
    schema: dict[str, Any] = json.loads(files("tna_onnx.results").joinpath("schema.json").read_text("utf-8"))
    kinds = [choice["$ref"].rpartition("/")[2] for choice in schema["oneOf"]]
    if kind is None:
        return schema
    if kind not in kinds:
        raise ValueError(f"there is no result of kind '{kind}'; expected {', '.join(kinds)}")
    del schema["oneOf"]
    return {**schema, "$id": f"urn:tna-onnx:{kind}:{SCHEMA}", "$ref": f"#/$defs/{kind}"}


def _plain(value: Any) -> Any:
    """Dataclasses become objects, tuples arrays, numbers that are not finite null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        # the reports on several heads are results, each as it would be alone
        return {key: _entries(item, False) if hasattr(item, "verdict") else _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    # NumPy's scalars are no JSON numbers
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
