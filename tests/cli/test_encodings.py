"""Files whose bytes say more than the model that a parser makes of them: none is intact but the source itself."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from google.protobuf.descriptor import Descriptor
from onnx import helper, numpy_helper

import tna_onnx
from tests.conftest import Small
from tests.support import refused
from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.load import load_model

# --- the format, by its definition


@dataclass(frozen=True)
class Field:
    """A field of a message, as it is encoded."""

    number: int
    kind: int  # 0: a number; 1: eight bytes; 2: bytes with a length; 5: four bytes
    value: bytes  # without the length
    tag_pad: int = 0  # further bytes of the tag
    pad: int = 0  # further bytes of the length

    @property
    def encoded(self) -> bytes:
        length = varint(len(self.value), self.pad) if self.kind == 2 else b""
        return varint(self.number << 3 | self.kind, self.tag_pad) + length + self.value


def varint(number: int, pad: int = 0) -> bytes:
    """Encode a number, in more bytes than it needs."""
    groups = [number & 127]
    while number := number >> 7:
        groups.append(number & 127)
    groups += [0] * pad
    return bytes([*(group | 128 for group in groups[:-1]), groups[-1]])


def number_at(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return number, at


def fields(data: bytes) -> list[Field]:
    found, at = [], 0
    while at < len(data):
        tag, at = number_at(data, at)
        if tag & 7 == 0:
            end = number_at(data, at)[1]
        elif tag & 7 == 2:
            length, at = number_at(data, at)
            end = at + length
        else:
            end = at + {1: 8, 5: 4}[tag & 7]
        found.append(Field(tag >> 3, tag & 7, data[at:end]))
        at = end
    return found


def joined(content: list[Field]) -> bytes:
    return b"".join(field.encoded for field in content)


Edit = Callable[[list[Field]], list[Field]]


def inside(*numbers: int) -> Callable[[Edit], Callable[[bytes], bytes]]:
    """Return what applies an edit to the first message at the end of a way of field numbers."""

    def applied(edit: Edit) -> Callable[[bytes], bytes]:
        def whole(data: bytes, way: tuple[int, ...] = numbers) -> bytes:
            content = fields(data)
            if not way:
                return joined(edit(content))
            at = next(k for k, field in enumerate(content) if field.number == way[0])
            content[at] = replace(content[at], value=whole(content[at].value, way[1:]))
            return joined(content)

        return whole

    return applied


def first(content: list[Field], number: int) -> int:
    return next(k for k, field in enumerate(content) if field.number == number)


def text(number: int, value: bytes) -> Field:
    return Field(number, 2, value)


def count(number: int, value: int) -> Field:
    return Field(number, 0, varint(value))


def in_front(*new: Field) -> Edit:
    return lambda content: [*new, *content]


def behind(*new: Field) -> Edit:
    return lambda content: [*content, *new]


def changed(number: int, **how: Any) -> Edit:
    def edit(content: list[Field]) -> list[Field]:
        at = first(content, number)
        return [*content[:at], replace(content[at], **how), *content[at + 1 :]]

    return edit


def again(number: int) -> Edit:
    return lambda content: [*content, content[first(content, number)]]


def turned(content: list[Field]) -> list[Field]:
    """Put fields of other numbers first; those of one number stay in order."""
    return sorted(content, key=lambda field: -field.number)


def in_two(number: int) -> Edit:
    """Split a message, which a parser merges."""

    def edit(content: list[Field]) -> list[Field]:
        at = first(content, number)
        inner = fields(content[at].value)
        parts = [replace(content[at], value=joined(part)) for part in (inner[:1], inner[1:])]
        return [*content[:at], *parts, *content[at + 1 :]]

    return edit


def number(field: int, *, pad: int = 0, more: int = 0) -> Edit:
    """Encode a number in more bytes than it needs, or with bits above the 32 that a parser keeps."""

    def edit(content: list[Field]) -> list[Field]:
        at = first(content, field)
        return changed(field, value=varint(number_at(content[at].value, 0)[0] | more, pad))(content)

    return edit


def packed(number: int) -> Edit:
    """Put numbers that stand one by one into one field."""

    def edit(content: list[Field]) -> list[Field]:
        at = first(content, number)
        values = b"".join(field.value for field in content if field.number == number)
        rest = [field for field in content if field.number != number]
        return [*rest[:at], text(number, values), *rest[at:]]

    return edit


MODEL, GRAPH, NODE, TENSOR = inside(), inside(7), inside(7, 1), inside(7, 5)
VALUE_INFO, TYPE = inside(7, 11), inside(7, 11, 2)
_EMPTY = text(7, b"")
# Bytes 4 to 7 are those by which ONNX Runtime knows its own format.
_MARK = (count(1, 8), text(3, b"ORTM"))

# A parser makes the same model of each.
SAME: dict[str, Callable[[bytes], bytes]] = {
    "empty graph in front": MODEL(in_front(_EMPTY)),
    "graph in two": MODEL(in_two(7)),
    "name of another graph in front": MODEL(in_front(text(7, text(2, b"another").encoded))),
    "fields of the graph turned": GRAPH(turned),
    "longer tag": MODEL(changed(1, tag_pad=1)),
    "longer length of a tensor": GRAPH(changed(5, pad=1)),
    "longer number": MODEL(number(1, pad=1)),
    "upper bits of a type": TENSOR(number(2, more=1 << 32)),
    "data twice": TENSOR(in_front(text(9, bytes(64)))),
    "dimensions packed": TENSOR(packed(1)),
    "another kind of type in front": TYPE(in_front(text(4, text(1, b"").encoded))),
    "type in two": VALUE_INFO(in_two(2)),
    "mark of another format": MODEL(in_front(*_MARK)),
}

# In these it is another model, or none.
OTHER: dict[str, Callable[[bytes], bytes]] = {
    "unknown field behind": MODEL(behind(text(900, b"anything"))),
    "unknown field in a node": NODE(behind(text(900, b"anything"))),
    "unknown group": lambda data: data + varint(900 << 3 | 3) + varint(900 << 3 | 4),
    "known field of another kind": MODEL(behind(Field(7, 5, bytes(4)))),
    "bytes behind": lambda data: data + b"\0" * 8,
    "another file behind": lambda data: data + data,
    "cut": lambda data: data[:-1],
    "empty name behind": MODEL(behind(text(4, b""))),
}


def parsed(data: bytes) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(data)


def plain(model: onnx.ModelProto) -> bytes:
    return bytes(model.SerializeToString(deterministic=True))


@pytest.fixture(scope="module")
def pair(small: Small, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a source in which every field above is set, and a file that was made of it."""
    folder = tmp_path_factory.mktemp("encodings")
    model = onnx.load(small.model)
    model.producer_name, model.producer_version, model.model_version = "tests", "1", 2
    model.graph.node.insert(0, helper.make_node("LeakyRelu", ["x"], ["same"], name="same", alpha=1.0))
    model.graph.node[1].input[0] = "same"
    onnx.save(model, folder / "source.onnx")
    made(folder / "source.onnx", small, folder / "file.onnx")
    assert (folder / "file.onnx").read_bytes() == plain(onnx.load(folder / "file.onnx"))
    return folder / "source.onnx", folder / "file.onnx"


