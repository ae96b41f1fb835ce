"""What graphs hold, sub-graphs of If, Loop and Scan included."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

__all__ = ["all_tensors", "all_tensors_of", "input_at", "subgraph_inputs", "subgraph_outputs", "subgraphs"]


def input_at(node: onnx.NodeProto, position: int) -> str:
    """Return the name of an input; empty if it is left out."""
    if len(node.input) <= position:
        return ""
    return str(node.input[position])


def subgraphs(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs of an attribute."""
    # An unset message field reads as an empty one.
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def all_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a graph: initializers, attributes of nodes, sub-graphs."""
    yield from graph.initializer
    for tensor in graph.sparse_initializer:
        yield tensor.values
        yield tensor.indices
    for node in graph.node:
        for attribute in node.attribute:
            yield from all_tensors_of(attribute)


def all_tensors_of(attribute: onnx.AttributeProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of an attribute, sub-graphs included."""
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    for graph in subgraphs(attribute):
        yield from all_tensors(graph)


def subgraph_inputs(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that the sub-graphs of a node (If, Loop, Scan) read, their own tensors included."""
    for attribute in node.attribute:
        for graph in subgraphs(attribute):
            for inner in graph.node:
                yield from inner.input
                yield from subgraph_inputs(inner)
            # An output may be a tensor of the graph around, which no inner node reads.
            yield from (output.name for output in graph.output)


def subgraph_outputs(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that the sub-graphs of a node make or hold themselves."""
    for attribute in node.attribute:
        for graph in subgraphs(attribute):
            yield from (tensor.name for tensor in (*graph.input, *graph.initializer))
            for inner in graph.node:
                yield from inner.output
                yield from subgraph_outputs(inner)
