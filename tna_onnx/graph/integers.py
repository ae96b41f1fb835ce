"""Heads that compute with integers, opened up: DequantizeLinear, the float operator, QuantizeLinear.

An integer operator adds up products of integers, and multiplies the sum by the scales:

    (a_q - a_0) @ (b_q - b_0) * a_scale * b_scale  =  dequantised(a) @ dequantised(b)

The right-hand side is the QDQ form, in which a weight can be replaced. Runtimes turn it back into the integer operator
as they load it. Opened up are the operators from each graph output back to the first linear layer, and no others:

1. QLinearMatMul, QLinearConv, QGemm, and what may follow them (QLinearAdd, QLinearMul, QLinearSigmoid, QLinearSoftmax,
   QLinearLeakyRelu, QLinearGlobalAveragePool);
2. MatMulInteger and ConvInteger with the Cast and the Mul behind them; MatMulIntegerToFloat; DynamicQuantizeMatMul;
3. MatMulNBits: its weight becomes floats, since a few bits could not hold a new one. Not where that takes much memory.

A form that is not known is left as it is, and the walk refuses it by name.
"""

from __future__ import annotations

from collections.abc import Sequence

from tna_onnx.graph.integer_forms import LINEAR, OPENERS
from tna_onnx.graph.linear import is_linear
from tna_onnx.graph.load import Model
from tna_onnx.graph.readout import Readout
from tna_onnx.graph.replaced import Replacement, Unknown, Work

__all__ = ["left_closed", "opened_like", "opened_up", "quantizes_batches"]

_FIRST_OPSET = 10  # of DequantizeLinear
_MAX_PASSED = 50  # nodes from an output to its linear layer
_DYNAMIC = {"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"}


def quantizes_batches(model: Model) -> bool:
    """Whether nodes quantise a batch by its own range, so that results depend on which samples are run together."""
    return any(node.op_type in _DYNAMIC for node in model.proto.graph.node)


def opened_up(model: Model) -> Model:
    """Return the model with integer heads in QDQ form; the model itself if it has none.

    Ensures: no tensor that both have changes its meaning. What was opened is in `Model.opened`, the model itself in
    `Model.closed`.
    """
    if not any(node.op_type in OPENERS for node in model.proto.graph.node) or model.opset < _FIRST_OPSET:
        return model
    return _opened(model, _last_integers(model))


def left_closed(model: Model, readout: Readout) -> tuple[Model, Readout]:
    """Return a model with its integer heads as they are, where its logits are still there to put something behind."""
    closed = model.closed
    if closed is None or readout.logits not in closed.producers:
        return model, readout
    return closed, readout.without_head()


def opened_like(source: Model, written: Model) -> Model:
    """Return what was made of a model in the form in which the model was read: the same nodes opened, and no others."""
    closed = written.closed or written
    numbers = {label: k for k, label in enumerate(closed.labels)}
    nodes = closed.proto.graph.node
    same = [(numbers[label], kind) for label, kind in source.opened.items() if label in numbers]
    return _opened(closed, sorted(k for k, kind in same if nodes[k].op_type == kind))


def _opened(model: Model, indices: Sequence[int]) -> Model:
    work = Work(model)
    for index in indices:
        opener = OPENERS[model.proto.graph.node[index].op_type]
        work.at = index
        replacement = Replacement()
        try:
            opener(work, replacement)
        except Unknown:
            continue
        work.taken_over(replacement)
    return work.result()


def _last_integers(model: Model) -> list[int]:
    """Return the integer nodes from each output back to the first linear layer, that included."""
    products = set()
    visited: set[int] = set()
    todo = [(name, 0) for name in model.outputs]
    while todo:
        name, depth = todo.pop()
        index = model.producers.get(name)
        if index is None or index in visited or depth > _MAX_PASSED:
            continue
        visited.add(index)
        node = model.proto.graph.node[index]
        if node.op_type in OPENERS:
            products.add(index)
        # In front of a DynamicQuantizeLinear there are the layers before.
        if not is_linear(node) and node.op_type not in (*LINEAR, "DynamicQuantizeLinear"):
            todo += [(name, depth + 1) for name in node.input if name]
    return sorted(products)
