"""Rotations a second of paths to 60 degrees, side by side, and the memory traffic that this is.

Stops: mRC is measured after every rotation, and the stops of 120 angles are found. Sums: with the stops known, the same
rotations once more, and the mean over paths at the last angle, or at nine angles half a degree apart. A rotation of C
class vectors reads two rows of them and writes two, and where mRC is measured it reads two of the original: 16 or 24 C
bytes of float32 at least. The share is this over the bandwidth of copying a large array, measured beside it.

Where there is a C compiler, a plain loop in C makes the same rotations of one path after the other and follows the
deficits, on one core: what stops and sums are measured by. It looks at no angle and adds nothing up.

    python benchmarks/tilt.py
    python benchmarks/tilt.py --largest 1e9    # leave out weights of more bytes; paths need three times as many
"""

from __future__ import annotations

import ctypes
import functools
import math
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import arguments, markdown, timed

from tna_onnx.numerics.class_vectors import ClassVectors
from tna_onnx.numerics.rotations import Rotations, TiltParameters
from tna_onnx.numerics.stops import find_stops
from tna_onnx.numerics.tilt import tilted_means

# as many paths as a search takes, of large heads fewer: compiled code is used where it is in a search
SIZES = [(10, 512, 32), (100, 512, 32), (1000, 2048, 32), (21_843, 1280, 8), (128_000, 4096, 1)]
HEAD = [
    *("what", "C", "n", "paths", "rotations a path", "rotations/s, median (range)", "GB/s", "share of bandwidth"),
    "share of C",
]

PLAIN = r"""
void turn(float *restrict vi, float *restrict vj, const float *restrict wi, const float *restrict wj,
          float *restrict deficits, float c, float s, long classes) {
  for (long k = 0; k < classes; k++) {
    float a = vi[k], b = vj[k], x = c * a + s * b, y = c * b - s * a;
    deficits[k] += wi[k] * (a - x) + wj[k] * (b - y);
    vi[k] = x;
    vj[k] = y;
  }
}
void walk(float *v, const float *w, float *deficits, const long *pairs, const float *c, const float *s, long rotations,
          long classes) {
  for (long k = 0; k < rotations; k++) {
    long i = pairs[2 * k] * classes, j = pairs[2 * k + 1] * classes;
    turn(v + i, v + j, w + i, w + j, deficits, c[k], s[k], classes);
  }
}
"""


def plain_loop() -> ctypes.CDLL | None:
    """Compile the loop; None without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "plain.c"
        source.write_text(PLAIN)
        words = [compiler, "-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", str(source), "-o"]
        subprocess.run([*words, f"{folder}/plain.so"], check=True)
        return ctypes.CDLL(f"{folder}/plain.so")


def plain_rate(loop: ctypes.CDLL, start: ClassVectors, rotations: Rotations, count: int) -> float:
    """Rotations a second of the loop, on its best of five walks of the first path."""
    vectors = start.block(slice(None))
    pairs, turn = rotations.of(np.arange(1), 0, count)
    turned = vectors.copy()
    deficits = np.zeros(vectors.shape[1], np.float32)
    arrays = [turned, vectors, deficits, np.ascontiguousarray(pairs[0], np.int64)]
    arrays += [np.ascontiguousarray(part, np.float32) for part in (np.cos(turn[0]), np.sin(turn[0]))]
    walk = functools.partial(loop.walk, *(array.ctypes.data_as(ctypes.c_void_p) for array in arrays))
    sizes = ctypes.c_long(count), ctypes.c_long(vectors.shape[1])
    return count / min(timed(functools.partial(walk, *sizes)) for _ in range(5))


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
    loop = plain_loop()
    rows = []
    for classes, n, paths in SIZES:
        if 4 * classes * n > a.largest:
            continue
        start = ClassVectors.of(np.random.default_rng(0).standard_normal((classes, n), np.float32))
        rotations = Rotations(n, 0, TiltParameters())
        grid = np.radians(np.arange(1, 121) * a.angle / 120)
        stops = find_stops(start, rotations, np.arange(paths), grid).rotations
        total = int(stops[:, -1].sum())
        plain = plain_rate(loop, start, rotations, int(stops[0, -1])) if loop else math.nan

        means = functools.partial(tilted_means, start, rotations)
        cases: dict[str, Callable[[], object]] = {
            "stops": functools.partial(find_stops, start, rotations, np.arange(paths), grid),
            "sums, one angle": functools.partial(means, stops[:, -1:]),
            "sums, nine angles": functools.partial(means, stops[:, -9:]),
        }
        for name, run in cases.items():
            run()  # compiled on first use
            rates = [total / timed(run) for _ in range(1 if classes > 100_000 else a.repeats)]
            median = float(np.median(rates))
            traffic = (24 if name == "stops" else 16) * classes * median
            span = f"{median:,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
            rows.append([
                name, f"{classes:,}", f"{n:,}", str(paths), f"{total / paths:,.0f}", span,
                f"{traffic / 1e9:.2f}", f"{traffic / speed:.1%}", f"{median / plain:.1%} of {plain:,.0f}",
            ])  # fmt: skip
    print(markdown(HEAD, rows))


if __name__ == "__main__":
    main()
