"""Rotations a second of paths to 60 degrees, side by side, and the memory traffic that this is.

Stops: mRC is measured after every rotation, and the stops of 120 angles are found. Sums: with the stops known, the same
rotations once more, and the mean over paths at the last angle, or at nine angles half a degree apart. A rotation of C
class vectors reads two rows of them and writes two, and where mRC is measured it reads two of the original: 16 or 24 C
bytes of float32 at least. The share is this over the bandwidth of copying a large array, measured beside it.

    python benchmarks/tilt.py
    python benchmarks/tilt.py --largest 1e9    # leave out weights of more bytes; paths need three times as many
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable

import numpy as np
from common import arguments, markdown, timed

from tna_onnx.numerics.class_vectors import ClassVectors
from tna_onnx.numerics.rotations import Rotations, TiltParameters
from tna_onnx.numerics.stops import find_stops
from tna_onnx.numerics.tilt import tilted_means

SIZES = [(10, 512, 32), (100, 512, 32), (1000, 2048, 10), (21_843, 1280, 2), (128_000, 4096, 1)]
HEAD = ["what", "C", "n", "paths", "rotations a path", "rotations/s, median (range)", "GB/s", "share of bandwidth"]


def bandwidth() -> float:
    """Bytes a second of copying 128 MB, read and written."""
    array = np.zeros(2**25, np.float32)
    other, best = array + 0, math.inf
    for _ in range(7):
        start = time.perf_counter()
        other[:] = array
        best = min(best, time.perf_counter() - start)
    return 2 * 2**27 / best


def main() -> None:
    """Print the table."""
    parser = arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--angle", type=float, default=60.0)
    parser.add_argument("--largest", type=float, default=4e9, help="bytes of a weight")
    a = parser.parse_args()
    speed = bandwidth()
    rows = []
    for classes, n, paths in SIZES:
        if 4 * classes * n > a.largest:
            continue
        start = ClassVectors.of(np.random.default_rng(0).standard_normal((classes, n), np.float32))
        rotations = Rotations(n, 0, TiltParameters())
        grid = np.radians(np.arange(1, 121) * a.angle / 120)
        stops = find_stops(start, rotations, np.arange(paths), grid).rotations
        total = int(stops[:, -1].sum())

        means = functools.partial(tilted_means, start, rotations)
        cases: dict[str, Callable[[], object]] = {
            "stops": functools.partial(find_stops, start, rotations, np.arange(paths), grid),
            "sums, one angle": functools.partial(means, stops[:, -1:]),
            "sums, nine angles": functools.partial(means, stops[:, -9:]),
        }
        for name, run in cases.items():
            rates = [total / timed(run) for _ in range(1 if classes > 100_000 else a.repeats)]
            median = float(np.median(rates))
            traffic = (24 if name == "stops" else 16) * classes * median
            span = f"{median:,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
            rows.append([
                name, f"{classes:,}", f"{n:,}", str(paths), f"{total / paths:,.0f}", span,
                f"{traffic / 1e9:.2f}", f"{traffic / speed:.1%}",
            ])  # fmt: skip
    print(markdown(HEAD, rows))


if __name__ == "__main__":
    main()
