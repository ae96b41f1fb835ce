"""ONNX Runtime: devices, batches, and every way in which CUDA can be missing."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import tna_onnx.runtime
from tna_onnx.errors import DataError, DeviceError, UnsupportedModel, UsageError
from tna_onnx.runtime import Device, OutOfMemory, open_session, parse_device, runtime_version

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
WEIGHT = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


def product(batch: int | str | None, element: int = onnx.TensorProto.FLOAT) -> bytes:
    """y = x @ WEIGHT, and y2 = the same from the second input."""
    inputs = [helper.make_tensor_value_info(name, element, [batch, 4]) for name in ("x", "x2")]
    outputs = [helper.make_tensor_value_info(name, element, [batch, 3]) for name in ("y", "y2")]
    nodes = [helper.make_node("MatMul", ["x", "weight"], ["y"]), helper.make_node("MatMul", ["x2", "weight"], ["y2"])]
    weight = numpy_helper.from_array(WEIGHT.astype(helper.tensor_dtype_to_np_dtype(element)), "weight")
    graph = helper.make_graph(nodes, "product", inputs, outputs, [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def inputs(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(count)
    return {name: rng.standard_normal((count, 4)).astype(np.float32) for name in ("x", "x2")}


# --- devices


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("auto", Device("auto")),
        ("cpu", Device("cpu")),
        ("cuda", Device("cuda", 0)),
        ("cuda:0", Device("cuda", 0)),
        ("cuda:15", Device("cuda", 15)),
    ],
)
def test_parse_device(text: str, device: Device) -> None:
    assert parse_device(text) == device


@pytest.mark.parametrize(
    "text",
    ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:x", "cuda:1 ", "cpu:0", "auto:1", "cuda:1:2", "cpu\n"],
)
def test_other_devices(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_device(text)
    assert str(caught.value) == f"device '{text}' is not known; expected auto, cpu, cuda or cuda:INDEX"


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
    fed: list[np.ndarray] = []
    inner = session._session

    def run(outputs: list[str], feeds: dict[str, np.ndarray]) -> Any:
        fed.append(feeds["x"])
        return inner.run(outputs, feeds)

    monkeypatch.setattr(session, "_session", SimpleNamespace(run=run))
    feeds = inputs(7)
    session.run(["y"], feeds)
    assert [len(portion) for portion in fed] == [4, 4]
    np.testing.assert_array_equal(np.concatenate(fed)[:7], feeds["x"])
    np.testing.assert_array_equal(fed[1][3], feeds["x"][6])  # padded with the last sample


@pytest.mark.parametrize(("batch", "size"), [("N", None), (None, None), (4, 4)])
def test_inputs_of_a_session(batch: int | str | None, size: int | None) -> None:
    session = open_session(product(batch), "model.onnx", Device("cpu"))
    assert [(i.name, i.shape, i.dtype) for i in session.inputs] == [
        ("x", (size, 4), np.float32),
        ("x2", (size, 4), np.float32),
    ]
    assert (session.provider, session.fallback) == (CPU, "")


@pytest.mark.parametrize("element", ["FLOAT16", "FLOAT", "DOUBLE", "INT64", "INT32", "UINT32", "UINT64"])
def test_element_types(element: str) -> None:
    code = onnx.TensorProto.DataType.Value(element)
    session = open_session(product("N", code), "model.onnx", Device("cpu"))
    assert {i.dtype for i in session.inputs} == {helper.tensor_dtype_to_np_dtype(code)}


def test_an_input_that_cannot_be_fed() -> None:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["words"], ["same"])],
        "words",
        [helper.make_tensor_value_info("words", onnx.TensorProto.STRING, ["N"])],
        [helper.make_tensor_value_info("same", onnx.TensorProto.STRING, ["N"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(UnsupportedModel, match=r"model\.onnx: input 'words' is tensor\(string\); expected tensor"):
        open_session(model.SerializeToString(), "model.onnx", Device("cpu"))


@pytest.mark.parametrize("wrong", [np.zeros((3, 5), np.float32), np.zeros((3, 4)), np.zeros((3, 4, 1), np.float32)])
def test_data_that_the_model_does_not_take(wrong: np.ndarray) -> None:
    session = open_session(product("N"), "model.onnx", Device("cpu"))
    with pytest.raises(DataError, match=r"model\.onnx: ONNX Runtime could not run a batch of 3: "):
        session.run(["y"], {"x": wrong, "x2": np.zeros((3, 4), np.float32)})


@pytest.mark.parametrize("as_file", [False, True])
@pytest.mark.parametrize("data", [b"", b"not a model", product("N")[:-40]])
def test_models_that_do_not_load(data: bytes, as_file: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(UnsupportedModel) as caught:
        open_session(path if as_file else data, "the model", Device("cpu"))
    assert str(caught.value).startswith(f"the model: ONNX Runtime {onnxruntime.__version__} cannot load the model: ")
    assert capfd.readouterr().out == ""


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="cannot load"):
        open_session(tmp_path / "missing.onnx", "missing.onnx", Device("cpu"))


def test_bytes_with_external_data_beside_the_model(tmp_path: Path) -> None:
    onnx.save_model(
        onnx.ModelProto.FromString(product("N")), tmp_path / "model.onnx", save_as_external_data=True,
        location="weights.bin", size_threshold=0,
    )  # fmt: skip
    data, feeds = (tmp_path / "model.onnx").read_bytes(), inputs(3)
    session = open_session(data, "model.onnx", Device("cpu"), folder=tmp_path)
    expected = open_session(product("N"), "model.onnx", Device("cpu")).run(["y"], feeds)[0]
    np.testing.assert_array_equal(session.run(["y"], feeds)[0], expected)


# --- CUDA, with an ONNX Runtime that is not there


class FakeRuntime:
    """What `open_session` uses of onnxruntime: records what it was asked for, gives the providers it was made with."""

    __version__ = "1.99"

    def __init__(self, folder: Path, available: list[str], given: list[str], *, preload: bool = True) -> None:
        self.__file__ = str(folder / "onnxruntime" / "__init__.py")
        self.calls: list[str] = []
        self.options: list[SimpleNamespace] = []
        self.providers: list[Any] = []
        self._available, self._given = available, given
        self.GraphOptimizationLevel = SimpleNamespace(ORT_DISABLE_ALL="none")
        if preload:
            self.preload_dlls = self._preload

    def _preload(self) -> None:
        self.calls.append("preload_dlls")
        print("Failed to load libcublasLt.so.12")  # noqa: T201 - as the real one does

    def get_available_providers(self) -> list[str]:
        return self._available

    def SessionOptions(self) -> SimpleNamespace:  # noqa: N802 - onnxruntime's name
        self.options.append(SimpleNamespace(entries={}))
        self.options[-1].add_session_config_entry = self.options[-1].entries.__setitem__
        return self.options[-1]

    def InferenceSession(self, model: Any, options: Any, providers: list[Any]) -> SimpleNamespace:  # noqa: N802
        self.calls.append("InferenceSession")
        self.providers.append(providers)
        print("*************** EP Error ***************")  # noqa: T201 - as the real one does
        info = SimpleNamespace(name="x", shape=["N", 4], type="tensor(float)")
        return SimpleNamespace(
            get_providers=lambda: self._given,
            get_inputs=lambda: [info],
            disable_fallback=lambda: self.calls.append("disable_fallback"),
        )

    def library(self, content: bytes = b"") -> Path:
        """Put a file where the CUDA provider's library lies."""
        path = Path(self.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        return path


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that puts a fake ONNX Runtime in place."""

    def put(available: list[str], given: list[str], **options: Any) -> FakeRuntime:
        fake = FakeRuntime(tmp_path, available, given, **options)
        monkeypatch.setattr(tna_onnx.runtime, "_onnxruntime", lambda: fake)
        return fake

    return put


def _loader(monkeypatch: pytest.MonkeyPatch, error: OSError | None) -> list[str]:
    """Replace the dynamic loader; return the list of what it is asked for."""
    asked: list[str] = []

    def load(name: str) -> None:
        asked.append(name)
        if error:
            raise error

    monkeypatch.setattr(ctypes, "CDLL", load)
    return asked


def test_a_build_without_cuda(install: Any) -> None:
    fake = install(["AzureExecutionProvider", CPU], [CPU])
    with pytest.raises(DeviceError) as caught:
        open_session(b"", "model.onnx", Device("cuda"))
    for fragment in ("onnxruntime 1.99 has no CUDAExecutionProvider", CPU, "tna-onnx[gpu]", "--device cpu"):
        assert fragment in str(caught.value)
    assert fake.calls == []


def test_auto_on_a_build_without_cuda_is_the_cpu(install: Any) -> None:
    fake = install([CPU], [CPU])
    session = open_session(b"", "model.onnx", Device("auto"))
    assert (session.provider, session.fallback) == (CPU, "")
    assert fake.providers == [[CPU]]
    assert fake.calls == ["InferenceSession", "disable_fallback"]


@pytest.mark.parametrize("kind", ["auto", "cuda"])
def test_cuda_as_asked(kind: str, install: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fake = install([CUDA, CPU], [CUDA, CPU])
    session = open_session(b"", "model.onnx", Device(kind, 2))
    assert (session.provider, session.fallback) == (CUDA, "")
    assert fake.calls == ["preload_dlls", "InferenceSession", "disable_fallback"]
    (name, options), last = fake.providers[0]
    assert (name, last) == (CUDA, CPU)
    assert options == {
        "device_id": 2,
        "use_tf32": 0,
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
    }
    assert capsys.readouterr().out == ""  # stdout is for results: `--json` is read by programs


def test_an_older_runtime_without_preload(install: Any) -> None:
    fake = install([CUDA, CPU], [CUDA, CPU], preload=False)
    assert open_session(b"", "model.onnx", Device("cuda")).provider == CUDA
    assert fake.calls == ["InferenceSession", "disable_fallback"]


def test_cpu_never_touches_cuda(install: Any) -> None:
    fake = install([CUDA, CPU], [CPU])
    session = open_session(b"", "model.onnx", Device("cpu"))
    assert (session.provider, session.fallback) == (CPU, "")
    assert fake.providers == [[CPU]]
    assert "preload_dlls" not in fake.calls


MISSING = "libcublasLt.so.12: cannot open shared object file: No such file or directory"


def _why(case: str, fake: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Set one reason up why CUDA is not obtained; return what the message must say."""
    if case == "no provider library":
        return ["libonnxruntime_providers_cuda.so is not part of this onnxruntime", "tna-onnx[gpu]"]
    path = fake.library(b"not a library")
    if case == "broken library":
        return [str(path), "tna-onnx[gpu]"]
    asked = _loader(monkeypatch, OSError(MISSING) if case == "missing library" else None)
    monkeypatch.setattr(fake, "asked", asked, raising=False)
    if case == "missing library":
        return [MISSING, "tna-onnx[gpu]"]
    return ["libraries load", "no such device answers", "nvidia-smi"]


@pytest.mark.parametrize("case", ["no provider library", "broken library", "missing library", "no device"])
def test_cuda_that_is_not_obtained(
    case: str, install: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = install([CUDA, CPU], [CPU])
    fragments = _why(case, fake, monkeypatch)
    with pytest.raises(DeviceError) as caught:
        open_session(b"", "model.onnx", Device("cuda", 3))
    for fragment in ("device cuda:3 was asked for", f"gave {CPU}", "--device cpu", *fragments):
        assert fragment in str(caught.value)
    session = open_session(b"", "model.onnx", Device("auto"))
    assert session.provider == CPU
    for fragment in fragments:
        assert fragment in session.fallback
    if case in ("missing library", "no device"):
        assert set(fake.asked) == {str(Path(fake.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so")}
    assert capsys.readouterr().out == ""


def test_options_of_a_session(install: Any, tmp_path: Path) -> None:
    fake = install([CPU], [CPU])
    open_session(b"", "model.onnx", Device("cpu"))
    open_session(b"", "model.onnx", Device("cpu"), folder=tmp_path)
    plain, other = fake.options
    always = {
        "session.qdq_matmulnbits_accuracy_level": "1",  # level 4 would quantise the features
        "session.intra_op.allow_spinning": "0",
    }
    assert plain.entries == always
    assert other.entries == {**always, "session.model_external_initializers_file_folder_path": str(tmp_path)}
    for options in (plain, other):  # the numbers are those of a session as users open it
        assert not hasattr(options, "graph_optimization_level")


@pytest.mark.parametrize(
    ("limit", "machine", "allowed", "threads"),
    [
        (None, 8, 8, None),  # ONNX Runtime's own choice
        ("max 100000", 8, 8, None),
        ("200000 100000", 8, 8, 2),
        ("50000 100000", 8, 8, 1),
        ("900000 100000", 8, 8, None),
        (None, 8, 3, 3),
        ("400000 100000", 8, 3, 3),
    ],
)
def test_no_more_threads_than_cores_that_may_be_used(
    limit: str | None, machine: int, allowed: int, threads: int | None, install: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    path = tmp_path / "cpu.max"
    if limit is not None:
        path.write_text(f"{limit}\n")
    monkeypatch.setattr(tna_onnx.runtime.os, "cpu_count", lambda: machine)
    monkeypatch.setattr(tna_onnx.runtime.os, "sched_getaffinity", lambda _: {*range(allowed)}, raising=False)
    monkeypatch.setattr(tna_onnx.runtime._allowed_cores, "__defaults__", (path,))
    fake = install([CPU], [CPU])
    open_session(b"", "model.onnx", Device("cpu"))
    assert getattr(fake.options[0], "intra_op_num_threads", None) == threads


def test_fewer_threads_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    feeds = inputs(64)
    expected = open_session(product("N"), "model.onnx", Device("cpu")).run(["y"], feeds)[0]
    monkeypatch.setattr(tna_onnx.runtime, "_allowed_cores", lambda: 1)
    monkeypatch.setattr(tna_onnx.runtime.os, "cpu_count", lambda: 64)
    np.testing.assert_array_equal(
        open_session(product("N"), "model.onnx", Device("cpu")).run(["y"], feeds)[0], expected
    )


# --- bindings


class Bound:
    """A session that counts its runs and bindings; those of ONNX Runtime's CPU provider are real ones."""

    def __init__(self, inner: Any) -> None:
        self.plain, self.bound = 0, 0
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, outputs: list[str], feeds: dict[str, np.ndarray]) -> Any:
        self.plain += 1
        return self._inner.run(outputs, feeds)

    def run_with_iobinding(self, binding: Any) -> None:
        self.bound += 1
        self._inner.run_with_iobinding(binding)


def as_cuda(data: bytes, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Any, Bound]:
    """A session that takes itself for one on CUDA, with what counts its runs."""
    session = open_session(data, "model.onnx", Device("cpu"), **options)
    counting = Bound(session._session)
    monkeypatch.setattr(session, "_session", counting)
    monkeypatch.setattr(session, "provider", CUDA)
    return session, counting


@pytest.mark.parametrize("batch", ["N", 4])
@pytest.mark.parametrize("count", [1, 4, 7])
def test_a_binding_gives_what_a_run_gives(batch: int | str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    feeds = {name: np.asfortranarray(array) for name, array in inputs(count).items()}  # bindings want C order
    expected = open_session(product(batch), "model.onnx", Device("cpu")).run(["y2", "y"], feeds)
    session, counting = as_cuda(product(batch), monkeypatch)
    found = session.run(["y2", "y"], feeds)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert (counting.plain, counting.bound) == (0, 1 if batch == "N" else -(-count // 4))
    again = session.run(["y"], inputs(count + 1))[0]  # another shape, other outputs
    assert again.shape == (count + 1, 3)
    np.testing.assert_array_equal(found[0], expected[0])  # results are the caller's own


def test_the_cpu_needs_no_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    session, counting = as_cuda(product("N"), monkeypatch)
    monkeypatch.setattr(session, "provider", CPU)
    session.run(["y"], inputs(3))
    assert (counting.plain, counting.bound) == (1, 0)


def test_maps_are_not_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence of maps, as scikit-learn's converters give, has no place on a device."""
    scores = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 3])
    zipped = helper.make_value_info(
        "maps",
        helper.make_sequence_type_proto(
            helper.make_map_type_proto(
                onnx.TensorProto.INT64, helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
            )
        ),
    )
    node = helper.make_node("ZipMap", ["x"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2])
    graph = helper.make_graph([node], "zip", [scores], [zipped])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    session, counting = as_cuda(data, monkeypatch)
    np.testing.assert_array_equal(session.run(["maps"], {"x": x})[0], x)
    assert (counting.plain, counting.bound) == (1, 0)


@pytest.mark.parametrize("wrong", [np.zeros((3, 5), np.float32), np.zeros((3, 4)), np.zeros((3, 4, 1), np.float32)])
def test_a_binding_refuses_what_the_model_does_not_take(wrong: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = as_cuda(product("N"), monkeypatch)
    with pytest.raises(DataError, match=r"model\.onnx: ONNX Runtime could not run a batch of 3: "):
        session.run(["y"], {"x": wrong, "x2": np.zeros((3, 4), np.float32)})


# --- memory


class Exhausted(RuntimeError):
    """What ONNX Runtime raises is of a class of its own, from its module."""


Exhausted.__module__ = "onnxruntime.capi.onnxruntime_pybind11_state"


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

    def run(*_: Any) -> None:
        raise error

    monkeypatch.setattr(session, "_session", SimpleNamespace(run=run))
    with pytest.raises(OutOfMemory, match=r"no memory for a batch of 3 on .*; choose a smaller --batch-size"):
        session.run(["y"], inputs(3))


def test_other_failures_are_not_about_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_session(product("N"), "model.onnx", Device("cpu"))

    def run(*_: Any) -> None:
        raise Exhausted("Got invalid dimensions for input: x")

    monkeypatch.setattr(session, "_session", SimpleNamespace(run=run))
    with pytest.raises(DataError) as caught:
        session.run(["y"], inputs(3))
    assert not isinstance(caught.value, OutOfMemory)


def test_a_real_allocation_that_fails() -> None:
    """Expanded to 2^50 bytes: no machine gives that."""
    graph = helper.make_graph(
        [helper.make_node("Expand", ["x", "shape"], ["y"])],
        "huge",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 1])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", None])],
        [numpy_helper.from_array(np.array([1, 2**47]), "shape")],
    )
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    session = open_session(data, "model.onnx", Device("cpu"))
    with pytest.raises(OutOfMemory, match="no memory for a batch of 2"):
        session.run(["y"], {"x": np.ones((2, 1), np.float32)})


def test_a_batch_size_that_the_inputs_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_session(product("N"), "model.onnx", Device("cpu"), fixed_batch=4)
    fed: list[int] = []
    inner = session._session

    def run(outputs: list[str], feeds: dict[str, np.ndarray]) -> Any:
        fed.append(len(feeds["x"]))
        return inner.run(outputs, feeds)

    monkeypatch.setattr(session, "_session", SimpleNamespace(run=run))
    feeds = inputs(6)
    y = session.run(["y"], feeds)[0]
    assert fed == [4, 4]
    expected = open_session(product(4), "model.onnx", Device("cpu")).run(["y"], feeds)[0]
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("error", [KeyboardInterrupt, TypeError])
def test_errors_of_others_pass(error: type[BaseException], install: Any) -> None:
    fake = install([CPU], [CPU])

    def fail(*_: Any, **__: Any) -> None:
        raise error("not the runtime's own")

    fake.InferenceSession = fail
    with pytest.raises(error, match="not the runtime's own"):
        open_session(b"", "model.onnx", Device("cpu"))


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # import raises ImportError
    for call in (runtime_version, lambda: open_session(b"", "model.onnx", Device("auto"))):
        with pytest.raises(DeviceError) as caught:
            call()
        for fragment in ("not installed", "tna-onnx[cpu]", "tna-onnx[gpu]"):
            assert fragment in str(caught.value)


def test_version() -> None:
    assert runtime_version() == onnxruntime.__version__


@pytest.mark.parametrize(("module", "loaded"), [("tna_onnx.runtime", False), ("onnxruntime", True)])
def test_importing_the_module_does_not_import_onnxruntime(module: str, loaded: bool) -> None:
    """The second row shows that the check can fail."""
    script = f"import sys, {module}; print('onnxruntime' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == str(loaded)
