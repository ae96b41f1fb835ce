"""A head whose weight is quantised, set up for a new one: a scale per class, and the bias in the matching scale."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tna_onnx.graph.load import Model
from tna_onnx.graph.quantized import read_quantized
from tna_onnx.graph.readout import Head
from tna_onnx.graph.stored import Stored

__all__ = ["requantized"]


def requantized(model: Model, head: Head) -> Head:
    """Return the head as it will be requantised; one whose weight is not quantised comes back as it is."""
    stored = head.stored_weight
    if stored.quantized is None:
        return head
    if stored.quantized.axis is None and model.opset >= 13:
        stored = _per_class(head, stored)
    step = _features_scale(model, head)
    bias = head.stored_bias
    if bias is None or bias.quantized is None or step is None:
        return replace(head, stored_weight=stored)
    old = step * np.asarray(stored.quantized.scale if stored.quantized else 1, np.float64)
    linked = bias.quantized.dtype == np.int32 and np.allclose(bias.quantized.scale, old, rtol=1e-4)
    largest = float(step * np.max(np.abs(head.weight)) / 64)
    return replace(
        head, stored_weight=stored, bias_step=step if linked else None, step=max(head.step, largest if linked else 0.0)
    )


def _per_class(head: Head, stored: Stored) -> Stored:
    """Give the weight a scale per class, where one axis of the stored tensor counts the classes."""
    assert stored.quantized is not None  # noqa: S101 - the caller looked
    marks = stored.layout(head.marked_as_read())
    along = [k for k in range(marks.ndim) if np.any(np.diff(marks, axis=k))]
    return replace(stored, quantized=stored.quantized.per_channel(along[0])) if len(along) == 1 else stored


def _features_scale(model: Model, head: Head) -> float | None:
    """Scale of quantised features; None if they are not quantised, or per channel."""
    index = model.producers.get(head.features)
    node = model.producer(head.features)
    if node is None or index is None or node.op_type != "DequantizeLinear" or len(node.input) < 2:
        return None
    scale = model.constant_tensor(node.input[1])
    if scale is None or read_quantized(model, index) is not None:
        return None
    value = model.floats(scale)
    return float(value.reshape(-1)[0]) if value.size == 1 else None
