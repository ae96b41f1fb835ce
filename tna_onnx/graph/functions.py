"""Model-local functions, inlined: a head inside one could not be seen otherwise."""

from __future__ import annotations

import onnx
import onnx.inliner

__all__ = ["inlined"]


def inlined(model: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Return a model with its own functions inlined, and their names; one that cannot be inlined as it is."""
    if not model.functions:
        return model, ()
    try:
        flat = onnx.inliner.inline_local_functions(model)
    except (RuntimeError, ValueError):
        # The walk then stops at the call of the function, and says so.
        return model, ()
    return flat, tuple(sorted(function.name for function in model.functions))
