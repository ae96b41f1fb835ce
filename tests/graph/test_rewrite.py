"""Rewriting: the new numbers come out of ONNX Runtime, and nothing else in the file moves."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.graph.rewriting import assert_computes, differences, drawn, sizes, write, write_both
from tests.graph.samples import CASES, CLASSES, Array, Builder, Sample, assert_gives, features_of, run, softmax
from tests.support import pairwise
from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.load import load_model
from tna_onnx.graph.readout import ClassOutput, Head
from tna_onnx.graph.rewrite import rewrite
from tna_onnx.graph.scores import choose_head, class_output
from tna_onnx.maps.temperature import EnsembleTemperature, Temperature

FACTOR = 0.625
TS = Temperature(2.0)
ETS = EnsembleTemperature(1.7, (0.5, 0.3, 0.2), CLASSES)
MAPS = {"ts": TS, "ets": ETS}


def calibrated(name: str, logits: Array) -> Array:
    """Probabilities after a map, from the formula in its paper."""
    if name == "ts":
        return softmax(logits / 2)
    return 0.5 * softmax(logits / 1.7) + 0.3 * softmax(logits) + 0.2 / logits.shape[1]


def new_weight(head: Head) -> Array:
    return np.random.default_rng(11).standard_normal((head.n_classes, head.n_features)).astype(head.working_type)


# --- a new weight, every model of the table


@pytest.mark.parametrize("build", CASES.values(), ids=CASES)
def test_new_weight_and_bias_factor(build: Callable[[], Sample], tmp_path: Path) -> None:
    sample = build()
    model = sample.write(tmp_path)
    source, files = model.proto.SerializeToString(), {p: p.read_bytes() for p in tmp_path.iterdir()}
    head = choose_head(model)
    weight, x = new_weight(head), sample.inputs(7)
    rewritten = rewrite(model, head, weight, bias_factor=FACTOR, metadata={"version": "test"})
    path = write(model, rewritten)
    assert model.proto.SerializeToString() == source
    assert {p: p.read_bytes() for p in files} == files

    assert differences(model, rewritten, path) == []
    onnx.checker.check_model(str(path), full_check=True)
    assert load_model(path).metadata == {"team": "unchanged", "tna_onnx.version": "test"}
    places = [place for place in (head.stored_weight, head.stored_bias) if place]
    assert rewritten.changed == {place.name for place in places}
    assert not rewritten.added
    assert not rewritten.nodes

    assert_computes(path, sample, x, features_of(sample, model, x), weight, FACTOR * sample.bias)


@pytest.mark.parametrize(
    ("dtype", "weight", "factor", "name"),
    [
        ("float16", 1e6, 1.0, "weight"),
        ("float16", 1.0, 1e9, "bias"),
        ("float32", np.nan, 1.0, "weight"),
        ("float32", np.inf, 1.0, "weight"),
        ("float32", 1.0, np.inf, "bias"),
    ],
)
def test_values_that_do_not_fit(dtype: str, weight: float, factor: float, name: str, tmp_path: Path) -> None:
    model = CASES[f"{dtype} Gemm"]().write(tmp_path)
    head = choose_head(model)
    with pytest.raises(UnsupportedModel, match=f"a new value for '{name}' is too large for its type"):
        rewrite(model, head, np.full_like(head.weight, weight), bias_factor=factor, metadata={})


# --- constants that others read


def _tied_gather(b: Builder) -> str:
    b.node("Gather", b.store("embedding", b.weight), b.store("ids", [0, 2], np.int64), out="other")
    return b.node("Transpose", "embedding", out="weight")


def _tied_step(b: Builder) -> str:
    b.node("Transpose", b.store("embedding", b.weight), out="weight")
    b.node("Neg", "weight", out="other")
    return "weight"


def _tied_constant(b: Builder) -> str:
    value = numpy_helper.from_array(b.weight.T)
    b.nodes.append(helper.make_node("Constant", [], ["weight"], name="constant", value=value))
    b.node("Neg", "weight", out="other")
    return "weight"


def _tied_half(b: Builder) -> str:
    b.weight = b.weight.astype(np.float16).astype(np.float32)
    b.node("Cast", b.store("embedding", b.weight.T, np.float16), out="weight", to=1)
    b.node("Cast", "embedding", out="other", to=1)
    return "weight"


@pytest.mark.parametrize("tie", [_tied_gather, _tied_step, _tied_constant, _tied_half])
def test_a_tied_weight_stays_and_the_head_gets_its_own(tie: Callable[[Builder], str], tmp_path: Path) -> None:
    b = Builder()
    b.node("MatMul", "features", tie(b), out="product", name="head")
    b.node("Add", "product", b.store("bias", b.bias), out="y")
    sample = b.sample({"y": "logits", "other": "the tied weight"}, bias_scale=1.0)
    model = sample.write(tmp_path)
    head = choose_head(model)
    weight, x = new_weight(head), sample.inputs(5)
    rewritten = rewrite(model, head, weight, bias_factor=FACTOR, metadata={})
    path = write(model, rewritten)
    assert (rewritten.changed, rewritten.added) == ({"bias"}, {"tna_onnx/weight"})
    assert differences(model, rewritten, path) == []
    onnx.checker.check_model(str(path), full_check=True)

    z, bias = features_of(sample, model, x), FACTOR * sample.bias
    logits = z @ weight.astype(np.float64).T + bias
    y, other = run(path, ["y", "other"], x)
    assert_gives(y, "logits", logits, sizes(z, weight, bias), "float32")
    np.testing.assert_array_equal(other, run(model.path, ["other"], x)[0], strict=True)

    again = load_model(path)  # now the tensor is the head's own, and is written in place
    head = choose_head(again)
    twice = rewrite(again, head, weight * 2, metadata={})
    assert (twice.changed, twice.added) == ({"tna_onnx/weight"}, set())
    assert_gives(run(twice.proto, ["y"], x)[0], "logits", 2 * logits - bias, sizes(z, weight * 2, bias), "float32")


def test_heads_with_one_weight_are_rewritten_one_after_the_other(tmp_path: Path) -> None:
    b = Builder()
    b.store("weight", b.weight.T)
    for out in ("first", "second", "third"):
        b.node("MatMul", "features", "weight", out=out, name=f"head {out}")
    b.node("Neg", "weight", out="other")
    sample = b.sample(dict.fromkeys(("first", "second", "third"), "logits"))
    model, x = sample.write(tmp_path), sample.inputs(5)
    z = features_of(sample, model, x)
    expected = {"first": 2.0, "second": -3.0, "third": 0.5}
    for out, factor in expected.items():
        head = choose_head(model, f"head {out}")
        rewritten = rewrite(model, head, head.weight * np.float32(factor), metadata={})
        assert len(rewritten.added) == 1
        path = write(model, rewritten)
        assert differences(model, rewritten, path) == []
        names = [tensor.name for tensor in rewritten.proto.graph.initializer]
        assert len(set(names)) == len(names)
        model = load_model(path)
    for array, factor in zip(run(model.path, list(expected), x), expected.values(), strict=True):
        weight = factor * sample.weight
        assert_gives(array, "logits", z @ weight.T, sizes(z, weight, sample.bias), "float32")


# --- an appended map

PLAIN = {name: build for name, build in CASES.items() if name != "two classes"}


@pytest.mark.parametrize("build", [*PLAIN.values()][::3], ids=[*PLAIN][::3])
def test_map_behind_any_head(build: Callable[[], Sample], tmp_path: Path) -> None:
    sample = build()
    model = sample.write(tmp_path)
    head = choose_head(model)
    weight, x = new_weight(head), sample.inputs(7)
    rewritten = rewrite(model, head, weight, write_map=ETS.forward, metadata={})
    path = write(model, rewritten)
    assert differences(model, rewritten, path) == []
    onnx.checker.check_model(str(path), full_check=True)
    z = features_of(sample, model, x)
    size = sizes(z, weight, sample.bias)
    # log p are logits of p, so that each kind of output is what it would be of them
    logits = np.log(calibrated("ets", z @ weight.astype(np.float64).T + sample.bias))
    for array, kind in zip(run(path, list(sample.outputs), x), sample.outputs.values(), strict=True):
        assert_gives(array, kind, logits, size, sample.coarsest)


def _consumed(activation: str | None, opset: int, dtype: str) -> Sample:
    """A classifier whose logits have readers besides the one that gives the output."""
    b = Builder(dtype, opset)
    product = b.node("MatMul", "features", b.store("weight", b.weight.T), out="product", name="head")
    b.node("Add", product, b.store("bias", b.bias), out="y" if activation is None else "scores")
    logits = "y" if activation is None else "scores"
    if activation is not None:
        b.node(activation, "scores", out="y", axis=1)
    b.node("ArgMax", logits, out="argmax", axis=1, keepdims=0)
    b.node("Softmax", logits, out="second", axis=1)
    kind = {None: "logits", "Softmax": "softmax", "LogSoftmax": "log_softmax"}[activation]
    return b.sample({"y": kind, "argmax": "argmax", "second": "softmax"}, bias_scale=1.0, logits=logits)


_PRECISIONS = [(opset, "float32") for opset in (9, 10, 11, 13, 17, 18)] + [(17, "float16"), (17, "float64")]


@pytest.mark.parametrize(
    ("activation", "precision", "name"), pairwise([None, "Softmax", "LogSoftmax"], _PRECISIONS, MAPS)
)
def test_map_in_every_opset_and_precision(
    activation: str | None, precision: tuple[int, str], name: str, tmp_path: Path
) -> None:
    opset, dtype = precision
    sample = _consumed(activation, opset, dtype)
    model = sample.write(tmp_path)
    head = choose_head(model)
    rewritten = rewrite(model, head, head.weight, write_map=MAPS[name].forward, metadata={})
    path = write(model, rewritten)
    assert differences(model, rewritten, path) == []
    onnx.checker.check_model(str(path), full_check=True)
    written = onnx.load(path)
    assert all(node.name.startswith("tna_onnx/") for node in written.graph.node if node.name in rewritten.nodes)
    assert all(tensor.startswith("tna_onnx/") for tensor in rewritten.added)

    names, evaluator = list(sample.outputs), ReferenceEvaluator(written)
    for count in (1, 5, 64):
        x = sample.inputs(count, seed=count)
        z = features_of(sample, model, x)
        raw, size = z @ sample.weight.T + sample.bias, sizes(z, sample.weight, sample.bias)
        logits = raw / 2 if name == "ts" else np.log(calibrated(name, raw))
        clear = np.diff(np.sort(raw, axis=1)[:, -2:])[:, 0] > 0.05  # ties of float16 have no right ArgMax
        for found in (run(path, names, x), evaluator.run(names, {"x": x})):
            for array, kind in zip(found, sample.outputs.values(), strict=True):
                chosen = clear if kind == "argmax" else slice(None)
                assert_gives(np.asarray(array)[chosen], kind, logits[chosen], size[chosen], dtype)
        y = run(path, ["y"], x)[0].astype(np.float64)
        p = {None: softmax(y), "Softmax": y, "LogSoftmax": np.exp(y)}[activation]
        bound = 32 * np.finfo(dtype).eps * (1 + size.max(axis=1, keepdims=True))
        assert np.all(np.abs(p - calibrated(name, raw)) <= bound)


def _provenance(output: ClassOutput) -> Mapping[str, str]:
    return {"version": "1", **output.provenance}


@pytest.mark.parametrize(("activation", "first", "second"), pairwise([None, "Softmax"], MAPS, MAPS))
def test_a_map_on_top_of_a_map_is_refused(activation: str | None, first: str, second: str, tmp_path: Path) -> None:
    model = _consumed(activation, 17, "float32").write(tmp_path)
    head, output = choose_head(model), class_output(model)
    rewritten = rewrite(model, head, head.weight, write_map=MAPS[first].forward, metadata=_provenance(output))
    written = load_model(write(model, rewritten))
    assert class_output(written) == output
    if first == "ts":  # the graph shows how many classes are behind it
        entries = {entry.key: entry for entry in written.proto.metadata_props}
        entries["tna_onnx.classes"].value = "7"
        assert class_output(written) == output
    with pytest.raises(UnsupportedModel, match=r"tna-onnx wrote.*start from the original model"):
        rewrite(written, choose_head(written), head.weight, write_map=MAPS[second].forward, metadata={})


def test_provenance_is_replaced_and_other_metadata_stay(tmp_path: Path) -> None:
    model = _consumed(None, 17, "float32").write(tmp_path)
    assert model.provenance == {}
    head = choose_head(model)
    first = load_model(write(model, rewrite(model, head, head.weight, metadata={"seed": "1", "search": "sparse"})))
    assert first.provenance == {"seed": "1", "search": "sparse"}
    second = load_model(write(first, rewrite(first, choose_head(first), head.weight, metadata={"seed": "2"})))
    assert second.provenance == {"seed": "2"}
    assert second.metadata == {"team": "unchanged", "tna_onnx.seed": "2"}


# --- A new bias for each class, with a new weight: what comes out of ONNX Runtime, wherever a tensor holds it


# heads without a bias, or with one number for all classes
WITHOUT = {
    *(name for name in CASES if re.fullmatch(r"gemm .* (None|\(\)|\(1,\))", name)),
    "gemm with an empty bias",
    "matmul, bias first None",
}
HOLDING = {name: build for name, build in CASES.items() if name not in WITHOUT}


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_a_head_without_a_bias_for_each_class_has_no_place_for_one(name: str, tmp_path: Path) -> None:
    head = choose_head(CASES[name]().write(tmp_path))
    assert not head.holds_bias
    with pytest.raises(ValueError, match="no place for one bias a class"):
        head.bias_as_read(head.bias)


@pytest.mark.parametrize("build", HOLDING.values(), ids=HOLDING)
def test_weight_and_bias_of_every_model(build: Callable[[], Sample], tmp_path: Path) -> None:
    sample = build()
    model = sample.write(tmp_path)
    head = choose_head(model)
    assert head.holds_bias
    weight, bias = drawn(head)
    path, changed, added = write_both(model, weight, bias)
    assert head.stored_bias is not None
    assert changed == {head.stored_weight.name, head.stored_bias.name}
    assert not added

    again = choose_head(load_model(path))
    np.testing.assert_array_equal(again.bias, head.new_bias_as_written(bias))
    np.testing.assert_array_equal(again.weight, head.as_written(weight))
    x = sample.inputs(7)
    assert_computes(path, sample, x, features_of(sample, model, x), weight, bias)


# --- further places for a bias


def test_a_bias_that_others_read_stays_and_the_head_gets_its_own(tmp_path: Path) -> None:
    b = Builder()
    b.linear("y")
    b.node("Neg", "bias", out="other")
    b.node("Neg", "weight", out="third")
    sample = b.sample({"y": "logits", "other": "the bias", "third": "the weight"}, bias_scale=1.0)
    model, x = sample.write(tmp_path), sample.inputs(5)
    weight, bias = drawn(choose_head(model))
    path, changed, added = write_both(model, weight, bias)
    assert (changed, added) == (set(), {"tna_onnx/weight", "tna_onnx/bias"})
    y, other, third = run(path, ["y", "other", "third"], x)
    np.testing.assert_array_equal(other, -b.bias)
    np.testing.assert_array_equal(third, -b.weight)
    z = features_of(sample, model, x)
    assert_gives(y, "logits", z @ weight.astype(np.float64).T + bias, sizes(z, weight, bias), "float32")
