"""A map from logits to logits, made to fit what the tensor in the graph holds.

Written around the map, with s the one logit of a binary head and p a probability:

    binary logits           s -> (0, s) -> map -> (l_0, l_1) -> l_1 - l_0
    probabilities           p -> log p -> map -> softmax
    labels' probabilities   p -> log p - log (1 - p) -> map -> sigmoid
    binary probabilities    p -> (1 - p, p) -> log -> map -> softmax -> p_1
    hidden binary scores    (-s, s) -> (0, s) -> map -> softmax
    several a sample        (N, C, H, W) -> (N H W, C) -> map -> (N, C, H, W)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

from tna_onnx.graph.floats import epsilon
from tna_onnx.graph.nodes import NodeOps
from tna_onnx.graph.readout import Readout
from tna_onnx.graph.several import CLASSES_FIRST, Layout

__all__ = ["WriteMap", "adapted"]

WriteMap: TypeAlias = Callable[[NodeOps, str, str], str]
"""Writes a map's nodes: (ops, logits, features) -> result, all by name."""


def adapted(
    write_map: WriteMap, readout: Readout, shape: tuple[int, ...] | Layout, *, hidden: bool = False
) -> WriteMap:
    """Return a map that takes and gives what the tensor holds, in the shape that a sample has there.

    Args:
        write_map: the map, from logits to logits.
        readout: what the tensor holds.
        shape: of one sample; the layout, where it has several predictions.
        hidden: the tensor is made to hold hidden scores (see `graph.hidden`).
    """
    if hidden:
        return lambda ops, tensor, features: ops.softmax(
            write_map(ops, ops.matmul(tensor, ops.const([[0.0, 0.0], [0.0, 1.0]])), features)
        )

    def on_rows(ops: NodeOps, tensor: str, features: str) -> str:
        return _from_logits(ops, readout, write_map(ops, _to_logits(ops, readout, tensor), features))

    columns = [-1, 1 if readout.binary else readout.n_classes]  # the words of a map work on (N, C)
    if isinstance(shape, Layout):
        return functools.partial(_at_positions, on_rows, shape, columns)
    if len(shape) == 1:
        return on_rows
    own = [-1, *shape]
    return lambda ops, tensor, features: ops.reshape(on_rows(ops, ops.reshape(tensor, columns), features), own)


def _at_positions(
    on_rows: WriteMap, layout: Layout, columns: list[int], ops: NodeOps, tensor: str, features: str
) -> str:
    """Write a map of rows around which positions and classes are brought into rows, and back."""
    places = list(range(2, layout.axes))
    if layout.class_axis == CLASSES_FIRST:
        tensor = ops.transpose(tensor, [0, *places, 1])
    result = ops.reshape_as(on_rows(ops, ops.reshape(tensor, columns), features), tensor)
    if layout.class_axis == CLASSES_FIRST:
        result = ops.transpose(result, [0, layout.axes - 1, *range(1, layout.axes - 1)])
    return result


def _to_logits(ops: NodeOps, readout: Readout, tensor: str) -> str:
    if readout.holds == "probabilities":
        if readout.binary:  # (1 - p, p) = p (-1, 1) + (1, 0)
            tensor = ops.add(ops.matmul(tensor, ops.const([[-1.0, 1.0]])), ops.const([1.0, 0.0]))
        if readout.multi_label:
            return _label_logits(ops, tensor, epsilon(readout.logits_type) / 4)
        return ops.log(ops.clip(tensor, ops.tiny, 1.0))  # log 0 would be infinite
    if readout.binary:  # (0, s) = s (0, 1)
        return ops.matmul(tensor, ops.const([[0.0, 1.0]]))
    return tensor


def _from_logits(ops: NodeOps, readout: Readout, result: str) -> str:
    if readout.holds == "probabilities" and readout.multi_label:
        return ops.sigmoid(result)
    if readout.holds == "probabilities":
        result = ops.softmax(result)
        if readout.binary:  # p_1
            result = ops.matmul(result, ops.const([[0.0], [1.0]]))
        return result
    if readout.binary:  # l_1 - l_0: a softmax sees differences alone
        return ops.matmul(result, ops.const([[-1.0], [1.0]]))
    return result


def _label_logits(ops: NodeOps, p: str, least: float) -> str:
    """Write log p - log (1 - p), where p is no nearer to 0 or 1 than `least`."""
    rest = ops.add(ops.mul(p, ops.const(-1.0)), ops.const(1.0))
    logs = ops.mul(ops.log(ops.clip(rest, least, 1.0)), ops.const(-1.0))
    return ops.add(ops.log(ops.clip(p, least, 1.0)), logs)
