"""Threads of linear algebra at workers: as here, and the environment stays as it was."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tna_onnx.engine import threads as module
from tna_onnx.engine.processes import Processes
from tna_onnx.engine.threads import threads_of_workers, worker_threads
from tna_onnx.numerics.threads import one_thread, several_threads


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in module._NAMES:
        monkeypatch.delenv(name, raising=False)


def seen(monkeypatch: pytest.MonkeyPatch, cores: int, sharing: int) -> set[str]:
    monkeypatch.setattr(module, "threads_here", lambda: cores)
    monkeypatch.setattr(module, "allowed_cores", lambda: cores)
    found = worker_threads(sharing)
    assert found.keys() == {*module._NAMES}
    return {*found.values()}


@pytest.mark.parametrize(
    ("cores", "sharing", "threads"), [(1, 1, "1"), (1, 8, "1"), (2, 2, "2"), (16, 4, "4"), (16, 16, "2")]
)
def test_a_share_of_the_cores_but_one_only_where_the_driver_has_one(
    monkeypatch: pytest.MonkeyPatch, cores: int, sharing: int, threads: str
) -> None:
    assert seen(monkeypatch, cores, sharing) == {threads}


def test_the_word_of_the_user_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "threads_here", lambda: 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert worker_threads(4) == {"OMP_NUM_THREADS": "3"}
    before = dict(os.environ)
    with threads_of_workers(4):
        assert dict(os.environ) == before


def test_processes_start_with_them_and_the_environment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "threads_here", lambda: 8)
    monkeypatch.setattr(module, "allowed_cores", lambda: 8)
    before = dict(os.environ)
    assert list(Processes(2).map_chunks(os.getenv, [(name,) for name in module._NAMES])) == ["4"] * 3
    assert dict(os.environ) == before


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What a worker computes: a product that is large, or one that is not."""
    with several_threads(*a.shape, b.shape[1]):
        return np.asarray(a @ b)


@pytest.mark.parametrize("rows", [500, 5000])
def test_workers_multiply_as_this_process_does_in_a_block(rows: int) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((rows, 600)).astype(np.float32)
    b = rng.standard_normal((600, 100)).astype(np.float32)
    with one_thread(8):
        here = _product(a, b)
        (there,) = Processes(1).map_chunks(_product, [(a, b)])
    np.testing.assert_array_equal(there, here)
