"""Model + new head -> new model: the weight, the scaled bias, the appended map, provenance, in a copy. Nothing else.

A constant that others read too, or that is computed, stays, and the head reads a new one. Around a map are written,
with s the logit of a binary head and p a probability (log (p + d) where p comes in steps):

    binary logits           s -> (0, s) -> map -> (l_0, l_1) -> l_1 - l_0
    probabilities           p -> log p -> map -> softmax;    of labels p -> log p - log (1 - p) -> map -> sigmoid
    binary probabilities    p -> (1 - p, p) -> log -> map -> softmax -> p_1;    hidden scores (-s, s) -> (0, s) -> ...
    several a sample        (N, C, H, W) -> (N H W, C) -> map -> (N, C, H, W)
"""

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.bounds import copy_model, input_at, names_in
from tna_onnx.graph.constants import Quantized, full_range
from tna_onnx.graph.difference import WrittenValues
from tna_onnx.graph.load import PREFIX, SHAPE_OR_TYPE, Model
from tna_onnx.graph.nodes import (
    MIN_IR_OF_INITIALIZERS,
    NodeOps,
    annotate,
    constant_node,
    insert_nodes,
    map_opset,
    raw_logits,
)
from tna_onnx.graph.readers import UNCHANGED, OutputChange, kept_path, require_no_other_readers, write_likeliest
from tna_onnx.graph.readout import CLASSES_FIRST, Head, Layout, Readout, hides_scores
from tna_onnx.graph.stored import Stored
from tna_onnx.graph.tensors import INTEGER_TYPES, epsilon, float_tensor, large_tensor

WriteMap: TypeAlias = Callable[[NodeOps, str, str], str]
"""Writes a map's nodes: (ops, logits, features) -> result, all by name."""


WriteLabels: TypeAlias = Callable[[NodeOps, str], None]
"""Writes what is made of the (N, C) new scores besides: (ops, scores), by name."""


def adapted(
    write_map: WriteMap,
    readout: Readout,
    shape: tuple[int, ...] | Layout,
    *,
    hidden: bool = False,
    write_labels: WriteLabels | None = None,
) -> WriteMap:
    """Return a map that takes and gives what the tensor holds, in the shape that a sample has there."""

    def on_rows(ops: NodeOps, tensor: str, features: str) -> str:
        scores = write_map(ops, _to_logits(ops, readout, tensor, hidden=hidden), features)
        if hidden or (readout.holds == "probabilities" and not readout.multi_label):
            scores = ops.softmax(scores)
        if write_labels is not None:
            write_labels(ops, scores)
        if hidden:
            return scores
        return _from_scores(ops, readout, scores)

    if hidden:
        return on_rows

    columns = [-1, 1 if readout.binary else readout.n_classes]  # the words of a map work on (N, C)
    if isinstance(shape, Layout):
        return functools.partial(_at_positions, on_rows, shape, columns)
    if len(shape) == 1:
        return on_rows
    flat = [-1, *shape]
    return lambda ops, tensor, features: ops.reshape(on_rows(ops, ops.reshape(tensor, columns), features), flat)


def _at_positions(
    on_rows: WriteMap, layout: Layout, columns: list[int], ops: NodeOps, tensor: str, features: str
) -> str:
    """Write a map behind nodes that turn positions into rows, and in front of those that undo it."""
    places = list(range(2, layout.axes))
    if layout.class_axis == CLASSES_FIRST:
        tensor = ops.transpose(tensor, [0, *places, 1])
    scores = ops.reshape_as(on_rows(ops, ops.reshape(tensor, columns), features), tensor)
    if layout.class_axis == CLASSES_FIRST:
        scores = ops.transpose(scores, [0, layout.axes - 1, *range(1, layout.axes - 1)])
    return scores


def _to_logits(ops: NodeOps, readout: Readout, tensor: str, *, hidden: bool) -> str:
    if hidden:  # (-s, s) -> (0, s)
        return ops.matmul(tensor, ops.const([[0.0, 0.0], [0.0, 1.0]]))
    if readout.holds == "probabilities":
        if readout.binary:  # (1 - p, p) = p (-1, 1) + (1, 0)
            tensor = ops.add(ops.matmul(tensor, ops.const([[-1.0, 1.0]])), ops.const([1.0, 0.0]))
        if readout.multi_label:
            return _label_logits(ops, readout, tensor)
        return _log(ops, readout, tensor, ops.tiny)
    if readout.binary:  # (0, s) = s (0, 1)
        return ops.matmul(tensor, ops.const([[0.0, 1.0]]))
    return tensor


