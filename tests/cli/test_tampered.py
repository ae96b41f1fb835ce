"""Files that someone has changed: none of them is intact, whoever computed the seal anew."""

import contextlib
import hashlib
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tna_onnx
from tests.builders import tensor_info
from tests.cli.test_verify import put, several_outputs
from tests.conftest import ROOT, Small
from tests.support import with_options
from tna_onnx.pipeline.change import _seal

Proto = onnx.ModelProto
Tamper = Callable[[Proto], object]

# --- the files: one of each kind of change


FILES: dict[str, dict[str, object]] = {
    "recomputed": {"map": "ts", "search": "none"},
    "refitted": {"map": "refit", "search": "none"},
    "appended": {"map": "irova", "search": "none"},
    "features": {"map": "aar", "search": "none"},
    "decided": {"map": "bias", "search": "none", "decide": "macro-f1"},
    "kept": {"map": "bias", "search": "none", "keep_decision": True},
    "guarded": {"map": "bias", "search": "none", "add": ("accept", "set", "ood"), "risk": 20.0},
}


# Of a source whose weight is stored as integers.
QUANTISED: dict[str, dict[str, object]] = {
    "requantised": {"map": "refit", "search": "none"},
    "kept in float": {"map": "refit", "search": "none", "quantized_head": "float"},
}


def _quantised(source: Path) -> Path:
    """Write the source with its weight in int8, a scale for each class."""
    model = onnx.load(source)
    weight = _weight(model)
    scale = (np.abs(weight).max(axis=1) / 127).astype(np.float32)
    codes = np.round(weight / scale[:, None]).astype(np.int8)
    model.graph.initializer.remove(_tensor(model, "weight"))
    for name, values in (("codes", codes), ("scale", scale), ("zero", np.zeros(5, np.int8))):
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    names = ["codes", "scale", "zero"]
    model.graph.node.insert(0, helper.make_node("DequantizeLinear", names, ["weight"], name="dequantize", axis=0))
    onnx.save(model, source.with_name("quantised.onnx"))
    return source.with_name("quantised.onnx")


