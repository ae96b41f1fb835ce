"""Rotations a second of one path to 60 degrees, and the memory traffic that this is.

A rotation of C class vectors reads two rows of them and two of the original weight and writes two: 24 C bytes of
float32 at least. The share is this over the bandwidth of copying a large array, measured beside it. Rotations of
disjoint coordinates are applied together (at most `n_t`, 50); how long such runs are depends on n alone.

    python benchmarks/tilt.py                  # NumPy, torch on the CPU, torch on CUDA where there is a device
    python benchmarks/tilt.py --largest 1e9    # leave out weights of more bytes; a path needs three times as many
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from common import arguments

from tna_onnx.numerics.rotations import TiltParameters
from tna_onnx.numerics.tilt import TiltPath

SIZES = [(10, 512), (1000, 2048), (21_843, 1280), (128_000, 4096)]


def places() -> Iterator[tuple[str, Callable[[np.ndarray], Any], Callable[[], None]]]:
    """Yield (name, from NumPy, wait until done)."""
    yield "NumPy", lambda array: array, lambda: None
    try:
        import torch  # noqa: PLC0415 - optional
    except ImportError:
        return
    yield "torch, CPU", torch.from_numpy, lambda: None
    if torch.cuda.is_available():
        yield f"torch, {torch.cuda.get_device_name()}", lambda a: torch.from_numpy(a).cuda(), torch.cuda.synchronize


def bandwidth(put: Callable[[np.ndarray], Any], wait: Callable[[], None]) -> float:
    """Bytes a second of copying 128 MB, read and written."""
    array = put(np.zeros(2**25, np.float32))
    other, best = array + 0, math.inf
    for _ in range(7):
        start = time.perf_counter()
        other[:] = array
        wait()
        best = min(best, time.perf_counter() - start)
    return 2 * 2**27 / best


def main() -> None:
    """Print the table."""
    parser = arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--angle", type=float, default=60.0)
    parser.add_argument("--largest", type=float, default=4e9, help="bytes of a weight")
    a = parser.parse_args()
    print("| where | C | n | rotations | rotations/s, median (range) | GB/s | share of bandwidth |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, put, wait in places():
        speed = bandwidth(put, wait)
        for classes, n in SIZES:
            if 4 * classes * n > a.largest:
                print(f"| {name} | {classes:,} | {n:,} | not run: {4 * classes * n / 2**30:.1f} GB | | | |")
                continue
            weight = put(np.random.default_rng(0).standard_normal((classes, n), np.float32))
            rates = []
            for seed in range(1 if classes > 100_000 else a.repeats):
                path = TiltPath(weight, np.random.SeedSequence(seed), TiltParameters(), counterpart=False)
                start = time.perf_counter()
                path.advance(math.radians(a.angle))
                wait()
                rates.append(path.rotations / (time.perf_counter() - start))
            median = float(np.median(rates))
            print(
                f"| {name} | {classes:,} | {n:,} | {path.rotations:,} | {median:,.0f} ({min(rates):,.0f} to "
                f"{max(rates):,.0f}) | {24 * classes * median / 1e9:.2f} | {24 * classes * median / speed:.1%} |",
                flush=True,
            )
            del path, weight


if __name__ == "__main__":
    main()
