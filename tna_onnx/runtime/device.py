"""The device that the user asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tna_onnx.errors import UsageError

__all__ = ["Device", "parse_device"]


@dataclass(frozen=True)
class Device:
    """The value of `--device`: `auto`, `cpu` or `cuda`, with the index of the CUDA device."""

    kind: str
    index: int = 0


def parse_device(text: str) -> Device:
    """Read `auto`, `cpu`, `cuda` or `cuda:1`, in any case; `gpu` is CUDA.

    Raises:
        UsageError: anything else.

    >>> parse_device("cuda:1")
    Device(kind='cuda', index=1)
    """
    match = re.fullmatch(r"(auto|cpu|cuda)(?::(\d+))?", text.lower().replace("gpu", "cuda"))
    if match is None or (match[2] and match[1] != "cuda"):
        raise UsageError(f"device '{text}' is not known; expected auto, cpu, cuda or cuda:INDEX")
    return Device(match[1], int(match[2] or 0))
