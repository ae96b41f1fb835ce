"""`--engine`: `local`, `processes:N` or `ray[:ADDRESS]` -> an engine."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from tna_onnx.engine import local
from tna_onnx.engine.protocol import Engine
from tna_onnx.engine.staying import HasWorkers, Staying
from tna_onnx.errors import UsageError
from tna_onnx.runtime import allowed_cores

__all__ = ["engine_of", "staying"]

# Processes a core. More take turns, and each holds a model.
_MOST = 16


def engine_of(text: str) -> Engine:
    """Read an engine as the command line has it.

    Raises:
        UsageError: anything else, too many processes, or Ray is not installed.

    >>> engine_of("processes:2")
    Processes(count=2)
    """
    # a value from Python may be anything
    if not isinstance(text, str):
        raise UsageError(f"engine {text!r} is not known; expected local, processes:NUMBER, ray or ray:HOST:PORT")
    if text == "local":
        return local
    processes = re.fullmatch(r"processes:(\d{1,9})", text)
    if processes:
        most = _MOST * allowed_cores()
        count = int(processes[1])
        if not 1 <= count <= most:
            raise UsageError(f"engine '{text}': expected 1 to {most} processes, {_MOST} for each core of this machine")
        from tna_onnx.engine.processes import Processes  # noqa: PLC0415 - an engine loads where it is asked for

        return Processes(count)
    if text == "ray" or text.startswith("ray:"):
        from tna_onnx.engine.on_ray import OnRay  # noqa: PLC0415

        return OnRay(text.removeprefix("ray").removeprefix(":"))
    raise UsageError(f"engine '{text}' is not known; expected local, processes:NUMBER, ray or ray:HOST:PORT")


@contextlib.contextmanager
def staying(text: str) -> Iterator[Staying]:
    """Give the workers of an engine, other than `local`, for a block.

    Raises:
        UsageError: as `engine_of`; or it has no workers.
        DeviceError: they cannot be reached.
    """
    engine = engine_of(text)
    if not isinstance(engine, HasWorkers):
        raise UsageError(f"engine '{text}' has no workers; expected processes:NUMBER, ray or ray:HOST:PORT")
    with engine.staying() as workers:
        yield workers
