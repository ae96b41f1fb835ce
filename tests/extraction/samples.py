"""Classifiers of three classes on (N, 6) inputs, or (N, 4, 6) tokens, and how the tests of this folder open them."""

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from tests.builders import nodes_of, small_model, tensor_info
from tests.data.samples import open_source
from tna_onnx.data.source import Source
from tna_onnx.extraction.classifier import OpenModel
from tna_onnx.graph.load import load_model
from tna_onnx.graph.scores import choose_head
from tna_onnx.runtime import Device, Session

CPU = Device("cpu")
_RNG = np.random.default_rng(8)
WEIGHT: NDArray[np.float32] = _RNG.standard_normal((3, 6)).astype(np.float32)
BIAS: NDArray[np.float32] = _RNG.standard_normal(3).astype(np.float32)


def dense(dtype: Any = np.float32, batch: int | str = "N", *, softmax: bool = False) -> onnx.ModelProto:
    """Logits = relu(x) @ weight.T + bias; with `softmax` their probabilities `p` too."""
    nodes = nodes_of("Relu x > z; Gemm z weight bias > logits name=head transB=1")
    outputs = [tensor_info("logits", [batch, 3], dtype)]
    if softmax:
        nodes.append(helper.make_node("Softmax", ["logits"], ["p"], axis=1))
        outputs = [tensor_info("p", [batch, 3], dtype)]
    tensors = {"weight": WEIGHT.astype(dtype), "bias": BIAS.astype(dtype)}
    return small_model(nodes, {"x": ([batch, 6], dtype)}, outputs, tensors)


def divided() -> onnx.ModelProto:
    """Logits = (relu(x) @ weight.T + bias) / scale with scale = 1 + mean |x|, a number a sample beside the head."""
    nodes = nodes_of(
        "Relu x > z; Gemm z weight bias > scores name=head transB=1; Abs x > size; "
        "ReduceMean size > mean axes=[1] keepdims=1; Add mean one > scale; Div scores scale > logits name=divide"
    )
    tensors = {"weight": WEIGHT, "bias": BIAS, "one": np.ones(1, np.float32)}
    return small_model(nodes, {"x": ["N", 6]}, {"logits": ["N", 3]}, tensors)


def tokens(batch: int | str = "N") -> onnx.ModelProto:
    """Logits = max over the tokens of x @ weight.T + bias: only the graph can compute them."""
    nodes = nodes_of(
        "Relu x > z; MatMul z weight > product name=head; Add product bias > scores; "
        "ReduceMax scores > logits axes=[1] keepdims=0"
    )
    tensors = {"weight": np.ascontiguousarray(WEIGHT.T), "bias": BIAS}
    return small_model(nodes, {"x": [batch, 4, 6]}, {"logits": [batch, 3]}, tensors)


def opened(proto: onnx.ModelProto) -> OpenModel:
    """Open a model with its head."""
    model = load_model(proto)
    return OpenModel(model, choose_head(model), CPU)


def inputs(samples: int, *shape: int) -> NDArray[np.float32]:
    """Draw inputs (N, 6), or (N, *shape)."""
    return np.random.default_rng(samples).standard_normal((samples, *(shape or (6,)))).astype(np.float32)


def source_of(model: OpenModel, x: NDArray[Any]) -> Source:
    """Return labelled samples for a model's inputs."""
    return open_source({"x": x, "labels": np.arange(len(x)) % 3}, model.inputs, 3)


def rows_run(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of samples of each run of a network."""
    sizes: list[int] = []
    compute = Session._compute

    def counted(session: Session, outputs: Any, feeds: Any) -> Any:
        sizes.append(len(next(iter(feeds.values()))))
        return compute(session, outputs, feeds)

    monkeypatch.setattr(Session, "_compute", counted)
    return sizes
