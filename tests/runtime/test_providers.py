"""Models that do not load, and every way in which CUDA or ONNX Runtime can be missing."""

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.runtime.fakes import CPU, CUDA, inputs, product
from tna_onnx.errors import DeviceError, UnsupportedModel
from tna_onnx.runtime import Device, open_session, providers, runtime_version

# --- models


@pytest.mark.parametrize("as_file", [False, True])
@pytest.mark.parametrize("data", [b"", b"not a model", product("N")[:-40]])
def test_models_that_do_not_load(data: bytes, as_file: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(UnsupportedModel) as caught:
        open_session(path if as_file else data, "the model", Device("cpu"))
    assert str(caught.value).startswith(f"the model: ONNX Runtime {onnxruntime.__version__} cannot load the model: ")
    assert "\n" not in str(caught.value)
    assert tuple(capfd.readouterr()) == ("", "")


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


def test_bytes_are_never_made_a_text() -> None:
    """Which takes four characters for most of them, and seconds of a large model."""

    class Content(bytes):
        def __str__(self) -> str:
            raise AssertionError("a text of a model in memory")

    session = open_session(Content(product("N")), "the model", Device("cpu"))
    assert session.run(["y"], inputs(3))[0].shape == (3, 3)


# --- CUDA, with an ONNX Runtime that is not there


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


@pytest.mark.parametrize(("built", "kind"), [([CPU], "auto"), ([CUDA, CPU], "cpu")])
def test_the_cpu_never_touches_cuda(built: list[str], kind: str, install: Any) -> None:
    fake = install(built, [CPU])
    session = open_session(b"", "model.onnx", Device(kind))
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
        "use_tf32": 1,
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
    }
    assert capsys.readouterr().out == ""  # stdout is for results: `--json` is read by programs


MISSING = "libcublasLt.so.12: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize("case", [None, MISSING])
def test_cuda_that_is_not_obtained(
    case: str | None, install: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = install([CUDA, CPU], [CPU])
    asked = _loader(monkeypatch, None if case is None else OSError(case))
    with pytest.raises(DeviceError) as caught:
        open_session(b"", "model.onnx", Device("cuda", 3))
    reason = case or "no such device answers"
    for fragment in ("device cuda:3 was asked for", f"gave {CPU}", "--device cpu", "tna-onnx[gpu]", reason):
        assert fragment in str(caught.value)
    session = open_session(b"", "model.onnx", Device("auto"))
    assert session.provider == CPU
    assert reason in session.fallback
    assert {*asked} == {str(Path(fake.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so")}
    assert capsys.readouterr().out == ""


def test_what_cuda_says_is_told(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version"
    fake = install([CUDA, CPU], [CPU])
    _loader(monkeypatch, None)
    fake.printed = (
        f"EP Error /onnxruntime/cuda_call.cc:123 {said} ; GPU=-1 ; hostname=h ; expr=cudaSetDevice(0);\nFalling back"
    )
    with pytest.raises(DeviceError) as caught:
        open_session(b"", "model.onnx", Device("cuda"))
    assert said in str(caught.value)
    assert open_session(b"", "model.onnx", Device("auto")).fallback.startswith(said)


def test_options_of_a_session(install: Any, tmp_path: Path) -> None:
    fake = install([CPU], [CPU])
    open_session(b"", "model.onnx", Device("cpu"))
    open_session(b"", "model.onnx", Device("cpu"), folder=tmp_path)
    plain, other = fake.options
    always = {
        "session.qdq_matmulnbits_accuracy_level": "1",  # level 4 would quantise the features
        "session.intra_op.allow_spinning": "0",
    }
    folder = "session.model_external_initializers_file_folder_path"
    assert plain.entries == {**always, folder: os.devnull}  # bytes have no external data in the working folder
    assert other.entries == {**always, folder: str(tmp_path)}
    for options in (plain, other):  # the numbers are those of a session as users open it
        assert not hasattr(options, "graph_optimization_level")


# --- cores


@pytest.mark.parametrize(("allowed", "threads"), [(8, None), (3, 3), (1, 1)])
def test_no_more_threads_than_cores_that_may_be_used(
    allowed: int, threads: int | None, install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(providers, "allowed_cores", lambda: allowed)
    fake = install([CPU], [CPU])
    open_session(b"", "model.onnx", Device("cpu"))
    assert getattr(fake.options[0], "intra_op_num_threads", None) == threads  # None: ONNX Runtime's own choice


# --- ONNX Runtime itself


@pytest.mark.parametrize("error", [KeyboardInterrupt, TypeError])
def test_errors_of_others_pass(error: type[BaseException], install: Any) -> None:
    fake = install([CPU], [CPU])

    def fail(*_: Any, **__: Any) -> None:
        raise error("not the runtime's own")

    fake.InferenceSession = fail
    with pytest.raises(error, match="not the runtime's own"):
        open_session(b"", "model.onnx", Device("cpu"))


@pytest.mark.parametrize(
    "content", [None, "", "from onnxruntime.capi import nothing", "raise RuntimeError('lib of another version')"]
)
def test_installed_in_part(content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removing one of two wheels leaves a folder, or files that do not fit together."""
    (tmp_path / "onnxruntime").mkdir()
    if content is not None:
        (tmp_path / "onnxruntime" / "__init__.py").write_text(content)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # a folder without a file counts only where no package does
    for name in [name for name in sys.modules if name.partition(".")[0] == "onnxruntime"]:
        monkeypatch.delitem(sys.modules, name)
    for call in (runtime_version, lambda: open_session(b"", "model.onnx", Device("auto"))):
        with pytest.raises(DeviceError) as caught:
            call()
        for fragment in ("in part only", "pip uninstall -y onnxruntime onnxruntime-gpu", "tna-onnx[cpu]"):
            assert fragment in str(caught.value)
    for name in [name for name in sys.modules if name.partition(".")[0] == "onnxruntime"]:
        monkeypatch.delitem(sys.modules, name)


def test_what_is_said_about_the_device_reaches_the_provider(install: Any) -> None:
    fake = install([CUDA, CPU], [CUDA, CPU])
    session = open_session(b"", "m", Device("cuda", 1, tf32=False, memory=2**30))
    (_, options), _ = fake.providers[0]
    assert (options["use_tf32"], options["gpu_mem_limit"]) == (0, 2**30)
    assert not session.tf32
    assert open_session(b"", "m", Device("cuda")).tf32
    install([CPU], [CPU])
    assert not open_session(b"", "m", Device("cpu")).tf32  # which has no such thing


def test_weights_that_do_not_fit(install: Any) -> None:
    fake = install([CUDA, CPU], [CUDA, CPU])

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("Failed to allocate memory for requested buffer of size 8")

    fake.InferenceSession = fail
    for kind in ("auto", "cuda"):
        with pytest.raises(DeviceError, match="do not fit on the device"):
            open_session(b"", "m", Device(kind))
