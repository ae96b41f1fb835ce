"""Small ONNX models for tests, from nodes and arrays.

small_model(
    [helper.make_node("Gemm", ["x", "w"], ["logits"], name="head", transB=1)],
    inputs={"x": ["N", 3]},
    outputs={"logits": ["N", 2]},
    tensors={"w": weight},
)
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike
from onnx import helper, numpy_helper

from tna_onnx.graph.load import Model
from tna_onnx.graph.readout import Readout

Shape = Sequence[int | str | None] | None
Infos = Mapping[str, Shape | tuple[Shape, DTypeLike]] | Iterable[onnx.ValueInfoProto]


def tensor_info(name: str, shape: Shape = None, dtype: DTypeLike = np.float32) -> Any:
    """Declare an input or output; without a shape, of any."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def _declared(infos: Infos) -> list[onnx.ValueInfoProto]:
    if isinstance(infos, Mapping):
        return [tensor_info(name, *(each if isinstance(each, tuple) else (each,))) for name, each in infos.items()]
    return list(infos)


def small_model(
    nodes: Iterable[onnx.NodeProto],
    inputs: Infos,
    outputs: Infos,
    tensors: Mapping[str, ArrayLike] | Iterable[onnx.TensorProto] = (),
    *,
    opset: int = 17,
    domains: Mapping[str, int] | None = None,
    ir_version: int = 8,
    metadata: Mapping[str, str] | None = None,
    **fields: Any,
) -> onnx.ModelProto:
    """Return a model; its IR version is one that every supported ONNX Runtime reads.

    Args:
        nodes: in order.
        inputs: shapes by name, of float32; another type makes a pair with the shape. Or ready, see `tensor_info`.
        outputs: the same.
        tensors: initializers, as arrays by name or ready.
        opset: version of the default operators.
        domains: versions of other domains.
        ir_version: of the file.
        metadata: the model's own properties.
        fields: further fields of the model.
    """
    if isinstance(tensors, Mapping):
        tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items()]
    graph = helper.make_graph(list(nodes), "test", _declared(inputs), _declared(outputs), tensors)
    versions = {"": opset, **(domains or {})}
    opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, **fields)
    helper.set_model_props(proto, dict(metadata or {}))
    return proto


def nodes_of(text: str) -> list[onnx.NodeProto]:
    """Return nodes that are written as `OpType inputs > outputs attribute=value`, between semicolons; `_` is no input.

    >>> [node.op_type for node in nodes_of("MatMul x w > s name=head; Softmax s > p axis=-1")]
    ['MatMul', 'Softmax']
    """
    made = []
    for each in text.split(";"):
        left, _, right = each.partition(" > ")
        op_type, *inputs = ["" if name == "_" else name for name in left.split()]
        words = [word.partition("=") for word in right.split()]
        named = {name: _attribute(name, value) for name, sign, value in words if sign}
        made.append(helper.make_node(op_type, inputs, [name for name, sign, _ in words if not sign], **named))
    return made


def _attribute(name: str, text: str) -> Any:
    if name == "to":
        return onnx.TensorProto.DataType.Value(text)
    return json.loads(text) if text[0] in "-[0123456789" else text


def stumps(*leaves: ArrayLike, post_transform: str = "NONE") -> dict[str, Any]:
    """Return attributes of a TreeEnsembleClassifier: stump k splits feature k at 0 into two leaves of class scores."""
    count, _, classes = np.shape(leaves)
    places = [(tree, leaf, label) for tree in range(count) for leaf in (0, 1) for label in range(classes)]
    return {
        "nodes_treeids": np.repeat(np.arange(count), 3).tolist(),
        "nodes_nodeids": [0, 1, 2] * count,
        "nodes_featureids": np.repeat(np.arange(count), 3).tolist(),
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * count,
        "nodes_values": [0.0] * 3 * count,
        "nodes_truenodeids": [1, 0, 0] * count,
        "nodes_falsenodeids": [2, 0, 0] * count,
        "class_treeids": [tree for tree, _, _ in places],
        "class_nodeids": [1 + leaf for _, leaf, _ in places],
        "class_ids": [label for _, _, label in places],
        "class_weights": np.ravel(leaves).astype(float).tolist(),
        "classlabels_int64s": list(range(classes)),
        "post_transform": post_transform,
    }


def calibration_entries(
    model: Model, readout: Readout, name: str = "none", angle: float = 0.0, **numbers: Any
) -> dict[str, str]:
    """Return what a calibration states of itself: its map by name, whose numbers are given, and the angle of a tilt."""
    output = readout.class_output
    method = name
    if angle:
        method = "tna" if name == "none" else f"tna + {name}"
    words = {"version": "0", "seed": "0"}
    words |= {"map": name, "method": method, "source_sha256": model.sha256, "output_kind": output.kind}
    stated = {key: json.dumps(each) for key, each in {"angle_degrees": angle, **numbers}.items()}
    return {**words, **output.provenance, **stated}
