"""A head whose weight is quantised, set up for a new one: a scale per class, and the bias in the matching scale."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tna_onnx.graph.load import Model
from tna_onnx.graph.quantized import Quantized, read_quantized
from tna_onnx.graph.readout import Head
from tna_onnx.graph.stored import Stored

__all__ = ["features_step", "requantized"]

# The stored scale is a product that was rounded to float32 or float16; a scale of its own is further off.
_SCALE_TOLERANCE = 1e-4


def requantized(model: Model, head: Head) -> Head:
    """Return the head as it will be requantised; one whose weight is not quantised comes back as it is."""
    stored = head.stored_weight
    quantized = stored.quantized
    if quantized is None:
        return head
    if quantized.axis is None and model.opset >= 13:  # DequantizeLinear has an axis from opset 13 on
        head = replace(head, stored_weight=_per_class(head, stored, quantized))
    features_scale = _features_scale(model, head)
    bias = head.stored_bias
    if bias is None or bias.quantized is None or features_scale is None:
        return head
    product = features_scale * np.asarray(quantized.scale, np.float64)
    if bias.quantized.dtype != np.int32 or not np.allclose(bias.quantized.scale, product, rtol=_SCALE_TOLERANCE):
        return head
    # A 7-bit weight has the largest step.
    max_step = float(features_scale * np.max(np.abs(head.weight)) / 64)
    return replace(head, bias_step=features_scale, step=max(head.step, max_step))


def _per_class(head: Head, stored: Stored, quantized: Quantized) -> Stored:
    """Give the weight a scale per class, where one axis of the stored tensor counts the classes."""
    marks = stored.layout(head.marked_as_read())
    # The number of the class changes along an axis of its own, or along several if a Reshape has mixed them.
    along = [k for k in range(marks.ndim) if np.any(np.diff(marks, axis=k))]
    if len(along) != 1:
        return stored
    return replace(stored, quantized=quantized.per_channel(along[0]))


def features_step(model: Model, head: Head) -> float:
    """Return the step of quantised features, the largest of several; 0 if they are not quantised by a constant."""
    node = model.producer(head.features)
    if node is None or node.op_type != "DequantizeLinear" or len(node.input) < 2:
        return 0.0
    scale = model.constant_tensor(node.input[1])
    if scale is None:
        return 0.0
    return float(np.max(model.floats(scale), initial=0))


def _features_scale(model: Model, head: Head) -> float | None:
    """Scale of quantised features; None if they are not quantised, or per channel."""
    index = model.producers.get(head.features)
    node = model.producer(head.features)
    if node is None or index is None or node.op_type != "DequantizeLinear" or len(node.input) < 2:
        return None
    scale = model.constant_tensor(node.input[1])
    if scale is None or read_quantized(model, index) is not None:
        return None
    value = model.floats(scale).reshape(-1)
    if value.size != 1:
        return None
    return float(value[0])
