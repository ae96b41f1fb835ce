"""Model + new head -> new model: the weight, the scaled bias, the appended map, provenance. Nothing else.

Of a copy, only the fields named here are touched. A constant that others read too, or that is computed, stays as it is;
the head then reads a tensor of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.adapted import WriteMap, adapted
from tna_onnx.graph.floats import float_tensor, large_tensor
from tna_onnx.graph.hidden import TRANSFORM, hides_scores, show_scores
from tna_onnx.graph.hollow import hollow_copy, keep_words
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import MIN_IR_OF_INITIALIZERS, PREFIX, NodeOps, constant_node, insert_nodes
from tna_onnx.graph.opsets import map_opset
from tna_onnx.graph.own_names import annotate, raw_logits
from tna_onnx.graph.quantized import Quantized
from tna_onnx.graph.readers import require_no_other_readers
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.several import Layout
from tna_onnx.graph.stored import Stored
from tna_onnx.graph.traverse import input_at

__all__ = ["Rewritten", "rewrite", "unchanged"]


@dataclass(eq=False)
class Rewritten:
    """A new model and what was done to it.

    Attributes:
        proto: the new model; external data that are not changed not loaded.
        readout: where in the source it was done.
        changed: names of the initializers and Constant outputs that hold new values.
        added: names of the initializers that are new.
        nodes: names of the nodes that are new.
        edited: index of each source node that was edited -> the fields that were; attributes as `attribute:NAME`.
        constants: new Constant nodes, in the place of new initializers.
        opset: version of the default operator set imported for new nodes; 0 where the source has its own.
        apart: values whose keys stand in the new model (`graph.apart`), the source's among them.
        aside: whether new values may be there.
    """

    proto: onnx.ModelProto
    readout: Readout
    changed: set[str] = field(default_factory=set)
    added: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    edited: dict[int, set[str]] = field(default_factory=dict)
    constants: list[onnx.NodeProto] = field(default_factory=list)
    opset: int = 0
    apart: dict[bytes, Any] = field(default_factory=dict)
    aside: bool = False

    def forget(self) -> None:
        """Give back the new model, once it is written; what was done stays known."""
        self.proto = onnx.ModelProto()
        self.apart = {}

    def touch(self, node: int, part: str) -> onnx.NodeProto:
        """Note that a field of a node is edited, and return the node."""
        self.edited.setdefault(node, set()).add(part)
        edited: onnx.NodeProto = self.proto.graph.node[node]
        return edited


def rewrite(
    model: Model,
    readout: Readout,
    weight: NDArray[Any] | None,
    *,
    bias: NDArray[Any] | None = None,
    bias_factor: float = 1.0,
    write_map: WriteMap | None = None,
    keeps_order: bool = True,
    logits_shape: tuple[int, ...] | Layout = (0,),
    block: str = PREFIX,
    metadata: Mapping[str, str],
    aside: bool = False,
) -> Rewritten:
    """Write a new weight, bias and map into a copy of the model.

    Args:
        model: the source; not modified.
        readout: its head, or the tensor of logits or probabilities of a model without one.
        weight: (C, n) class vectors in the scale of `head.weight`; None leaves the stored one.
        bias: (C,) new bias in the scale of `head.bias`, where the head holds one a class; None keeps the stored one.
        bias_factor: what the stored bias is multiplied by.
        write_map: writes the map's nodes: (ops, logits, features) -> result, all by name. The block goes behind the
            logits, in front of everyone who reads them, and ends in their old name, so every reader sees the new ones.
        keeps_order: the map never changes which class comes first, so labels from in front of it stay right.
        logits_shape: of one sample: (C,); () or (1,) for a binary head; (C, 1, 1) for some convolutions; the layout,
            where a sample has several predictions.
        block: how the names of the map's nodes begin.
        metadata: provenance, written into metadata_props under `tna_onnx.`.
        aside: whether a new value may be kept apart from the protobuf, where the old one is.

    Raises:
        UnsupportedModel: a new value does not fit the stored dtype, or the map does not fit the graph.
    """
    left_out = []
    if isinstance(readout, Head) and weight is not None and readout.stored_weight.overwritten:
        left_out.append(readout.stored_weight.name)
    proto = hollow_copy(model.proto, left_out)
    result = Rewritten(proto, readout, apart={**model.apart}, aside=aside)
    if isinstance(readout, Head) and not (weight is None and bias is None):
        _write_weight_and_bias(model, readout, weight, _as_read(readout, bias, bias_factor), result)
    if write_map is not None:
        hidden = hides_scores(model, readout)
        if hidden:
            show_scores(result.touch(model.producers[readout.logits], f"attribute:{TRANSFORM}"))
        _insert(model, adapted(write_map, readout, logits_shape, hidden=hidden), keeps_order, block, result)
    _prepend(result)
    annotate(proto, metadata)  # always: the file says what it is, changed or not
    return result


def unchanged(model: Model, readout: Readout) -> Rewritten:
    """Return a copy of the model in which nothing is new, provenance neither."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    return Rewritten(proto, readout, apart={**model.apart})


