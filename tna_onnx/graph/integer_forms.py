"""The float form of each operator that computes with integers; see `graph.integers`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
from onnx import helper

from tna_onnx.graph.constants import unpacked
from tna_onnx.graph.replaced import Replacement, Unknown, Work

__all__ = ["LINEAR", "OPENERS"]


def _requantized(work: Work, replacement: Replacement, kind: str, data: list[str], y: int, **attributes: Any) -> None:
    """Write the float operator and the QuantizeLinear behind it; its scale is input `y`, the zero point the next."""
    real = work.main(replacement, kind, data, work.fresh("float"), **attributes)
    inputs = [real, work.input(y)]
    if work.input(y + 1):
        inputs.append(work.input(y + 1))
    work.write(replacement, "QuantizeLinear", inputs, str(work.node.output[0]))


def _triple(work: Work, start: int) -> tuple[str, str, str]:
    return work.input(start), work.input(start + 1), work.input(start + 2)


def _require_constant(work: Work, name: str) -> None:
    if work.model.constant_tensor(name) is None:
        raise Unknown


def _qlinear_matmul(work: Work, replacement: Replacement) -> None:
    _require_constant(work, work.input(3))
    data = [work.dequantized(replacement, _triple(work, 0)), work.dequantized(replacement, _triple(work, 3), axis=1)]
    _requantized(work, replacement, "MatMul", data, 6)


def _bias(work: Work, replacement: Replacement, name: str, a_scale: str, b_scale: str) -> str:
    """Dequantise a 32-bit bias, which has the scale of the data times that of the weight."""
    product = work.constant(a_scale).reshape(-1) * work.constant(b_scale).reshape(-1)
    if product.size == 1:
        scale = work.put(replacement, product.reshape(()), "bias_scale")
        return work.write(replacement, "DequantizeLinear", [name, scale])
    scale = work.put(replacement, product, "bias_scale")
    return work.write(replacement, "DequantizeLinear", [name, scale], axis=0)


def _qgemm(work: Work, replacement: Replacement) -> None:
    attributes = work.attributes
    _require_constant(work, work.input(3))
    if attributes.get("alpha", 1.0) != 1:
        raise Unknown
    turned = {k: v for k, v in attributes.items() if k in ("transA", "transB")}
    axis = int(not attributes.get("transB", 0))
    data = [work.dequantized(replacement, _triple(work, 0)), work.dequantized(replacement, _triple(work, 3), axis)]
    if work.input(6):
        data.append(_bias(work, replacement, work.input(6), work.input(1), work.input(4)))
    if work.input(7):
        _requantized(work, replacement, "Gemm", data, 7, **turned)
    else:  # without a scale, the result is float
        work.main(replacement, "Gemm", data, str(work.node.output[0]), **turned)


def _qlinear_conv(work: Work, replacement: Replacement) -> None:
    _require_constant(work, work.input(3))
    data = [work.dequantized(replacement, _triple(work, 0)), work.dequantized(replacement, _triple(work, 3), axis=0)]
    if work.input(8):
        data.append(_bias(work, replacement, work.input(8), work.input(1), work.input(4)))
    _requantized(work, replacement, "Conv", data, 6, **work.attributes)


def _two_operands(kind: str) -> Callable[[Work, Replacement], None]:
    def opener(work: Work, replacement: Replacement) -> None:
        data = [work.dequantized(replacement, _triple(work, start)) for start in (0, 3)]
        _requantized(work, replacement, kind, data, 6)

    return opener


def _one_operand(kind: str) -> Callable[[Work, Replacement], None]:
    def opener(work: Work, replacement: Replacement) -> None:
        attributes = {k: v for k, v in work.attributes.items() if k not in ("channels_last", "opset")}
        if work.attributes.get("channels_last", 0):
            raise Unknown
        # Before opset 13 a Softmax was taken over all axes from one on; the attribute says which it is.
        if kind == "Softmax" and (work.attributes.get("opset", 13) < 13) != (work.model.opset < 13):
            raise Unknown
        _requantized(work, replacement, kind, [work.dequantized(replacement, _triple(work, 0))], 3, **attributes)

    return opener


def _only_reader(work: Work, tensor: str, kind: str) -> int:
    """Return the one node that reads a tensor, of a kind.

    Raises:
        Unknown: there is none.
    """
    nodes = work.model.proto.graph.node
    readers = [k for k, node in enumerate(nodes) if tensor in node.input]
    if work.model.uses.get(tensor, 0) != 1 or len(readers) != 1 or nodes[readers[0]].op_type != kind:
        raise Unknown
    return readers[0]


def _integer_product(kind: str, axis: int) -> Callable[[Work, Replacement], None]:
    """MatMulInteger or ConvInteger, Cast, and Mul by the product of both scales."""

    def opener(work: Work, replacement: Replacement) -> None:
        node = work.node
        nodes = work.model.proto.graph.node
        _require_constant(work, work.input(1))
        cast = _only_reader(work, node.output[0], "Cast")
        if any(a.name == "to" and a.i != onnx.TensorProto.FLOAT for a in nodes[cast].attribute):
            raise Unknown
        scaled = _only_reader(work, nodes[cast].output[0], "Mul")
        scales = next(name for name in nodes[scaled].input if name != nodes[cast].output[0])
        data_scale, weight_scale = _both_scales(work, scales)
        data = [
            work.dequantized(replacement, (work.input(0), data_scale, work.input(2))),
            work.dequantized(replacement, (work.input(1), weight_scale, work.input(3)), axis),
        ]
        work.main(replacement, kind, data, str(nodes[scaled].output[0]), **work.attributes)
        replacement.gone |= {cast, scaled}

    return opener


def _both_scales(work: Work, tensor: str) -> tuple[str, str]:
    """Return the scales of data and weight, of which a tensor is the product."""
    product = work.model.producer(tensor)
    quantizer = work.model.producer(work.input(0))
    if product is None or product.op_type != "Mul" or quantizer is None:
        raise Unknown
    if quantizer.op_type not in ("DynamicQuantizeLinear", "QuantizeLinear"):
        raise Unknown
    quantized_scale = quantizer.output[1] if quantizer.op_type == "DynamicQuantizeLinear" else quantizer.input[1]
    remaining = [name for name in product.input if name != quantized_scale]
    if len(remaining) != 1 or work.model.constant_tensor(remaining[0]) is None:
        raise Unknown
    return str(quantized_scale), str(remaining[0])


def _with_bias(work: Work, replacement: Replacement, data: list[str], bias: str) -> None:
    output = str(work.node.output[0])
    if bias:
        work.write(replacement, "Add", [work.main(replacement, "MatMul", data, work.fresh("product")), bias], output)
    else:
        work.main(replacement, "MatMul", data, output)


def _matmul_to_float(work: Work, replacement: Replacement) -> None:
    _require_constant(work, work.input(1))
    data = [
        work.dequantized(replacement, (work.input(0), work.input(2), work.input(4))),
        work.dequantized(replacement, (work.input(1), work.input(3), work.input(5)), axis=1),
    ]
    _with_bias(work, replacement, data, work.input(6))


def _dynamic_matmul(work: Work, replacement: Replacement) -> None:
    _require_constant(work, work.input(1))
    names = [work.fresh(role) for role in ("quantized", "scale", "zero_point")]
    replacement.nodes.append(
        helper.make_node("DynamicQuantizeLinear", [work.input(0)], names, name=work.fresh("quantize"))
    )
    data = [
        work.write(replacement, "DequantizeLinear", names),
        work.dequantized(replacement, (work.input(1), work.input(2), work.input(3)), axis=1),
    ]
    _with_bias(work, replacement, data, work.input(4))


def _matmul_few_bits(work: Work, replacement: Replacement) -> None:
    if work.input(4):  # columns in another order
        raise Unknown
    values = [work.constant(work.input(1)), work.constant(work.input(2))]
    zero = work.constant(work.input(3)) if work.input(3) else None
    weight = unpacked(values[0], values[1], zero, work.attributes)
    if weight is None:
        raise Unknown
    _with_bias(work, replacement, [work.input(0), work.put(replacement, weight.T.copy(), "weight")], work.input(5))


LINEAR = {
    "QLinearMatMul": _qlinear_matmul,
    "QGemm": _qgemm,
    "QLinearConv": _qlinear_conv,
    "MatMulInteger": _integer_product("MatMul", axis=1),
    "ConvInteger": _integer_product("Conv", axis=0),
    "MatMulIntegerToFloat": _matmul_to_float,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "MatMulNBits": _matmul_few_bits,
}
"""The linear ones: no other layer lies between them and the output."""

OPENERS: dict[str, Callable[[Work, Replacement], None]] = {
    **LINEAR,
    "QLinearAdd": _two_operands("Add"),
    "QLinearMul": _two_operands("Mul"),
    "QLinearSigmoid": _one_operand("Sigmoid"),
    "QLinearSoftmax": _one_operand("Softmax"),
    "QLinearLeakyRelu": _one_operand("LeakyRelu"),
    "QLinearGlobalAveragePool": _one_operand("GlobalAveragePool"),
}
"""Operator -> what writes its float form."""
