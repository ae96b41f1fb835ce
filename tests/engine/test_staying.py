"""Workers that stay: each call has its own function, lost workers are replaced, and none is left."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time

import psutil
import pytest

from tests.engine.test_processes import children
from tna_onnx.engine import local
from tna_onnx.engine.processes import Processes
from tna_onnx.errors import DataError, DeviceError

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")


def pid_of(_: int) -> int:
    return os.getpid()


def refuse(k: int) -> int:
    if k == 2:
        raise DataError("2 is refused")
    return k


def test_calls_share_workers_and_each_has_its_function() -> None:
    with Processes(2).staying() as engine:
        first = {*engine.map_chunks(pid_of, [(k,) for k in range(8)])}
        values = [(0.1 * k,) for k in range(7)]
        assert engine.sum_chunks(abs, values) == local.sum_chunks(abs, values)
        assert list(engine.map_chunks(functools.partial(pow, 2), [(k,) for k in range(9)])) == [2**k for k in range(9)]
        assert {*engine.map_chunks(pid_of, [(k,) for k in range(8)])} <= {child.pid for child in children()}
        assert first <= {child.pid for child in children()}
        assert len(children()) <= 2
    assert children() == []


def test_an_error_ends_the_call_and_the_next_one_works() -> None:
    with Processes(1).staying() as engine:
        for _ in range(2):
            with pytest.raises(DataError, match="2 is refused"):
                list(engine.map_chunks(refuse, [(k,) for k in range(5)]))
        with pytest.raises(DeviceError, match="part 1 of the samples ended 3 workers"):
            list(engine.map_chunks(os._exit, [(3,)]))
        assert list(engine.map_chunks(abs, [(-1,)])) == [1]
    assert children() == []


@POSIX
def test_workers_that_are_killed_between_two_calls_are_replaced() -> None:
    with Processes(3).staying() as engine:
        list(engine.map_chunks(time.sleep, [(0.3,)] * 3))
        before = children()
        for child in before:
            child.send_signal(signal.SIGKILL)
        psutil.wait_procs(before, timeout=10)
        assert list(engine.map_chunks(abs, [(-k,) for k in range(9)])) == list(range(9))
    assert children() == []


def test_a_caller_that_leaves_early_leaves_no_worker() -> None:
    with Processes(2).staying() as engine:
        results = engine.map_chunks(time.sleep, [(0,), (600,), (600,)])
        next(results)
        results.close()
    assert children() == []