def made(source: Path, small: Small, output: Path) -> None:
    tna_onnx.calibrate(source, small.calib, output=output, map="ts", search="none", device="cpu")


def not_intact(source: Path, data: bytes, folder: Path) -> None:
    """Check that bytes are refused, as a file and in memory."""
    (folder / "new.onnx").write_bytes(data)
    for new in (folder / "new.onnx", data):
        try:
            found = tna_onnx.verify(source, new, device="cpu")
        except UnsupportedModel:
            continue  # refused as damaged: exit code 3
        assert not found.intact
        assert found.verdict.startswith(("cannot be proved: ", "not intact: "))


@pytest.mark.parametrize("how", SAME | OTHER)
def test_another_encoding_of_a_written_file(pair: tuple[Path, Path], how: str, tmp_path: Path) -> None:
    source, file = pair
    data = (SAME | OTHER)[how](file.read_bytes())
    assert data != file.read_bytes()
    if how in SAME:
        assert plain(parsed(data)) == plain(onnx.load(file))
    not_intact(source, data, tmp_path)


@pytest.mark.parametrize("how", SAME)
def test_another_encoding_of_a_source(pair: tuple[Path, Path], small: Small, how: str, tmp_path: Path) -> None:
    """With more bytes than its model has it is refused; without, it is what it is, and the file made of it is plain."""
    content = pair[0].read_bytes()
    data = SAME[how](content)
    path = tmp_path / "source.onnx"
    path.write_bytes(data)
    if len(data) > len(content):
        for source in (path, data):
            with pytest.raises(UnsupportedModel, match=r"no part of the model in it|bytes 4 to 7 are ORTM"):
                load_model(source)
        refused(3, "source.onnx", "evaluate", path, small.calib)
        return
    (tmp_path / "copy.onnx").write_bytes(data)
    found = tna_onnx.verify(path, tmp_path / "copy.onnx", device="cpu")
    assert found.passed
    assert found.differences == ()
    made(path, small, tmp_path / "file.onnx")
    assert (tmp_path / "file.onnx").read_bytes() == plain(onnx.load(tmp_path / "file.onnx"))
    assert tna_onnx.verify(path, tmp_path / "file.onnx", device="cpu").passed
    # the same model, but not the bytes that a writer makes of it
    assert not tna_onnx.verify(pair[0], path, device="cpu").intact


