"""Element types of a head, with bfloat16, which NumPy does not have: held as float32, rounded to its values."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

__all__ = ["FLOAT_TYPES", "epsilon", "float_tensor", "numpy_type", "rounded"]

FLOAT_TYPES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.DOUBLE: "float64",
    onnx.TensorProto.BFLOAT16: "bfloat16",
}
"""Element types that a head may have, by the names that NumPy gives them, or would."""


def numpy_type(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype that holds values of an element type."""
    return np.dtype("float32" if name == "bfloat16" else name)


def epsilon(name: str) -> float:
    """Return the relative step between neighbouring numbers of an element type."""
    return 2.0**-7 if name == "bfloat16" else float(np.finfo(name).eps)


def rounded(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Round to an element type; too large numbers become infinite.

    >>> rounded(np.array([1.001]), "bfloat16")
    array([1.], dtype=float32)
    """
    with np.errstate(over="ignore"):
        held = np.asarray(array, numpy_type(name))
    return _widened(_bfloat16_bits(held)) if name == "bfloat16" else held


def float_tensor(array: NDArray[Any], element_type: str, name: str) -> onnx.TensorProto:
    """Return a TensorProto with raw data."""
    if element_type == "bfloat16":
        bits = _bfloat16_bits(np.asarray(array, np.float32))
        kind = onnx.TensorProto.BFLOAT16
        return onnx.helper.make_tensor(name, kind, array.shape, bits.astype("<u2").tobytes(), raw=True)
    return numpy_helper.from_array(rounded(array, element_type), name)


def _bfloat16_bits(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest, ties to even, and keep the upper half of each number."""
    bits = array.view(np.uint32).astype(np.uint64) if array.ndim else np.asarray(array).reshape(1).view(np.uint32)
    bits = bits.astype(np.uint64)
    upper = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    nan = np.isnan(array) if array.ndim else np.isnan(np.asarray(array).reshape(1))
    return np.where(nan, np.uint16(0x7FC0), upper).astype(np.uint16).reshape(array.shape)


def _widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    wide = (np.atleast_1d(bits).astype(np.uint32) << 16).view(np.float32)
    return wide.reshape(bits.shape)
