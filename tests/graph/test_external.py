"""External data: a written model has a data file of its own, in which nothing moved but the new values."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import tna_onnx
from tests.graph.samples import CLASSES, FEATURES, Array, Builder, run
from tests.support import with_options
from tna_onnx.errors import UnsupportedModel, UsageError
from tna_onnx.graph.bounds import all_tensors
from tna_onnx.graph.difference import differences
from tna_onnx.graph.load import PREFIX, Model, load_model
from tna_onnx.graph.rewrite import Rewritten, rewrite
from tna_onnx.graph.save import check_output, pending
from tna_onnx.graph.scores import choose_head
from tna_onnx.maps.temperature import EnsembleTemperature

X = np.random.default_rng(1).standard_normal((5, FEATURES)).astype(np.float32)
TENSORS = ("trunk", "weight", "bias")
QUICK = {"search": "none", "map": "ts", "device": "cpu"}

Place = Callable[[str], tuple[str, int | None]]


def moved(tensor: onnx.TensorProto, folder: Path, location: str, offset: int | None, *, length: bool = True) -> None:
    """Put a tensor's data into a file, with bytes that belong to no tensor around them."""
    data = tensor.raw_data
    file = folder / location
    file.parent.mkdir(exist_ok=True)
    whole = bytearray(file.read_bytes()) if file.exists() else bytearray()
    end = (offset or 0) + len(data)
    whole += bytes(k % 251 for k in range(len(whole), end + 5))
    whole[offset or 0 : end] = data
    file.write_bytes(bytes(whole))
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entries = {"location": location, "offset": offset, "length": len(data) if length else None, "checksum": "ab" * 20}
    for key, value in entries.items():
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))


def builder() -> Builder:
    b = Builder()
    b.node("Softmax", b.linear("scores"), out="y")
    return b


def model_of(folder: Path, place: Place, b: Builder | None = None) -> Model:
    """Write a classifier with its three tensors in the files and at the offsets that `place` says."""
    sample = (b or builder()).sample({"y": "softmax"})
    for tensor in sample.proto.graph.initializer:
        if tensor.name in TENSORS:
            moved(tensor, folder, *place(tensor.name))
    (folder / "model.onnx").write_bytes(sample.proto.SerializeToString())
    model = load_model(folder / "model.onnx")
    run(model.path, ["y"], X)  # ONNX Runtime reads it too
    return model


def one_file(name: str) -> tuple[str, int]:
    return "weights.bin", 4096 * TENSORS.index(name)


def own_name(name: str) -> tuple[str, int]:
    return "model.onnx.data", 4096 * TENSORS.index(name)


def odd_offsets(name: str) -> tuple[str, int]:
    return "weights.bin", 12 + 4000 * (2 - TENSORS.index(name))


def many_files(name: str) -> tuple[str, None]:
    return f"{name}.bin", None


def folders(name: str) -> tuple[str, int]:
    return f"parts/{'first' if name == 'bias' else 'second'}.bin", 4096 * TENSORS.index(name)


PLACES = [one_file, own_name, odd_offsets, many_files, folders]


def new_head(
    model: Model, node: str | None = None, *, bias_factor: float = 1.0, **options: object
) -> tuple[Array, Rewritten]:
    head = choose_head(model, node)
    weight = np.random.default_rng(5).standard_normal(head.weight.shape).astype(np.float32)
    return weight, rewrite(model, head, weight, bias_factor=bias_factor, metadata={}, **options)


def save(model: Model, rewritten: Rewritten, output: Path) -> Model:
    output.parent.mkdir(exist_ok=True)
    with pending(model, rewritten.proto, output) as path:
        changed = {each.name for each in differences(model, load_model(path)) if each.part == "tensor"}
        added = {name for name in changed if name.startswith(PREFIX)}
        assert changed - added <= set(rewritten.roles)
        onnx.checker.check_model(str(path), full_check=True)
    return load_model(output)


