"""Open a model in ONNX Runtime, and check that it runs where it was asked to.

The only module that imports onnxruntime.
"""

import contextlib
import ctypes
import io
import logging
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tna_onnx.errors import DeviceError, UnsupportedModel, one_line
from tna_onnx.runtime.device import Device, allowed_cores, free_memory
from tna_onnx.runtime.session import AT_ONCE, CUDA, NO_MEMORY, Session, is_onnxruntime_error

_log = logging.getLogger("tna_onnx")

_CPU = "CPUExecutionProvider"

# The CUDA provider is a library of its own, beside that of ONNX Runtime.
_CUDA_LIBRARY = "onnxruntime_providers_cuda.dll" if sys.platform == "win32" else "libonnxruntime_providers_cuda.so"

# What CUDA itself says, in what ONNX Runtime prints: "CUDA failure 35: the driver is too old ; GPU=0".
_CUDA_FAILURE = re.compile(r"CUDA failure \d+: [^;\n]+")

_ADVICE = (
    "install CUDA and cuDNN (`pip install 'tna-onnx[gpu]'`), check driver and devices (`nvidia-smi`; the driver has to "
    "be as new as the CUDA of onnxruntime-gpu; CUDA_VISIBLE_DEVICES hides devices, and a container needs `docker run "
    "--gpus all`), or use --device cpu"
)

# Bytes that two batches of a large network may take.
_ROOM = 2**32

_CUDA_OPTIONS = {
    # The default times every algorithm for each new shape, the shorter last batch included. That is slow, and two runs
    # may choose different algorithms.
    "cudnn_conv_algo_search": "HEURISTIC",
    # The default doubles the arena each time, and so runs out of memory with half of it unused.
    "arena_extend_strategy": "kSameAsRequested",
}

# The severity of what its loggers print, in colours, on standard error.
_FATAL = 4

# No file lies below it. Without a folder, ONNX Runtime would look for external data where the process stands.
_NOWHERE = Path(os.devnull)

_SESSION_ENTRIES = {
    # Waiting threads would spin on the cores that are reading the next samples.
    "session.intra_op.allow_spinning": "0",
    # By default ONNX Runtime quantises the features of a quantised MatMul in its own way, without saying so.
    "session.qdq_matmulnbits_accuracy_level": "1",
}


def open_session(
    model: bytes | Path,
    name: str,
    device: Device,
    *,
    folder: Path | None = None,
    fixed_batch: int | None = None,
    at_once: int = 1,
) -> Session:
    """Open a session and check that it runs where it was asked to.

    `folder`: where external data of a model given as bytes lie; by default they may have none. `fixed_batch`: the only
    batch size that the model accepts, where its inputs do not say so; `at_once`: batches that are to be run at a time
    on the CPU, if it has the cores and the memory.
    """
    if isinstance(model, bytes) and folder is None:
        folder = _NOWHERE
    ort = _onnxruntime()
    use_cuda = _wants_cuda(ort, device)
    providers: list[Any] = [_CPU]
    if use_cuda:
        _preload_cuda(ort)
        providers = [(CUDA, _cuda_options(device)), _CPU]
    most_at_once = 1
    if not use_cuda:
        most_at_once = _side_by_side(model)
    at_once = min(at_once, most_at_once)
    session, printed = _load(ort, model, name, providers, folder, at_once)
    session.disable_fallback()  # a run that fails on CUDA must not move to the CPU unnoticed
    if not use_cuda or session.get_providers()[0] == CUDA:
        opened = Session(session, name, fixed_batch=fixed_batch, device=device, at_once=at_once)
        opened.most_at_once = most_at_once
        return opened
    reason = _why_no_cuda(ort, printed)
    if device.kind == "cuda":
        raise DeviceError(f"device cuda:{device.index} was asked for, but ONNX Runtime gave {_CPU}: {reason}")
    return Session(session, name, reason, fixed_batch)


def _side_by_side(model: bytes | Path) -> int:
    """Return how many batches can be run at a time: each needs a core, and memory for what the network computes."""
    # a session holds the weights twice while it is opened; the room for two batches is a guess from above
    size = 0  # of a file that is not there, which ONNX Runtime says
    if isinstance(model, bytes):
        size = len(model)
    elif model.is_file():
        size = model.stat().st_size
    if free_memory() < 2 * size + _ROOM:
        return 1
    return min(AT_ONCE, allowed_cores())