def _from_scores(ops: NodeOps, readout: Readout, scores: str) -> str:
    """Write what the tensor holds: of logits, or of probabilities where a softmax has made them."""
    if readout.holds == "probabilities" and readout.multi_label:
        return ops.sigmoid(scores)
    if readout.holds == "probabilities":
        if readout.binary:  # p_1
            return ops.matmul(scores, ops.const([[0.0], [1.0]]))
        return scores
    if readout.binary:  # l_1 - l_0: a softmax sees differences alone
        return ops.matmul(scores, ops.const([[-1.0], [1.0]]))
    return scores


def _label_logits(ops: NodeOps, readout: Readout, p: str) -> str:
    """Write log p - log (1 - p), where p is no nearer to 0 or 1 than half of the type's step below 1."""
    least = epsilon(readout.logits_type) / 4
    complement = ops.add(ops.mul(p, ops.const(-1.0)), ops.const(1.0))
    logs = ops.mul(_log(ops, readout, complement, least), ops.const(-1.0))
    return ops.add(_log(ops, readout, p, least), logs)


def _log(ops: NodeOps, readout: Readout, p: str, least: float) -> str:
    """Write log p, of 0 that of `least`; or log (p + d), where p has a resolution d."""
    if readout.resolution:
        return ops.log(ops.add(ops.clip(p, 0.0, 1.0), ops.const(readout.resolution)))
    return ops.log(ops.clip(p, least, 1.0))


@dataclass(eq=False)
class Rewritten:
    """A new model and what was done to it."""

    proto: onnx.ModelProto  # the new model; external data that are not changed not loaded
    readout: Readout  # where in the source it was done
    # names of the initializers and Constant outputs that hold new values
    changed: set[str] = field(default_factory=set)
    added: set[str] = field(default_factory=set)  # names of the initializers that are new
    nodes: set[str] = field(default_factory=set)  # names of the nodes that are new
    # new Constant nodes, in the place of new initializers
    constants: list[onnx.NodeProto] = field(default_factory=list)
    # values whose keys stand in the new model (`graph.tensors`), the source's among them
    large_values: dict[bytes, Any] = field(default_factory=dict)
    aside: bool = False  # whether new values may be there
    # a file that is made again, for the values that are taken from it; None where they are new
    from_file: WrittenValues | None = None
    # initializer or Constant output -> what its new value is: `weight`, `weight, scale`, `bias`
    roles: dict[str, str] = field(default_factory=dict)
    # the same names, those of nodes with new attributes, and the block -> SHA-256 of the new values
    digests: dict[str, str] = field(default_factory=dict)

    def forget(self) -> None:
        """Give back the new model, once it is written; what was done stays known."""
        self.proto = onnx.ModelProto()
        self.large_values = {}


