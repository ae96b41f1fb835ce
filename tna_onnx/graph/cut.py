"""Models cut at chosen tensors: the nodes on which a tensor depends, and those between two tensors. `before_map` gives
a recalibrated model as it is in front of its appended map, where its head is a head again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.bounds import subgraph_inputs
from tna_onnx.graph.load import PREFIX, Model
from tna_onnx.graph.nodes import RAW_LOGITS, block_of, raw_logits
from tna_onnx.graph.options import ModelOptions

ModelProto = onnx.ModelProto
"""For packages that do not import onnx."""

NO_PARTS: Mapping[str, Mapping[str, int]] = {}
"""All tensors are those of the file."""


def cut_at(model: Model, tensors: Sequence[str], parts: Mapping[str, Mapping[str, int]] = NO_PARTS) -> onnx.ModelProto:
    """Return a new model whose outputs are `tensors`, without nodes and initializers that they do not need.

    Requires: every tensor is made by a node of the main graph, or is in `parts`: tensors put side by side, with the
    length of each (`graph.walk.layer`). Ensures: same opset, functions and inputs; the source model is not modified.
    """
    cut = _part(model.proto, [part for name in tensors for part in parts.get(name, (name,))], frozenset())
    for name in parts.keys() & set(tensors):
        cut.graph.node.append(onnx.helper.make_node("Concat", list(parts[name]), [name], axis=1))
        cut.graph.output.append(onnx.ValueInfoProto(name=name))
        unasked = [k for k, info in enumerate(cut.graph.output) if info.name in parts[name].keys() - set(tensors)]
        for k in reversed(unasked):
            del cut.graph.output[k]
    names = {tensor.name for tensor in cut.graph.initializer}
    # An input with an initializer has a default value; it goes with that.
    cut.graph.input.extend(i for i in model.proto.graph.input if i.name not in model.initializers or i.name in names)
    return cut


def cut_between(
    proto: onnx.ModelProto,
    feeds: Mapping[str, np.dtype[Any]],
    outputs: Sequence[str],
    parts: Mapping[str, Mapping[str, int]] = NO_PARTS,
) -> onnx.ModelProto:
    """Return a new model that computes `outputs` from the tensors `feeds`, which become its inputs, of any shape.

    A tensor named in `parts` is split into the tensors that it consists of.
    """
    cut = _part(proto, outputs, frozenset(part for name in feeds for part in parts.get(name, (name,))))
    for name in parts.keys() & feeds.keys():
        _split_columns(cut.graph, name, parts[name])
    read = {name for node in cut.graph.node for name in (*node.input, *subgraph_inputs(node))}
    stored = {tensor.name for tensor in proto.graph.initializer}
    missing = sorted({i.name for i in proto.graph.input} & read - stored - feeds.keys())
    if missing:
        raise UnsupportedModel(
            f"'{outputs[0]}' is not computed from '{', '.join(feeds)}' alone: the nodes between read the model's "
            f"input '{missing[0]}' too; give samples for the inputs instead of computed features"
        )
    for name, dtype in feeds.items():
        code = onnx.helper.np_dtype_to_tensor_dtype(dtype)
        cut.graph.input.append(onnx.helper.make_tensor_value_info(name, code, None))
    return cut


def _split_columns(graph: onnx.GraphProto, name: str, lengths: Mapping[str, int]) -> None:
    """Insert nodes that split a matrix into parts by columns; Gather works in every opset."""
    start = 0
    for k, (part, length) in enumerate(lengths.items()):
        columns = onnx.numpy_helper.from_array(np.arange(start, start + length), f"{PREFIX}/columns_{k}")
        graph.initializer.append(columns)
        graph.node.insert(k, onnx.helper.make_node("Gather", [name, columns.name], [part], axis=1))
        start += length


def keeping(model: Model, part: onnx.ModelProto) -> Model:
    """Return a model with all its nodes, by the same indices, and no initializers but those of a part of it."""
    names = {tensor.name for tensor in part.graph.initializer}
    proto = onnx.ModelProto(ir_version=model.proto.ir_version, opset_import=model.proto.opset_import)
    proto.functions.extend(model.proto.functions)
    graph = model.proto.graph
    proto.graph.name = graph.name
    for field in ("node", "input", "output", "value_info"):
        getattr(proto.graph, field).extend(getattr(graph, field))
    proto.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in names)
    return replace(model, proto=proto)


def _part(proto: onnx.ModelProto, outputs: Sequence[str], fed: frozenset[str]) -> onnx.ModelProto:
    """Return the nodes and initializers that `outputs` need, not looking behind the tensors `fed`."""
    graph = proto.graph
    producers = {name: k for k, node in enumerate(graph.node) for name in node.output if name}
    needed: set[str] = set()
    used: set[int] = set()
    todo = [name for name in outputs if name not in fed]
    while todo:  # the nodes of a file need not be sorted
        name = todo.pop()
        needed.add(name)
        k = producers.get(name)
        if k is not None and k not in used:
            used.add(k)
            node = graph.node[k]
            todo += [n for n in (*node.input, *subgraph_inputs(node)) if n not in fed and n not in needed]
    cut = onnx.ModelProto()
    cut.ir_version = proto.ir_version
    cut.opset_import.extend(proto.opset_import)
    # Only those that could not be inlined are left.
    cut.functions.extend(proto.functions)
    cut.graph.name = graph.name
    cut.graph.node.extend(graph.node[k] for k in sorted(used))
    cut.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in needed)
    cut.graph.value_info.extend(info for info in graph.value_info if info.name in needed)
    # An output needs no type and shape: ONNX Runtime infers them.
    infos = {info.name: info for info in (*graph.value_info, *graph.output)}
    cut.graph.output.extend(infos.get(name, onnx.ValueInfoProto(name=name)) for name in outputs)
    return cut


def mapped_logits(model: Model, output: str) -> str | None:
    """Return what the logits in front of an output's appended map are called; None where it has no such map."""
    for name in (raw_logits(block_of(output)), RAW_LOGITS):
        if name in model.producers and model.reads(output, name):
            return name
    return None


def before_map(model: Model, output: str, options: ModelOptions) -> tuple[Model, ModelOptions]:
    """Return a model whose output is what the map behind an output reads, and options on it; without a map, the same.

    Tensors keep their names, so that what is found in the one can be read in the other.
    """
    raw = mapped_logits(model, output)
    if raw is None:
        return model, options
    cut = replace(model, proto=cut_at(model, [raw]))
    # what the file's own output holds says nothing of this one
    if options.head == output:
        options = replace(options, head=None)
    return cut, replace(options, output_name=raw, output_kind=None)
