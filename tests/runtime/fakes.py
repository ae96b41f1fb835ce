"""A small model, a session that records its runs, and an ONNX Runtime with any providers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import DTypeLike
from onnx import helper

from tests.builders import small_model, tensor_info
from tna_onnx.runtime import Session

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
WEIGHT = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


def product(batch: int | str | None, dtype: DTypeLike = np.float32) -> bytes:
    """y = x @ WEIGHT, and y2 = the same from the second input."""
    inputs = [tensor_info(name, [batch, 4], dtype) for name in ("x", "x2")]
    outputs = [tensor_info(name, [batch, 3], dtype) for name in ("y", "y2")]
    nodes = [helper.make_node("MatMul", ["x", "weight"], ["y"]), helper.make_node("MatMul", ["x2", "weight"], ["y2"])]
    return small_model(nodes, inputs, outputs, {"weight": WEIGHT.astype(dtype)}).SerializeToString()


def inputs(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(count)
    return {name: rng.standard_normal((count, 4)).astype(np.float32) for name in ("x", "x2")}


class Recorded:
    """A session of ONNX Runtime that records what it is fed."""

    def __init__(self, inner: Any) -> None:
        self.fed: list[dict[str, np.ndarray]] = []
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, outputs: list[str], feeds: dict[str, np.ndarray]) -> Any:
        self.fed.append(feeds)
        return self._inner.run(outputs, feeds)


def record(session: Session, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Record the runs of a session from now on."""
    recorded = Recorded(session._session)
    monkeypatch.setattr(session, "_session", recorded)
    return recorded


def fail_with(session: Session, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every run of a session raise an error."""

    def run(*_: Any) -> None:
        raise error

    monkeypatch.setattr(session, "_session", SimpleNamespace(run=run))


class Exhausted(RuntimeError):
    """What ONNX Runtime raises is of a class of its own, from its module."""


Exhausted.__module__ = "onnxruntime.capi.onnxruntime_pybind11_state"


class FakeRuntime:
    """What `open_session` uses of onnxruntime: records what it was asked for, gives the providers it was made with."""

    __version__ = "1.99"

    def __init__(self, folder: Path, available: list[str], given: list[str], *, preload: bool = True) -> None:
        self.__file__ = str(folder / "onnxruntime" / "__init__.py")
        self.calls: list[str] = []
        self.options: list[SimpleNamespace] = []
        self.providers: list[Any] = []
        self.printed = "*************** EP Error ***************"
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
        print(self.printed)  # noqa: T201 - as the real one does
        info = SimpleNamespace(name="x", shape=["N", 4], type="tensor(float)")
        return SimpleNamespace(
            get_providers=lambda: self._given,
            get_inputs=lambda: [info],
            get_outputs=list,
            disable_fallback=lambda: self.calls.append("disable_fallback"),
        )
