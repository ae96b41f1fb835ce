"""Element types of a head, with bfloat16, which NumPy does not have: held as float32, rounded to its values."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from tna_onnx.graph.apart import is_large, key_of

__all__ = ["TF32_EPSILON", "epsilon", "float_tensor", "large_tensor", "numpy_type", "rounded", "widened"]

TF32_EPSILON = 2.0**-10
"""Relative step between neighbouring numbers of TF32, to which CUDA may round the factors of float32 products."""

_BFLOAT16 = "bfloat16"
# bfloat16 keeps 7 of the 23 bits of a float32's fraction.
_BFLOAT16_EPSILON = 2.0**-7
_BFLOAT16_NAN = np.uint16(0x7FC0)


def numpy_type(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype that holds values of an element type."""
    if name == _BFLOAT16:
        return np.dtype(np.float32)
    return np.dtype(name)


def epsilon(name: str) -> float:
    """Return the relative step between neighbouring numbers of an element type."""
    if name == _BFLOAT16:
        return _BFLOAT16_EPSILON
    return float(np.finfo(name).eps)


def rounded(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Round to an element type; too large numbers become infinite.

    >>> rounded(np.array([1.001]), "bfloat16")
    array([1.], dtype=float32)
    """
    with np.errstate(over="ignore"):
        held = np.asarray(array, numpy_type(name))
    if name == _BFLOAT16:
        return widened(_bfloat16_bits(held))
    return held


def float_tensor(array: NDArray[Any], element_type: str, name: str) -> onnx.TensorProto:
    """Return a TensorProto with raw data."""
    if element_type != _BFLOAT16:
        return numpy_helper.from_array(rounded(array, element_type), name)
    bits = _bfloat16_bits(np.asarray(array, np.float32)).astype("<u2")
    return onnx.helper.make_tensor(name, onnx.TensorProto.BFLOAT16, array.shape, bits.tobytes(), raw=True)


def large_tensor(array: NDArray[Any], element_type: str, name: str, apart: dict[bytes, Any]) -> onnx.TensorProto:
    """Return a TensorProto with a key in the place of raw data, which go to `apart`; of small values a plain one."""
    value = np.asarray(array, order="C")
    if not is_large(value.nbytes) or element_type == _BFLOAT16 or sys.byteorder != "little":
        return float_tensor(array, element_type, name)
    value = np.asarray(rounded(value, element_type), order="C")
    key = key_of(value)
    apart[key] = value
    code = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    return onnx.TensorProto(name=name, dims=value.shape, data_type=code, raw_data=key)


def widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the numbers whose bfloat16 bits these are."""
    wide = (np.atleast_1d(bits).astype(np.uint32) << 16).view(np.float32)
    return wide.reshape(bits.shape)


def _bfloat16_bits(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to nearest, ties to even, and keep the upper half of each number."""
    flat = np.asarray(array).reshape(-1)
    bits = np.ascontiguousarray(flat).view(np.uint32).astype(np.uint64)  # the sum below may need 33 bits
    # 0x7FFF + the last bit that stays: halves go up only where that makes the last bit 0.
    upper = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    # A NaN whose set bits all lie in the lower half would become infinite.
    return np.where(np.isnan(flat), _BFLOAT16_NAN, upper).astype(np.uint16).reshape(array.shape)
