"""Ray Core: the same bytes from 1, 2 and 8 workers, also when workers are killed; what the engine leaves behind."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tna_onnx.engine.on_ray import OnRay
from tna_onnx.errors import DeviceError

pytest.importorskip("ray")

# Ray starts threads and processes, and warns: it gets a process of its own.
KILLED = """
import sys
from pathlib import Path
import ray
from tests.extraction import test_spreading as t
from tna_onnx.engine.on_ray import OnRay
from tna_onnx.extraction import store
from tna_onnx.runtime import allowed_cores

store._CHUNK = 2 * t.BATCH
folder, count = Path(sys.argv[1]), int(sys.argv[2])
ray.init(num_cpus=count, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
run = t.opened(folder, t.dense(), t.inputs(150))
run.alone(folder / "whole")
engine = OnRay()
run.spread(folder / "plain", engine.map_chunks)
run.spread(folder / "killed", lambda of, chunks: engine.map_chunks(t.Dying(of, folder, 3), chunks))
assert len(list(folder.glob("died-*"))) >= 3
assert t.digests(folder / "whole") == t.digests(folder / "plain") == t.digests(folder / "killed")
tenths = [(k / 10,) for k in range(7)]
assert engine.sum_chunks(abs, tenths) == ((0.0 + 0.1) + (0.2 + 0.3)) + ((0.4 + 0.5) + 0.6)
assert list(engine.map_chunks(allowed_cores, [()])) == [max(1, allowed_cores() // count)]
try:
    list(engine.map_chunks(int, [("x",)]))
except ValueError as error:
    assert "invalid literal" in str(error)
try:
    list(engine.map_chunks(__import__("os")._exit, [(1,)]))
except Exception as error:
    assert type(error).__name__ == "DeviceError" and "ended 3 workers" in str(error), error
assert ray.is_initialized()  # it was there before
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 8])
def test_the_same_bytes_whatever_the_number_of_workers(tmp_path: Path, count: int) -> None:
    words = [sys.executable, "-c", KILLED, str(tmp_path), str(count)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT, timeout=600)
    assert "done\n" in done.stdout, done.stderr  # Ray tells there of workers that are lost


SEARCHED = """
import sys
from pathlib import Path
import ray
from tests.engine import test_far as t
from tna_onnx.engine import local
from tna_onnx.engine.far import far_table
from tna_onnx.engine.on_ray import OnRay
from tna_onnx.extraction import table as tables

tables._BLOCK = 100 * t.FEATURES
folder, count = Path(sys.argv[1]), int(sys.argv[2])
ray.init(num_cpus=count, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
features, _, _, labels = t.problem()
table = t.stored(folder / "store", features, labels)
here = t.outcome_of(table, local, None, "sparse", "ts")
with OnRay().staying() as engine:
    far = far_table(table, t.CLASSES, count)
    assert t.same(here, t.outcome_of(table, engine, far, "sparse", "ts"))
    assert t.same(here, t.outcome_of(table, t.Deadly(engine, folder), far, "sparse", "ts"))
assert len(list(folder.glob("died-*"))) == 3
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_a_search_has_the_bits_of_one_process(tmp_path: Path, count: int) -> None:
    words = [sys.executable, "-c", SEARCHED, str(tmp_path), str(count)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT, timeout=600)
    assert "done\n" in done.stdout, done.stderr


ALONE = """
import signal
before = signal.getsignal(signal.SIGTERM)
import ray
from tna_onnx.engine.on_ray import OnRay
results = OnRay().map_chunks(abs, [(-k,) for k in range(9)])
assert next(results) == 0
assert ray.is_initialized()
results.close()
assert not ray.is_initialized()
assert signal.getsignal(signal.SIGTERM) is before
try:
    list(OnRay().map_chunks(__import__("os")._exit, [(1,)]))
except Exception as error:
    assert "ended 3 workers" in str(error), error
print("done")
"""


@pytest.mark.slow
def test_a_cluster_that_is_started_for_a_run_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    words = [sys.executable, "-c", ALONE]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT, timeout=600)
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_nobody_listens(host: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"{host}:{free.getsockname()[1]}"
    with pytest.raises(DeviceError, match=r"cannot be reached .*; check the address"):
        next(OnRay(address).map_chunks(abs, [(1,)]))


def test_no_such_port() -> None:
    with pytest.raises(DeviceError, match="cannot be reached"):
        next(OnRay("127.0.0.1:99999").map_chunks(abs, [(1,)]))
