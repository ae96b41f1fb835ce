"""Cores and memory that a process may use, on a machine, under a scheduler and in a container."""

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tna_onnx.errors import UsageError
from tna_onnx.runtime import Device, allowed_cores, free_memory, parse_device, require_address_space
from tna_onnx.runtime import device as machine


@pytest.mark.parametrize(
    ("limit", "installed", "bound", "cores"),
    [
        (None, 8, 8, 8),
        ("max 100000", 8, 8, 8),
        ("200000 100000", 8, 8, 2),
        ("50000 100000", 8, 8, 1),
        ("900000 100000", 8, 8, 8),
        (None, 8, 3, 3),
        ("400000 100000", 8, 3, 3),
        (None, 8, None, 8),  # macOS
        ("200000 100000", 8, None, 2),
        (None, None, None, 1),  # a system that does not tell
    ],
)
def test_allowed_cores(
    limit: str | None, installed: int | None, bound: int | None, cores: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if limit is not None:
        (tmp_path / "cpu.max").write_text(f"{limit}\n")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    process = SimpleNamespace()
    if bound is not None:
        process.cpu_affinity = lambda: [*range(bound)]
    monkeypatch.setattr(psutil, "Process", lambda: process)
    monkeypatch.setattr(machine.os, "cpu_count", lambda: installed)
    assert allowed_cores(tmp_path) == cores


def test_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1024_000))
    assert free_memory(tmp_path) == 1024_000
    (tmp_path / "memory.max").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 100000\nfile 500000\n")
    assert free_memory(tmp_path) == 600_000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(tmp_path) == 1024_000
    (tmp_path / "memory.max").write_text("50000\n")
    assert free_memory(tmp_path) == 0


def test_this_machine() -> None:
    assert 1 <= allowed_cores() <= psutil.cpu_count()
    total = psutil.virtual_memory().total
    assert 0 <= free_memory() <= total


def test_engines_of_data_say_how_many_threads_a_worker_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(cpu_affinity=lambda: [*range(8)]))
    for word, cores in [("3", 3), ("16", 8), ("0", 8), ("", 8), ("2,1", 8)]:
        monkeypatch.setenv("OMP_NUM_THREADS", word)
        assert allowed_cores(tmp_path) == cores


def test_a_limit_of_address_space_is_told_before_libraries_meet_it(monkeypatch: pytest.MonkeyPatch) -> None:
    require_address_space()
    monkeypatch.setattr(machine, "_ROOM", 2**60)
    with pytest.raises(MemoryError, match="address space"):
        require_address_space()


# --- The device that `--device` names


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("auto", Device("auto")),
        ("cpu", Device("cpu")),
        ("cuda", Device("cuda", 0)),
        ("cuda:0", Device("cuda", 0)),
        ("cuda:15", Device("cuda", 15)),
        ("CUDA:1", Device("cuda", 1)),
        ("CPU", Device("cpu")),
        ("gpu", Device("cuda", 0)),
        ("GPU:1", Device("cuda", 1)),
        ("cuda:2,tf32=off", Device("cuda", 2, tf32=False)),
        ("auto,tf32=as-deployed", Device("auto")),
        ("cuda,memory=1.5", Device("cuda", memory=3 * 2**29)),
        ("GPU:1,memory=8,tf32=OFF", Device("cuda", 1, tf32=False, memory=2**33)),
    ],
)
def test_parse_device(text: str, device: Device) -> None:
    assert parse_device(text) == device


@pytest.mark.parametrize(
    "text", ["", "gpux", "CUDA:", "cuda:", "cuda:-1", "cuda:x", "cuda:1 ", "cpu:0", "auto:1", "cuda:1:2", "cpu\n"]
)
def test_other_devices(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_device(text)
    assert str(caught.value) == f"device '{text}' is not known; expected auto, cpu, cuda or cuda:INDEX"


@pytest.mark.parametrize("text", ["cuda,", "cuda,tf32", "cuda,tf32=on", "cuda,tf32=off,tf32=off", "cuda,memory=0"])
def test_what_does_not_follow_a_device(text: str) -> None:
    with pytest.raises(UsageError, match="expected tf32=as-deployed, tf32=off or memory=GIB"):
        parse_device(text)
