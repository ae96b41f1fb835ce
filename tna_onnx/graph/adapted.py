"""A map from logits to logits, made to fit what the tensor in the graph holds.

Written around the map, with s the one logit of a binary head and p a probability:

    binary logits           s -> (0, s) -> map -> (l_0, l_1) -> l_1 - l_0
    probabilities           p -> log p -> map -> softmax
    binary probabilities    p -> (1 - p, p) -> log -> map -> softmax -> p_1
    hidden binary scores    (-s, s) -> (0, s) -> map -> softmax
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tna_onnx.graph.nodes import NodeOps
from tna_onnx.graph.readout import Readout

__all__ = ["WriteMap", "adapted"]

WriteMap: TypeAlias = Callable[[NodeOps, str, str], str]
"""Writes a map's nodes: (ops, logits, features) -> result, all by name."""


def adapted(write_map: WriteMap, readout: Readout, shape: tuple[int, ...], *, hidden: bool = False) -> WriteMap:
    """Return a map that takes and gives what the tensor holds, in the shape that a sample has there.

    Args:
        write_map: the map, from logits to logits.
        readout: what the tensor holds.
        shape: of one sample.
        hidden: the tensor is made to hold hidden scores (see `graph.hidden`).
    """
    flat = len(shape) == 1
    if hidden:
        return lambda ops, tensor, features: ops.softmax(
            write_map(ops, ops.matmul(tensor, ops.const([[0.0, 0.0], [0.0, 1.0]])), features)
        )

    def write(ops: NodeOps, tensor: str, features: str) -> str:
        if not flat:  # the words of a map work on (N, C)
            tensor = ops.reshape(tensor, [-1, 1 if readout.binary else readout.n_classes])
        result = _from_logits(ops, readout, write_map(ops, _to_logits(ops, readout, tensor), features))
        if flat:
            return result
        return ops.reshape(result, [-1, *shape])

    return write


def _to_logits(ops: NodeOps, readout: Readout, tensor: str) -> str:
    if readout.holds == "probabilities":
        if readout.binary:  # (1 - p, p) = p (-1, 1) + (1, 0)
            tensor = ops.add(ops.matmul(tensor, ops.const([[-1.0, 1.0]])), ops.const([1.0, 0.0]))
        return ops.log(ops.clip(tensor, ops.tiny, 1.0))  # log 0 would be infinite
    if readout.binary:  # (0, s) = s (0, 1)
        return ops.matmul(tensor, ops.const([[0.0, 1.0]]))
    return tensor


def _from_logits(ops: NodeOps, readout: Readout, result: str) -> str:
    if readout.holds == "probabilities":
        result = ops.softmax(result)
        if readout.binary:  # p_1
            result = ops.matmul(result, ops.const([[0.0], [1.0]]))
        return result
    if readout.binary:  # l_1 - l_0: a softmax sees differences alone
        return ops.matmul(result, ops.const([[-1.0], [1.0]]))
    return result
