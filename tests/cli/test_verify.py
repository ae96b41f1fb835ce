"""`tna-onnx verify` as a user meets it: files of every kind that calibrate writes pass, tampered ones do not."""

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import Result
from onnx import TensorProto, helper, numpy_helper
from scipy.special import softmax

import tna_onnx
from tests.builders import nodes_of, small_model, tensor_info
from tests.conftest import Small
from tests.support import TILTED, WALKED, cli, ok, outputs_of, refused, words_of
from tna_onnx.graph.load import load_model
from tna_onnx.pipeline.record import prove

SEARCHED = words_of(TILTED)


def verified(original: Path, recalibrated: Path, folder: Path, *flags: object) -> tuple[Result, dict[str, Any]]:
    """Run the command; return what it printed and its JSON."""
    json_file = folder / "verify.json"
    result = cli("verify", original, recalibrated, "--json", json_file, "--device", "cpu", *flags)
    return result, json.loads(json_file.read_text())


def lines(found: dict[str, Any], explained: bool) -> set[tuple[str, str, str]]:
    """Return (part, name, change) of the explained differences, or of the others."""
    return {(d["part"], d["name"], d["change"]) for d in found["differences"] if bool(d["explained"]) == explained}


# --- what calibrate writes

WEIGHT, BIAS, BEFORE = ("tensor", "weight", "values"), ("tensor", "bias", "values"), ("node", "head", "output")
MODES = {
    "folded": (["--map", "ts"], {WEIGHT, BIAS}),
    "isotonic": (["--map", "isotonic"], {WEIGHT, BIAS, BEFORE}),
    "aar alone": (["--map", "aar", "--search", "none"], {BEFORE}),
}