def rewrite(
    model: Model,
    readout: Readout,
    weight: NDArray[Any] | None,
    *,
    bias: NDArray[Any] | None = None,
    bias_factor: float = 1.0,
    write_map: WriteMap | None = None,
    keeps_order: bool = True,
    other_outputs: OutputChange = UNCHANGED,
    logits_shape: tuple[int, ...] | Layout = (0,),
    block: str = PREFIX,
    metadata: Mapping[str, str],
    aside: bool = False,
    from_file: WrittenValues | None = None,
) -> Rewritten:
    """Write a new weight, bias and map into a copy of the model.

    `readout`: its head, or the tensor of logits or probabilities of a model without one. `weight`: (C, n) class vectors
    in the scale of `head.weight`; None leaves the stored one. `bias`: (C,) new bias in the scale of `head.bias`, where
    the head holds one a class; None keeps the stored one. `write_map`: writes the map's nodes: (ops, logits, features)
    -> result, all by name. The block goes behind the logits, in front of everyone who reads them, and ends in their old
    name, so every reader sees the new ones. `keeps_order`: the map never changes which class comes first, so labels
    from in front of it stay right. `other_outputs`: what becomes of other outputs. `logits_shape`: of one sample: (C,);
    () or (1,) for a binary head; (C, 1, 1) for some convolutions; the layout, where a sample has several predictions.
    `aside`: whether a new value may be kept apart from the protobuf, where the old one is. `from_file`: a file that was
    written in this way, and is made again: its own values are taken from there.
    """
    written: list[tuple[Head, NDArray[Any] | None, NDArray[Any] | None]] = []
    if isinstance(readout, Head) and not (weight is None and bias is None):
        written = list(readout.written(weight, bias))
    proto = copy_model(model.proto)
    rewritten = Rewritten(proto, readout, large_values={**model.large_values}, aside=aside, from_file=from_file)
    if from_file is not None:
        rewritten.large_values |= from_file.model.large_values
    for layer, new_weight, new_bias in written:
        bias_read = None
        if new_bias is not None:
            bias_read = layer.bias_as_read(new_bias)
        elif layer.stored_bias is not None and bias_factor != 1:
            bias_read = layer.scaled_bias(layer.stored_bias, bias_factor)
        _write_weight_and_bias(model, layer, new_weight, bias_read, rewritten)
    if written or write_map is not None:
        _widen(model, readout, rewritten)
    if write_map is not None:
        hidden = hides_scores(model, readout)
        if hidden:  # the node gives its scores
            node = proto.graph.node[model.producers[readout.logits]]
            next(a for a in node.attribute if a.name == "post_transform").s = b"NONE"
        write_labels = None
        if other_outputs.likeliest:
            write_labels = functools.partial(write_likeliest, model, other_outputs)
        written_map = adapted(write_map, readout, logits_shape, hidden=hidden, write_labels=write_labels)
        _insert(model, written_map, keeps_order, other_outputs, block, rewritten)
    if rewritten.constants:  # last, because source nodes are named by their index
        insert_nodes(proto.graph, 0, rewritten.constants)
        rewritten.nodes.update(node.name for node in rewritten.constants)
    annotate(proto, metadata)  # always: the file says what it is, changed or not
    return rewritten


def unchanged(model: Model, readout: Readout) -> Rewritten:
    """Return a copy of the model in which nothing is new, provenance neither."""
    return Rewritten(copy_model(model.proto), readout, large_values={**model.large_values})


def _write_weight_and_bias(
    model: Model, head: Head, weight: NDArray[Any] | None, bias: NDArray[np.float64] | None, rewritten: Rewritten
) -> None:
    scale = None
    if weight is not None:
        scale = _write(model, head.stored_weight, head.as_read(weight), "weight", rewritten)
    place = head.stored_bias
    if place is None:
        return
    # Integer kernels assume that the bias has the scale of the features times that of the weight.
    if scale is not None and head.bias_step is not None and place.quantized is not None:
        fixed = np.asarray(np.float64(head.bias_step) * scale)
        place = replace(place, quantized=replace(place.quantized, fixed_scale=fixed, axis=0 if fixed.ndim else None))
    elif bias is None:  # written anew, it would take other bytes for the same numbers
        return
    if bias is None:
        bias = place.value.astype(np.float64)
    _write(model, place, bias, "bias", rewritten)


def _write(
    model: Model, place: Stored, value: NDArray[Any], role: str, rewritten: Rewritten
) -> NDArray[np.float64] | None:
    """Put a new value in its place; returns the scale of a quantised one."""
    # A number above 65504 is infinite in float16.
    if not np.all(np.isfinite(place.as_written(value))):
        raise UnsupportedModel(
            f"{model.name}: a new value for '{place.name}' is too large for its type; export the model in float32"
        )
    if place.shared:  # others read the stored tensor: it stays, and this node reads a new one
        name = _add(rewritten, float_tensor(value, place.float_type, f"{PREFIX}/{role}"), role)
        reader = rewritten.proto.graph.node[place.reader]
        reader.input[list(reader.input).index(place.read_as)] = name
        return None
    stored = place.layout(value)
    if place.attribute:
        node = rewritten.proto.graph.node[place.reader]
        attribute = next(a for a in node.attribute if a.name == place.attribute)
        # Fields of the message are edited, so that those unknown to this version of ONNX stay.
        numbers = stored.astype(np.float32).reshape(-1)
        if rewritten.from_file is not None and role in rewritten.from_file.roles:
            numbers = rewritten.from_file.taken_attribute(node, place.attribute)
        rewritten.digests[f"{place.name}:{place.attribute}"] = hashlib.sha256(numbers.tobytes()).hexdigest()
        attribute.floats[:] = numbers.tolist()
        return None
    if place.quantized is not None:
        return _write_quantized(model, place.name, place.quantized, stored, role, rewritten)
    old = model.constant_tensor(place.name)
    if rewritten.aside and old is not None and model.large_value(old) is not None:
        tensor = large_tensor(stored, place.float_type, place.name, rewritten.large_values)
    else:
        tensor = float_tensor(stored, place.float_type, place.name)
    _overwrite(model, place.name, tensor, role, rewritten)
    return None


