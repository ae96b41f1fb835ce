"""Runs of any number of samples: in portions, as bfloat16, and out of memory."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.builders import nodes_of, small_model
from tests.runtime.fakes import CPU, WEIGHT, Exhausted, Recorded, fail_with, inputs, product, record
from tna_onnx.errors import DataError, DeviceError, UnsupportedModel
from tna_onnx.runtime import Device, OutOfMemory, open_session

# --- batches


@pytest.mark.parametrize("count", [1, 3, 4, 7, 8])
@pytest.mark.parametrize("batch", ["N", None, 1, 4])
def test_any_number_of_samples(batch: int | str | None, count: int) -> None:
    session = open_session(product(batch), "model.onnx", Device("cpu"))
    feeds = inputs(count)
    copies = {name: array.copy() for name, array in feeds.items()}
    y, y2 = session.run(["y", "y2"], feeds)
    for found, array in ((y, feeds["x"]), (y2, feeds["x2"])):
        assert found.shape == (count, 3)
        # four products and three sums, each rounded once
        bound = 8 * np.finfo(np.float32).eps * (np.abs(array) @ np.abs(WEIGHT))
        assert np.all(np.abs(found - array @ WEIGHT) <= bound)
    for name, array in copies.items():
        np.testing.assert_array_equal(feeds[name], array)


def test_a_fixed_batch_is_fed_in_whole_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_session(product(4), "model.onnx", Device("cpu"))
    recorded = record(session, monkeypatch)
    feeds = inputs(7)
    session.run(["y"], feeds)
    fed = [portion["x"] for portion in recorded.fed]
    assert [len(portion) for portion in fed] == [4, 4]
    np.testing.assert_array_equal(np.concatenate(fed)[:7], feeds["x"])
    np.testing.assert_array_equal(fed[1][3], feeds["x"][6])  # padded with the last sample


def test_a_batch_size_that_the_inputs_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_session(product("N"), "model.onnx", Device("cpu"), fixed_batch=4)
    recorded = record(session, monkeypatch)
    feeds = inputs(6)
    y = session.run(["y"], feeds)[0]
    assert [len(portion["x"]) for portion in recorded.fed] == [4, 4]
    expected = open_session(product(4), "model.onnx", Device("cpu")).run(["y"], feeds)[0]
    np.testing.assert_array_equal(y, expected)


def test_two_batches_at_a_time_may_both_find_that_the_network_takes_one_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = nodes_of("Reshape x row > one_row; MatMul one_row weight > y")
    tensors = {"row": np.array([1, 4]), "weight": WEIGHT}
    model = small_model(nodes, {"x": ["N", 4]}, {"y": ["N", 3]}, tensors)
    session = open_session(model.SerializeToString(), "model.onnx", Device("cpu"))
    x = inputs(5)["x"]

    class Meanwhile(Recorded):
        def run(self, outputs: list[str], feeds: dict[str, np.ndarray]) -> Any:
            first = not self.fed
            self.fed.append(feeds)
            if first:  # as another thread would
                session.run(["y"], {"x": x[3:]})
            return self._inner.run(outputs, feeds)

    monkeypatch.setattr(session, "_session", Meanwhile(session._session))
    np.testing.assert_allclose(session.run(["y"], {"x": x[:3]})[0], x[:3] @ WEIGHT, rtol=1e-5, atol=1e-6)
    assert session.alone


def test_an_array_without_a_row_per_sample_goes_into_every_portion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not padded either, where it is as long as the last portion."""
    nodes = [helper.make_node("Mul", ["x", "scale"], ["y"])]
    model = small_model(nodes, {"x": [4, 3], "scale": [3]}, {"y": [4, 3]})
    session = open_session(model.SerializeToString(), "model.onnx", Device("cpu"))
    recorded = record(session, monkeypatch)
    x = np.arange(21, dtype=np.float32).reshape(7, 3)
    scale = np.array([1, 2, 4], np.float32)
    np.testing.assert_array_equal(session.run(["y"], {"x": x, "scale": scale})[0], x * scale)
    assert [portion["scale"].tolist() for portion in recorded.fed] == [[1, 2, 4], [1, 2, 4]]


@pytest.mark.parametrize(("batch", "size"), [("N", None), (None, None), (4, 4)])
def test_inputs_of_a_session(batch: int | str | None, size: int | None) -> None:
    session = open_session(product(batch), "model.onnx", Device("cpu"))
    assert [(i.name, i.shape, i.dtype) for i in session.inputs] == [
        ("x", (size, 4), np.float32),
        ("x2", (size, 4), np.float32),
    ]
    assert (session.provider, session.fallback) == (CPU, "")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "int32", "uint32", "uint64"])
