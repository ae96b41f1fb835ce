"""A copy of a model that leaves out the values of some initializers: they are about to be replaced.

A protobuf keeps the room of a value that is replaced until the whole message goes. A copy with everything in it, of a
model that is one large weight, would hold that weight twice.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import onnx
from google.protobuf.unknown_fields import UnknownFieldSet

__all__ = ["hollow_copy", "keep_words"]


def hollow_copy(model: onnx.ModelProto, left_out: Collection[str]) -> onnx.ModelProto:
    """Return a copy of a model, without the values of the initializers of these names.

    Ensures: everything else is equal, fields unknown to this version of ONNX too, but for those inside of the tensors
    that are left out. Where there are such fields beside the initializers, the copy is a whole one.
    """
    names = [tensor.name for tensor in model.graph.initializer]
    # of a name that stands there twice, only the first is written anew
    if any(names.count(name) > 1 for name in left_out):
        return _whole_copy(model)
    # what is unknown cannot be copied field by field
    if not left_out or len(UnknownFieldSet(model)) or len(UnknownFieldSet(model.graph)):
        return _whole_copy(model)
    try:
        return _copy_without(model, left_out)
    except (UnicodeDecodeError, ValueError):  # a text of a damaged file, which only a whole message can take over
        return _whole_copy(model)


def _whole_copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _copy_without(model: onnx.ModelProto, left_out: Collection[str]) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    _copy_fields(model, copy, apart="graph")
    copy.graph.SetInParent()
    _copy_fields(model.graph, copy.graph, apart="initializer")
    for tensor in model.graph.initializer:
        if tensor.name in left_out:
            _copy_words(tensor, copy.graph.initializer.add())
        else:
            copy.graph.initializer.add().CopyFrom(tensor)
    return copy


def _copy_fields(source: Any, target: Any, apart: str) -> None:
    """Copy all fields of a message but one."""
    # `ListFields` would give the values too, large ones as copies
    for descriptor in source.DESCRIPTOR.fields:
        name = descriptor.name
        if name == apart:
            continue
        if descriptor.is_repeated:
            getattr(target, name).extend(getattr(source, name))
        elif source.HasField(name) and descriptor.message_type is not None:
            getattr(target, name).CopyFrom(getattr(source, name))
        elif source.HasField(name):
            setattr(target, name, getattr(source, name))


def _copy_words(source: onnx.TensorProto, target: onnx.TensorProto) -> None:
    """Copy what a tensor says about itself; its values, type and shape are written anew."""
    target.name = source.name
    keep_words(source, target)


def keep_words(before: onnx.TensorProto, after: onnx.TensorProto) -> None:
    """Take over what a tensor says about itself, besides its name."""
    if before.HasField("doc_string"):
        after.doc_string = before.doc_string
    if hasattr(before, "metadata_props"):  # from onnx 1.17 on
        after.metadata_props.extend(before.metadata_props)
