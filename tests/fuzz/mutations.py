"""Damage to a model that keeps its structure: what a hostile or careless writer would do, rather than flipped bits."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import onnx
from onnx import AttributeProto, TensorProto, helper

NUMBERS = (0, 1, -1, 2, 3, 64, 2**31 - 1, 2**31, -(2**31), 2**62, -(2**63), 2**63 - 1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 3.4e38, float("inf"), float("nan"))
TEXTS = ("", "x", "y", "\x1b[31m", "a\nb", "../secret", "/dev/zero", "\u202e", "9" * 5000, "n" * 20_000, "weight")


def _attribute(proto: onnx.ModelProto, random: Random) -> None:
    node = random.choice(proto.graph.node)
    known = [a.name for a in node.attribute] or ["axis"]
    kind = random.choice(list(AttributeProto.AttributeType.values()))
    new = AttributeProto(name=random.choice([*known, "alpha", "transB", "axis", "perm", "value"]), type=kind)
    new.i = random.choice(NUMBERS)
    new.f = random.choice(FLOATS)
    new.s = random.choice(TEXTS).encode()
    new.ints.extend(random.choices(NUMBERS, k=random.randrange(4)))
    kept = [a for a in node.attribute if a.name != new.name]
    del node.attribute[:]
    node.attribute.extend([*kept, new])


def _edge(proto: onnx.ModelProto, random: Random) -> None:
    node = random.choice(proto.graph.node)
    names = [*(n for other in proto.graph.node for n in (*other.input, *other.output)), *TEXTS]
    place = random.choice([node.input, node.output])
    if len(place) and random.random() < 0.7:
        place[random.randrange(len(place))] = random.choice(names)
    elif random.random() < 0.5:
        place.append(random.choice(names))
    else:
        del place[random.randrange(len(place) + 1) :]


def _nodes(proto: onnx.ModelProto, random: Random) -> None:
    nodes = list(proto.graph.node)
    k = random.randrange(len(nodes))
    change = random.randrange(3)
    if change == 0:
        nodes.insert(random.randrange(len(nodes)), nodes[k])
    elif change == 1:
        del nodes[k]
    else:
        random.shuffle(nodes)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(copies)


def _operator(proto: onnx.ModelProto, random: Random) -> None:
    node = random.choice(proto.graph.node)
    kinds = (
        "Gemm", "MatMul", "Conv", "Einsum", "Softmax", "Reshape", "Transpose", "Loop", "If", "DequantizeLinear", "Add",
    )  # fmt: skip
    node.op_type = random.choice([*kinds, *TEXTS])
    node.domain = random.choice(["", "", "ai.onnx.ml", "com.microsoft", "local"])


def _tensor(proto: onnx.ModelProto, random: Random) -> None:
    if not proto.graph.initializer:
        return
    tensor = random.choice(proto.graph.initializer)
    change = random.randrange(5)
    if change == 0 and tensor.dims:
        tensor.dims[random.randrange(len(tensor.dims))] = random.choice(NUMBERS)
    elif change == 1:
        tensor.dims.extend(random.choices(NUMBERS[:5], k=random.choice([1, 2, 70])))
    elif change == 2:
        tensor.data_type = random.choice([*TensorProto.DataType.values(), 99])
    elif change == 3:
        tensor.raw_data = tensor.raw_data[: random.randrange(len(tensor.raw_data) + 1)]
    else:
        _outside(tensor, random)


def _outside(tensor: TensorProto, random: Random) -> None:
    tensor.data_location = TensorProto.EXTERNAL
    tensor.ClearField("raw_data")
    del tensor.external_data[:]
    for key in ("location", "offset", "length"):
        if random.random() < 0.8:
            tensor.external_data.add(key=key, value=random.choice([*TEXTS, *map(str, NUMBERS), "weights.bin"]))


def _name(proto: onnx.ModelProto, random: Random) -> None:
    item: Any = random.choice([*proto.graph.node, *proto.graph.initializer, *proto.graph.output])
    item.name = random.choice(TEXTS)


def _metadata(proto: onnx.ModelProto, random: Random) -> None:
    key = random.choice(["tna_onnx.classes", "tna_onnx.output", "tna_onnx.map", "names", "id2label", *TEXTS])
    proto.metadata_props.add(key=key, value=random.choice([*TEXTS, "[" * 10**5, f"{{{'9' * 5000}: 'a'}}"]))


def _versions(proto: onnx.ModelProto, random: Random) -> None:
    del proto.opset_import[:]
    for domain in random.sample(["", "ai.onnx", "ai.onnx.ml", "local"], k=random.randrange(4)):
        proto.opset_import.append(helper.make_opsetid(domain, random.choice([*range(1, 25), *NUMBERS])))


def _function(proto: onnx.ModelProto, random: Random) -> None:
    calls = random.choices(["F", "G", "Relu"], k=random.randrange(1, 4))
    nodes = [helper.make_node(c, ["a"], [f"b{k}"], domain="" if c == "Relu" else "local") for k, c in enumerate(calls)]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    proto.functions.append(helper.make_function("local", random.choice("FG"), ["a"], ["b0"], nodes, opsets))
    node = random.choice(proto.graph.node)
    node.op_type = random.choice("FG")
    node.domain = "local"


_MUTATIONS: Sequence[Callable[[onnx.ModelProto, Random], None]] = (
    _attribute, _attribute, _edge, _nodes, _operator, _tensor, _tensor, _name, _metadata, _versions, _function,
)  # fmt: skip


def mutated(source: onnx.ModelProto, random: Random) -> bytes:
    """Return the file of a model with one to three kinds of damage; now and then with bytes changed as well."""
    proto = onnx.ModelProto()
    proto.CopyFrom(source)
    for _ in range(random.choice([1, 1, 2, 3])):
        if proto.graph.node:
            random.choice(_MUTATIONS)(proto, random)
    data = bytearray(proto.SerializeToString())
    if random.random() < 0.1 and data:
        for _ in range(random.randrange(1, 5)):
            data[random.randrange(len(data))] = random.randrange(256)
    return bytes(data)
