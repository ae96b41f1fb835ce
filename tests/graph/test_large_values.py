"""Large values apart from the protobuf: the same bytes come back, whoever reads or writes them."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.conftest import Small
from tests.graph.rewriting import unexpected
from tests.support import TILTED, with_options
from tna_onnx import calibrate, guard, verify
from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph import tensors as apart_module
from tna_onnx.graph.load import load_model
from tna_onnx.graph.rewrite import rewrite
from tna_onnx.graph.save import pending
from tna_onnx.graph.scores import choose_head
from tna_onnx.graph.tensors import key_of, large_tensor, pieces, split_off, total_size
from tna_onnx.pipeline import record

_LARGE = 256
_UNKNOWN = bytes([0xFA, 0xFF, 0x03, 0x03]) + b"new"  # field 8191, three bytes


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart_module, "_LARGE", _LARGE)


def _weight(rows: int = 4) -> NDArray[np.float32]:
    return np.random.default_rng(3).standard_normal((rows, 32)).astype(np.float32)


def _model() -> onnx.ModelProto:
    """Two large tensors, small ones around them, and words and unknown fields in all places."""
    weight = numpy_helper.from_array(_weight(), "weight")
    weight.doc_string = "of the head"
    halves = numpy_helper.from_array(np.arange(256, dtype=np.float16), "halves")
    halves.MergeFromString(_UNKNOWN)
    tensors = [numpy_helper.from_array(np.ones(4, np.float32), "bias"), weight]
    tensors += [numpy_helper.from_array(np.zeros(0, np.float32), "nothing"), halves]
    tensors.append(helper.make_tensor("listed", TensorProto.FLOAT, [80], [0.5] * 80))
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "weight", "bias"], ["logits"], name="head", transB=1)],
        "apart",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 32])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 4])],
        tensors,
        doc_string="a graph",
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="tests")
    model.MergeFromString(_UNKNOWN)
    graph.MergeFromString(_UNKNOWN)
    return model


def _encoded(model: onnx.ModelProto) -> bytes:
    return bytes(model.SerializeToString(deterministic=True))


def _parsed(data: bytes) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.ParseFromString(data)
    return model


def _field(number: int, content: bytes) -> bytes:
    """Encode a field of less than 16 KB by the definition of the format."""
    length = len(content)
    size = bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])
    return bytes([number << 3 | 2]) + size + content


def test_what_was_taken_out_comes_back() -> None:
    data = _encoded(_model())
    message, values = split_off(data)
    assert sorted(map(len, values.values())) == [4 * 32 * 4, 256 * 2]
    hollow = _parsed(message)
    assert b"".join(pieces(hollow, values)) == data
    assert total_size(hollow, values) == len(data)
    weight = hollow.graph.initializer[1]
    assert (weight.raw_data, list(weight.dims), weight.doc_string) == (
        key_of(_weight().tobytes()),
        [4, 32],
        "of the head",
    )
    # without the values nothing is put back
    assert b"".join(pieces(hollow, {})) == message
    assert total_size(hollow, {}) == len(message)


def test_values_of_a_similar_model_are_shared_where_they_are_equal() -> None:
    data = _encoded(_model())
    message, values = split_off(data)
    first, second = values
    assert split_off(data, values) == (message, values)
    assert all(value is values[key] for key, value in split_off(data, values)[1].items())
    # another value of the same size, and one that is not there
    other = bytes(len(values[first]))
    similar = {key_of(other): other, second: values[second]}
    assert split_off(data, similar) == (message, values)
    assert split_off(data, similar)[1][second] is values[second]


def test_a_model_that_has_a_key_itself_stays_as_it_is() -> None:
    model = _model()
    key = key_of(_weight().tobytes())
    model.graph.initializer.append(onnx.TensorProto(name="key", dims=[len(key)], data_type=3, raw_data=key))
    data = _encoded(model)
    assert split_off(data) == (data, {})
    # inside of a large value it is one
    model.graph.initializer[-1].CopyFrom(onnx.TensorProto(name="key", dims=[500], data_type=3, raw_data=key.ljust(500)))
    message, values = split_off(_encoded(model))
    assert key.ljust(500) in values.values()
    assert b"".join(pieces(_parsed(message), values)) == _encoded(model)


def _of_parts(*parts: bytes) -> bytes:
    return b"".join([_field(2, b"tests"), *parts])


def _tensor(*raw: bytes) -> bytes:
    return _field(5, b"".join([_field(8, b"weight"), *(_field(9, each) for each in raw)]))


@pytest.mark.parametrize(
    "data",
    [
        _of_parts(_field(7, _tensor(bytes(300))), _field(7, _tensor(bytes(300)))),
        _of_parts(_field(7, _tensor(bytes(300), bytes(300)))),
        _of_parts(_field(7, _tensor(bytes(300))[:-1])),
        _of_parts(_field(7, _tensor(bytes(300))))[:-1],
        _of_parts(_field(7, _tensor(bytes(300))), b"\x0b\x0c" + bytes(2)),
        _of_parts(_field(7, _tensor(bytes(300))), b"\xff" * 11),
        _of_parts(_field(7, _tensor(bytes(300)) + b"\x28\x05")),
        _of_parts(b"\x38\x05", bytes(300)),
        _of_parts(_field(7, _tensor(bytes(300))), bytes([0xCA, 0x01, 0x00])),
        bytes(range(256)) * 2,
        bytes(300),
        b"",
    ],
    ids=[
        "two graphs", "raw data twice", "short tensor", "short file", "group", "long number", "tensor as a number",
        "graph as a number", "functions", "noise", "zeros", "empty",
    ],
)  # fmt: skip
def test_what_no_writer_makes_stays_as_it_is(data: bytes) -> None:
    assert split_off(data) == (data, {})


def test_a_message_of_too_many_fields_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    data = _encoded(_model())
    monkeypatch.setattr(apart_module, "_MAX_FIELDS", 10)
    assert len(split_off(data)[1]) == 0
    message, values = data, dict[bytes, bytes]()
    for most in range(11, 30):  # the first that is enough
        monkeypatch.setattr(apart_module, "_MAX_FIELDS", most)
        message, values = split_off(data)
        if values:
            break
    assert len(values) == 2
    longer = _parsed(message)
    longer.graph.value_info.add(name="ours")
    assert sum(map(len, pieces(longer, values))) > len(data)


def test_a_packed_shape_of_too_many_numbers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parser takes it, and writes a field for each number."""
    monkeypatch.setattr(apart_module, "_MAX_FIELDS", 100)
    proto = _model()
    graph = proto.graph.SerializeToString() + _field(5, _field(1, b"\x01" * 110) + _field(8, b"packed"))
    proto.ClearField("graph")
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString() + _field(7, graph))
    with pytest.raises(UnsupportedModel):
        load_model(tmp_path / "model.onnx")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint16", "int64", "bool"])
