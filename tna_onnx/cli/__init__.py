"""The command line: parse, call one function, show. No arithmetic."""

from __future__ import annotations

import signal
import sys
from types import FrameType

__all__ = ["main"]


def main() -> None:
    """Run `tna-onnx`; the exit code is that of the error family."""
    from tna_onnx.cli.commands import group  # noqa: PLC0415 - click loads only when a command runs

    for name in ("SIGTERM", "SIGHUP"):  # end like an error, so that nothing half-written stays
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _stop)
    try:
        group(prog_name="tna-onnx")
    except KeyboardInterrupt:  # outside of a command
        sys.exit(130)


def _stop(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)
