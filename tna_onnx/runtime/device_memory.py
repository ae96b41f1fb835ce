"""Free memory of a CUDA device, from the driver: ONNX Runtime does not say, and torch may not be there."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

__all__ = ["free_device_memory"]

# The driver is a part of the system, and counts the devices that this process sees.
_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def free_device_memory(index: int, limit: int | None = None) -> int | None:
    """Return the free bytes of a CUDA device; None where no driver says.

    Args:
        index: of the device.
        limit: bytes that may be taken; None for all.
    """
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return None
    free = _free(driver, index)
    if free is None or limit is None:
        return free
    return min(free, limit)


def _free(driver: Any, index: int) -> int | None:
    device = ctypes.c_int()
    context = ctypes.c_void_p()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(index)):
        return None
    # the context that ONNX Runtime and torch use too
    if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        return None
    free = ctypes.c_size_t()
    total = ctypes.c_size_t()
    try:
        if driver.cuCtxPushCurrent_v2(context):
            return None
        failed = driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)
    if failed:
        return None
    return int(free.value)
