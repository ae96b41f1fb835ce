"""Files that someone has changed: none of them is intact, whoever computed the seal anew."""

import contextlib
import copy
import functools
import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tna_onnx
from tests.builders import tensor_info
from tests.cli.test_verify import put, several_outputs
from tests.conftest import Small
from tests.support import with_options
from tna_onnx.graph.load import Model, load_model
from tna_onnx.pipeline.record import _seal, prove

Proto = onnx.ModelProto
Tamper = Callable[[Proto], object]

LOGITS = tna_onnx.ModelOptions(output_name="logits")

# --- the files: one of each kind of change


FILES: dict[str, dict[str, object]] = {
    "recomputed": {"map": "ts", "search": "none"},
    "refitted": {"map": "refit", "search": "none"},
    "appended": {"map": "irova", "search": "none"},
    "features": {"map": "aar", "search": "none"},
    "decided": {"map": "bias", "search": "none", "decide": "macro-f1"},
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
    found = tna_onnx.verify(*files[kind], device="cpu", model_options=LOGITS)
    assert found.passed, (found.verdict, found.unexplained)
    # whoever parses a file and writes it again changes nothing
    again = onnx.load(files[kind][1]).SerializeToString()
    assert tna_onnx.verify(files[kind][0], again, device="cpu", model_options=LOGITS).passed


# --- anything anywhere in them


def _tensor(m: Proto, name: str) -> TensorProto:
    return next(t for t in m.graph.initializer if t.name == name)


def _set(m: Proto, name: str, value: np.ndarray) -> None:
    _tensor(m, name).CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), name))


def _weight(m: Proto) -> np.ndarray:
    return np.array(numpy_helper.to_array(_tensor(m, "weight")))


def _entry(m: Proto, key: str) -> onnx.StringStringEntryProto:
    return next(e for e in m.metadata_props if e.key == f"tna_onnx.{key}")


def _seal_anew(m: Proto) -> None:
    entries = {e.key.removeprefix("tna_onnx."): e.value for e in m.metadata_props if e.key.startswith("tna_onnx.")}
    for entry in m.metadata_props:
        if entry.key == "tna_onnx.seal":
            entry.value = _seal(entries)


def _pop(items: Any, at: int) -> None:
    items.pop(at)


def _repeat(items: Any, at: int) -> None:
    items.append(items[at])


def _exchange(items: Any, at: int) -> None:
    """Put an item one place further on."""
    copies = [copy.deepcopy(item) for item in items]
    copies[at], copies[at - 1] = copies[at - 1], copies[at]
    del items[:]
    items.extend(copies)


def _other(value: Any) -> Any:
    """Return another value of the same kind."""
    if isinstance(value, bytes):
        return value[:-1] + bytes([value[-1] ^ 128]) if value else b"z"
    if isinstance(value, str):
        return f"{value}z"
    return value + 1


def _begin(message: Any, field: Any) -> None:
    """Set a field that is not there."""
    if not field.is_repeated:
        if field.message_type is None:
            setattr(message, field.name, _other(field.default_value))
        else:
            getattr(message, field.name).SetInParent()
    elif field.message_type is None:
        value = {field.TYPE_BYTES: b"z", field.TYPE_STRING: "z"}.get(field.type, 1)
        getattr(message, field.name).append(value)
    else:
        getattr(message, field.name).add()


