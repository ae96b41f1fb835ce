"""A source model, opened; on request in a child process first, whose crash or endless loop harms nobody.

A flaw in the compiled code of ONNX or ONNX Runtime can end a process on a damaged model. The child (`extraction.trial`)
opens the model with exactly that code. Where it ends otherwise than in order, the model is refused, and this process
has not opened it.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path

from tna_onnx.errors import DeviceError, UnsupportedModel
from tna_onnx.graph.in_memory import model_bytes
from tna_onnx.graph.integers import opened_up
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.options import ModelOptions, ModelSource

__all__ = ["STARTED", "open_source"]

STARTED = b"started\n"
"""What the child says when all of it is loaded, and nothing of the model is."""

# Isolated (-I), so that neither the current folder nor PYTHONPATH adds modules: the path is this process's own.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from tna_onnx.extraction.trial import main
main(sys.argv[2])
"""

# For the interpreter and its modules, which a cold disk may take long to give.
_START_SECONDS = 60.0


def open_source(source: ModelSource, options: ModelOptions) -> Model:
    """Read a model, after a child process has opened it if `options.isolate` says so.

    Raises:
        UsageError, UnsupportedModel: see `tna_onnx.graph.load.load_model`; or the child crashed, or took too long.
        DeviceError: the child does not start.
    """
    if options.isolate:
        _try(source, options)
    return opened_up(load_model(source, options.model_limits))


def _try(source: ModelSource, options: ModelOptions) -> None:
    """Open a model in a child process.

    Raises:
        UnsupportedModel: the child crashed, or took too long.
        DeviceError: it does not start.
    """
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
