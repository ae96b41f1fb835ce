"""The child process of `--isolate`: opens a model in every way that a run will, and ends.

It says on standard output that it has started. Then it does what native code of ONNX and ONNX Runtime does with a
model: it is parsed, its functions are inlined, constants are folded, the checker and shape inference look at it, and
sessions are created on all of it and on the parts up to each head. What a model is refused for is not told: the parent
process refuses it for the same reason. Exit code 0 means that no native code crashed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from tna_onnx.errors import TnaError
from tna_onnx.extraction.isolated import STARTED
from tna_onnx.extraction.sessions import OpenModel, open_model
from tna_onnx.graph.checker import checker_complaint
from tna_onnx.graph.head import find_heads
from tna_onnx.graph.integers import opened_up
from tna_onnx.graph.limits import ModelLimits
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.readout import Readout
from tna_onnx.graph.scores import find_readout
from tna_onnx.runtime import Device, runtime_version

__all__ = ["main"]


def main(words: str) -> None:
    """Open a model.

    Args:
        words: JSON with `path`, which is null for bytes on standard input; `limits`; and fields of `ModelOptions`.
    """
    given = json.loads(words)
    limits = ModelLimits(**given["limits"])
    source = sys.stdin.buffer.read() if given["path"] is None else Path(given["path"])
    # loaded before anything of the model is: what fails here is not the model's fault
    with contextlib.suppress(TnaError):
        runtime_version()
    os.write(1, STARTED)
    _keep_to_itself(limits.isolate_seconds)
    with contextlib.suppress(Exception):
        _open(opened_up(load_model(source, limits)), given)


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


def _open(model: Model, given: dict[str, str | None]) -> None:
    checker_complaint(model.path or model.proto)
    # what one way is refused for says nothing about the next
    with contextlib.suppress(Exception):
        open_model(model, Device("cpu"))
    for readout in _readouts(model, given):
        with contextlib.suppress(Exception):
            _ = OpenModel(model, readout, Device("cpu")).session


def _readouts(model: Model, given: dict[str, str | None]) -> Iterator[Readout]:
    heads, _ = find_heads(model)
    yield from heads
    if not heads:
        with contextlib.suppress(Exception):
            yield find_readout(model, given["head"], given["output_name"], given["output_kind"])