def _write_quantized(
    model: Model, name: str, quantized: Quantized, stored: NDArray[Any], role: str, rewritten: Rewritten
) -> NDArray[np.float64]:
    """Quantise a new value, write it with its scale and zero point, and return the scale."""
    integers, scale, zero = quantized.quantize(stored)
    _overwrite(model, name, numpy_helper.from_array(integers, name), role, rewritten)
    scale = _replace_input(model, quantized.node, 1, scale, f"{role}, scale", rewritten)
    again = (
        rewritten.from_file is not None and _own_name(f"{role}, zero point") in rewritten.from_file.model.initializers
    )
    if quantized.zero_point or zero.any() or again:  # where there is none, it is 0
        _replace_input(model, quantized.node, 2, zero, f"{role}, zero point", rewritten)
    if quantized.axis is not None and scale.ndim:  # one scale has no axis
        node = rewritten.proto.graph.node[quantized.node]
        attributes = [a for a in node.attribute if a.name != "axis"]
        del node.attribute[:]
        node.attribute.extend([*attributes, helper.make_attribute("axis", quantized.axis)])
    return scale.astype(np.float64)


def _new_value(rewritten: Rewritten, tensor: onnx.TensorProto, role: str) -> onnx.TensorProto:
    """Return a new value, or the one of the file that is being rebuilt, and record its role and digest."""
    if rewritten.from_file is not None and role.partition(",")[0] in rewritten.from_file.roles:
        tensor = rewritten.from_file.taken(tensor)
    rewritten.roles[tensor.name] = role
    content = rewritten.large_values.get(tensor.raw_data, tensor.raw_data)
    rewritten.digests[tensor.name] = hashlib.sha256(memoryview(content).cast("B")).hexdigest()
    return tensor


def _own_name(role: str) -> str:
    return f"{PREFIX}/{role.replace(', ', '_').replace(' ', '_')}"


def _overwrite(model: Model, name: str, tensor: onnx.TensorProto, role: str, rewritten: Rewritten) -> onnx.TensorProto:
    """Replace a constant's value by raw data, whatever field held the old one; return the new tensor."""
    rewritten.changed.add(name)
    tensor = _new_value(rewritten, tensor, role)
    for stored in rewritten.proto.graph.initializer:
        if stored.name == name:
            copy_optional_fields(stored, tensor)
            stored.CopyFrom(tensor)
            return tensor
    # A Constant node has one attribute: a tensor, or plain numbers, which a tensor takes the place of.
    node = rewritten.proto.graph.node[model.producers[name]]
    attribute = next(a for a in node.attribute if a.name.startswith("value"))
    copy_optional_fields(attribute.t, tensor)  # empty where the attribute held plain numbers
    attribute.CopyFrom(helper.make_attribute("value", tensor, attribute.doc_string or None))
    return tensor


def _replace_input(
    model: Model, at: int, position: int, value: NDArray[Any], role: str, rewritten: Rewritten
) -> NDArray[Any]:
    """Give a node a new constant, in place of one of that shape that no other reads; return the value there now."""
    node = rewritten.proto.graph.node[at]
    old = input_at(node, position)
    tensor = model.initializers.get(old)
    if tensor is not None and model.uses.get(old, 0) == 1 and tuple(tensor.dims) == value.shape:
        new = _overwrite(model, old, numpy_helper.from_array(value, old), role, rewritten)
        return np.asarray(numpy_helper.to_array(new))
    new = numpy_helper.from_array(value, _own_name(role))
    node.input[position : position + 1] = [_add(rewritten, new, role)]
    return np.asarray(numpy_helper.to_array(new))


