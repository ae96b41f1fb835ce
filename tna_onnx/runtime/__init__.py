"""ONNX Runtime: sessions on a device, and the cores and memory that they may use."""

from tna_onnx.runtime.device import Device, allowed_cores, free_memory, parse_device, require_address_space, trim_memory
from tna_onnx.runtime.providers import open_session, runtime_version
from tna_onnx.runtime.session import AT_ONCE, CUDA, OutOfMemory, Session, TensorInfo, side_by_side

__all__ = [
    "AT_ONCE",
    "CUDA",
    "Device",
    "OutOfMemory",
    "Session",
    "TensorInfo",
    "allowed_cores",
    "free_memory",
    "open_session",
    "parse_device",
    "require_address_space",
    "runtime_version",
    "side_by_side",
    "trim_memory",
]