@pytest.fixture(scope="module")
def large(small: Small, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a source of 67 MB, whose large values are kept apart from the protobuf, and a file that was made of it."""
    folder = tmp_path_factory.mktemp("large")
    model = onnx.load(small.model)
    table = np.zeros((8, 2**21), np.float32)
    table[:, :8] = np.eye(8)
    names = {"table": table, "back": np.array([0]), "eight": np.array([8]), "one": np.array([1])}
    model.graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in names.items())
    model.graph.node.insert(0, helper.make_node("MatMul", ["x", "table"], ["wide"]))
    model.graph.node.insert(1, helper.make_node("Slice", ["wide", "back", "eight", "one"], ["same"]))
    model.graph.node[2].input[0] = "same"
    model.producer_version = "1"
    onnx.save(model, folder / "source.onnx")
    made(folder / "source.onnx", small, folder / "file.onnx")
    assert (folder / "file.onnx").stat().st_size > 2**26
    assert tna_onnx.verify(folder / "source.onnx", folder / "file.onnx", device="cpu").passed
    return folder / "source.onnx", folder / "file.onnx"


@pytest.mark.slow
@pytest.mark.parametrize(
    "edit",
    [
        inside()(in_front(count(1, 8), text(3, b"ORTM"))),
        inside()(in_two(7)),
        inside(7)(again(5)),
        inside(7)(turned),
        inside(7)(lambda content: [replace(f, pad=1) if len(f.value) > 2**20 else f for f in content]),
    ],
)
def test_large_files(large: tuple[Path, Path], edit: Callable[[bytes], bytes], tmp_path: Path) -> None:
    source, file = large
    (tmp_path / "new.onnx").write_bytes(edit(file.read_bytes()))
    with contextlib.suppress(UnsupportedModel):  # refused as damaged: exit code 3
        assert not tna_onnx.verify(source, tmp_path / "new.onnx", device="cpu").intact


def test_a_model_in_the_format_of_onnx_runtime(small: Small, tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "m.onnx")
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(small.model, options, providers=["CPUExecutionProvider"])
    assert (tmp_path / "m.onnx").read_bytes()[4:8] == b"ORTM"
    refused(3, "model in its own format", "inspect", tmp_path / "m.onnx")


def test_what_this_tool_encodes_is_no_model_of_onnx_runtime_either(small: Small) -> None:
    """The producer is called ORTM..., and stands behind the graph, where no runtime minds."""
    model = parsed(plain(onnx.load(small.model)))
    model.ClearField("producer_version")
    model.ir_version = 8
    model.producer_name = ""
    data = plain(model) + text(2, b"ORTM").encoded
    assert data[4:8] != b"ORTM"
    assert plain(parsed(data))[4:8] == b"ORTM"
    with pytest.raises(UnsupportedModel, match="model in its own format"):
        load_model(data)


def _branch(graph: onnx.GraphProto, name: str) -> None:
    branch = helper.make_graph([], "b", [], [helper.make_tensor_value_info(name, 1, [])])
    branch.initializer.append(numpy_helper.from_array(np.float32(1.0), name))
    graph.initializer.append(numpy_helper.from_array(np.array(True), "on"))
    graph.node.append(helper.make_node("If", ["on"], ["either"], then_branch=branch, else_branch=branch))


def _declared(graph: onnx.GraphProto, name: str) -> None:
    graph.value_info.append(helper.make_tensor_value_info(name, 1, [1]))


@pytest.mark.parametrize("hidden", [_branch, _declared])
@pytest.mark.parametrize("words", ["calibrate M --calib C --search none --map irova -o O", "guard M C -o O"])
def test_a_name_of_ours_that_the_source_hides(
    hidden: Callable[[onnx.GraphProto, str], None], words: str, small: Small, tmp_path: Path
) -> None:
    model = onnx.load(small.model)
    hidden(model.graph, f"tna_onnx/{'guard/' * words.startswith('guard')}const_2")
    onnx.save(model, tmp_path / "m.onnx")
    paths = {"M": tmp_path / "m.onnx", "C": small.calib, "O": tmp_path / "o.onnx"}
    refused(3, "start from the original", *(paths.get(word, word) for word in words.split()))
    assert not (tmp_path / "o.onnx").exists()


# --- everywhere in a file


def messages(data: bytes, kind: Descriptor, way: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Descriptor]]:
    """Yield every message in an encoded one, by the places of fields on the way to it."""
    yield way, kind
    for k, field in enumerate(fields(data)):
        known = kind.fields_by_number.get(field.number)
        if known is not None and known.message_type is not None:
            yield from messages(field.value, known.message_type, (*way, k))


def edited(data: bytes, way: tuple[int, ...], edit: Edit) -> bytes:
    content = fields(data)
    if not way:
        return joined(edit(content))
    content[way[0]] = replace(content[way[0]], value=edited(content[way[0]].value, way[1:], edit))
    return joined(content)


def earlier(kind: Descriptor, content: list[Field]) -> list[Field]:
    """Put another value of a field that stands once in front of it."""
    single = [field for field in content if not kind.fields_by_number[field.number].is_repeated]
    new = replace(single[0], value=b"\x01" if single[0].kind == 0 else bytes(len(single[0].value)))
    if kind.fields_by_number[single[0].number].message_type is not None:
        new = replace(new, value=b"")
    return [new, *content]


def test_any_message_of_a_file(pair: tuple[Path, Path], tmp_path: Path) -> None:
    source, file = pair
    content = file.read_bytes()
    rng = np.random.default_rng(11)
    tried = 0
    for way, kind in messages(content, onnx.ModelProto.DESCRIPTOR):
        padded = rng.integers(100)
        edits: list[Edit] = [
            lambda fields, kind=kind: earlier(kind, fields),
            turned,
            lambda fields, at=padded: [replace(f, tag_pad=int(j == at % len(fields))) for j, f in enumerate(fields)],
        ]
        for edit in edits:
            try:
                data = edited(content, way, edit)
            except (IndexError, ZeroDivisionError):  # a message of repeated fields, or an empty one
                continue
            if data != content:
                tried += 1
                not_intact(source, data, tmp_path)
    assert tried > 100