def state(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def data_name(written: Model) -> str:
    """Return the name of the one data file, which says what the file holds."""
    (name,) = written.external_files
    digest = hashlib.sha256((written.folder / name).read_bytes()).hexdigest()
    assert name == f"{written.path.name}.{digest[:8]}.data"
    return name


def values(model: Model) -> dict[str, Array]:
    return {name: model.array(tensor) for name, tensor in model.initializers.items()}


def placed(tensor: onnx.TensorProto) -> tuple[str, int, int | None]:
    place = {entry.key: entry.value for entry in tensor.external_data}
    return place["location"], int(place.get("offset", 0)), int(place["length"]) if "length" in place else None


# --- writing


@pytest.mark.parametrize(("place", "bias_factor"), [*zip(PLACES, (1.0, 0.5, 1.0, 0.5, 0.5), strict=True)])
def test_new_values_and_all_others_as_they_were(place: Place, bias_factor: float, tmp_path: Path) -> None:
    source, other = tmp_path / "source", tmp_path / "other"
    source.mkdir()
    model = model_of(source, place)
    files = state(source)
    weight, rewritten = new_head(model, bias_factor=bias_factor)
    written = save(model, rewritten, other / "new.onnx")
    assert state(source) == files
    assert sorted(state(other)) == ["new.onnx", data_name(written)]
    old, new = values(model), values(written)
    np.testing.assert_array_equal(new["trunk"], old["trunk"])
    np.testing.assert_array_equal(new["weight"], weight)
    np.testing.assert_array_equal(new["bias"], old["bias"] * np.float32(bias_factor))
    # the runtime, which knows nothing of all this
    expected = np.maximum(X @ old["trunk"], 0) @ weight.T + old["bias"] * bias_factor
    y = np.log(run(written.path, ["y"], X)[0])
    np.testing.assert_allclose(y - y[:, :1], expected - expected[:, :1], rtol=0, atol=1e-4)
    # ranges that tensors name keep their alignment; what lies between them belongs to no tensor, and is zeros
    data = bytearray((other / data_name(written)).read_bytes())
    for name, tensor in written.initializers.items():
        assert not tensor.raw_data
        assert "checksum" not in {entry.key for entry in tensor.external_data}
        location, before, length = placed(model.initializers[name])
        _, after, new_length = placed(tensor)
        assert new_length == length
        assert (after - before) % 2**16 == 0
        stored = (source / location).read_bytes()[before : before + length]
        assert (data[after : after + length] == stored) == (np.array_equal(new[name], old[name]))
        data[after : after + length] = bytes(length)
    assert not any(data)


@pytest.mark.parametrize("place", PLACES)
def test_a_map_and_a_weight_of_its_own_stay_inside_the_model(place: Place, tmp_path: Path) -> None:
    b = builder()
    b.node("Neg", "weight", out="other")  # someone else reads it: the head gets a tensor of its own
    model = model_of(tmp_path, place, b)
    weight, rewritten = new_head(model, write_map=EnsembleTemperature(2.0, (0.5, 0.3, 0.2), CLASSES).forward)
    written = save(model, rewritten, tmp_path / "other" / "new.onnx")
    for name, tensor in written.initializers.items():
        assert (tensor.data_location == onnx.TensorProto.EXTERNAL) == (name in TENSORS)
    np.testing.assert_array_equal(values(written)["tna_onnx/weight"], weight)
    old = values(model)
    for name in TENSORS:
        np.testing.assert_array_equal(values(written)[name], old[name])
    assert np.all(np.isfinite(run(written.path, ["y"], X)[0]))


def test_two_tensors_of_the_same_bytes_are_told_apart(tmp_path: Path) -> None:
    """A writer may store equal tensors once: the new weight must not become the other's too."""
    b = Builder()
    b.store("twin", b.weight)
    b.node("Mul", "features", b.store("one", 1.0), out="same")
    b.linear("scores", data="same")
    b.node("MatMul", "features", b.node("Transpose", "twin", out="turned"), out="other")
    b.node("Softmax", "scores", out="y")
    sample = b.sample({"y": "softmax", "other": "logits"})
    tensors = {t.name: t for t in sample.proto.graph.initializer}
    data = tensors["weight"].raw_data
    for name in ("weight", "twin"):
        moved(tensors[name], tmp_path, "weights.bin", 0)
    assert (tmp_path / "weights.bin").read_bytes().startswith(data)
    (tmp_path / "model.onnx").write_bytes(sample.proto.SerializeToString())
    model = load_model(tmp_path / "model.onnx")
    old = run(model.path, ["other"], X)[0]
    weight, rewritten = new_head(model, "head")
    written = save(model, rewritten, tmp_path / "other" / "new.onnx")
    np.testing.assert_array_equal(values(written)["weight"], weight)
    np.testing.assert_array_equal(run(written.path, ["other"], X)[0], old)


def test_places_that_overlap(tmp_path: Path) -> None:
    """Two layers may read parts of one table: a view of its first rows, say."""
    b = Builder()
    b.store("rows", b.weight[1:])
    b.store("last", b.weight[2:])
    for name in ("rows", "last"):
        b.node("MatMul", "features", b.node("Transpose", name, out=f"{name} turned"), out=f"{name} y")
    b.node("Softmax", b.linear("scores"), out="y")
    sample = b.sample({"y": "softmax", "rows y": "logits", "last y": "logits"})
    tensors = {t.name: t for t in sample.proto.graph.initializer}
    row = 4 * FEATURES
    for name, offset in (("weight", 64), ("last", 64 + 2 * row), ("rows", 64 + row), ("trunk", 512)):
        moved(tensors[name], tmp_path, "weights.bin", offset)
    (tmp_path / "model.onnx").write_bytes(sample.proto.SerializeToString())
    model = load_model(tmp_path / "model.onnx")
    weight, rewritten = new_head(model, "head")
    written = save(model, rewritten, tmp_path / "other" / "new.onnx")
    np.testing.assert_array_equal(values(written)["weight"], weight)
    for output in ("rows y", "last y"):
        np.testing.assert_array_equal(run(written.path, [output], X)[0], run(model.path, [output], X)[0])


def test_a_value_of_a_constant_node_lies_outside_too(tmp_path: Path) -> None:
    """One that changes moves into the model; one that does not goes into the new data file."""
    b = Builder()
    for name, value in (("weight", b.weight.T), ("shift", np.ones(CLASSES, np.float32))):
        b.nodes.append(helper.make_node("Constant", [], [name], name=name, value=numpy_helper.from_array(value, name)))
    b.node("MatMul", "features", "weight", out="product", name="head")
    b.node("Add", "product", "shift", out="y")
    proto = b.sample().proto
    for k, tensor in enumerate(t for t in all_tensors(proto.graph) if t.name in ("weight", "shift")):
        moved(tensor, tmp_path, "weights.bin", 512 * (k + 1))
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    model = load_model(tmp_path / "model.onnx")
    assert model.external_files == ("weights.bin",)
    weight, rewritten = new_head(model)
    written = save(model, rewritten, tmp_path / "other" / "new.onnx")
    assert written.external_files == (data_name(written),)
    z = np.maximum(X @ numpy_helper.to_array(written.initializers["trunk"]), 0)
    head = choose_head(written)
    np.testing.assert_array_equal(head.weight, weight)
    np.testing.assert_array_equal(head.bias, np.ones(CLASSES))
    loaded = onnx.load(written.path)  # ONNX Runtime reads external data of initializers only
    np.testing.assert_allclose(run(loaded, ["y"], X)[0], z @ weight.T + 1, rtol=0, atol=1e-4)


# --- where the output goes


@pytest.mark.parametrize("place", PLACES)
def test_a_model_may_replace_itself(place: Place, tmp_path: Path) -> None:
    model = model_of(tmp_path, place)
    old = values(model)
    with pytest.raises(UsageError, match="output is the input model"):
        check_output(model, model.path)
    check_output(model, model.path, overwrite=True)
    weight, rewritten = new_head(model)
    written = save(model, rewritten, model.path)
    assert written.external_files == (data_name(written),)
    np.testing.assert_array_equal(values(written)["weight"], weight)
    np.testing.assert_array_equal(values(written)["trunk"], old["trunk"])
    for _ in range(2):  # and again: the data file is its own by now
        written = save(written, new_head(written)[1], written.path)
        assert len(list(tmp_path.glob("model.onnx.*.data"))) == 1  # that of the model before is gone
    np.testing.assert_array_equal(values(written)["trunk"], old["trunk"])
    assert run(written.path, ["y"], X)[0].shape == (5, CLASSES)


def test_something_else_under_the_name_of_the_new_data(tmp_path: Path) -> None:
    """It is not ours, and stays; the old model does too."""
    model = model_of(tmp_path, one_file)
    rewritten = new_head(model)[1]
    name = data_name(save(model, rewritten, tmp_path / "other" / "new.onnx"))
    (tmp_path / name).write_bytes(b"of someone else")
    before = state(tmp_path)
    with (
        pytest.raises(UsageError, match=f"{name}: the new model's external data get this name, which another file has"),
        pending(model, new_head(model)[1].proto, tmp_path / "new.onnx"),
    ):
        pass
    assert state(tmp_path) == before


# --- damage


def _missing(folder: Path) -> None:
    (folder / "weights.bin").unlink()


def _short(folder: Path) -> None:
    os.truncate(folder / "weights.bin", 4096 * 2 + CLASSES * 4 - 1)


DAMAGES = {
    _missing: "'weights.bin' is missing in",
    _short: "'weights.bin' has 8,203 bytes, but tensor 'bias' ends at 8,204",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__.strip("_").replace("_", " "))
def test_damaged_data_are_refused_and_nothing_is_left(damage: Callable[[Path], None], tmp_path: Path) -> None:
    source, other = tmp_path / "source", tmp_path / "other"
    source.mkdir()
    other.mkdir()
    model = model_of(source, one_file)
    rewritten = new_head(model)[1]
    damage(source)
    with (
        pytest.raises(UnsupportedModel) as caught,
        pending(Model(model.proto, model.sha256, model.path), rewritten.proto, other / "new.onnx"),
    ):
        pytest.fail("the block must not run")
    assert str(caught.value).startswith(f"{model.path}: external data ")
    assert DAMAGES[damage] in str(caught.value)
    assert list(other.iterdir()) == []


@pytest.mark.parametrize("before", [False, True])
def test_a_move_that_fails_halfway_leaves_what_was_there(
    before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data and model are two files: the second move may fail when the first is done."""
    model = model_of(tmp_path, one_file)
    if before:
        save(model, new_head(model)[1], tmp_path / "new.onnx")
    was = state(tmp_path)
    rewritten, replace = rewrite(model, choose_head(model), 3 * choose_head(model).weight, metadata={}), Path.replace

    def refuse(self: Path, target: Path) -> Path:
        if Path(target).name == "new.onnx" and self.parent.name.endswith(".tmp"):
            raise OSError(5, "Input/output error")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", refuse)
    with (
        pytest.raises(UsageError, match="cannot be written: Input/output error"),
        pending(model, rewritten.proto, tmp_path / "new.onnx"),
    ):
        pass
    assert state(tmp_path) == was


# --- end to end


def labelled(folder: Path, classify: Callable[[Array], Array], width: int, count: int = 300) -> Path:
    """Inputs with labels that the model gives with errors, so that there is something to calibrate."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((count, width)).astype(np.float32)
    logits = classify(x)
    np.savez(folder / "data.npz", x=x, labels=np.argmax(logits / 3 + rng.gumbel(size=logits.shape), axis=1))
    return folder / "data.npz"


def logits_of(model: Model) -> Callable[[Array], Array]:
    v = values(model)
    return lambda x: np.maximum(x @ v["trunk"], 0) @ v["weight"].T + v["bias"]


@pytest.mark.parametrize(
    ("place", "options"), [(one_file, QUICK), (own_name, {**QUICK, "map": "ets"}), (folders, QUICK)]
)
def test_calibrate_and_evaluate(place: Place, options: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    model = model_of(tmp_path, place)
    data, before = labelled(tmp_path, logits_of(model), FEATURES), state(tmp_path)
    report = with_options(tna_onnx.calibrate, model.path, data, output=tmp_path / "out" / "new.onnx", **options)
    after = state(tmp_path)
    assert {name: after[name] for name in before} == before
    name = data_name(load_model(tmp_path / "out" / "new.onnx"))
    assert sorted(set(after) - set(before)) == ["out/new.onnx", f"out/{name}"]
    assert report.verification.max_difference <= report.verification.bound
    found = tna_onnx.evaluate(tmp_path / "out" / "new.onnx", data, device="cpu")
    assert found.metrics.nll < tna_onnx.evaluate(model.path, data, device="cpu").metrics.nll


@pytest.mark.slow
def test_more_than_two_gigabytes(tmp_path: Path) -> None:
    """Larger than one protobuf: a file with holes, that reads as zeros, in front of a weight that is there."""
    wide, rows = 2**18, 2064  # a table of 2.16 GB, of which the graph reads two rows
    b = builder()
    b.node("Gather", "table", b.store("row", [0, rows - 1], np.int64), out="rows")
    b.node("ReduceSum", "rows", out="nothing", keepdims=0)
    b.nodes[-1], b.nodes[2] = b.nodes[2], b.nodes[-1]
    proto = b.proto("y")
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", CLASSES]))
    nodes = {node.output[0]: node for node in proto.graph.node}
    shifted = helper.make_node("Add", ["features", "nothing"], ["shifted"], name="shift")
    nodes["scores"].input[0] = "shifted"
    order = ["trunk_out", "features", "rows", "nothing", shifted, "scores", "y"]
    ordered = [n if isinstance(n, onnx.NodeProto) else onnx.NodeProto.FromString(nodes[n].SerializeToString())
               for n in order]  # fmt: skip
    del proto.graph.node[:]
    proto.graph.node.extend(ordered)
    size = rows * wide * 4
    for k, tensor in enumerate(t for t in proto.graph.initializer if t.name in TENSORS):
        moved(tensor, tmp_path, "weights.bin", 4096 * k)
    with (tmp_path / "weights.bin").open("r+b") as file:
        file.truncate(2**16 + size)
    table = proto.graph.initializer.add(name="table", data_type=onnx.TensorProto.FLOAT, dims=[rows, wide])
    table.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "weights.bin", "offset": 2**16, "length": size}.items():
        table.external_data.add(key=key, value=str(value))
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    assert size > 2**31
    model = load_model(tmp_path / "model.onnx")
    old = {name: model.array(model.initializers[name]) for name in TENSORS}
    data = labelled(tmp_path, lambda x: np.maximum(x @ old["trunk"], 0) @ old["weight"].T + old["bias"], FEATURES)
    report = tna_onnx.calibrate(model.path, data, output=tmp_path / "new.onnx", map="ts", search="none", device="cpu")
    written = load_model(tmp_path / "new.onnx")
    try:
        (name,) = written.external_files
        assert (tmp_path / name).stat().st_size == (tmp_path / "weights.bin").stat().st_size
        session = onnxruntime.InferenceSession(str(written.path), providers=["CPUExecutionProvider"])
        y = session.run(["y"], {"x": X})[0]
        head = choose_head(written)
        logits = np.maximum(X @ old["trunk"], 0) @ head.weight.T + head.bias
        expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5)
        assert report.verification.max_difference <= report.verification.bound
    finally:
        for file in ("weights.bin", *written.external_files):
            (tmp_path / file).unlink()
