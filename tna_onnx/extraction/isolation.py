"""Reading a source model, after a child process has opened it where `--isolate` asks for that.

A flaw in the compiled code of ONNX or ONNX Runtime can end a process on a damaged model. The child (`main`)
opens the model with exactly that code. Where it ends otherwise than in order, the model is refused, and this process
has not opened it.

It says on standard output that it has started. Then it does what native code of ONNX and ONNX Runtime does with a
model: it is parsed, its functions are inlined, constants are folded, the checker and shape inference look at it, and
sessions are created on all of it and on the parts up to each head. It does not report why it refuses a model: the
parent process then refuses it for the same reason. Exit code 0 means that no native code crashed, and 70
(`INTERNAL_ERROR`) that this package has a bug, whose traceback is on standard error.
"""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from tna_onnx.errors import INTERNAL_ERROR, DeviceError, TnaError, UnsupportedModel
from tna_onnx.extraction.classifier import OpenModel
from tna_onnx.extraction.sessions import open_model
from tna_onnx.graph.head import find_heads
from tna_onnx.graph.load import Model, checker_complaint, load_model, model_bytes
from tna_onnx.graph.options import ModelLimits, ModelOptions, ModelSource
from tna_onnx.graph.outputs import ClassOutput, class_output
from tna_onnx.graph.readout import Readout
from tna_onnx.graph.scores import find_readout
from tna_onnx.runtime import Device, runtime_version

STARTED = b"started\n"
"""Written by the child process once its modules are loaded, before it reads the model."""

# Isolated (-I), so that neither the current folder nor PYTHONPATH adds modules: the path is this process's own.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from tna_onnx.extraction.isolation import main
main(sys.argv[2])
"""

# For the interpreter and its modules, which a cold disk may take long to give.
_START_SECONDS = 60.0


def open_source(source: ModelSource, options: ModelOptions) -> Model:
    """Read a model, after a child process has opened it if `options.isolate` says so.

    Raises RuntimeError: it met a bug of this package.
    """
    if options.isolate:
        _try(source, options)
    return load_model(source, options.model_limits)


def read_classifier(source: ModelSource, options: ModelOptions) -> tuple[Model, ClassOutput]:
    """Read a model, and find the output that classifies."""
    model = open_source(source, options)
    return model, class_output(model, options.head, options.output_name, options.output_kind)


def _try(source: ModelSource, options: ModelOptions) -> None:
    """Open a model in a child process."""
    file = Path(source) if isinstance(source, (str, Path)) else None
    limits = options.model_limits
    words = {
        "path": None if file is None else str(file),
        "limits": dataclasses.asdict(limits),
        "head": options.head,
        "output_name": options.output_name,
        "output_kind": options.output_kind,
    }
    name = file or "the model in memory"
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter and this package
            [sys.executable, "-I", "-c", _PROGRAM, json.dumps(sys.path), json.dumps(words)],
            input=b"" if file else model_bytes(source),
            capture_output=True,
            check=False,
            timeout=_START_SECONDS + limits.isolate_seconds,
        )
    except subprocess.TimeoutExpired:
        raise _too_long(name, limits.isolate_seconds) from None
    if not done.stdout.startswith(STARTED):
        lines = done.stderr.decode("utf-8", "replace").split("\n")
        reason = next((line for line in reversed(lines) if line.strip()), _ending(done.returncode))
        raise DeviceError(f"the child process of --isolate does not start ({sys.executable}: {reason})")
    if hasattr(signal, "SIGALRM") and done.returncode == -signal.SIGALRM:
        raise _too_long(name, limits.isolate_seconds)
    if done.returncode == INTERNAL_ERROR:
        raise RuntimeError(f"in the child process of --isolate:\n{done.stderr.decode('utf-8', 'replace')}")
    if done.returncode:
        raise UnsupportedModel(
            f"{name}: ONNX or ONNX Runtime crashed on it ({_ending(done.returncode)}, in the child process of "
            "--isolate); the file is damaged or hostile, and was not opened here"
        )


def _too_long(name: Path | str, seconds: float) -> UnsupportedModel:
    return UnsupportedModel(
        f"{name}: ONNX and ONNX Runtime did not open it within {seconds:g} seconds (in the child process of --isolate)"
        "; if it is sound, raise --model-limit isolate-seconds=NUMBER"
    )


def _ending(code: int) -> str:
    """Say how a process ended: by a signal, or with an exit code."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code:#x}"


# What the parent process refuses the model for too, in words of its own, and what the machine lacks.
_REFUSED = (TnaError, MemoryError, OSError)


def main(words: str) -> None:
    """Open a model.

    `words`: JSON with `path`, which is null for bytes on standard input; `limits`; and fields of `ModelOptions`.
    """
    stated = json.loads(words)
    limits = ModelLimits(**stated["limits"])
    source = sys.stdin.buffer.read() if stated["path"] is None else Path(stated["path"])
    # loaded before anything of the model is: what fails here is not the model's fault
    with contextlib.suppress(TnaError):
        runtime_version()
    os.write(1, STARTED)
    report = os.dup(2)
    _keep_to_itself(limits.isolate_seconds)
    try:
        _open(load_model(source, limits), stated)
    except _REFUSED:
        pass
    except Exception:  # noqa: BLE001 - a bug, which the parent process reports
        os.write(report, traceback.format_exc().encode("utf-8", "replace"))
        sys.exit(INTERNAL_ERROR)


def _keep_to_itself(seconds: float) -> None:
    """Print nothing and leave no core file; end in time even if the parent process is gone."""
    silence = os.open(os.devnull, os.O_RDWR)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    with contextlib.suppress(ImportError, OSError):  # not on Windows
        import resource  # noqa: PLC0415

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process even in a loop of native code
        signal.setitimer(signal.ITIMER_REAL, seconds + 1)


def _open(model: Model, stated: dict[str, str | None]) -> None:
    checker_complaint(model.path or model.proto)
    # what one way is refused for says nothing about the next
    with contextlib.suppress(*_REFUSED):
        open_model(model, Device("cpu"))
    readouts: Sequence[Readout] = find_heads(model)[0]
    if not readouts:
        with contextlib.suppress(*_REFUSED):
            readouts = [find_readout(model, stated["head"], stated["output_name"], stated["output_kind"])]
    for readout in readouts:
        with contextlib.suppress(*_REFUSED):
            _ = OpenModel(model, readout, Device("cpu")).session