def _edits(message: Any) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield what changes one field in a message, or in one of those in it, and what it is called."""
    there = dict(message.ListFields())
    for field in message.DESCRIPTOR.fields:
        if field not in there:
            yield f"{field.full_name} new", functools.partial(_begin, message, field)
            continue
        value = there[field]
        if not field.is_repeated:
            if field.message_type is None:
                yield field.full_name, functools.partial(setattr, message, field.name, _other(value))
            else:
                yield from _edits(value)
            yield f"{field.full_name} gone", functools.partial(message.ClearField, field.name)
            continue
        for at in range(len(value)):
            for how in (_pop, _repeat, *([_exchange] if at and value[at] != value[at - 1] else [])):
                yield f"{field.full_name}[{at}] {how.__name__}", functools.partial(how, value, at)
            if field.message_type is None:
                yield f"{field.full_name}[{at}]", functools.partial(value.__setitem__, at, _other(value[at]))
            else:
                yield from _edits(value[at])


def _intact(source: Model, data: bytes) -> bool:
    try:
        return prove(source, load_model(data)).intact
    except tna_onnx.TnaError:
        return False  # refused as damaged, or its data lie elsewhere


@pytest.mark.parametrize("kind", [*FILES, *OTHERS])
def test_no_edited_file_is_intact(files: dict[str, tuple[Path, Path]], kind: str) -> None:
    """One field of it is new, another, gone, or there again; with the seal computed anew, and in entries without."""
    source, content = load_model(files[kind][0]), files[kind][1].read_bytes()
    names = [name for name, _ in _edits(Proto.FromString(content))]
    # the place of the seal, which stands last, is not sealed itself
    tried = [at for at, name in enumerate(names) if "metadata_props" not in name or "_exchange" not in name]
    for at in np.random.default_rng(0).choice(tried, 50, replace=False):
        model = Proto.FromString(content)
        name, edit = next(itertools.islice(_edits(model), int(at), None))
        edit()
        if "metadata_props" not in name and "StringStringEntryProto" not in name:
            _seal_anew(model)
        assert not _intact(source, model.SerializeToString()), name


# --- what somebody would do on purpose


def _named(*tampers: Tamper) -> dict[str, Tamper]:
    return {tamper.__name__: tamper for tamper in tampers}


def _behind(m: Proto, op: str, **attributes: object) -> None:
    """Put a node between the logits and whoever reads them."""
    producer = next(n for n in m.graph.node if "logits" in n.output)
    producer.output[list(producer.output).index("logits")] = "tna_onnx/zz_in"
    at = list(m.graph.node).index(producer)
    m.graph.node.insert(at + 1, helper.make_node(op, ["tna_onnx/zz_in"], ["logits"], name="tna_onnx/zz", **attributes))


def negated_output_in_front(m: Proto) -> None:
    m.graph.node.append(helper.make_node("Neg", ["logits"], ["tna_onnx/guard/zz_out"], name="tna_onnx/guard/zz"))
    m.graph.output.insert(0, tensor_info("tna_onnx/guard/zz_out", ["N", 5]))


def constant_shadows_the_backbone(m: Proto) -> None:
    value = numpy_helper.from_array(-numpy_helper.to_array(_tensor(m, "hidden")), "hidden")
    m.graph.node.insert(0, helper.make_node("Constant", [], ["hidden"], name="tna_onnx/c0", value=value))


def head_in_typed_fields(m: Proto) -> None:
    weight = _weight(m)
    _tensor(m, "weight").CopyFrom(helper.make_tensor("weight", TensorProto.FLOAT, weight.shape, weight.ravel()))


def head_permuted(m: Proto) -> None:
    _set(m, "weight", _weight(m)[::-1])


def head_reads_the_old_weight(m: Proto) -> None:
    """Leave the weight of the change in the file, and let the head read another."""
    m.graph.initializer.append(numpy_helper.from_array(np.ones((5, 32), np.float32), "tna_onnx/old"))
    next(n for n in m.graph.node if n.name == "head").input[1] = "tna_onnx/old"


def function_behind_the_logits(m: Proto) -> None:
    nodes = [helper.make_node("Neg", ["a"], ["b"])]
    m.functions.append(helper.make_function("tna_onnx", "Neg", ["a"], ["b"], nodes, [helper.make_opsetid("", 17)]))
    m.opset_import.append(helper.make_opsetid("tna_onnx", 1))
    _behind(m, "Neg", domain="tna_onnx")


def entries_in_another_order(m: Proto) -> None:
    _exchange(m.metadata_props, 2)


def no_words(m: Proto) -> None:
    m.metadata_props.remove(_entry(m, "change"))


def change_of_another_format(m: Proto) -> None:
    _entry(m, "change").value = _entry(m, "change").value.replace('"format":1', '"format":2')


def change_that_is_no_json(m: Proto) -> None:
    _entry(m, "change").value = "]"


def _edit_step(m: Proto, edit: Callable[[dict[str, Any]], object]) -> None:
    change = json.loads(_entry(m, "change").value)
    edit(change["steps"][0])
    _entry(m, "change").value = json.dumps(change, separators=(",", ":"))


def step_at_another_tensor(m: Proto) -> None:
    def edit(step: dict[str, Any]) -> None:
        readout = step["readout"] if "readout" in step else step["guarded"]["output"]
        readout["logits" if "logits" in readout else "name"] = "features"

    _edit_step(m, edit)


def step_twice(m: Proto) -> None:
    change = json.loads(_entry(m, "change").value)
    change["steps"].append(change["steps"][-1])
    _entry(m, "change").value = json.dumps(change, separators=(",", ":"))


HUGE = {"is": "Added", "bias": {"dtype": "float64", "shape": [10**12]}}
TAMPERS: dict[str, Tamper] = {
    **_named(
        negated_output_in_front,
        constant_shadows_the_backbone,
        head_in_typed_fields,
        head_permuted,
        head_reads_the_old_weight,
        function_behind_the_logits,
        step_at_another_tensor,
        step_twice,
        entries_in_another_order,
    ),
    "logits_negated": lambda m: _behind(m, "Neg"),
    "logits_through_identity": lambda m: _behind(m, "Identity"),
    "head_nan": lambda m: _set(m, "weight", _weight(m) * np.float32(np.nan)),
    "tensor_that_nobody_reads": lambda m: m.graph.initializer.append(
        numpy_helper.from_array(np.ones(3, np.float32), "tna_onnx/const_99")
    ),
    "node_that_nobody_reads": lambda m: m.graph.node.append(
        helper.make_node("Neg", ["logits"], ["tna_onnx/dead"], name="tna_onnx/dead")
    ),
    "weight_can_be_fed": lambda m: m.graph.input.append(tensor_info("weight", [5, 32])),
    "no_change": lambda m: put(_entry(m, "change"), "value", '{"format":1,"steps":[]}'),
    "step_of_another_source": lambda m: _edit_step(m, lambda step: step.update(source="0" * 64)),
    "step_with_a_huge_array": lambda m: _edit_step(m, lambda step: step.update(maps=[HUGE])),
    "step_with_an_unknown_map": lambda m: _edit_step(
        m, lambda step: step.update(maps=[{"is": "Popen", "args": ["true"]}])
    ),
}


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *((kind, how) for kind in ("recomputed", "guarded") for how in TAMPERS),
        *(("appended", how) for how in ("head_permuted", "head_reads_the_old_weight", "head_nan")),
        *((kind, how) for kind in OTHERS for how in ("head_reads_the_old_weight", "step_twice")),
    ],
)
def test_no_tampered_file_is_intact(files: dict[str, tuple[Path, Path]], kind: str, how: str) -> None:
    source, file = files[kind]
    model = onnx.load(file)
    TAMPERS[how](model)
    if how != "entries_in_another_order":  # which the seal alone tells
        _seal_anew(model)
    data = model.SerializeToString()
    assert data != file.read_bytes()
    try:
        found = tna_onnx.verify(source, data, device="cpu", model_options=LOGITS)
    except tna_onnx.UnsupportedModel:
        return  # refused as damaged: exit code 3
    assert not found.intact
    assert not found.passed
    assert found.verdict.startswith(("not intact: ", "cannot be proved: "))


@pytest.mark.parametrize("kind", ["recomputed", "only guarded"])
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
        found = tna_onnx.verify(source, tmp_path / "older.onnx", device="cpu", model_options=LOGITS)
        assert not found.passed
        assert found.verdict.startswith("cannot be proved: ")


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
    found = tna_onnx.verify(source, tmp_path / "forged.onnx", device="cpu", model_options=LOGITS)
    assert found.intact, found.unexplained
    found = tna_onnx.verify(source, tmp_path / "forged.onnx", data=small.test, device="cpu", model_options=LOGITS)
    assert found.intact
    assert found.missed
    assert not found.passed


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


@pytest.mark.parametrize(("how", "refused"), [*zip(READ_OTHERWISE, itertools.cycle([False, True]), strict=False)])
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
