"""Signals: while modules load, Ctrl-C ends the process at once; after that every signal ends a command like an error.

A KeyboardInterrupt in the middle of an import of compiled code is a traceback at best and an abort at worst, and
nothing has been written by then.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

__all__ = ["Stopped", "loaded", "loading"]

_OTHERS = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP


class Stopped(KeyboardInterrupt):
    """SIGTERM or SIGHUP while a command runs: it unwinds the stack like Ctrl-C, so that files half written are removed.

    Attributes:
        exit_code: 128 + signal, which is what a shell shows.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


def loading() -> None:
    """Let Ctrl-C end the process by the signal itself, and SIGTERM and SIGHUP end it like an error.

    Signals that the parent has told us to ignore (`nohup`, jobs in the background) stay ignored.
    """
    # Python lets only the main thread set handlers; a program that calls `main` in another one keeps its own.
    if threading.current_thread() is not threading.main_thread():
        return
    # only Python's own handler: one that a program has set stays
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for name in _OTHERS:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _leave)


def loaded() -> None:
    """Make every signal that `loading` has taken an interrupt, which a command reports in one line."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in _OTHERS:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is _leave:
            signal.signal(number, _stop)


def _leave(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)  # an interrupt that no command is there to report would be a traceback


def _stop(number: int, _: FrameType | None) -> None:
    raise Stopped(number)