def _cuda_options(device: Device) -> dict[str, Any]:
    # TF32 keeps 10 bits of the mantissa; ONNX Runtime uses it where nothing is said, and so do deployed models
    options: dict[str, Any] = {"device_id": device.index, "use_tf32": int(device.tf32), **_CUDA_OPTIONS}
    if device.memory is not None:
        options["gpu_mem_limit"] = device.memory
    return options


def runtime_version() -> str:
    """Return the version of ONNX Runtime."""
    return str(_onnxruntime().__version__)


def _onnxruntime() -> ModuleType:
    try:
        import onnxruntime  # noqa: PLC0415 - an extra; the message below says more than an ImportError

        # an empty folder of that name, which removing one of two wheels leaves, imports without an error
        _ = (onnxruntime.InferenceSession, onnxruntime.__version__)
    except Exception as error:  # of two wheels in one folder, either may raise anything
        raise DeviceError(
            f"ONNX Runtime is not installed, or in part only ({type(error).__name__}: {error}); run `pip uninstall -y "
            "onnxruntime onnxruntime-gpu`, then `pip install 'tna-onnx[cpu]'`, or `pip install 'tna-onnx[gpu]'` for "
            "NVIDIA GPUs"
        ) from error
    # what it has to say comes as an exception; older versions have no such function
    getattr(onnxruntime, "set_default_logger_severity", int)(_FATAL)
    return onnxruntime  # type: ignore[no-any-return]


def _wants_cuda(ort: ModuleType, device: Device) -> bool:
    """Return whether to try CUDA."""
    available = ort.get_available_providers()
    if device.kind == "auto":
        return CUDA in available
    if device.kind == "cuda" and CUDA not in available:
        raise DeviceError(
            f"device cuda was asked for, but onnxruntime {ort.__version__} has no {CUDA} (it has "
            f"{', '.join(available)}); `pip uninstall onnxruntime` and `pip install 'tna-onnx[gpu]'`, or use "
            "--device cpu"
        )
    return device.kind == "cuda"


def _preload_cuda(ort: ModuleType) -> None:
    """Load the CUDA libraries that pip installed; older versions of ONNX Runtime cannot."""
    if hasattr(ort, "preload_dlls"):
        # It prints what it cannot load. Stdout is for results; `_why_no_cuda` gives the reason.
        with contextlib.redirect_stdout(io.StringIO()):
            ort.preload_dlls()


def _load(
    ort: ModuleType, model: bytes | Path, name: str, providers: list[Any], folder: Path | None, at_once: int = 1
) -> tuple[Any, str]:
    """Return a session, and what ONNX Runtime printed while it was opened."""
    options = _session_options(ort, folder, at_once)
    printed = io.StringIO()
    content: bytes | Path | str = model
    if isinstance(model, Path):
        content = str(model)
    try:
        # It prints when it falls back to the CPU; `open_session` checks that itself.
        with contextlib.redirect_stdout(printed):
            session = ort.InferenceSession(content, options, providers=providers)
    except Exception as error:
        if not is_onnxruntime_error(error) and not isinstance(error, (RuntimeError, ValueError)):
            raise
        message = one_line(error)
        if len(providers) > 1 and NO_MEMORY.search(message):
            raise DeviceError(
                f"{name}: its weights do not fit on the device ({message}); free some of its memory, raise the "
                "memory=GIB of --device, or use --device cpu"
            ) from error
        raise UnsupportedModel(f"{name}: ONNX Runtime {ort.__version__} cannot load the model: {message}") from error
    # It keeps the bytes to open the model on other providers, which `disable_fallback` rules out.
    session._model_bytes = None
    return session, printed.getvalue()


def _session_options(ort: ModuleType, folder: Path | None, at_once: int) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder.absolute()))
    for entry, value in _SESSION_ENTRIES.items():
        options.add_session_config_entry(entry, value)
    # The default is a thread for each core of the machine, whatever the process may use.
    cores = allowed_cores() // at_once
    if cores < (os.cpu_count() or 1):
        options.intra_op_num_threads = cores
    return options


def _why_no_cuda(ort: ModuleType, printed: str) -> str:
    """Return why CUDA is not available: the loader names the library that is missing, CUDA what it cannot do."""
    failure = _CUDA_FAILURE.search(printed)
    reason = "the CUDA libraries load, but no such device answers"
    if failure:
        reason = failure[0].strip()
    try:
        ctypes.CDLL(str(Path(str(ort.__file__)).parent / "capi" / _CUDA_LIBRARY))
    except OSError as error:
        reason = str(error)
    return f"{reason}; {_ADVICE}"