def _as_read(head: Head, bias: NDArray[Any] | None, factor: float) -> NDArray[np.float64] | None:
    """Return the new bias as the node reads it; None if it stays as it is."""
    if bias is not None:
        return head.bias_as_read(bias)
    if head.stored_bias is None or factor == 1:
        return None
    return head.stored_bias.value.astype(np.float64) * factor


def _write_weight_and_bias(
    model: Model, head: Head, weight: NDArray[Any] | None, bias: NDArray[np.float64] | None, result: Rewritten
) -> None:
    scale = None if weight is None else _write(model, head.stored_weight, head.as_read(weight), "weight", result)
    place = head.stored_bias
    if place is None:
        return
    # Integer kernels assume that the bias has the scale of the features times that of the weight.
    if scale is not None and head.bias_step is not None and place.quantized is not None:
        place = replace(place, quantized=place.quantized.with_scale(np.float64(head.bias_step) * scale))
    elif bias is None:  # written anew, it would take other bytes for the same numbers
        return
    if bias is None:
        bias = place.value.astype(np.float64)
    _write(model, place, bias, "bias", result)


def _write(
    model: Model, place: Stored, value: NDArray[Any], role: str, result: Rewritten
) -> NDArray[np.float64] | None:
    """Put a new value in its place; returns the scale of a quantised one.

    Raises:
        UnsupportedModel: it does not fit the dtype.
    """
    # A number above 65504 is infinite in float16.
    if not np.all(np.isfinite(place.as_written(value))):
        raise UnsupportedModel(f"{model.name}: a new value for '{place.name}' does not fit its dtype")
    if place.shared:  # others read the stored tensor: it stays, and this node reads a new one
        name = _add(result, float_tensor(value, place.float_type, f"{PREFIX}/{role}"))
        reader = result.touch(place.reader, "input")
        reader.input[list(reader.input).index(place.read_as)] = name
        return None
    stored = place.layout(value)
    if place.attribute:
        node = result.touch(place.reader, f"attribute:{place.attribute}")
        attribute = next(a for a in node.attribute if a.name == place.attribute)
        # Fields of the message are edited, so that those unknown to this version of ONNX stay.
        attribute.floats[:] = stored.astype(np.float32).reshape(-1).tolist()
        return None
    if place.quantized is not None:
        return _write_quantized(model, place.name, place.quantized, stored, role, result)
    old = model.constant_tensor(place.name)
    if result.aside and old is not None and model.data_apart(old) is not None:
        tensor = large_tensor(stored, place.float_type, place.name, result.apart)
    else:
        tensor = float_tensor(stored, place.float_type, place.name)
    _overwrite(model, place.name, tensor, result)
    return None


def _write_quantized(
    model: Model, name: str, quantized: Quantized, stored: NDArray[Any], role: str, result: Rewritten
) -> NDArray[np.float64]:
    """Quantise a new value, write it with its scale and zero point, and return the scale."""
    integers, scale, zero = quantized.quantize(stored)
    _overwrite(model, name, numpy_helper.from_array(integers, name), result)
    _replace_input(model, quantized.node, 1, scale, f"{PREFIX}/{role}_scale", result)
    if quantized.zero_point or zero.any():  # where there is none, it is 0
        _replace_input(model, quantized.node, 2, zero, f"{PREFIX}/{role}_zero_point", result)
    if quantized.axis is not None and scale.ndim:  # one scale has no axis
        node = result.touch(quantized.node, "attribute:axis")
        kept = [a for a in node.attribute if a.name != "axis"]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("axis", quantized.axis)])
    return scale.astype(np.float64)


