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
    "text",
    ["", "gpux", "CUDA:", "cuda:", "cuda:-1", "cuda:x", "cuda:1 ", "cpu:0", "auto:1", "cuda:1:2", "cpu\n"],
)
def test_other_devices(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_device(text)
    assert str(caught.value) == f"device '{text}' is not known; expected auto, cpu, cuda or cuda:INDEX"