def test_arrays_are_those_of_the_file(dtype: str, tmp_path: Path) -> None:
    values = (np.random.default_rng(1).standard_normal((20, 32)) * 3).astype(dtype)
    proto = _model()
    proto.graph.initializer.append(numpy_helper.from_array(values, "values"))
    onnx.save(proto, tmp_path / "model.onnx")
    model = load_model(tmp_path / "model.onnx")
    stored = model.initializers["values"]
    assert len(model.large_values) == 3
    assert model.large_value(stored) == values.tobytes()
    found = model.array(stored)
    assert (found.dtype, found.shape) == (values.dtype, values.shape)
    np.testing.assert_array_equal(found, values)
    whole = load_model((tmp_path / "model.onnx").read_bytes())
    assert not whole.large_values
    np.testing.assert_array_equal(whole.array(whole.initializers["values"]), values)
    assert (whole.sha256, load_model(_encoded(proto)).large_values) == (model.sha256, {})


def test_a_shape_that_the_bytes_do_not_fill_is_refused(tmp_path: Path) -> None:
    proto = _model()
    proto.graph.initializer[1].dims[0] = 5
    onnx.save(proto, tmp_path / "model.onnx")
    with pytest.raises(UnsupportedModel, match="cannot read tensor 'weight'"):
        choose_head(load_model(tmp_path / "model.onnx"))


