"""A constant behind DequantizeLinear: its value, and a new value quantised anew.

    value = (stored - zero_point) * scale

A new weight is quantised symmetrically, per channel where the file can say so (opset 13 and one class axis), else with
one scale. Models quantised to 7 bits, as some CPUs need, keep to 7 bits. A 32-bit bias beside quantised features has
the scale that integer kernels assume, scale of the features times scale of the weight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tna_onnx.graph.load import Model

__all__ = ["Quantized", "read_quantized"]

_INTEGERS: dict[int, np.dtype[Any]] = {
    onnx.TensorProto.INT8: np.dtype(np.int8),
    onnx.TensorProto.UINT8: np.dtype(np.uint8),
    onnx.TensorProto.INT16: np.dtype(np.int16),
    onnx.TensorProto.UINT16: np.dtype(np.uint16),
    onnx.TensorProto.INT32: np.dtype(np.int32),
}


@dataclass(frozen=True, eq=False)
class Quantized:
    """How a constant is quantised.

    Attributes:
        node: index of the DequantizeLinear.
        dtype: of the stored integers.
        scale: the stored scale, shape () or (channels,).
        zero_point: name of the zero point's tensor; empty if there is none.
        limit: largest distance from the zero point that a new value may take.
        axis: axis of the stored tensor with a scale each; None for one scale.
        fixed_scale: a scale that a new value must have, in place of its own.
    """

    node: int
    dtype: np.dtype[Any]
    scale: NDArray[Any]
    zero_point: str
    limit: int
    axis: int | None
    fixed_scale: NDArray[np.float64] | None = None

    def per_channel(self, axis: int) -> Quantized:
        """Return the same with a scale for every index of one axis."""
        return replace(self, axis=axis)

    def with_scale(self, scale: NDArray[np.float64]) -> Quantized:
        """Return the same with a given scale, () or one per element of a vector."""
        return replace(self, fixed_scale=scale, axis=0 if scale.ndim else None)

    def quantize(self, value: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return (integers, scale, zero point) of a new value in the stored layout."""
        value = value.astype(np.float64)
        if self.fixed_scale is not None:
            scale = self.fixed_scale
        else:
            others = tuple(k for k in range(value.ndim) if k != self.axis)
            scale = np.max(np.abs(value), axis=others if self.axis is not None else None, initial=0) / self.limit
        scale = np.asarray(np.where(scale > 0, scale, 1.0), self.scale.dtype)
        middle = 2 ** (8 * self.dtype.itemsize - 1) if self.dtype.kind == "u" else 0
        zero = np.full(scale.shape, middle, self.dtype)
        steps = np.rint(value / self._spread(scale.astype(np.float64), value.ndim))
        steps = np.clip(steps, -self.limit, self.limit) + int(zero.flat[0])
        return steps.astype(self.dtype), scale, zero

    def as_written(self, value: NDArray[Any]) -> NDArray[Any]:
        """Return what DequantizeLinear gives for a new value."""
        integers, scale, zero = self.quantize(value)
        shifted = integers.astype(np.float64) - int(zero.flat[0])
        return np.asarray(shifted * self._spread(scale.astype(np.float64), value.ndim), scale.dtype)

    def _spread(self, scale: NDArray[np.float64], rank: int) -> NDArray[np.float64]:
        """Shape a scale so that it broadcasts along its axis."""
        if self.axis is None or scale.ndim == 0:
            return scale
        return scale.reshape([-1 if k == self.axis else 1 for k in range(rank)])


def read_quantized(model: Model, index: int) -> tuple[Quantized, NDArray[Any]] | None:
    """Return how the constant behind a DequantizeLinear node is quantised, and its value.

    None if it is another node, or its input no constant of 8, 16 or 32 bits with a constant scale, one or per channel.
    """
    node = model.proto.graph.node[index]
    if node.op_type != "DequantizeLinear":
        return None
    tensors = [model.constant_tensor(name) for name in node.input if name]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if any(t is None for t in tensors) or len(tensors) < 2 or attributes.get("block_size", 0):
        return None
    stored, scale, *rest = [t for t in tensors if t is not None]
    if stored.data_type not in _INTEGERS or node.domain not in ("", "ai.onnx", "com.microsoft"):
        return None
    integers, factor = model.array(stored), model.floats(scale)
    zero = model.array(rest[0]).astype(np.int64) if rest else np.zeros((), np.int64)
    if factor.ndim > 1 or zero.shape not in ((), factor.shape):
        return None
    axis = int(attributes.get("axis", 1)) % max(integers.ndim, 1) if factor.size > 1 else None
    factor = factor.reshape(()) if axis is None else factor
    shifted = integers.astype(np.int64) - (zero if axis is None else _along(zero, axis, integers.ndim))
    dtype = _INTEGERS[stored.data_type]
    largest = int(np.max(np.abs(shifted), initial=0))
    limit = 64 if dtype.itemsize == 1 and largest <= 64 else 2 ** (8 * dtype.itemsize - 1) - 1
    name = node.input[2] if len(node.input) > 2 else ""
    found = Quantized(index, dtype, factor, name, limit, axis)
    value = shifted * (factor.astype(np.float64) if axis is None else _along(factor, axis, integers.ndim))
    return found, np.asarray(value, factor.dtype)


def _along(array: NDArray[Any], axis: int, rank: int) -> NDArray[Any]:
    return array if array.ndim == 0 else array.reshape([-1 if k == axis else 1 for k in range(rank)])
