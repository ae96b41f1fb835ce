"""The ONNX checker on a file or a model."""

from __future__ import annotations

from pathlib import Path

import onnx

__all__ = ["checker_complaint"]


def checker_complaint(model: Path | onnx.ModelProto) -> str:
    """Return what the ONNX checker, shape inference included, says against a file or model; empty if nothing."""
    # Given a path, the checker finds external data, and takes models above 2 GB.
    checked = str(model) if isinstance(model, Path) else model
    try:
        onnx.checker.check_model(checked, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return str(error)
    # Of some damaged files it says so in other ways.
    except (MemoryError, RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
