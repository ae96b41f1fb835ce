"""The device that the user asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tna_onnx.errors import UsageError

__all__ = ["Device", "parse_device"]

_GIB = 2**30

# What may follow the device, each once.
_OPTION = re.compile(r"tf32=(?P<tf32>as-deployed|off)|memory=(?P<memory>\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Device:
    """The value of `--device`.

    Attributes:
        kind: `auto`, `cpu` or `cuda`.
        index: of the CUDA device.
        tf32: whether ONNX Runtime may round float32 products to TF32 on CUDA, as it does where models are deployed.
        memory: bytes of the CUDA device that a run may take; None for all that is free.
    """

    kind: str
    index: int = 0
    tf32: bool = True
    memory: int | None = None


def parse_device(text: str) -> Device:
    """Read `auto`, `cpu`, `cuda` or `cuda:1`, in any case; `gpu` is CUDA.

    `,tf32=off` behind it keeps float32 products on CUDA in float32, and `,memory=8` takes 8 GiB of the device at most.

    Raises:
        UsageError: anything else.

    >>> parse_device("cuda:1,tf32=off")
    Device(kind='cuda', index=1, tf32=False, memory=None)
    """
    word, *options = text.lower().replace("gpu", "cuda").split(",")
    match = re.fullmatch(r"(auto|cpu|cuda)(?::(\d+))?", word)
    if match is None or (match[2] and match[1] != "cuda"):
        raise UsageError(f"device '{text}' is not known; expected auto, cpu, cuda or cuda:INDEX")
    found = [_OPTION.fullmatch(option) for option in options]
    given = {name: value for each in found if each for name, value in each.groupdict().items() if value}
    memory = float(given["memory"]) if "memory" in given else None
    if len(given) != len(options) or memory == 0:
        raise UsageError(f"device '{text}': expected tf32=as-deployed, tf32=off or memory=GIB behind the device")
    limit = None if memory is None else round(memory * _GIB)
    return Device(match[1], int(match[2] or 0), given.get("tf32") != "off", limit)
