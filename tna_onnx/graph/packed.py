"""Weights of a few bits, several to a byte, as MatMulNBits stores them: a scale, and a zero point, for each block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["unpacked"]

# As floats, a weight takes eight times the bytes of 4-bit numbers: up to 256 MB of them.
_MAX_ELEMENTS = 2**26


def unpacked(
    codes: NDArray[Any], scales: NDArray[Any], zero: NDArray[Any] | None, attributes: Mapping[str, Any]
) -> NDArray[Any] | None:
    """Return the (N, K) weight that packed numbers stand for; None if they are too many, or of another layout.

    Args:
        codes: uint8 (N, blocks, bytes of a block); the lower bits of a byte come first.
        scales: one a block, (N, blocks) or flat.
        zero: one a block: packed like the codes, or floats; in the middle of the range by default.
        attributes: K, N, bits and block_size.

    Source: ONNX Runtime, ContribOperators.md, com.microsoft.MatMulNBits.
    """
    rows = int(attributes.get("N", 0))
    length = int(attributes.get("K", 0))
    bits = int(attributes.get("bits", 4))
    block = int(attributes.get("block_size", 0))
    if bits not in (2, 4, 8) or block < 1 or rows < 1 or rows * length > _MAX_ELEMENTS or codes.dtype != np.uint8:
        return None
    blocks = -(-length // block)
    if codes.size != rows * blocks * block * bits // 8 or scales.size != rows * blocks:
        return None
    numbers = _split(codes.reshape(rows, -1), bits).reshape(rows, blocks, block).astype(np.float64)
    middle: Any = 2 ** (bits - 1)
    if zero is not None:
        flat = zero.reshape(rows, -1)
        middle = (_split(flat, bits) if zero.dtype == np.uint8 else flat)[:, :blocks, None].astype(np.float64)
    weight = (numbers - middle) * scales.reshape(rows, blocks, 1).astype(np.float64)
    return np.asarray(weight.reshape(rows, -1)[:, :length], scales.dtype)


def _split(packed: NDArray[Any], bits: int) -> NDArray[Any]:
    """Return the numbers in bytes, (N, bytes) -> (N, numbers)."""
    shifts = np.arange(0, 8, bits)
    return np.asarray((packed[:, :, None] >> shifts) & (2**bits - 1)).reshape(len(packed), -1)