def _add(rewritten: Rewritten, tensor: onnx.TensorProto, role: str) -> str:
    """Add a tensor under a name that is free: an initializer, or a Constant node in an old file."""
    names = {*names_in(rewritten.proto.graph)}
    if tensor.name in names:  # another head of this model was given its own before
        tensor.name = next(name for name in (f"{tensor.name}_{k}" for k in count(2)) if name not in names)
    tensor.CopyFrom(_new_value(rewritten, tensor, role))
    if rewritten.proto.ir_version < MIN_IR_OF_INITIALIZERS:
        rewritten.constants.append(constant_node(tensor))
    else:
        rewritten.proto.graph.initializer.append(tensor)
        rewritten.added.add(tensor.name)
    return str(tensor.name)


def _insert(
    model: Model, write_map: WriteMap, keeps_order: bool, other_outputs: OutputChange, block: str, rewritten: Rewritten
) -> None:
    """Put the nodes of a map between the node that makes the logits and everyone who reads them."""
    proto = rewritten.proto
    readout = rewritten.readout
    settled = keeps_order or other_outputs != UNCHANGED
    require_no_other_readers(model, readout, keeps_order=settled, kept=other_outputs.kept)
    ops = NodeOps(readout.logits_type, map_opset(model), proto.ir_version, block, rewritten.from_file)
    raw = raw_logits(block)
    features = source = ""
    if isinstance(readout, Head):
        features = source = readout.features
        if readout.features_type not in ("", readout.logits_type):
            features = f"{block}/features"
    last = write_map(ops, raw, features)
    if features != source:
        ops.cast_behind(source, features)
    if again := {*names_in(model.proto.graph)} & {raw, *ops.names} - {*other_outputs.likeliest}:
        raise UnsupportedModel(
            f"{model.name}: already holds a map that tna-onnx wrote ('{min(again)}'); start from the original model"
        )
    at = _connect(model, block, ops, last, rewritten)
    _settle_others(model, other_outputs, block, rewritten)
    insert_nodes(proto.graph, at, ops.nodes)
    proto.graph.initializer.extend(ops.initializers)
    if map_opset(model) != model.opset:
        other_domains = [entry for entry in model.proto.opset_import if entry.domain not in ("", "ai.onnx")]
        del proto.opset_import[:]
        proto.opset_import.extend([*other_domains, helper.make_opsetid("", map_opset(model))])
    constants: list[Any] = [*ops.initializers, *(node for node in ops.nodes if node.op_type == "Constant")]
    rewritten.digests[block] = hashlib.sha256(
        b"".join(constant.SerializeToString() for constant in constants)
    ).hexdigest()
    rewritten.added.update(tensor.name for tensor in ops.initializers)
    rewritten.nodes.update(node.name for node in ops.nodes)


def _connect(model: Model, block: str, ops: NodeOps, last: str, rewritten: Rewritten) -> int:
    """Let what reads the logits read the result of a block of nodes; return where the block belongs."""
    readout = rewritten.readout
    if readout.logits in model.inputs:
        # an input keeps its name: those who read it on the way to the output read the result instead
        fed = f"{block}/fed"
        ops.cast_behind(readout.logits, raw_logits(block))
        _rename(ops.nodes, last, fed)
        for k in model.ancestors(readout.output):
            names = rewritten.proto.graph.node[k].input
            names[:] = [{readout.logits: fed}.get(name, name) for name in names]
        return 0
    # The logits change their name, and the block's result takes it: every reader sees the new ones.
    at = model.producers[readout.logits]
    producer = rewritten.proto.graph.node[at]
    producer.output[list(producer.output).index(readout.logits)] = raw_logits(block)
    _rename(ops.nodes, last, readout.logits)
    return at + 1


