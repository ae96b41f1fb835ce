"""The element types of ONNX tensors: one table of how each is called, stored and measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

__all__ = [
    "FLOAT_TYPES",
    "INTEGER_TYPES",
    "ElementType",
    "byte_count",
    "code_of",
    "element_type",
    "numpy_name",
    "type_name",
]


@dataclass(frozen=True)
class ElementType:
    """How a tensor stores the elements of one type.

    Attributes:
        raw: NumPy dtype of an element of `raw_data`; empty if NumPy has no such type.
        field: the field of a TensorProto that holds the elements where `raw_data` does not.
        cell: NumPy dtype of the bytes that one entry of that field has in `raw_data`.
        bits: size of an element.
    """

    raw: str
    field: str
    cell: str
    bits: int


_TABLE: dict[int, ElementType] = {
    TensorProto.FLOAT: ElementType("<f4", "float_data", "<f4", 32),
    TensorProto.DOUBLE: ElementType("<f8", "double_data", "<f8", 64),
    # ONNX keeps the bits of 16-bit floats in the lower half of an int32.
    TensorProto.FLOAT16: ElementType("<f2", "int32_data", "<u2", 16),
    TensorProto.BFLOAT16: ElementType("", "int32_data", "<u2", 16),
    # Real and imaginary parts are two entries of the field.
    TensorProto.COMPLEX64: ElementType("<c8", "float_data", "<f4", 64),
    TensorProto.COMPLEX128: ElementType("<c16", "double_data", "<f8", 128),
    TensorProto.BOOL: ElementType("?", "int32_data", "u1", 8),
    TensorProto.INT8: ElementType("i1", "int32_data", "u1", 8),
    TensorProto.INT16: ElementType("<i2", "int32_data", "<u2", 16),
    TensorProto.INT32: ElementType("<i4", "int32_data", "<i4", 32),
    TensorProto.INT64: ElementType("<i8", "int64_data", "<i8", 64),
    TensorProto.UINT8: ElementType("u1", "int32_data", "u1", 8),
    TensorProto.UINT16: ElementType("<u2", "int32_data", "<u2", 16),
    TensorProto.UINT32: ElementType("<u4", "uint64_data", "<u4", 32),
    TensorProto.UINT64: ElementType("<u8", "uint64_data", "<u8", 64),
}

# Bits of the types whose elements share bytes, by name: older versions of onnx do not have all of them.
_PACKED = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6, "UINT2": 2, "INT2": 2}

FLOAT_TYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.DOUBLE: "float64",
    TensorProto.BFLOAT16: "bfloat16",
}
"""Element types that a head may have, by the names that NumPy gives them, or would."""

INTEGER_TYPES: dict[int, np.dtype[Any]] = {
    code: np.dtype(_TABLE[code].raw)
    for code in (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16, TensorProto.INT32)
}
"""Element types that a quantised constant may have."""


def element_type(code: int) -> ElementType:
    """Return how a type is stored; types of a byte or less that are not in the table share one form."""
    return _TABLE.get(code, ElementType("", "int32_data", "u1", _PACKED.get(type_name(code).upper(), 8)))


def byte_count(tensor: TensorProto) -> int:
    """Return the number of bytes that a tensor's shape and type ask for."""
    count: int = math.prod(tensor.dims)
    return (count * element_type(tensor.data_type).bits + 7) // 8


def code_of(dtype: np.dtype[Any]) -> int:
    """Return the ONNX element type of a NumPy dtype."""
    return int(onnx.helper.np_dtype_to_tensor_dtype(dtype))


def type_name(code: int) -> str:
    """Return ONNX's name of an element type, in lower case; its number, if ONNX has no such type."""
    names: dict[int, str] = {number: name.lower() for name, number in TensorProto.DataType.items()}
    return names.get(code, str(code))


def numpy_name(code: int) -> str:
    """Return the name that NumPy gives an element type, or ONNX's where NumPy has none."""
    return FLOAT_TYPES.get(code, type_name(code))
