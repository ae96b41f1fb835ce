"""ONNX Runtime: sessions on a device, and batched runs. The only module that imports onnxruntime."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError, DeviceError, UnsupportedModel, UsageError

__all__ = ["Device", "OutOfMemory", "Session", "TensorInfo", "open_session", "parse_device", "runtime_version"]

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int16)": "int16",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(uint16)": "uint16",
    "tensor(uint32)": "uint32",
    "tensor(uint64)": "uint64",
    "tensor(bool)": "bool",
}
_CUDA = "CUDAExecutionProvider"
_CPU = "CPUExecutionProvider"

# What ONNX Runtime and the CUDA libraries say when a buffer cannot be had.
_NO_MEMORY = re.compile(
    "failed to allocate memory|smaller than requested bytes|out of memory|bad allocation|bad_alloc|_ALLOC_FAILED",
    re.IGNORECASE,
)

_CUDA_OPTIONS = {
    # TF32 keeps 10 bits of the mantissa: features would not be those of the deployed float32 model.
    "use_tf32": 0,
    # The default tries every algorithm for each new shape, the shorter last batch as well, and takes the fastest: slow,
    # and two runs may take different ones.
    "cudnn_conv_algo_search": "HEURISTIC",
    # The default doubles the arena each time, and so runs out of memory with half of it unused.
    "arena_extend_strategy": "kSameAsRequested",
}


class OutOfMemory(DataError):
    """A batch does not fit into the memory of the device."""


@dataclass(frozen=True)
class Device:
    """What `--device` asked for: `auto`, `cpu` or `cuda`, with the index of the CUDA device."""

    kind: str
    index: int = 0


@dataclass(frozen=True)
class TensorInfo:
    """A model input: name, shape (None for a dynamic dimension) and NumPy dtype."""

    name: str
    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]


def parse_device(text: str) -> Device:
    """Read `auto`, `cpu`, `cuda` or `cuda:1`.

    Raises:
        UsageError: anything else.

    >>> parse_device("cuda:1")
    Device(kind='cuda', index=1)
    """
    match = re.fullmatch(r"(auto|cpu|cuda)(?::(\d+))?", text)
    if match is None or (match[2] and match[1] != "cuda"):
        raise UsageError(f"device '{text}' is not known; expected auto, cpu, cuda or cuda:INDEX")
    return Device(match[1], int(match[2] or 0))


class Session:
    """One model on one device.

    Attributes:
        inputs: what has to be fed.
        provider: the execution provider obtained, first of ONNX Runtime's list.
        fallback: why `auto` did not get a CUDA device that seemed to be there; empty otherwise.
        fixed_batch: batch size that the model insists on, if any.
    """

    def __init__(self, session: Any, name: str, fallback: str = "", fixed_batch: int | None = None) -> None:
        self._session, self._name = session, name
        self.provider = str(session.get_providers()[0])
        self.fallback = fallback
        self.inputs = tuple(_tensor_info(i, name) for i in session.get_inputs())
        self.fixed_batch = fixed_batch or _fixed_batch(self.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return tuple(str(output.name) for output in self._session.get_outputs())

    def run(self, outputs: Sequence[str], feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Run one batch of any size; a model with a fixed batch is fed in its own portions, the last one padded.

        Returns:
            One array per output, leading axis N. A sequence of maps gives (N, labels), columns sorted by label.

        Raises:
            OutOfMemory: the batch is too large.
            DataError: ONNX Runtime refuses the data.
        """
        n = len(next(iter(feeds.values())))
        size = self.fixed_batch or n
        portions = [self._portion(outputs, feeds, start, min(size, n - start), size) for start in range(0, n, size)]
        return portions[0] if len(portions) == 1 else [np.concatenate(parts) for parts in zip(*portions, strict=True)]

    def _portion(
        self, outputs: Sequence[str], feeds: Mapping[str, NDArray[Any]], start: int, count: int, size: int
    ) -> list[NDArray[Any]]:
        n = len(next(iter(feeds.values())))
        portion = {k: a[start : start + count] if a.ndim and len(a) == n else a for k, a in feeds.items()}
        if count < size:
            portion = {
                k: np.concatenate([a, np.repeat(a[-1:], size - count, axis=0)]) if a.ndim and len(a) == count else a
                for k, a in portion.items()
            }
        try:
            results = self._on_device(list(outputs), portion)
        except Exception as error:  # onnxruntime raises its own classes, not exported as a family
            # of a binding they come as plain RuntimeError
            ours = type(error).__module__.partition(".")[0] == "onnxruntime" or type(error) is RuntimeError
            if isinstance(error, MemoryError) or (ours and _NO_MEMORY.search(str(error))):
                raise OutOfMemory(
                    f"{self._name}: no memory for a batch of {count} on {self.provider}; choose a smaller --batch-size "
                    f"({error})"
                ) from error
            if not ours:
                raise
            raise DataError(f"{self._name}: ONNX Runtime could not run a batch of {count}: {error}") from error
        arrays = [_array(result) for result in results]
        return [array[:count] for array in arrays] if count < size else arrays

    def _on_device(self, outputs: list[str], feeds: Mapping[str, NDArray[Any]]) -> Any:
        """Run; on CUDA through a binding: inputs go to the device as they are bound, tensors come back at the end."""
        if self.provider != _CUDA or not self._all_tensors(outputs):
            return self._session.run(outputs, feeds)
        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, np.asarray(array, order="C"))
        for name in outputs:
            binding.bind_output(name)
        self._session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()

    def _all_tensors(self, outputs: Sequence[str]) -> bool:
        """Whether no output is a sequence of maps, which has no place on a device."""
        kinds = {info.name: str(info.type) for info in self._session.get_outputs()}
        return all(kinds.get(name, "").startswith("tensor(") for name in outputs)


