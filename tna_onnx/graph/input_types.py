"""What a model's inputs are, as text."""

from __future__ import annotations

import onnx

from tna_onnx.graph.dtypes import numpy_name
from tna_onnx.graph.load import Model

__all__ = ["shape_text", "tensor_types"]


def tensor_types(model: Model) -> dict[str, str]:
    """Dtype and shape of each graph input as text, such as `float32 (N, 3, 32, 32)`; dynamic dimensions by name."""
    return {info.name: _type_text(info.type) for info in model.proto.graph.input}


def shape_text(shape: onnx.TensorShapeProto) -> str:
    """Return a declared shape as text, such as `(N, 3)`; a dimension without name or size is `?`."""
    return f"({', '.join(map(_dimension_text, shape.dim))})"


def _dimension_text(dimension: onnx.TensorShapeProto.Dimension) -> str:
    if dimension.HasField("dim_value"):
        return str(dimension.dim_value)
    return dimension.dim_param or "?"


def _type_text(kind: onnx.TypeProto) -> str:
    if not kind.HasField("tensor_type"):
        return str(kind.WhichOneof("value")).removesuffix("_type")
    return f"{numpy_name(kind.tensor_type.elem_type)} {shape_text(kind.tensor_type.shape)}"
