"""SIGKILL at every write and every rename of a store: it costs one chunk at most, and the bytes end the same.

The kill is not a matter of timing. A process fills a store, and kills itself before or after the k-th call of a kind;
a loop over k ends when the store is complete. Processes are forked in a program of their own, which has no threads.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.extraction.test_store import BATCH, CHUNK, KEY, LABELS, assert_right, fill
from tna_onnx.extraction.store import open_store

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")

PROGRAM = """
import json, os, signal, sys
from pathlib import Path
import numpy as np
from tests.extraction import test_store as t
from tna_onnx.extraction import store as s

CALLS = {"open": (Path, "open"), "fsync": (os, "fsync"), "replace": (Path, "replace")}

def child(cache, kind, k, after, seen):
    owner, name = CALLS[kind]
    original = getattr(owner, name)
    count = 0
    def call(*args, **kwargs):
        nonlocal count
        count += 1
        if count == k and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if count == k:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(owner, name, call)
    with s.open_store(cache, t.KEY, t.LABELS, t.BATCH) as store:
        for start in range(store.done, t.N, t.BATCH):
            end = min(start + t.BATCH, t.N)
            store.array((6,), np.dtype(np.float32))[start:end] = t.rows(start, end)
            os.pwrite(seen, end.to_bytes(8, "big"), 0)  # these rows are there; what follows makes them count
            store.finish_up_to(end)
    os._exit(0)

root = Path(sys.argv[1])
results = []
for kind in sys.argv[2:]:
    for after in (False, True):
        for k in range(1, 1000):
            cache = root / f"{kind}-{after}-{k}"
            seen = os.open(root / "seen", os.O_CREAT | os.O_RDWR | os.O_TRUNC)
            pid = os.fork()
            if not pid:
                try:
                    child(cache, kind, k, after, seen)
                finally:
                    os._exit(1)
            status = os.waitpid(pid, 0)[1]
            computed = int.from_bytes(os.pread(seen, 8, 0), "big")
            os.close(seen)
            if not os.WIFSIGNALED(status):
                results.append([kind, after, k, os.WEXITSTATUS(status), None, None])
                break
            results.append([kind, after, k, -os.WTERMSIG(status), computed, cache.name])
print(json.dumps(results))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["replace", "open", "fsync"])
def test_a_kill_at_any_call_costs_one_chunk_at_most(tmp_path: Path, kind: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", PROGRAM, str(tmp_path), kind]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    kills = [result for result in results if result[3] == -9]
    assert [result[3] for result in results if result[3] != -9] == [0] * 2, "both loops end with a whole store"
    assert len(kills) >= 6
    for _, after, k, _, computed, name in kills:
        with open_store(tmp_path / name, KEY, LABELS, BATCH) as store:
            where = f"{'after' if after else 'before'} {kind} {k}"
            assert store.done >= computed - CHUNK, where
            assert store.notes == [], where
            fill(store)
            folder = store.folder
        assert_right(folder)
        leftovers = {path.name for path in folder.iterdir()} - {"lock"}
        expected = {"features.bin", "labels.npy", "manifest.json", "checksums.txt"}
        assert leftovers == expected, where
