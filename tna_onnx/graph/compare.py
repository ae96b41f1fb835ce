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
    for before, after in zip(source.graph.initializer, written.graph.initializer, strict=False):
        if before.name != after.name or (before.name not in rewritten.changed and _bytes(before) != _bytes(after)):
            found.append(f"initializer '{before.name}'")
    extra = {tensor.name for tensor in written.graph.initializer[len(source.graph.initializer) :]}
    if extra != rewritten.added:
        found.append(f"new initializers {sorted(extra ^ rewritten.added)}")

    old_nodes = [node for node in written.graph.node if node.name not in rewritten.nodes]
    if len(old_nodes) != len(source.graph.node):
        found.append(f"{len(old_nodes)} nodes, not {len(source.graph.node)}")
    touched = {head.stored_weight.reader, model.producers.get(head.logits, -1)}
    touched |= {head.stored_bias.reader} if head.stored_bias else set()
    touched |= {model.producers[name] for name in rewritten.changed if name in model.producers}
    for k, (old, new) in enumerate(zip(source.graph.node, old_nodes, strict=False)):
        if _bytes(old) != _bytes(new) and (k not in touched or old.op_type != new.op_type):
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


def _bytes(message: onnx.ModelProto | onnx.TensorProto | onnx.NodeProto) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))