@pytest.fixture(scope="session")
def written(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from a mode to the file that calibrate writes; each is written once."""
    folder, made = tmp_path_factory.mktemp("written"), {}

    def file(mode: str) -> Path:
        if mode not in made:
            made[mode] = folder / f"{mode}.onnx"
            ok("calibrate", small.model, "--calib", small.calib, "-o", made[mode], *SEARCHED, *MODES[mode][0])
        return made[mode]

    return file


@pytest.mark.parametrize("mode", MODES)
def test_a_recalibrated_file_passes(small: Small, written: Callable[[str], Path], mode: str, tmp_path: Path) -> None:
    result, found = verified(small.model, written(mode), tmp_path, "--data", small.test, "--batch-size", 7)
    assert result.exit_code == 0, result.output
    assert found["intact"]
    assert "intact: " in result.output
    assert found["verdict"].startswith("intact: ")
    assert found["verdict"].endswith("; as good") == (not found["missed"])
    assert not lines(found, explained=False)
    ours = {line for line in lines(found, explained=True) if not line[1].startswith("tna_onnx")}
    assert ours == MODES[mode][1]
    block = [d for d in found["differences"] if d["explained"] == "appended block"]
    assert bool(block) == (BEFORE in MODES[mode][1])
    assert (found["head"], found["nodes"], found["tensors"], found["notes"]) == ("head", 3, 3, [])
    # the numbers are those of ONNX Runtime
    data = dict(np.load(small.test))
    p, q = (probabilities(path, data["x"]) for path in (small.model, written(mode)))
    o = found["outputs"]
    assert (o["samples"], o["output"], o["output_kind"], o["others"]) == (1500, "logits", "logits", [])
    # batches of 7 here, of 1,500 there: logits of size 30 move by some roundings of 2^-24, and the ramps of isotonic
    # are steep
    assert o["largest"] == pytest.approx(np.max(np.abs(p - q)), abs=1e-4)
    assert o["mean"] == pytest.approx(np.mean(np.abs(p - q)), abs=1e-5)
    assert o["same_class"] == np.sum(p.argmax(1) == q.argmax(1))
    for when, values in (("before", p), ("after", q)):
        assert o[f"confidence_{when}"] == pytest.approx(np.mean(values.max(1)), abs=1e-5)
        assert o[f"accuracy_{when}"] == np.mean(values.argmax(1) == data["labels"])


def test_another_model_is_called_that(small: Small, tmp_path: Path) -> None:
    weight = np.eye(2, dtype=np.float32)
    other = small_model(nodes_of("MatMul x w > y"), {"x": ["N", 2]}, {"y": ["N", 2]}, {"w": weight})
    onnx.save(other, tmp_path / "other.onnx")
    result, found = verified(small.model, tmp_path / "other.onnx", tmp_path)
    assert (result.exit_code, found["verdict"].partition(":")[0]) == (1, "another model")


def probabilities(path: Path, x: np.ndarray) -> np.ndarray:
    return softmax(outputs_of(path, x)["logits"].astype(np.float64), axis=1)


# --- heads of every form: what `rewrite` does to them is explained, and to other tensors is not


def quantised(small: Small, folder: Path, axis: int | None) -> Path:
    """Write the small model with its weight and bias behind DequantizeLinear, a scale per class or one."""
    model = onnx.load(small.model)
    tensors = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    scale = np.max(np.abs(tensors["weight"]), axis=None if axis is None else 1) / np.float32(127)
    weight = np.rint(tensors["weight"] / (scale if axis is None else scale[:, None])).astype(np.int8)
    bias_scale = np.float32(0.001)
    values = {
        "w": weight, "s": scale, "b": np.rint(tensors["bias"] / bias_scale).astype(np.int32), "bs": bias_scale,
    }  # fmt: skip
    flags = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["weight"], name="dw", **flags),
        helper.make_node("DequantizeLinear", ["b", "bs"], ["bias"], name="db"),
        *(onnx.NodeProto.FromString(node.SerializeToString()) for node in model.graph.node),
    ]
    return save(folder / "q.onnx", nodes, {"hidden": tensors["hidden"], **values})


@pytest.mark.parametrize(
    ("axis", "flags"), [(None, []), (0, ["--map", "isotonic"]), (0, ["--quantized-head", "float"])]
)
def test_quantised_heads(small: Small, axis: int | None, flags: list[str], tmp_path: Path) -> None:
    model, output = quantised(small, tmp_path, axis), tmp_path / "o.onnx"
    # the limit of many members would move the scale alone
    searched = words_of(WALKED | {"ensemble_size": 64})
    data = ["--calib", small.calib, "--eval", small.test]
    ok("calibrate", model, *data, "-o", output, *searched, *flags)
    result, found = verified(model, output, tmp_path, "--data", small.test)
    assert result.exit_code == 0, result.output
    roles = {d["explained"] for d in found["differences"]}
    assert roles >= {"weight", "provenance"}
    assert ("weight, scale" in roles) == ("float" not in flags)


def save(path: Path, nodes: Sequence[onnx.NodeProto], tensors: dict[str, np.ndarray], *outputs: str) -> Path:
    """Write a float32 model with input `x` (N, 8), output `logits` (N, 5) and further outputs."""
    infos = [tensor_info("logits", ["N", 5]), *map(tensor_info, outputs)]
    onnx.save(small_model(nodes, {"x": ["N", 8]}, infos, tensors), path)
    return path


# --- other outputs


def several_outputs(small: Small, folder: Path) -> Path:
    model = onnx.load(small.model)
    model.graph.node.append(helper.make_node("Softmax", ["logits"], ["p"], name="softmax", axis=-1))
    for name, width in (("features", 32), ("p", 5)):
        model.graph.output.append(tensor_info(name, ["N", width]))
    onnx.save(model, folder / "several.onnx")
    return folder / "several.onnx"


@pytest.mark.parametrize("flags", [[], ["--map", "aar"]])
def test_outputs_in_front_of_the_head_do_not_move(small: Small, flags: list[str], tmp_path: Path) -> None:
    model, output = several_outputs(small, tmp_path), tmp_path / "o.onnx"
    ok("calibrate", model, "--calib", small.calib, "-o", output, *SEARCHED, *flags)
    result, found = verified(model, output, tmp_path, "--data", small.test)
    assert result.exit_code == 0, result.output
    features, p = found["outputs"]["others"]
    assert features == {
        "name": "features", "depends_on_head": False, "values": 1500 * 32, "differing": 0, "largest": 0.0,
    }  # fmt: skip
    assert (p["name"], p["depends_on_head"]) == ("p", True)
    assert p["differing"] > 1500
    assert p["largest"] == pytest.approx(found["outputs"]["largest"], abs=1e-6)  # p is softmax(logits)


# --- tampered files


def put(message: Any, field: str, value: object) -> None:
    setattr(message, field, value)


def head_as(m: onnx.ModelProto, change: Callable[[np.ndarray], np.ndarray]) -> None:
    weight = next(t for t in m.graph.initializer if t.name == "weight")
    weight.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(weight)).copy(), "weight"))


def other_weight(m: onnx.ModelProto) -> None:
    tensor = m.graph.initializer[0]
    tensor.raw_data = bytes([tensor.raw_data[0] ^ 1]) + tensor.raw_data[1:]


def first_two_swapped(items: Any) -> None:
    first = type(items[0]).FromString(items[0].SerializeToString())
    items.pop(0)
    items.insert(1, first)


def no_node(m: onnx.ModelProto) -> None:
    del m.graph.node[1]


def output_renamed(m: onnx.ModelProto) -> None:
    for node in m.graph.node:
        node.output[:] = ["scores" if name == "logits" else name for name in node.output]
    m.graph.output[0].name = "scores"


# What is done to a file, and the difference that must be named.
TAMPERED: dict[str, tuple[Callable[[onnx.ModelProto], object], str]] = {
    "number": (other_weight, "tensor hidden: values"),
    "shape": (lambda m: head_as(m, lambda w: w[:, :31]), "tensor weight: shape"),
    "type": (lambda m: head_as(m, np.float64), "tensor weight: type"),
    "new tensor": (lambda m: m.graph.initializer.append(numpy_helper.from_array(np.ones(3), "s")), "tensor s: added"),
    "tensors swapped": (lambda m: first_two_swapped(m.graph.initializer), "tensor hidden: moved"),
    "no node": (no_node, "node relu: removed"),
    "other operator": (lambda m: put(m.graph.node[1], "op_type", "Sigmoid"), "node relu: op_type"),
    "new node": (lambda m: m.graph.node.insert(1, helper.make_node("Abs", ["h"], ["s"], name="s")), "node s: added"),
    "other operand": (lambda m: m.graph.node[1].input.__setitem__(0, "x"), "node relu: input"),
    "attribute": (
        lambda m: next(node for node in m.graph.node if node.name == "head").attribute.add(name="alpha", f=2.0, type=1),
        "node head: attribute:alpha",
    ),
    "shape of the input": (
        lambda m: put(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_param", "batch"),
        "input x: changed",
    ),
    "opset": (lambda m: put(m.opset_import[0], "version", 18), "opset ai.onnx: changed"),
    "IR version": (lambda m: put(m, "ir_version", 9), "model ir_version: changed"),
    "metadata": (
        lambda m: put(next(e for e in m.metadata_props if e.key == "team"), "value", "b"),
        "metadata team: changed",
    ),
    "value_info": (lambda m: m.graph.value_info.append(tensor_info("h", ["N", 32])), "value_info h: added"),
    "doc_string": (lambda m: put(m.graph.node[0], "doc_string", "a word"), "node hidden: doc_string"),
    "name": (lambda m: put(m.graph, "name", "larger"), "graph name: changed"),
    "unknown field": (lambda m: m.MergeFromString(b"\xfa\x3f\x01z"), "model encoding: changed"),
}


def tampered(path: Path, how: Callable[[onnx.ModelProto], object], folder: Path) -> Path:
    model = onnx.load(path)
    how(model)
    (folder / "tampered.onnx").write_bytes(model.SerializeToString())
    return folder / "tampered.onnx"


@pytest.mark.parametrize(("how", "mode"), [*zip(TAMPERED, itertools.cycle(["folded", "isotonic"]), strict=False)])
def test_what_else_changed_is_seen_and_named(
    small: Small, written: Callable[[str], Path], how: str, mode: str, tmp_path: Path
) -> None:
    tamper, difference = TAMPERED[how]
    result, found = verified(small.model, tampered(written(mode), tamper, tmp_path), tmp_path)
    assert (result.exit_code, found["intact"]) == (1, False)
    assert f"DIFFERS  {difference}" in result.output
    others = {f"{part} {name}: {change}" for part, name, change in lines(found, explained=False) if change != "moved"}
    assert found["reason"] or others <= {difference}


def test_an_output_with_another_name(small: Small, written: Callable[[str], Path], tmp_path: Path) -> None:
    bad = tampered(written("folded"), output_renamed, tmp_path)
    result, found = verified(small.model, bad, tmp_path, "--data", small.test)
    assert result.exit_code == 1
    assert lines(found, explained=False) == {
        ("output", "logits", "removed"), ("output", "scores", "added"), ("node", "head", "output"),
    }  # fmt: skip
    assert found["outputs"] is None
    assert "outputs not compared: " in found["notes"][0]


def test_a_file_that_cannot_run_is_still_compared(small: Small, written: Callable[[str], Path], tmp_path: Path) -> None:
    bad = tampered(written("folded"), no_node, tmp_path)
    result, found = verified(small.model, bad, tmp_path, "--data", small.test)
    assert result.exit_code == 1
    assert "DIFFERS  node relu: removed" in result.output
    assert "cannot load the model" in found["notes"][0]


def test_a_flipped_bit_is_seen(small: Small, written: Callable[[str], Path]) -> None:
    """Flip bits everywhere: the file is refused, or not intact."""
    model, data = load_model(small.model), written("folded").read_bytes()
    unseen = set()
    for at in np.random.default_rng(0).choice(len(data), 100, replace=False):
        flipped = bytearray(data)
        flipped[at] ^= 1 << int(at) % 8
        try:
            if prove(model, load_model(bytes(flipped))).intact:
                unseen.add(int(at))
        except tna_onnx.UnsupportedModel:
            pass
    # a byte of a length may be one of several that say the same
    assert not unseen, [data[at - 8 : at + 8] for at in unseen]


def test_the_same_file_twice(small: Small, tmp_path: Path) -> None:
    result, found = verified(small.model, small.model, tmp_path, "--data", small.test)
    assert result.exit_code == 0
    assert found["differences"] == []
    assert found["verdict"] == "identical: nothing differs; as good"
    assert (found["outputs"]["largest"], found["outputs"]["same_class"]) == (0.0, 1500)
    assert "does not say that tna-onnx wrote it" in found["notes"][0]


def test_another_source_is_shown(small: Small, written: Callable[[str], Path], tmp_path: Path) -> None:
    again = tmp_path / "again.onnx"
    again.write_bytes(small.model.read_bytes() + b"\x28\x00")  # model_version 0, said: the same model, other bytes
    result, found = verified(again, written("folded"), tmp_path)
    assert result.exit_code == 1, result.output
    assert found["source_sha256"] != found["original_sha256"]
    assert "it was made of another model, with sha256" in result.output


# --- which head


def two_heads(small: Small, folder: Path) -> Path:
    """Write the small model with a second head, whose weight is near that of the first."""
    model = onnx.load(small.model)
    weight = next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "weight")
    near = weight + np.random.default_rng(2).standard_normal(weight.shape).astype(np.float32) / 10
    model.graph.initializer.append(numpy_helper.from_array(near, "w2"))
    model.graph.node.append(helper.make_node("Gemm", ["features", "w2", "bias"], ["second"], name="h2", transB=1))
    model.graph.output.append(tensor_info("second", ["N", 5]))
    onnx.save(model, folder / "two.onnx")
    return folder / "two.onnx"


def test_the_file_says_which_head(small: Small, tmp_path: Path) -> None:
    model, output = two_heads(small, tmp_path), tmp_path / "o.onnx"
    flags = ["--output-name", "second", "--map", "isotonic", *SEARCHED]
    ok("calibrate", model, "--calib", small.calib, "-o", output, *flags)
    result, found = verified(model, output, tmp_path, "--data", small.test)
    assert (result.exit_code, found["head"]) == (0, "h2"), result.output
    assert found["outputs"]["others"][0]["name"] == "logits"
    assert found["outputs"]["others"][0]["differing"] == 0
    stripped = onnx.load(output)
    helper.set_model_props(stripped, {"team": "unchanged"})
    onnx.save(stripped, tmp_path / "s.onnx")
    refused(1, "does not say how it was made", "verify", model, tmp_path / "s.onnx", "--output-name", "second")


def test_a_map_behind_a_model_without_a_head(small: Small, tmp_path: Path) -> None:
    weight = np.random.default_rng(3).standard_normal((8, 5)).astype(np.float32)
    nodes = nodes_of("MatMul x w > h name=m; Sin h > logits name=s")
    model, output = save(tmp_path / "m.onnx", nodes, {"w": weight}), tmp_path / "o.onnx"
    # the labels of another model: near chance
    flags = ["--search", "none", "--map", "isotonic", "--output-kind", "logits", "--trust-labels"]
    ok("calibrate", model, "--calib", small.calib, "-o", output, *SEARCHED, *flags)
    result, found = verified(model, output, tmp_path, "--data", small.test)
    assert (result.exit_code, found["head"]) == (0, ""), result.output
    assert ("node", "s", "output") in lines(found, explained=True)
    bad = tampered(output, other_weight, tmp_path)
    refused(1, "", "verify", model, bad)


# --- where the bytes lie


def scattered(path: Path, folder: Path, *places: str) -> Path:
    """Copy a model, its tensors into external files by turns, each with a gap in front of it."""
    model = onnx.load(path)
    for k, tensor in enumerate(model.graph.initializer):
        file, data = folder / places[k % len(places)], tensor.raw_data
        start = (file.stat().st_size if file.exists() else 0) + 16
        with file.open("ab") as stream:
            stream.write(b"\xff" * 16 + data)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": file.name, "offset": str(start), "length": str(len(data))}.items():
            tensor.external_data.add(key=key, value=value)
    (folder / "external.onnx").write_bytes(model.SerializeToString())
    return folder / "external.onnx"


@pytest.mark.parametrize(("mode", "sides"), [("folded", "original"), ("isotonic", "both")])
def test_external_data(small: Small, mode: str, sides: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tna_onnx.graph.difference._BLOCK", 48)  # tensors of several blocks
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    old = scattered(small.model, tmp_path / "old", "a.bin", "b.bin")
    new = tmp_path / "new" / "new.onnx"
    ok("calibrate", old, "--calib", small.calib, "-o", new, *SEARCHED, *MODES[mode][0])
    ok("verify", old, new)
    if sides == "both":
        new = scattered(load_whole(new, tmp_path / "new" / "whole.onnx"), tmp_path / "new", "c.bin")
    result, found = verified(old, new, tmp_path, "--data", small.test)
    assert result.exit_code == 0, result.output
    assert found["intact"]
    if sides == "both":
        file = new.parent / "c.bin"
        file.write_bytes(file.read_bytes()[:16] + b"\0\0\0\0" + file.read_bytes()[20:])  # of the first, `hidden`
        assert lines(verified(old, new, tmp_path)[1], explained=False) == {("tensor", "hidden", "values")}


def load_whole(path: Path, target: Path) -> Path:
    target.write_bytes(onnx.load(path).SerializeToString())
    return target


def test_bfloat16_and_text(small: Small, tmp_path: Path) -> None:
    paths = []
    for k in range(2):
        model = onnx.load(small.model)
        model.graph.initializer.extend(
            [
                helper.make_tensor("b", TensorProto.BFLOAT16, [2], bytes([0, 0, 0x80, 0x3F + k]), raw=True),  # 1 and 4
                helper.make_tensor("t", TensorProto.STRING, [2], [b"a", b"bc" if k else b"b"]),
                numpy_helper.from_array(np.float32([k and np.nan, 1]), "n"),
            ]
        )
        onnx.save(model, tmp_path / f"{k}.onnx")
        paths.append(tmp_path / f"{k}.onnx")
    found = {d.name: (d.change, d.largest, d.relative) for d in tna_onnx.verify(*paths).differences}
    assert {name: found[name] for name in "btn"} == {
        "b": ("values", 3.0, 3.0), "t": ("values", None, None), "n": ("values", None, None)
    }  # fmt: skip


def test_sub_graphs_are_compared_too(tmp_path: Path) -> None:
    def model(value: float, external: bool) -> Path:
        tensor = numpy_helper.from_array(np.full(5, value, np.float32), "c")
        name = f"m{value}{external}.onnx"
        if external:
            (tmp_path / "c.bin").write_bytes(tensor.raw_data)
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="c.bin")
        y = tensor_info("c", [5])
        branch = helper.make_graph([helper.make_node("Constant", [], ["c"], value=tensor)], "b", [], [y])
        yes = numpy_helper.from_array(np.array(True), "yes")
        nodes = [
            helper.make_node("If", ["yes"], ["k"], name="if", then_branch=branch, else_branch=branch),
            *nodes_of("Add x k > z name=add; MatMul z w > logits name=head"),
        ]
        weight = np.random.default_rng(0).standard_normal((5, 5)).astype(np.float32)
        path = save(tmp_path / name, nodes, {"w": weight})
        proto = onnx.load(path, load_external_data=False)
        proto.graph.initializer.append(yes)
        path.write_bytes(proto.SerializeToString())
        return path

    assert tna_onnx.verify(model(1.0, False), model(1.0, True)).differences == ()
    found = tna_onnx.verify(model(1.0, False), model(3.0, False)).differences
    assert {(d.name, d.change, d.largest) for d in found} >= {
        ("if", "attribute:then_branch", 2.0),
        ("if", "attribute:else_branch", 2.0),
    }


# --- errors

BAD: dict[str, tuple[list[str], int, str]] = {
    "no original": (["missing.onnx", "NEW"], 2, "no such file"),
    "text": (["OLD", "TEXT"], 3, "not an ONNX file"),
    "no data": (["OLD", "NEW", "--data", "missing.npz"], 2, "no such file"),
    "data of another model": (["OLD", "NEW", "--data", "OTHER"], 4, "x"),
    "device": (["OLD", "NEW", "--device", "abacus"], 2, "device 'abacus' is not known"),
    "head": (["OLD", "NEW", "--head", "relu"], 3, "no linear head is called 'relu'"),
    "output": (["OLD", "NEW", "--output-name", "scores"], 3, "no output 'scores'"),
    "preprocessing without data": (["OLD", "NEW", "--scale", "1"], 2, "add --data"),
    "a gate without data": (["OLD", "NEW", "--max-ece", "1"], 2, "--max-ece is about samples"),
    "labels without data": (["OLD", "NEW", "--labels", "OTHER"], 2, "add --data"),
    "json over a model": (["OLD", "NEW", "--json", "NEW"], 2, "is one of the other files"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors(small: Small, written: Callable[[str], Path], case: str, tmp_path: Path) -> None:
    words, code, message = BAD[case]
    text, other, new = tmp_path / "text.onnx", tmp_path / "other.npz", tmp_path / "new.onnx"
    text.write_text("this is no model\n" * 20)
    np.savez(other, y=np.ones((3, 7), np.float32), labels=np.zeros(3, np.int64))
    new.write_bytes(written("folded").read_bytes())
    names = {"OLD": small.model, "NEW": new, "TEXT": text, "OTHER": other}
    refused(code, message, "verify", *(names.get(word, word) for word in words))
    assert new.read_bytes() == written("folded").read_bytes()


def test_a_name_that_is_no_text(small: Small, written: Callable[[str], Path], tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(written("folded").read_bytes().replace(b"relu", b"rel\xff"))
    refused(3, "is not UTF-8 text", "verify", small.model, bad)
