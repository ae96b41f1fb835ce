"""The device that `--device` names."""

from __future__ import annotations

import pytest

from tna_onnx.errors import UsageError
from tna_onnx.runtime import Device, parse_device


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


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("cuda:2,tf32=off", Device("cuda", 2, tf32=False)),
        ("auto,tf32=as-deployed", Device("auto")),
        ("cuda,memory=1.5", Device("cuda", memory=3 * 2**29)),
        ("GPU:1,memory=8,tf32=OFF", Device("cuda", 1, tf32=False, memory=2**33)),
    ],
)
def test_what_follows_the_device(text: str, device: Device) -> None:
    assert parse_device(text) == device


@pytest.mark.parametrize("text", ["cuda,", "cuda,tf32", "cuda,tf32=on", "cuda,tf32=off,tf32=off", "cuda,memory=0"])
def test_what_does_not_follow_a_device(text: str) -> None:
    with pytest.raises(UsageError, match="expected tf32=as-deployed, tf32=off or memory=GIB"):
        parse_device(text)
