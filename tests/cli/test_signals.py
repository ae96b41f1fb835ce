"""Signal handlers; what signals do to the real program is in `test_channels.py`."""

from __future__ import annotations

import signal
import threading

import click
import pytest
from click.testing import CliRunner

from tna_onnx.cli.command import Command, Group
from tna_onnx.cli.terminal import loaded, loading
from tna_onnx.errors import INTERRUPTED


def test_ctrl_c_ends_the_process_while_modules_load() -> None:
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        loading()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        loaded()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        loading()
        with pytest.raises(SystemExit) as caught:
            signal.raise_signal(signal.SIGTERM)
        assert caught.value.code == 128 + signal.SIGTERM
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_another_thread_changes_no_handler() -> None:
    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=lambda: (loading(), loaded()))
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("linked", ["cause", "context"])
def test_an_interruption_that_a_library_has_made_another_error_of(linked: str) -> None:
    """A compiled module that is loaded when the signal comes raises ImportError."""

    @click.command(cls=Command)
    def work() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as interruption:
            if linked == "cause":
                raise ImportError("initialization failed") from interruption
            raise ImportError("initialization failed")  # noqa: B904 - that is what is tested

    ended = CliRunner().invoke(Group(commands={"work": work}), ["work"])
    assert ended.exit_code == INTERRUPTED
    assert "bug" not in ended.output
