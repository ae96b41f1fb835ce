"""Whether a written model is sound: nothing differs but what the rewrite named, and the ONNX checker accepts it."""

from __future__ import annotations

from pathlib import Path

import onnx

from tna_onnx.graph.external import external_placeless
from tna_onnx.graph.load import Model, all_tensors_of
from tna_onnx.graph.rewrite import METADATA_PREFIX, Rewritten

__all__ = ["checker_complaint", "unexpected_differences"]


def unexpected_differences(model: Model, rewritten: Rewritten, written: onnx.ModelProto) -> list[str]:
    """Compare byte for byte, field by field; an empty list is what a sound rewrite gives.

    Allowed: values of `rewritten.changed`, initializers of `rewritten.added`, nodes of `rewritten.nodes`, the fields of
    `rewritten.edited`, metadata under `tna_onnx.`. Where external data lie may change: `graph.save` copies them.
    """
    source, found = model.proto, []
    old_tensors, new_tensors = source.graph.initializer, written.graph.initializer
    for before, after in zip(old_tensors, new_tensors, strict=False):
        same = _values_apart if before.name in rewritten.changed else _place_apart
        if same(before) != same(after):
            found.append(f"initializer '{before.name}'")
    found += [f"missing initializer '{tensor.name}'" for tensor in old_tensors[len(new_tensors) :]]
    extra = sorted(tensor.name for tensor in new_tensors[len(old_tensors) :])
    if extra != sorted(rewritten.added):
        found.append(f"new initializers {extra}, not {sorted(rewritten.added)}")

    old_nodes = [node for node in written.graph.node if node.name not in rewritten.nodes]
    if len(old_nodes) != len(source.graph.node):
        found.append(f"{len(old_nodes)} nodes, not {len(source.graph.node)}")
    for k, (old, new) in enumerate(zip(source.graph.node, old_nodes, strict=False)):
        parts = rewritten.edited.get(k, set())
        if _without(old, parts) != _without(new, parts):
            found.append(f"node '{old.name or old.op_type}'")
    if _bytes(_frame(source)) != _bytes(_frame(written)):
        found.append("inputs, outputs, opsets, metadata or another field outside nodes and initializers")
    return found


def checker_complaint(model: Path | onnx.ModelProto) -> str:
    """What the ONNX checker, shape inference included, says against a file or model; empty if nothing."""
    try:
        onnx.checker.check_model(str(model) if isinstance(model, Path) else model, full_check=True)
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


def _place_apart(tensor: onnx.TensorProto) -> bytes:
    """Return the tensor without the place of its external data."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return _bytes(tensor)
    return _bytes(external_placeless(tensor))


def _without(node: onnx.NodeProto, parts: set[str]) -> bytes:
    """Return a node without some fields, and without the place of external data in its attributes."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    names = {part.removeprefix("attribute:") for part in parts if part.startswith("attribute:")}
    kept = [a for a in node.attribute if a.name not in names]
    for part in parts:
        copy.ClearField("attribute" if part.startswith("attribute:") else part)
    if names:
        copy.attribute.extend(kept)
    for attribute in copy.attribute:
        for tensor in all_tensors_of(attribute):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                tensor.CopyFrom(external_placeless(tensor))
    return _bytes(copy)


def _bytes(message: onnx.ModelProto | onnx.TensorProto | onnx.NodeProto) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))
