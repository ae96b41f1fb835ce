"""`--device`, `--tf32` and `--gpu-memory`: one text for the API, such as `cuda:1,tf32=off,memory=8`."""

from __future__ import annotations

from typing import Any

__all__ = ["join_device"]


def join_device(parameters: dict[str, Any]) -> None:
    """Put what is said about the device behind its name, in place, where a command has these options."""
    tf32 = parameters.pop("tf32", None)
    memory = parameters.pop("gpu_memory", None)
    if tf32 is not None:
        parameters["device"] += f",tf32={tf32}"
    if memory is not None:
        parameters["device"] += f",memory={memory:.9f}".rstrip("0").rstrip(".")
