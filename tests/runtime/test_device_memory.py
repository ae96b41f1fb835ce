"""Free memory of a CUDA device: the driver's functions, in the order in which they are called."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tna_onnx.runtime import device as device_memory
from tna_onnx.runtime import free_device_memory

GIB = 2**30


class FakeDriver:
    """The driver's functions: each returns 0 unless it is the one that fails."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[str] = []
        self._fails = fails

    def __getattr__(self, name: str) -> Any:
        def call(*words: Any) -> int:
            self.calls.append(name)
            if name == "cuDeviceGet":
                assert words[1].value == 3
            if name == "cuMemGetInfo_v2":
                words[0]._obj.value, words[1]._obj.value = 5 * GIB, 80 * GIB
            return 2 if name == self._fails else 0

        return call


@pytest.mark.parametrize(("limit", "free"), [(None, 5 * GIB), (2 * GIB, 2 * GIB), (9 * GIB, 5 * GIB)])
def test_what_the_driver_says(limit: int | None, free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: driver)
    assert free_device_memory(3, limit) == free
    assert driver.calls[-3:] == ["cuMemGetInfo_v2", "cuCtxPopCurrent_v2", "cuDevicePrimaryCtxRelease_v2"]


@pytest.mark.parametrize(
    "fails", ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuMemGetInfo_v2"]
)
def test_a_driver_that_fails_says_nothing_and_keeps_nothing(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(fails)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: driver)
    assert free_device_memory(3, GIB) is None
    taken = "cuDevicePrimaryCtxRetain" in driver.calls and fails != "cuDevicePrimaryCtxRetain"
    assert ("cuDevicePrimaryCtxRelease_v2" in driver.calls) is taken


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "_DRIVER", "libnothing.so.0")
    assert free_device_memory(0) is None
