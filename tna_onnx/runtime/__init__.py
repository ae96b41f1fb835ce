"""What ONNX Runtime does: sessions on a device, and the cores and memory that the machine has for them."""

from tna_onnx.runtime.device import Device, parse_device
from tna_onnx.runtime.device_memory import free_device_memory
from tna_onnx.runtime.machine import (
    allowed_cores,
    free_memory,
    require_address_space,
    resident_memory,
    share_cores,
    trim_memory,
)
from tna_onnx.runtime.opening import open_session, runtime_version
from tna_onnx.runtime.session import OutOfMemory, Session, TensorInfo
from tna_onnx.runtime.side_by_side import AT_ONCE, side_by_side

__all__ = [
    "AT_ONCE",
    "Device",
    "OutOfMemory",
    "Session",
    "TensorInfo",
    "allowed_cores",
    "free_device_memory",
    "free_memory",
    "open_session",
    "parse_device",
    "require_address_space",
    "resident_memory",
    "runtime_version",
    "share_cores",
    "side_by_side",
    "trim_memory",
]
