"""Whether a written model is sound: nothing differs but what the rewrite named, and the ONNX checker accepts it."""

from __future__ import annotations

from pathlib import Path

import onnx

from tna_onnx.graph.head import Head
from tna_onnx.graph.load import Model
from tna_onnx.graph.rewrite import METADATA_PREFIX, Rewritten

__all__ = ["checker_complaint", "unexpected_differences"]


def unexpected_differences(model: Model, head: Head, rewritten: Rewritten, written: onnx.ModelProto) -> list[str]:
    """Compare byte for byte, field by field; an empty list is what a sound rewrite gives.

    Allowed: values of `rewritten.changed`, initializers of `rewritten.added`, nodes of `rewritten.nodes`, operands of
    the head and of its bias Add, the output name of the node before an appended map, metadata under `tna_onnx.`.
    """
    source, found = model.proto, []
    old_tensors, new_tensors = source.graph.initializer, written.graph.initializer
    for before, after in zip(old_tensors, new_tensors, strict=False):
        same = _values_apart if before.name in rewritten.changed else _bytes
        if same(before) != same(after):
            found.append(f"initializer '{before.name}'")
    found += [f"missing initializer '{tensor.name}'" for tensor in old_tensors[len(new_tensors) :]]
    extra = sorted(tensor.name for tensor in new_tensors[len(old_tensors) :])
    if extra != sorted(rewritten.added):
        found.append(f"new initializers {extra}, not {sorted(rewritten.added)}")

    old_nodes = [node for node in written.graph.node if node.name not in rewritten.nodes]
    if len(old_nodes) != len(source.graph.node):
        found.append(f"{len(old_nodes)} nodes, not {len(source.graph.node)}")
    touched = [(place.reader, "input") for place in (head.stored_weight, head.stored_bias) if place]
    touched += [(model.producers[name], "attribute") for name in rewritten.changed if name in model.producers]
    touched += [(model.producers[head.logits], "output")] if rewritten.nodes else []
    for k, (old, new) in enumerate(zip(source.graph.node, old_nodes, strict=False)):
        fields = [field for index, field in touched if index == k]
        if _bytes(old, *fields) != _bytes(new, *fields):
            found.append(f"node '{old.name or old.op_type}'")
    if _bytes(_frame(source)) != _bytes(_frame(written)):
        found.append("inputs, outputs, opsets, metadata or another field outside nodes and initializers")
    return found


def checker_complaint(path: Path) -> str:
    """What the ONNX checker, shape inference included, says against a file; empty if nothing."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return str(error)
    return ""


def _frame(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without nodes, initializers and this tool's metadata."""
    frame = onnx.ModelProto()
    frame.CopyFrom(proto)
    del frame.graph.node[:]
    del frame.graph.initializer[:]
    kept = [(e.key, e.value) for e in frame.metadata_props if not e.key.startswith(METADATA_PREFIX)]
    del frame.metadata_props[:]
    for key, value in kept:
        frame.metadata_props.add(key=key, value=value)
    return frame


def _values_apart(tensor: onnx.TensorProto) -> tuple[object, ...]:
    return tensor.name, list(tensor.dims), tensor.data_type, tensor.doc_string


def _bytes(message: onnx.ModelProto | onnx.TensorProto | onnx.NodeProto, *without: str) -> bytes:
    if without:
        whole, message = message, type(message)()
        message.CopyFrom(whole)
        for field in without:
            message.ClearField(field)
    return bytes(message.SerializeToString(deterministic=True))
