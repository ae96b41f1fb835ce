"""Two models -> everything in which they differ: for `verify`, for the report, and for the check of a written file.

All fields of both protobufs are compared. How strictly is for the caller to say:

- by content (`differences`): an empty field is the same as none, and tensors are the same if their type, shape and
  bytes are, wherever the bytes lie: in the field of their type, as raw data, or in external files, which are read in
  blocks. Each difference is explained if a recalibration makes it (see `difference.explained`).
- as encoded (`unexpected_differences`): every byte counts, but for the place of external data, which are not read.

The names below load on first use: every report has a field for a `Difference`, and few runs compare models.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tna_onnx.graph.difference.compare import differences, head_differences
    from tna_onnx.graph.difference.unexpected import unexpected_differences
    from tna_onnx.graph.difference.values import Difference

__all__ = ["Difference", "differences", "head_differences", "unexpected_differences"]

_HOMES = {
    "Difference": "values",
    "differences": "compare",
    "head_differences": "compare",
    "unexpected_differences": "unexpected",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value  # found at once the next time
    return value
