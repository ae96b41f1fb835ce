"""Threads of linear algebra: one where the driver has one, else at least two, and the environment stays as it was."""

from __future__ import annotations

import os

import pytest

from tna_onnx.engine import threads as module
from tna_onnx.engine.processes import Processes
from tna_onnx.engine.threads import threads_of_workers, worker_threads


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in module._NAMES:
        monkeypatch.delenv(name, raising=False)


def seen(monkeypatch: pytest.MonkeyPatch, cores: int, sharing: int) -> set[str]:
    monkeypatch.setattr(module, "_cores_of_libraries", lambda: cores)
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
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert worker_threads(4) == {"OMP_NUM_THREADS": "1"}
    before = dict(os.environ)
    with threads_of_workers(4):
        assert dict(os.environ) == before


def test_processes_start_with_them_and_the_environment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_cores_of_libraries", lambda: 8)
    monkeypatch.setattr(module, "allowed_cores", lambda: 8)
    before = dict(os.environ)
    assert list(Processes(2).map_chunks(os.getenv, [(name,) for name in module._NAMES])) == ["4"] * 3
    assert dict(os.environ) == before
