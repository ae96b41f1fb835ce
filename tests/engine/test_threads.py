"""Threads of linear algebra at workers: as here, and the environment stays as it was."""

from __future__ import annotations

import os

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from tna_onnx.engine import threads as module
from tna_onnx.engine.processes import Processes
from tna_onnx.engine.threads import threads_of_workers, worker_threads
from tna_onnx.numerics.threads import one_thread, several_threads, threads_here


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


def _seen(*shape: int) -> tuple[int | None, set[int], set[int]]:
    """What a worker has: threads of large products, those it computes with, and those in a product of a shape."""
    libraries = ThreadpoolController().select(user_api="blas")
    with several_threads(*shape):
        inside = {each["num_threads"] for each in libraries.info()}
    return threads_here(), {each["num_threads"] for each in libraries.info()}, inside


@pytest.mark.skipif(not ThreadpoolController().select(user_api="blas").info(), reason="NumPy has another library")
def test_workers_compute_with_one_thread_but_for_large_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "threads_here", lambda: 2)
    monkeypatch.setattr(module, "allowed_cores", lambda: 2)
    small, large = Processes(1).map_chunks(_seen, [(2000, 256, 10), (2048, 2048, 1000)])
    assert small == (2, {1}, {1})
    assert large == (2, {1}, {2})


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What a worker computes: a product that is large, or one that is not."""
    with several_threads(*a.shape, b.shape[1]):
        return np.asarray(a @ b)


@pytest.mark.parametrize("shape", [(1000, 1000, 200), (2000, 1000, 200)])
def test_workers_multiply_as_this_process_does_in_a_block(shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal(shape[:2]).astype(np.float32)
    b = rng.standard_normal(shape[1:]).astype(np.float32)
    with one_thread(8):
        here = _product(a, b)
        (there,) = Processes(1).map_chunks(_product, [(a, b)])
    np.testing.assert_array_equal(there, here)