def _settle_others(model: Model, other_outputs: OutputChange, block: str, rewritten: Rewritten) -> None:
    """Let outputs be computed from the raw scores as before; give the names of labels that become the likeliest class
    to the nodes of that.
    """
    readout = rewritten.readout
    for name in other_outputs.likeliest:
        _rename(rewritten.proto.graph.node, name, f"{block}/label/{name}")
    raw = raw_logits(block)
    if readout.logits in model.inputs:  # an input keeps its name (`_connect`)
        raw = readout.logits
    hidden = hides_scores(model, readout)
    if hidden:  # the node gives others scores from now on
        raw = f"{block}/label/{readout.logits}"
    path = kept_path(model, other_outputs.kept, readout.logits, raw, block)
    for name, new in path.moved.items():
        _rename(rewritten.proto.graph.node, name, new)
    for k in path.edited:
        path.rename_reads(rewritten.proto.graph.node[k])
    copies = path.copies(model, block)
    for k, copy in reversed(list(zip(path.copied, copies, strict=True))):
        insert_nodes(rewritten.proto.graph, k + 1, [copy])
    if hidden and (path.edited or path.copied):
        at = model.producers[readout.logits]
        copies.append(onnx.NodeProto.FromString(model.proto.graph.node[at].SerializeToString()))
        copies[-1].name = f"{block}/label_{at}"
        copies[-1].output[:] = [f"{block}/label/{name}" for name in copies[-1].output]
        insert_nodes(rewritten.proto.graph, at + 1, copies[-1:])
    rewritten.nodes.update(copy.name for copy in copies)


def _rename(nodes: Iterable[onnx.NodeProto], tensor: str, name: str) -> None:
    """Give a tensor another name where it is made, and where nodes read it."""
    for node in nodes:
        for names in (node.input, node.output):
            if tensor in names:
                names[:] = [{tensor: name}.get(old, old) for old in names]


def _widen(model: Model, readout: Readout, rewritten: Rewritten) -> None:
    """Let quantised probabilities be any from 0 to 1: their range was taken from those before."""
    graph = model.proto.graph.node
    nodes = [k for k, node in enumerate(graph) if _is_probability(model, readout, node) and _is_narrow(model, node)]
    for place in (1, 2):
        readers = Counter(graph[k].input[place] for k in nodes)
        for k in nodes:
            name = graph[k].input[place]
            scale, zero = (model.constant_tensor(graph[k].input[position]) for position in (1, 2))
            assert scale is not None  # noqa: S101 - its range is narrow
            assert zero is not None  # noqa: S101 - the same
            dtype = INTEGER_TYPES[zero.data_type]
            new = np.full(list(zero.dims), np.iinfo(dtype).min, dtype)
            if place == 1:
                new = np.full(list(scale.dims), 1 / full_range(dtype), model.floats(scale).dtype)
            role = ("output scale", "output zero point")[place - 1]
            if readers[name] < model.uses[name]:
                _replace_input(model, k, place, new, role, rewritten)
            elif name not in rewritten.roles:
                _overwrite(model, name, numpy_helper.from_array(new, name), role, rewritten)


def _is_probability(model: Model, readout: Readout, node: onnx.NodeProto) -> bool:
    """Whether a node quantises, or dequantises, what a Sigmoid or Softmax makes of the logits."""
    if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
        return False
    source = model.maker(node.input[0], SHAPE_OR_TYPE | {"DequantizeLinear", "QuantizeLinear", "Transpose"})
    if source is None or source.op_type not in ("Sigmoid", "Softmax"):
        return False
    return model.reads(source.output[0], readout.logits)


def _is_narrow(model: Model, node: onnx.NodeProto) -> bool:
    """Whether the range of a quantisation with one scale leaves out probabilities, by more than a step."""
    scale, zero = (model.constant_tensor(input_at(node, place)) for place in (1, 2))
    if scale is None or zero is None or zero.data_type not in INTEGER_TYPES:
        return False
    dtype = INTEGER_TYPES[zero.data_type]
    step, offset = model.floats(scale), model.array(zero).astype(np.float64)
    if step.size != 1 or offset.size != 1 or dtype.itemsize > 2:
        return False
    low, high = (float((end - offset.item()) * step.item()) for end in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    return bool(low > step.item() or high < 1 - 1.5 * step.item())


def copy_optional_fields(before: onnx.TensorProto, after: onnx.TensorProto) -> None:
    """Take over what a tensor says about itself, besides its name."""
    if before.HasField("doc_string"):
        after.doc_string = before.doc_string
    after.metadata_props.extend(before.metadata_props)