@pytest.fixture(scope="session")
def files(small: Small, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Return (source, file) of each kind."""
    folder = tmp_path_factory.mktemp("tampered")
    source = several_outputs(small, folder)
    made = {}
    for kind, own in FILES.items():
        made[kind] = (source, folder / f"{kind}.onnx")
        words = {"require": "nothing", "output_name": "logits", "device": "cpu", **own}
        with_options(tna_onnx.calibrate, source, small.calib, output=made[kind][1], **words)  # type: ignore[arg-type]
    common = {"output_name": "logits", "device": "cpu"}
    made["shifted"] = (source, folder / "shifted.onnx")
    prior = [0.4, 0.3, 0.15, 0.1, 0.05]
    with_options(tna_onnx.shift, source, small.calib, target_prior=prior, output=made["shifted"][1], **common)  # type: ignore[arg-type]
    made["only guarded"] = (source, folder / "only guarded.onnx")
    levels = {"add": ("accept", "set"), "risk": 20.0, "per_class": True}
    with_options(tna_onnx.guard, source, small.calib, output=made["only guarded"][1], **levels, **common)  # type: ignore[arg-type]
    quantised = _quantised(source)
    for kind, own in QUANTISED.items():
        made[kind] = (quantised, folder / f"{kind}.onnx")
        words = {"require": "nothing", **common, **own}
        with_options(tna_onnx.calibrate, quantised, small.calib, output=made[kind][1], **words)  # type: ignore[arg-type]
    return made


OTHERS = ("shifted", "only guarded", *QUANTISED)


@pytest.mark.parametrize("kind", [*FILES, *OTHERS])
def test_the_files_themselves_are_intact(files: dict[str, tuple[Path, Path]], kind: str) -> None:
    found = tna_onnx.verify(*files[kind], device="cpu", model_options=tna_onnx.ModelOptions(output_name="logits"))
    assert found.passed, (found.verdict, found.unexplained)
    # whoever parses a file and writes it again changes nothing
    again = onnx.load(files[kind][1]).SerializeToString()
    assert tna_onnx.verify(
        files[kind][0], again, device="cpu", model_options=tna_onnx.ModelOptions(output_name="logits")
    ).passed


# --- what is done to them


def _named(*tampers: Tamper) -> dict[str, Tamper]:
    return {tamper.__name__: tamper for tamper in tampers}


def _tensor(m: Proto, name: str) -> TensorProto:
    return next(t for t in m.graph.initializer if t.name == name)


def _set(m: Proto, name: str, value: np.ndarray) -> None:
    _tensor(m, name).CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), name))


def _weight(m: Proto) -> np.ndarray:
    return np.array(numpy_helper.to_array(_tensor(m, "weight")))


def _front(m: Proto, *nodes: onnx.NodeProto) -> None:
    for node in reversed(nodes):
        m.graph.node.insert(0, node)


def _node(m: Proto, name: str) -> onnx.NodeProto:
    return next(n for n in m.graph.node if n.name == name)


def _behind(m: Proto, op: str, *inputs: str, prefix: str = "tna_onnx/zz", **attributes: object) -> None:
    """Put a node between the logits and whoever reads them."""
    producer = next(n for n in m.graph.node if "logits" in n.output)
    producer.output[list(producer.output).index("logits")] = f"{prefix}_in"
    at = list(m.graph.node).index(producer)
    names = [f"{prefix}_in", *inputs]
    m.graph.node.insert(at + 1, helper.make_node(op, names, ["logits"], name=prefix, **attributes))


def negated_output_in_front(m: Proto) -> None:
    m.graph.node.append(helper.make_node("Neg", ["logits"], ["tna_onnx/guard/zz_out"], name="tna_onnx/guard/zz"))
    m.graph.output.insert(0, tensor_info("tna_onnx/guard/zz_out", ["N", 5]))


def negated_output_behind(m: Proto) -> None:
    m.graph.node.append(helper.make_node("Neg", ["logits"], ["tna_onnx/guard/zz_out"], name="tna_onnx/guard/zz"))
    m.graph.output.append(tensor_info("tna_onnx/guard/zz_out", ["N", 5]))


def outputs_in_another_order(m: Proto) -> None:
    outputs = [onnx.ValueInfoProto.FromString(o.SerializeToString()) for o in m.graph.output]
    del m.graph.output[:]
    m.graph.output.extend(outputs[::-1])


def constant_shadows_the_backbone(m: Proto) -> None:
    value = -numpy_helper.to_array(_tensor(m, "hidden"))
    _front(m, helper.make_node("Constant", [], ["hidden"], name="tna_onnx/c0",
                               value=numpy_helper.from_array(value, "hidden")))  # fmt: skip


def constant_behind_shadows(m: Proto) -> None:
    value = numpy_helper.from_array(-_weight(m), "weight")
    m.graph.node.append(helper.make_node("Constant", [], ["weight"], name="tna_onnx/c1", value=value))


def logits_with_noise(m: Proto) -> None:
    _behind(m, "Add", "tna_onnx/noise")
    at = next(k for k, n in enumerate(m.graph.node) if n.name == "tna_onnx/zz")
    m.graph.node.insert(at, helper.make_node("RandomNormalLike", ["tna_onnx/zz_in"], ["tna_onnx/noise"],
                                             name="tna_onnx/random", scale=9.0))  # fmt: skip


def logits_with_a_backdoor(m: Proto) -> None:
    m.graph.initializer.extend(
        [numpy_helper.from_array(np.float32(7), "tna_onnx/t"), numpy_helper.from_array(np.int64([1]), "tna_onnx/axes")]
    )
    _behind(m, "Where", "tna_onnx/zz_in", "tna_onnx/back")
    node = _node(m, "tna_onnx/zz")
    node.input[:] = ["tna_onnx/cond", "tna_onnx/back", "tna_onnx/zz_in"]
    at = list(m.graph.node).index(node)
    m.graph.node.insert(at, helper.make_node("Neg", ["tna_onnx/zz_in"], ["tna_onnx/back"], name="tna_onnx/b"))
    m.graph.node.insert(at, helper.make_node("Greater", ["tna_onnx/max", "tna_onnx/t"], ["tna_onnx/cond"],
                                             name="tna_onnx/g"))  # fmt: skip
    m.graph.node.insert(at, helper.make_node("ReduceMax", ["features"], ["tna_onnx/max"], name="tna_onnx/m", axes=[1]))


def logits_softened_in_an_if(m: Proto) -> None:
    m.graph.initializer.append(numpy_helper.from_array(np.array(True), "tna_onnx/yes"))
    branches = [
        helper.make_graph([helper.make_node(op, ["logits_"], [f"o_{op}"])], op, [], [tensor_info(f"o_{op}", ["N", 5])])
        for op in ("Neg", "Abs")
    ]
    producer = next(n for n in m.graph.node if "logits" in n.output)
    producer.output[list(producer.output).index("logits")] = "logits_"
    at = list(m.graph.node).index(producer)
    m.graph.node.insert(at + 1, helper.make_node("If", ["tna_onnx/yes"], ["logits"], name="tna_onnx/if",
                                                 then_branch=branches[0], else_branch=branches[1]))  # fmt: skip


def head_permuted(m: Proto) -> None:
    _set(m, "weight", _weight(m)[::-1])


def head_negated(m: Proto) -> None:
    _set(m, "weight", -_weight(m))


def head_with_another_number(m: Proto) -> None:
    weight = _weight(m)
    weight[2, 3] += 1
    _set(m, "weight", weight)


def head_in_typed_fields(m: Proto) -> None:
    weight = _weight(m)
    _tensor(m, "weight").CopyFrom(helper.make_tensor("weight", TensorProto.FLOAT, weight.shape, weight.ravel()))


def bias_raised(m: Proto) -> None:
    bias = np.array(numpy_helper.to_array(_tensor(m, "bias")))
    bias[1] += 50
    _set(m, "bias", bias)


def tensors_in_another_order(m: Proto) -> None:
    tensors = [TensorProto.FromString(t.SerializeToString()) for t in m.graph.initializer]
    del m.graph.initializer[:]
    m.graph.initializer.extend(tensors[::-1])


def sparse_tensor(m: Proto) -> None:
    values, indices = numpy_helper.from_array(np.ones(1, np.float32), "s"), numpy_helper.from_array(np.int64([0]), "i")
    m.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))


def temperature_in_the_metadata(m: Proto) -> None:
    for entry in m.metadata_props:
        if entry.key == "tna_onnx.temperature":
            entry.value = "1.0"
            return
    m.metadata_props.add(key="tna_onnx.temperature", value="1.0")


def entries_in_another_order(m: Proto) -> None:
    entries = [(e.key, e.value) for e in m.metadata_props]
    del m.metadata_props[:]
    for key, value in entries[::-1]:
        m.metadata_props.add(key=key, value=value)


def _entry(m: Proto, key: str) -> onnx.StringStringEntryProto:
    return next(e for e in m.metadata_props if e.key == f"tna_onnx.{key}")


def change_of_another_format(m: Proto) -> None:
    _entry(m, "change").value = _entry(m, "change").value.replace('"format":1', '"format":2')


def change_that_is_no_json(m: Proto) -> None:
    _entry(m, "change").value = "]"


def _edit_step(m: Proto, edit: Callable[[dict[str, object]], None]) -> None:
    change = json.loads(_entry(m, "change").value)
    edit(change["steps"][0])
    _entry(m, "change").value = json.dumps(change, separators=(",", ":"))


def step_with_another_map(m: Proto) -> None:
    temperature = {"is": "Temperature", "temperature": 3.0}
    _edit_step(m, lambda step: step.update(folded=None, weight=False, bias=None, maps=[temperature]))


def step_with_a_huge_array(m: Proto) -> None:
    huge = {"is": "Added", "bias": {"dtype": "float64", "shape": [10**12]}}
    _edit_step(m, lambda step: step.update(maps=[huge]))


def step_at_another_tensor(m: Proto) -> None:
    def edit(step: dict[str, object]) -> None:
        readout = step["readout"] if "readout" in step else step["guarded"]["output"]  # type: ignore[index]
        assert isinstance(readout, dict)
        readout["logits" if "logits" in readout else "name"] = "features"

    _edit_step(m, edit)


def attributes_gone(m: Proto) -> None:
    del _node(m, "head").attribute[:]


def input_renamed(m: Proto) -> None:
    m.graph.input[0].name = "y"
    for node in m.graph.node:
        node.input[:] = ["y" if name == "x" else name for name in node.input]


def function_that_nobody_calls(m: Proto) -> None:
    nodes = [helper.make_node("Neg", ["a"], ["b"])]
    m.functions.append(helper.make_function("tna_onnx", "Neg", ["a"], ["b"], nodes, [helper.make_opsetid("", 17)]))


def function_behind_the_logits(m: Proto) -> None:
    function_that_nobody_calls(m)
    m.opset_import.append(helper.make_opsetid("tna_onnx", 1))
    _behind(m, "Neg", domain="tna_onnx")


def _block(m: Proto) -> list[onnx.NodeProto]:
    return [n for n in m.graph.node if n.name.startswith("tna_onnx/") and n.op_type != "Constant"]


def block_reads_the_input(m: Proto) -> None:
    _block(m)[0].input[0] = "x"


def block_with_another_operator(m: Proto) -> None:
    node = next(n for n in _block(m) if n.op_type in ("Mul", "Add"))
    node.op_type = {"Mul": "Div", "Add": "Sub"}[node.op_type]


def block_with_operands_exchanged(m: Proto) -> None:
    node = next(n for n in _block(m) if len(n.input) == 2)
    node.input[:] = list(node.input)[::-1]


def _block_constant(m: Proto) -> TensorProto:
    for tensor in m.graph.initializer:
        if tensor.name.startswith("tna_onnx/const") and tensor.data_type == TensorProto.FLOAT:
            return tensor
    return next(n.attribute[0].t for n in m.graph.node if n.name.startswith("tna_onnx/") and n.op_type == "Constant"
                and n.attribute[0].t.data_type == TensorProto.FLOAT)  # fmt: skip


def block_with_another_sign(m: Proto) -> None:
    tensor = _block_constant(m)
    tensor.raw_data = (-numpy_helper.to_array(tensor)).tobytes()


def block_with_nan(m: Proto) -> None:
    tensor = _block_constant(m)
    tensor.raw_data = (numpy_helper.to_array(tensor) * np.float32(np.nan)).tobytes()


def block_in_another_place(m: Proto) -> None:
    node = onnx.NodeProto.FromString(_block(m)[0].SerializeToString())
    m.graph.node.remove(_block(m)[0])
    m.graph.node.append(node)


ANYWHERE: dict[str, Tamper] = {
    **_named(
        negated_output_in_front,
        negated_output_behind,
        outputs_in_another_order,
        constant_shadows_the_backbone,
        constant_behind_shadows,
        logits_with_noise,
        logits_with_a_backdoor,
        logits_softened_in_an_if,
        head_in_typed_fields,
        tensors_in_another_order,
        sparse_tensor,
        change_of_another_format,
        change_that_is_no_json,
        step_with_another_map,
        step_with_a_huge_array,
        step_at_another_tensor,
        attributes_gone,
        input_renamed,
        function_that_nobody_calls,
        function_behind_the_logits,
    ),
    "output_gone": lambda m: m.graph.output.pop(-1),
    "output_is_a_feature": lambda m: m.graph.output.append(tensor_info("h", ["N", 32])),
    "output_of_another_type": lambda m: put(m.graph.output[0].type.tensor_type, "elem_type", TensorProto.DOUBLE),
    "constant_shadows_the_head": lambda m: _front(
        m,
        helper.make_node(
            "Constant", [], ["weight"], name="tna_onnx/c0", value=numpy_helper.from_array(-_weight(m), "weight")
        ),
    ),
    "logits_negated": lambda m: _behind(m, "Neg"),
    "logits_of_another_operator": lambda m: _behind(m, "Relu"),
    "logits_through_identity": lambda m: _behind(m, "Identity"),
    "logits_through_identity_without_our_name": lambda m: _behind(m, "Identity", prefix="plain"),
    "head_nan": lambda m: _set(m, "weight", _weight(m) * np.float32(np.nan)),
    "tensor_twice": lambda m: m.graph.initializer.append(m.graph.initializer[0]),
    "tensor_that_nobody_reads": lambda m: m.graph.initializer.append(
        numpy_helper.from_array(np.ones(3, np.float32), "tna_onnx/const_99")
    ),
    "weight_can_be_fed": lambda m: m.graph.input.append(tensor_info("weight", [5, 32])),
    "quantization_annotation": lambda m: m.graph.quantization_annotation.add(tensor_name="logits"),
    "entry_twice": lambda m: m.metadata_props.append(m.metadata_props[-1]),
    "no_change": lambda m: put(_entry(m, "change"), "value", '{"format":1,"steps":[]}'),
    "step_of_another_source": lambda m: _edit_step(m, lambda step: step.update(source="0" * 64)),
    "step_with_an_unknown_map": lambda m: _edit_step(
        m, lambda step: step.update(maps=[{"is": "Popen", "args": ["true"]}])
    ),
    "attribute_of_the_softmax": lambda m: put(_node(m, "softmax").attribute[0], "i", 0),
    "domain_of_a_node": lambda m: put(_node(m, "relu"), "domain", "com.microsoft"),
    "node_twice": lambda m: m.graph.node.append(_node(m, "softmax")),
    "node_renamed": lambda m: put(_node(m, "relu"), "name", "tna_onnx/relu"),
    "node_without_a_name": lambda m: _node(m, "relu").ClearField("name"),
    "unknown_field_of_a_node": lambda m: m.graph.node[0].MergeFromString(b"\xfa?\x01z"),
    "node_that_nobody_reads": lambda m: m.graph.node.append(
        helper.make_node("Neg", ["logits"], ["tna_onnx/dead"], name="tna_onnx/dead")
    ),
    "training_graph": lambda m: put(m.training_info.add().algorithm, "name", "a"),
}
NUMBERS: dict[str, Tamper] = {
    **_named(head_permuted, head_negated, head_with_another_number, bias_raised),
    "head_zero": lambda m: _set(m, "weight", 0 * _weight(m)),
}
IN_BLOCK: dict[str, Tamper] = {
    **_named(
        block_reads_the_input,
        block_with_another_operator,
        block_with_operands_exchanged,
        block_with_another_sign,
        block_with_nan,
        block_in_another_place,
    ),
    "block_without_a_node": lambda m: m.graph.node.remove(_block(m)[0]),
}
# Of these only the seal tells.
UNSEALED: dict[str, Tamper] = {
    **_named(entries_in_another_order, temperature_in_the_metadata),
    "entry_added": lambda m: m.metadata_props.add(key="tna_onnx.zz", value="1"),
}


# --- what is done to files of shift, of decisions alone, and of quantised weights


def prior_of_another_class(m: Proto) -> None:
    """Move the class frequencies by one place, wherever they are: in the bias, or in a node of the block."""
    for tensor in m.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.shape[-1:] == (5,) and values.dtype == np.float32 and tensor.name != "scale":
            tensor.CopyFrom(numpy_helper.from_array(np.roll(values, 1, axis=-1), tensor.name))
            return


def shift_twice(m: Proto) -> None:
    change = json.loads(_entry(m, "change").value)
    change["steps"].append(change["steps"][-1])
    _entry(m, "change").value = json.dumps(change, separators=(",", ":"))


def other_thresholds_by_class(m: Proto) -> None:
    """Turn around the longest constant of the block that is not all one number."""
    constants = [n.attribute[0].t for n in m.graph.node if n.op_type == "Constant" and n.name.startswith("tna_onnx/")]
    tensors = [t for t in constants if len(np.unique(numpy_helper.to_array(t))) > 1]
    tensor = max(tensors, key=lambda t: len(t.raw_data))
    values = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(np.flip(values).copy(), tensor.name))


def outputs_exchanged(m: Proto) -> None:
    names = [o.name for o in m.graph.output]
    first, second = (k for k, name in enumerate(names) if name in ("accept", "set"))
    m.graph.output[first].name, m.graph.output[second].name = names[second], names[first]


def codes_negated(m: Proto) -> None:
    for tensor in m.graph.initializer:
        if tensor.data_type == TensorProto.INT8 and len(tensor.dims) == 2:
            tensor.raw_data = (-numpy_helper.to_array(tensor)).tobytes()
            return
    head_negated(m)


def a_code(m: Proto) -> None:
    for tensor in m.graph.initializer:
        if tensor.data_type == TensorProto.INT8 and len(tensor.dims) == 2:
            tensor.raw_data = bytes([tensor.raw_data[0] ^ 1]) + tensor.raw_data[1:]
            return
    tensor = next(t for t in m.graph.initializer if list(t.dims) == [5, 32])
    tensor.raw_data = bytes([tensor.raw_data[0] ^ 1]) + tensor.raw_data[1:]


def scale_doubled(m: Proto) -> None:
    for tensor in m.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and list(tensor.dims) == [5]:
            tensor.raw_data = (2 * numpy_helper.to_array(tensor)).tobytes()
            return


def zero_point_moved(m: Proto) -> None:
    zero = next((t for t in m.graph.initializer if t.data_type == TensorProto.INT8 and list(t.dims) == [5]), None)
    if zero is None:
        bias_raised(m)
        return
    zero.raw_data = (numpy_helper.to_array(zero) + np.int8(3)).tobytes()


def weight_per_feature(m: Proto) -> None:
    for node in m.graph.node:
        if node.op_type == "DequantizeLinear":
            for attribute in node.attribute:
                attribute.i = 1
            return
    attributes_gone(m)


def head_reads_the_old_weight(m: Proto) -> None:
    """Leave the weight of the change in the file, and let the head read another."""
    head = _node(m, "head")
    old = numpy_helper.from_array(np.ones((5, 32), np.float32), "tna_onnx/old")
    m.graph.initializer.append(old)
    head.input[1] = "tna_onnx/old"


OF_KIND: dict[str, dict[str, Tamper]] = {
    "shifted": {**_named(prior_of_another_class, shift_twice)},
    "only guarded": {**_named(other_thresholds_by_class, outputs_exchanged)},
    "requantised": {**_named(codes_negated, a_code, scale_doubled, zero_point_moved, weight_per_feature)},
    "kept in float": {**_named(codes_negated, a_code, scale_doubled, zero_point_moved)},
}
# What needs a tensor of floats by the name of `weight`, or numbers that are not free.
_NOT_QUANTISED = {"constant_shadows_the_head", "constant_behind_shadows", "head_nan", "head_in_typed_fields"}


def _pairs() -> list[tuple[str, str, bool]]:
    """Return (file, change, whether the seal is computed anew).

    Two files take every change, the others some by turns. With the seal computed anew, what is refused is refused
    without it as well; where numbers are free, the seal alone tells.
    """
    kinds = [*FILES, *OTHERS]
    pairs = [(kind, how, True) for kind in ("recomputed", "guarded") for how in ANYWHERE]
    others = [kind for kind in kinds if kind not in ("recomputed", "guarded")]
    for k, kind in enumerate(others):
        some = [how for how in [*ANYWHERE][k :: len(others) // 2] if kind not in QUANTISED or how not in _NOT_QUANTISED]
        own = [*OF_KIND.get(kind, ()), *(["head_reads_the_old_weight"] if kind in OTHERS else [])]
        pairs += [(kind, how, kind not in ("refitted", "appended", "features")) for how in (*some, *own)]
    # the weight of these is not a free number: it is computed of the source
    pairs += [(kind, how, True) for kind in ("recomputed", "appended", "guarded", "decided", "kept") for how in NUMBERS]
    pairs += [(kind, how, False) for kind in ("refitted", "features") for how in NUMBERS]
    pairs += [(kind, how, True) for kind in ("appended", "guarded") for how in IN_BLOCK]
    pairs += [("features", how, False) for how in IN_BLOCK]
    return pairs + [(kind, how, False) for kind in kinds for how in UNSEALED]


def _seal_anew(m: Proto) -> None:
    entries = {e.key.removeprefix("tna_onnx."): e.value for e in m.metadata_props if e.key.startswith("tna_onnx.")}
    for entry in m.metadata_props:
        if entry.key == "tna_onnx.seal":
            entry.value = _seal(entries)


HOW = {**ANYWHERE, **NUMBERS, **IN_BLOCK, **UNSEALED, "head_reads_the_old_weight": head_reads_the_old_weight}
HOW |= {name: how for of_kind in OF_KIND.values() for name, how in of_kind.items()}


@pytest.mark.parametrize(("kind", "how", "sealed"), _pairs())
def test_no_tampered_file_is_intact(
    files: dict[str, tuple[Path, Path]], kind: str, how: str, sealed: bool, tmp_path: Path
) -> None:
    source, file = files[kind]
    model = onnx.load(file)
    HOW[how](model)
    if sealed:
        _seal_anew(model)
    path = tmp_path / "tampered.onnx"
    path.write_bytes(model.SerializeToString())
    assert path.read_bytes() != file.read_bytes()
    try:
        found = tna_onnx.verify(source, path, device="cpu", model_options=tna_onnx.ModelOptions(output_name="logits"))
    except tna_onnx.UnsupportedModel:
        return  # refused as damaged: exit code 3
    assert not found.intact
    assert not found.passed
    assert found.verdict.startswith(("not intact: ", "cannot be proved: "))


@pytest.mark.parametrize("kind", ["recomputed", "shifted", "only guarded", "requantised"])
def test_a_file_of_another_version_cannot_be_proved(
    files: dict[str, tuple[Path, Path]], kind: str, tmp_path: Path
) -> None:
    """It says nothing of its making, or in words that this version does not know."""
    source, file = files[kind]
    for edit in (no_words, change_of_another_format, change_that_is_no_json):
        model = onnx.load(file)
        edit(model)
        _seal_anew(model)
        onnx.save(model, tmp_path / "older.onnx")
        found = tna_onnx.verify(
            source, tmp_path / "older.onnx", device="cpu", model_options=tna_onnx.ModelOptions(output_name="logits")
        )
        assert not found.passed
        assert found.verdict.startswith("cannot be proved: ")


def no_words(m: Proto) -> None:
    m.metadata_props.remove(_entry(m, "change"))


def test_numbers_of_a_large_array_are_what_a_proof_leaves_open(
    small: Small, files: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    """The limit that SECURITY.md names: a forged digest and seal. The data tell."""
    source, file = files["refitted"]
    model = onnx.load(file)
    head_permuted(model)
    digest = hashlib.sha256(_tensor(model, "weight").raw_data).hexdigest()

    def edit(step: dict[str, object]) -> None:
        assert isinstance(step["digests"], dict)
        step["digests"]["weight"] = digest

    _edit_step(model, edit)
    _seal_anew(model)
    onnx.save(model, tmp_path / "forged.onnx")
    found = tna_onnx.verify(
        source, tmp_path / "forged.onnx", device="cpu", model_options=tna_onnx.ModelOptions(output_name="logits")
    )
    assert found.intact, found.unexplained
    found = tna_onnx.verify(
        source,
        tmp_path / "forged.onnx",
        data=small.test,
        device="cpu",
        model_options=tna_onnx.ModelOptions(output_name="logits"),
    )
    assert found.intact
    assert found.missed
    assert not found.passed


@pytest.mark.parametrize("factor", [0.5, -0.8, 0.0])
def test_a_bias_times_a_number_that_no_fit_gives(tmp_path: Path, factor: float) -> None:
    """The factor of a tilted weight's bias is a number in the file: one above 0 is proved by itself, others never."""
    source = ROOT / "models/digits/model.onnx"
    words: dict[str, Any] = {"search": "sparse", "map": "none", "ensemble_size": 2, "angle_step": 30.0}
    with_options(
        tna_onnx.calibrate, source, source.with_name("calib.npz"), output=tmp_path / "o.onnx", device="cpu", **words
    )
    model = onnx.load(tmp_path / "o.onnx")
    bias = numpy_helper.to_array(_tensor(onnx.load(source), "head.bias")) * np.float32(factor)
    _set(model, "head.bias", bias)

    def edit(step: dict[str, Any]) -> None:
        assert isinstance(step["bias"], float)
        step["bias"] = factor
        step["digests"]["head.bias"] = hashlib.sha256(bias.tobytes()).hexdigest()

    _edit_step(model, edit)
    _seal_anew(model)
    found = tna_onnx.verify(source, model, device="cpu")
    assert found.intact is (factor > 0), found.unexplained


def _place(t: TensorProto, key: str) -> onnx.StringStringEntryProto:
    return next(entry for entry in t.external_data if entry.key == key)


READ_OTHERWISE: dict[str, Callable[[TensorProto], object]] = {
    "raw beside": lambda t: put(t, "raw_data", b"\x01" * 8),
    "floats beside": lambda t: t.float_data.extend([1.0] * int(np.prod(t.dims))),
    "place twice": lambda t: t.external_data.add(key="offset", value=_place(t, "offset").value),
    "unknown word of a place": lambda t: t.external_data.add(key="basepath", value="elsewhere"),
    "length of a place": lambda t: put(_place(t, "length"), "value", "4"),
    "place of data in the file": lambda t: t.external_data.add(key="location", value="elsewhere.bin"),
}


@pytest.fixture(scope="module")
def placed(small: Small, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[bool, bool], Path]:
    """Folders with `source.onnx` and `out.onnx`, by whether data are external and whether the checker refuses them."""
    folders = {}
    for external, refused in itertools.product([True, False], repeat=2):
        folder = tmp_path_factory.mktemp("placed")
        model = onnx.load(small.model)
        if refused:  # the checker finds nothing then
            model.graph.value_info.add(name="no type")
        words = {"save_as_external_data": external, "size_threshold": 0, "location": "source.bin"}
        onnx.save(model, folder / "source.onnx", **words)
        settings = {"output": folder / "out.onnx", "map": "ts", "search": "none", "device": "cpu"}
        with_options(tna_onnx.calibrate, folder / "source.onnx", small.calib, **settings)
        assert tna_onnx.verify(folder / "source.onnx", folder / "out.onnx", device="cpu").passed
        folders[external, refused] = folder
    return folders


@pytest.mark.parametrize("how", READ_OTHERWISE)
@pytest.mark.parametrize("refused", [False, True])
def test_tensors_that_another_reader_might_read_otherwise(
    placed: dict[tuple[bool, bool], Path], how: str, refused: bool, tmp_path: Path
) -> None:
    external = how != "place of data in the file"
    folder = shutil.copytree(placed[external, refused], tmp_path / "copy")
    model = onnx.load(folder / "out.onnx", load_external_data=False)
    READ_OTHERWISE[how](
        next(t for t in model.graph.initializer if (t.data_location == TensorProto.EXTERNAL) == external)
    )
    (folder / "out.onnx").write_bytes(model.SerializeToString())
    with contextlib.suppress(tna_onnx.UnsupportedModel):  # refused as damaged
        assert not tna_onnx.verify(folder / "source.onnx", folder / "out.onnx", device="cpu").intact


def test_external_data_of_another_file(placed: dict[tuple[bool, bool], Path], tmp_path: Path) -> None:
    """A file of external data that was swapped, shortened, or named by another tensor."""
    rng = np.random.default_rng(0)
    folder = shutil.copytree(placed[True, False], tmp_path / "copy")
    source, output = folder / "source.onnx", folder / "out.onnx"
    (data,) = folder.glob("out.onnx.*.data")
    content = data.read_bytes()
    for at in rng.choice(len(content), 8, replace=False):
        if content[at]:
            data.write_bytes(content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :])
            assert not tna_onnx.verify(source, output, device="cpu").passed
    data.write_bytes(content)
    model = onnx.load(output, load_external_data=False)
    places = [[(e.key, e.value) for e in t.external_data] for t in model.graph.initializer]
    for tensor, place in zip(model.graph.initializer, places[::-1], strict=True):
        for entry, (key, value) in zip(tensor.external_data, place, strict=True):
            if key == "offset":
                entry.value = value
    output.write_bytes(model.SerializeToString())
    with contextlib.suppress(tna_onnx.UnsupportedModel):  # refused as damaged
        assert not tna_onnx.verify(source, output, device="cpu").passed
