"""Processes of this machine: results, errors and bugs arrive, a process that is killed is replaced, none is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT
from tna_onnx.engine import local
from tna_onnx.engine.processes import Processes
from tna_onnx.errors import DataError, DeviceError
from tna_onnx.runtime import allowed_cores


class Squares:
    """Squares of numbers; a process counts its calls, and dies before the first call for some of the numbers."""

    def __init__(self, folder: Path, fatal: tuple[int, ...] = ()) -> None:
        self.folder = folder
        self.fatal = fatal
        self.calls = 0

    def __call__(self, k: int) -> tuple[int, int]:
        self.calls += 1
        if k in self.fatal and not (self.folder / str(k)).exists():
            (self.folder / str(k)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if k < 0:
            raise DataError(f"{k} is negative")
        return k * k // (k + 1 - (k == 99) * 100), self.calls


def children() -> list[psutil.Process]:
    """Return the worker processes of this one."""
    own = psutil.Process().children()
    return [child for child in own if "spawn_main" in " ".join(child.cmdline())]


def test_results_are_those_of_this_process_and_the_function_is_kept(tmp_path: Path) -> None:
    chunks = [(k,) for k in range(12)]
    got = list(Processes(2).map_chunks(Squares(tmp_path, (3, 7)), chunks))
    assert [value for value, _ in got] == [value for value, _ in local.map_chunks(Squares(tmp_path), chunks)]
    assert max(calls for _, calls in got) > 1
    assert children() == []


def test_sums_are_those_of_this_process() -> None:
    values = [(0.1 * k,) for k in range(7)]
    assert Processes(2).sum_chunks(abs, values) == local.sum_chunks(abs, values)


def test_errors_and_bugs_arrive(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^-2 is negative$"):
        list(Processes(2).map_chunks(Squares(tmp_path), [(1,), (-2,), (3,), (-4,)]))
    with pytest.raises(ZeroDivisionError):
        list(Processes(1).map_chunks(Squares(tmp_path), [(99,)]))
    assert children() == []


def test_a_process_that_always_dies() -> None:
    with pytest.raises(DeviceError, match="part 1 of the samples ended 3 workers"):
        list(Processes(1).map_chunks(os._exit, [(3,)]))


def test_processes_share_the_cores() -> None:
    (cores,) = Processes(allowed_cores()).map_chunks(allowed_cores, [()])
    assert cores == 1


def test_a_caller_that_leaves_early_leaves_no_process() -> None:
    results = Processes(2).map_chunks(time.sleep, [(0,), (0,), (600,), (600,)])
    next(results)
    results.close()
    assert children() == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_processes_end_with_a_driver_that_is_killed() -> None:
    code = (
        "import time\nfrom tna_onnx.engine.processes import Processes\n"
        "run = Processes(2).map_chunks(time.sleep, [(0,), (0,), (600,), (600,)])\n"
        "next(run), next(run)\nprint('begun', flush=True)\ntime.sleep(600)"
    )
    driver = subprocess.Popen([sys.executable, "-c", code], stdout=-1, text=True, cwd=ROOT)
    assert driver.stdout is not None
    assert driver.stdout.readline() == "begun\n"
    workers = psutil.Process(driver.pid).children(recursive=True)
    assert len(workers) >= 2
    driver.kill()
    driver.wait()
    driver.stdout.close()
    gone, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive, gone


def test_a_script_without_a_guard_is_told(tmp_path: Path) -> None:
    """Spawned processes import the main module, so a script must not start its work then."""
    script = tmp_path / "script.py"
    script.write_text(
        "from tna_onnx.engine.processes import Processes\nprint(list(Processes(1).map_chunks(abs, [(-1,)])))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert "workers end before their first chunk" in done.stderr
    assert 'if __name__ == "__main__"' in done.stderr.replace("'", '"')