def open_session(
    model: bytes | Path,
    name: str,
    device: Device,
    *,
    folder: Path | None = None,
    fixed_batch: int | None = None,
) -> Session:
    """Open a session and check that it runs where it was asked to.

    Args:
        model: serialised model, or the path of a file.
        name: what messages call it.
        device: where to run. `auto` takes CUDA if it can be had.
        folder: where external data of a serialised model lie.
        fixed_batch: batch size that the model insists on, where its inputs do not say so.

    Raises:
        DeviceError: ONNX Runtime is not installed, or CUDA was asked for and is not obtained.
        UnsupportedModel: ONNX Runtime cannot load the model.
    """
    ort = _onnxruntime()
    available = ort.get_available_providers()
    wanted = device.kind == "cuda" or (device.kind == "auto" and _CUDA in available)
    if wanted and _CUDA not in available:
        raise DeviceError(
            f"device cuda was asked for, but onnxruntime {ort.__version__} has no {_CUDA} (it has "
            f"{', '.join(available)}); `pip uninstall onnxruntime` and `pip install 'tna-onnx[gpu]'`, or use "
            "--device cpu"
        )
    if wanted and hasattr(ort, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):  # it prints; stdout is for results, _why_no_cuda for reasons
            ort.preload_dlls()
    cuda = (_CUDA, {"device_id": device.index, **_CUDA_OPTIONS})
    providers: list[Any] = [cuda, _CPU] if wanted else [_CPU]
    session = _load(ort, model, name, providers, folder)
    session.disable_fallback()  # a run that CUDA fails must not move to the CPU unseen
    if not wanted or session.get_providers()[0] == _CUDA:
        return Session(session, name, fixed_batch=fixed_batch)
    reason = _why_no_cuda(ort)
    if device.kind == "cuda":
        raise DeviceError(f"device cuda:{device.index} was asked for, but ONNX Runtime gave {_CPU}: {reason}")
    return Session(session, name, reason, fixed_batch)


def runtime_version() -> str:
    """Version of ONNX Runtime."""
    return str(_onnxruntime().__version__)


def _onnxruntime() -> ModuleType:
    try:
        import onnxruntime  # noqa: PLC0415 - an extra; the message below beats an ImportError
    except ImportError as error:
        raise DeviceError(
            "ONNX Runtime is not installed; install one of the extras: `pip install 'tna-onnx[cpu]'`, or "
            f"`pip install 'tna-onnx[gpu]'` for NVIDIA GPUs ({error})"
        ) from error
    return onnxruntime  # type: ignore[no-any-return]


def _load(ort: ModuleType, model: bytes | Path, name: str, providers: list[Any], folder: Path | None) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4  # what matters is checked and raised here
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder.absolute()))
    # Threads that wait would spin, on the cores that read the next samples meanwhile.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if (cores := _allowed_cores()) < (os.cpu_count() or 1):  # by itself it starts a thread for each core of the machine
        options.intra_op_num_threads = cores
    # ONNX Runtime would quantise the features of a quantised MatMul in its own way, and not say so.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    what = str(model) if isinstance(model, Path) else model
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints when it falls back to the CPU; open_session checks
            return ort.InferenceSession(what, options, providers=providers)
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "onnxruntime" and not isinstance(
            error, (RuntimeError, ValueError)
        ):
            raise
        raise UnsupportedModel(f"{name}: ONNX Runtime {ort.__version__} cannot load the model: {error}") from error


def _allowed_cores(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return the cores that this process may use: a container or a scheduler may allow it fewer than there are."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = limit.read_text(encoding="ascii").split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # another system, or no limit: "max"
        return cores


def _why_no_cuda(ort: ModuleType) -> str:
    """Ask the loader which library is missing; the provider's own library names it."""
    library = Path(str(ort.__file__)).parent / "capi" / "libonnxruntime_providers_cuda.so"
    advice = "install CUDA and cuDNN: `pip install 'tna-onnx[gpu]'`, or use --device cpu"
    if not library.exists():
        return f"{library.name} is not part of this onnxruntime; {advice}"
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return f"{error}; {advice}"
    return f"the CUDA libraries load, but no such device answers (check `nvidia-smi` and the driver); {advice}"


def _array(result: Any) -> NDArray[Any]:
    if isinstance(result, list) and result and isinstance(result[0], dict):
        names = sorted(result[0])
        return np.array([[row[name] for name in names] for row in result])
    return np.asarray(result)


def _tensor_info(info: Any, name: str) -> TensorInfo:
    if info.type not in _DTYPES:
        raise UnsupportedModel(f"{name}: input '{info.name}' is {info.type}; expected {', '.join(_DTYPES)}")
    shape = tuple(d if isinstance(d, int) else None for d in info.shape or ())
    return TensorInfo(str(info.name), shape, np.dtype(_DTYPES[info.type]))


def _fixed_batch(inputs: Sequence[TensorInfo]) -> int | None:
    """Batch size that the model insists on, if any."""
    return next((i.shape[0] for i in inputs if i.shape and i.shape[0] is not None), None)