def test_element_types(dtype: str) -> None:
    session = open_session(product("N", dtype), "model.onnx", Device("cpu"))
    assert {i.dtype for i in session.inputs} == {np.dtype(dtype)}


def test_an_input_that_cannot_be_fed() -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    parts, same = (helper.make_value_info(name, kind) for name in ("parts", "same"))
    model = small_model([helper.make_node("Identity", ["parts"], ["same"])], [parts], [same])
    with pytest.raises(
        UnsupportedModel, match=r"model\.onnx: input 'parts' is seq\(tensor\(float\)\); expected tensor"
    ):
        open_session(model.SerializeToString(), "model.onnx", Device("cpu"))


@pytest.mark.parametrize("wrong", [np.zeros((3, 5), np.float32), np.zeros((3, 4)), np.zeros((3, 4, 1), np.float32)])
def test_data_that_the_model_does_not_take(wrong: np.ndarray) -> None:
    session = open_session(product("N"), "model.onnx", Device("cpu"))
    with pytest.raises(DataError, match=r"model\.onnx: ONNX Runtime could not run a batch of 3: ") as caught:
        session.run(["y"], {"x": wrong, "x2": np.zeros((3, 4), np.float32)})
    assert "\n" not in str(caught.value)


# --- memory


@pytest.mark.parametrize(
    "error",
    [
        Exhausted("BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 6442450944"),
        Exhausted("CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMalloc((void**)&p, size);"),
        Exhausted("Available memory of 1024 is smaller than requested bytes of 4096"),
        Exhausted("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0"),
        MemoryError("std::bad_alloc"),
    ],
)
def test_no_memory_for_a_batch(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_session(product("N"), "model.onnx", Device("cpu"))
    fail_with(session, error, monkeypatch)
    with pytest.raises(OutOfMemory, match=r"no memory for a batch of 3 on .*; choose a smaller --batch-size"):
        session.run(["y"], inputs(3))


def test_other_failures_are_not_about_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_session(product("N"), "model.onnx", Device("cpu"))
    fail_with(session, Exhausted("Got invalid dimensions for input: x"), monkeypatch)
    with pytest.raises(DataError) as caught:
        session.run(["y"], inputs(3))
    assert not isinstance(caught.value, OutOfMemory)


@pytest.mark.parametrize(
    "text",
    [
        "cuDNN is not available. Install cuDNN",
        "cuDNN is unavailable for CUDA Execution Provider",
        "cuFFT is not available",
    ],
)
def test_a_library_that_is_missing(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_session(product("N"), "model.onnx", Device("cpu"))
    fail_with(session, Exhausted(f"NOT_IMPLEMENTED : while running Conv node. {text}"), monkeypatch)
    with pytest.raises(DeviceError, match=r"tna-onnx\[gpu\]"):
        session.run(["y"], inputs(3))


def test_a_real_allocation_that_fails() -> None:
    """Expanded to 2^50 bytes: no machine gives that."""
    model = small_model(
        [helper.make_node("Expand", ["x", "shape"], ["y"])],
        inputs={"x": ["N", 1]},
        outputs={"y": ["N", None]},
        tensors={"shape": np.array([1, 2**47])},
    )
    session = open_session(model.SerializeToString(), "model.onnx", Device("cpu"))
    with pytest.raises(OutOfMemory, match="no memory for a batch of 2"):
        session.run(["y"], {"x": np.ones((2, 1), np.float32)})


@pytest.mark.parametrize("asked", [["y", "z"], ["z", "y", "y"]])
def test_bfloat16_comes_as_float32(asked: list[str]) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16), helper.make_node("Neg", ["x"], ["z"])]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("x", TensorProto.FLOAT, ["N", 3])],
        [info("y", TensorProto.BFLOAT16, ["N", 3]), info("z", TensorProto.FLOAT, ["N", 3])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = open_session(model.SerializeToString(), "model.onnx", Device("cpu"))
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32).T  # a binding wants C order
    x[0] = [np.inf, -0.0, 1.00390625]  # halfway between two bfloat16 numbers: to the even one, 1
    results = session.run(asked, {"x": x})
    y, z = (results[asked.index(name)] for name in ("y", "z"))
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y[0], np.array([np.inf, -0.0, 1], np.float32))
    np.testing.assert_allclose(y[1:], x[1:], rtol=2**-8)
    assert not np.any(y.view(np.uint32) & 0xFFFF)
    np.testing.assert_array_equal(z, -x)