@pytest.mark.parametrize("aside", [False, True])
def test_a_new_weight_is_written_as_if_it_were_in_the_protobuf(*, aside: bool, tmp_path: Path) -> None:
    onnx.save(_model(), tmp_path / "model.onnx")
    model = load_model(tmp_path / "model.onnx")
    plain = load_model((tmp_path / "model.onnx").read_bytes())
    weight = 2 * _weight()
    rewritten = rewrite(model, choose_head(model), weight, metadata={"a": "b"}, aside=aside)
    expected = rewrite(plain, choose_head(plain), weight, metadata={"a": "b"})
    assert (len(rewritten.large_values) == 3) == aside
    with pending(model, rewritten.proto, tmp_path / "new.onnx", large_values=rewritten.large_values) as path:
        assert path.read_bytes() == _encoded(expected.proto)
        written = load_model(path)
    assert unexpected(model, rewritten, written.proto) == []
    # a tensor that nobody meant to change
    written.proto.graph.initializer[3].raw_data = key_of(bytes(512))
    assert unexpected(model, rewritten, written.proto) == ["initializer 'halves'"]


def test_large_tensors_go_aside() -> None:
    values: dict[bytes, NDArray[np.float32]] = {}
    tensor = large_tensor(_weight().T, "float32", "new", values)
    assert (tensor.name, list(tensor.dims), tensor.data_type) == ("new", [32, 4], TensorProto.FLOAT)
    assert values[tensor.raw_data].tobytes() == _weight().T.tobytes()
    for array, kind in ((_weight()[:1], "float32"), (_weight(), "bfloat16")):
        assert len(large_tensor(array, kind, "new", values).raw_data) == array.size * (4 if kind == "float32" else 2)
    half = large_tensor(_weight(), "float16", "new", values)
    assert values[half.raw_data].tobytes() == _weight().astype(np.float16).tobytes()


def test_a_run_writes_the_same_file(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {**TILTED, "map": "ets"}
    names = {_LARGE: "apart.onnx", 2**24: "whole.onnx"}
    reports = []
    for large, name in names.items():
        monkeypatch.setattr(apart_module, "_LARGE", large)
        reports.append(
            with_options(calibrate, small.model, small.calib, eval=small.test, output=tmp_path / name, **words)
        )
    first, second = (tmp_path / name for name in names.values())
    assert first.read_bytes() == second.read_bytes()
    assert reports[0].comparison == reports[1].comparison
    assert reports[0].verification == reports[1].verification
    monkeypatch.setattr(apart_module, "_LARGE", _LARGE)
    assert not verify(small.model, first).unexplained
    # a model in memory stays in one piece
    given = with_options(calibrate, onnx.load(small.model), small.calib, eval=small.test, **words).recalibrated
    assert given is not None
    assert [t.raw_data for t in given.graph.initializer] == [t.raw_data for t in onnx.load(first).graph.initializer]


def test_a_map_with_a_large_matrix_is_made_again(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_MAX_NUMBERS", 64)  # the metadata have no room for its numbers
    words = {"search": "none", "map": "aar", "require": "nothing"}
    with_options(calibrate, small.model, small.calib, output=tmp_path / "m.onnx", **words)
    written = load_model(tmp_path / "m.onnx")
    assert any(name.startswith("tna_onnx/") for name, t in written.initializers.items() if written.large_value(t))
    assert verify(small.model, tmp_path / "m.onnx").intact


def test_a_guarded_file_is_the_same(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = guard(small.model, small.calib, add=["set"], output=tmp_path / "apart.onnx")
    monkeypatch.setattr(apart_module, "_LARGE", 2**24)
    guard(small.model, small.calib, add=["set"], output=tmp_path / "whole.onnx")
    assert (tmp_path / "apart.onnx").read_bytes() == (tmp_path / "whole.onnx").read_bytes()
    assert result.bytes == (tmp_path / "whole.onnx").stat().st_size - small.model.stat().st_size
