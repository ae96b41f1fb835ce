"""`--engine`: what it takes, and what it refuses."""

from typing import Any

import pytest

from tna_onnx.engine import local
from tna_onnx.engine.choice import engine_of
from tna_onnx.engine.processes import Processes
from tna_onnx.errors import UsageError
from tna_onnx.runtime import allowed_cores


def test_engines() -> None:
    assert engine_of("local") is local
    assert engine_of("processes:3") == Processes(3)
    assert engine_of(f"processes:{16 * allowed_cores()}") == Processes(16 * allowed_cores())


@pytest.mark.parametrize(
    "word", ["", "spark", "Local", "processes", "processes:", "processes:two", "processes:-1", "rays", None, 2, True]
)
def test_words_that_are_none(word: Any) -> None:
    with pytest.raises(UsageError, match="expected local, processes:NUMBER, ray or ray:HOST:PORT"):
        engine_of(word)


@pytest.mark.parametrize("count", [0, 10_000, 999_999_999])
def test_too_few_and_too_many_processes(count: int) -> None:
    with pytest.raises(UsageError, match=r"expected 1 to \d+ processes, 16 for each core"):
        engine_of(f"processes:{count}")


@pytest.mark.parametrize("address", ["head", "ray://head:10001", "head:port", "http://head:6379", "a b:1", ":6379"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(UsageError, match="expected ray:HOST:PORT"):
        engine_of(f"ray:{address}")


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UsageError, match=r"--engine ray needs ray.*pip install 'tna-onnx\[ray\]'"):
        engine_of("ray")
