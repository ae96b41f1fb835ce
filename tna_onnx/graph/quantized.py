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

from tna_onnx.graph.dtypes import INTEGER_TYPES
from tna_onnx.graph.load import Model
from tna_onnx.graph.traverse import input_at

__all__ = ["Quantized", "read_quantized"]

# Some CPUs add products of 8-bit numbers in 16 bits, which 7-bit weights keep from overflowing.
_LIMIT_7_BITS = 64


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
        axis = 0 if scale.ndim else None
        return replace(self, fixed_scale=scale, axis=axis)

    def quantize(self, value: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return (integers, scale, zero point) of a new value in the stored layout."""
        value = value.astype(np.float64)
        scale = self._new_scale(value)
        scale = np.asarray(np.where(scale > 0, scale, 1.0), self.scale.dtype)  # zeros alone: any scale will do
        middle = 0
        if self.dtype.kind == "u":
            middle = 2 ** (8 * self.dtype.itemsize - 1)
        zero = np.full(scale.shape, middle, self.dtype)
        steps = np.rint(value / self._spread(scale.astype(np.float64), value.ndim))
        # Symmetric: of 8 bits, -128 stays unused.
        steps = np.clip(steps, -self.limit, self.limit) + int(zero.flat[0])
        return steps.astype(self.dtype), scale, zero

    def as_written(self, value: NDArray[Any]) -> NDArray[Any]:
        """Return what DequantizeLinear gives for a new value."""
        integers, scale, zero = self.quantize(value)
        shifted = integers.astype(np.float64) - int(zero.flat[0])
        return np.asarray(shifted * self._spread(scale.astype(np.float64), value.ndim), scale.dtype)

    def _new_scale(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the scale with which the largest value, of each channel or of all, takes the limit."""
        if self.fixed_scale is not None:
            return self.fixed_scale
        magnitude = np.abs(value)
        if self.axis is None:
            return np.asarray(np.max(magnitude, initial=0) / self.limit)
        others = tuple(k for k in range(value.ndim) if k != self.axis)
        return np.asarray(np.max(magnitude, axis=others, initial=0) / self.limit)

    def _spread(self, scale: NDArray[np.float64], rank: int) -> NDArray[np.float64]:
        """Shape a scale so that it broadcasts along its axis."""
        return _along(scale, self.axis, rank)


def read_quantized(model: Model, index: int) -> tuple[Quantized, NDArray[Any]] | None:
    """Return how the constant behind a DequantizeLinear node is quantised, and its value.

    None if it is another node, or its input no constant of 8, 16 or 32 bits with a constant scale, one or per channel.
    """
    node = model.proto.graph.node[index]
    if node.op_type != "DequantizeLinear":
        return None
    tensors = [model.constant_tensor(name) for name in node.input if name]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    # With block_size, a scale holds for a part of an axis, which `Quantized` does not know.
    if any(t is None for t in tensors) or len(tensors) < 2 or attributes.get("block_size", 0):
        return None
    stored, scale, *rest = [t for t in tensors if t is not None]
    if stored.data_type not in INTEGER_TYPES or node.domain not in ("", "ai.onnx", "com.microsoft"):
        return None
    integers = model.array(stored)
    factor = model.floats(scale)
    zero = np.zeros((), np.int64)
    if rest:
        zero = model.array(rest[0]).astype(np.int64)
    if factor.ndim > 1 or zero.shape not in ((), factor.shape):
        return None
    axis = None
    if factor.size > 1:
        axis = int(attributes.get("axis", 1)) % max(integers.ndim, 1)
    else:
        factor = factor.reshape(())
    shifted = integers.astype(np.int64) - _along(zero, axis, integers.ndim)
    dtype = INTEGER_TYPES[stored.data_type]
    quantized = Quantized(
        node=index,
        dtype=dtype,
        scale=factor,
        zero_point=input_at(node, 2),
        limit=_limit(dtype, int(np.max(np.abs(shifted), initial=0))),
        axis=axis,
    )
    value = shifted * _along(factor.astype(np.float64), axis, integers.ndim)
    return quantized, np.asarray(value, factor.dtype)


def _limit(dtype: np.dtype[Any], largest: int) -> int:
    """Return how far from the zero point a new value may lie, if the stored ones go as far as `largest`."""
    if dtype.itemsize == 1 and largest <= _LIMIT_7_BITS:
        return _LIMIT_7_BITS
    return int(2 ** (8 * dtype.itemsize - 1)) - 1


def _along(array: NDArray[Any], axis: int | None, rank: int) -> NDArray[Any]:
    """Shape a vector so that it broadcasts along an axis; a number, or one for all axes, stays as it is."""
    if axis is None or array.ndim == 0:
        return array
    return array.reshape([-1 if k == axis else 1 for k in range(rank)])