def _overwrite(model: Model, name: str, tensor: onnx.TensorProto, result: Rewritten) -> None:
    """Put a value where a constant lies: raw data, whatever form the old values had."""
    result.changed.add(name)
    for stored in result.proto.graph.initializer:
        if stored.name == name:
            keep_words(stored, tensor)
            stored.CopyFrom(tensor)
            return
    # A Constant node has one attribute: a tensor, or plain numbers, which a tensor takes the place of.
    at = model.producers[name]
    node = result.touch(at, "attribute:value")
    attribute = next(a for a in node.attribute if a.name.startswith("value"))
    result.touch(at, f"attribute:{attribute.name}")
    keep_words(attribute.t, tensor)  # empty where the attribute held plain numbers
    attribute.CopyFrom(helper.make_attribute("value", tensor, attribute.doc_string or None))


def _replace_input(model: Model, at: int, position: int, value: NDArray[Any], name: str, result: Rewritten) -> None:
    """Give a node a new constant: where the old one lies if no other reads it and it has the same shape."""
    node = result.proto.graph.node[at]
    old = input_at(node, position)
    tensor = model.initializers.get(old)
    if tensor is not None and model.uses.get(old, 0) == 1 and tuple(tensor.dims) == value.shape:
        _overwrite(model, old, numpy_helper.from_array(value, old), result)
        return
    added = _add(result, numpy_helper.from_array(value, name))
    node = result.touch(at, "input")
    node.input[position : position + 1] = [added]


def _add(result: Rewritten, tensor: onnx.TensorProto) -> str:
    """Add a tensor under a name that is free: an initializer, or a Constant node in an old file."""
    taken = {t.name for t in result.proto.graph.initializer} | {node.name for node in result.proto.graph.node}
    if tensor.name in taken:  # another head of this model was given its own before
        tensor.name = next(name for name in (f"{tensor.name}_{k}" for k in count(2)) if name not in taken)
    if result.proto.ir_version < MIN_IR_OF_INITIALIZERS:
        result.constants.append(constant_node(tensor))
    else:
        result.proto.graph.initializer.append(tensor)
        result.added.add(tensor.name)
    return str(tensor.name)


def _insert(model: Model, write_map: WriteMap, keeps_order: bool, block: str, result: Rewritten) -> None:
    """Put the nodes of a map between the node that makes the logits and everyone who reads them.

    Raises:
        UnsupportedModel: others read the scores in front of it, or the model has such nodes already.
    """
    proto = result.proto
    readout = result.readout
    require_no_other_readers(model, readout, keeps_order=keeps_order)
    ops = NodeOps(readout.logits_type, map_opset(model), proto.ir_version, block)
    raw = raw_logits(block)
    features = readout.features if isinstance(readout, Head) else ""
    last = write_map(ops, raw, features)
    _refuse_taken_names(model, {raw, *ops.names})
    # The logits change their name, and the block's result takes it: every reader sees the new ones.
    at = model.producers[readout.logits]
    producer = result.touch(at, "output")
    producer.output[list(producer.output).index(readout.logits)] = raw
    ops.nodes[-1].output[list(ops.nodes[-1].output).index(last)] = readout.logits
    insert_nodes(proto.graph, at + 1, ops.nodes)
    proto.graph.initializer.extend(ops.initializers)
    if not model.opset:
        result.opset = map_opset(model)
        proto.opset_import.append(helper.make_opsetid("", result.opset))
    result.added.update(tensor.name for tensor in ops.initializers)
    result.nodes.update(node.name for node in ops.nodes)


def _prepend(result: Rewritten) -> None:
    """Put new Constant nodes in front of all others; last, because source nodes are named by their index."""
    if result.constants:
        insert_nodes(result.proto.graph, 0, result.constants)
        result.nodes.update(node.name for node in result.constants)


def _refuse_taken_names(model: Model, names: set[str]) -> None:
    taken = {*model.producers, *model.initializers, *(node.name for node in model.proto.graph.node)}
    if again := taken & names:
        raise UnsupportedModel(
            f"{model.name}: already holds a map that tna-onnx wrote ('{min(again)}'); start from the original model"
        )
