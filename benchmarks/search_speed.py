"""Sparse search against the bare products it cannot avoid, and against Algorithm 1 as printed.

Random class vectors, and features that lean towards the vector of their label, of the size asked for; `--lean` sets the
accuracy, `--sharpness` the overconfidence. Then in one process, one after the other:

- bare: as many `features @ weight.T` products, in the same row blocks, as the search scored candidates on its grid;
- search: the sparse search, with everything that it does: paths, limit curve, more members, refinement, scoring;
- printed: Algorithm 1 with an explicit R. A few iterations are timed (build R^t, R <- R R^t, mRC from R W) and
  multiplied by the iterations that the grid needs, as counted by the search: sum over its angles of n_e times n_r.

    python benchmarks/search_speed.py            # N = 12,500, n = 2048, C = 1000, 2-degree grid
    python benchmarks/search_speed.py --help
"""

from __future__ import annotations

import functools
import os
import time

import numpy as np
from common import arguments, timed
from problems import bare_products, make, sparse_search

from tna_onnx.numerics.angles import mean_rotation
from tna_onnx.numerics.metrics import ece
from tna_onnx.search.candidates import Candidate, choose
from tna_onnx.search.settings import SearchSettings


def printed_iteration(weight: np.ndarray, iterations: int, seed: int) -> float:
    """Seconds of one iteration of Algorithm 1 with an explicit R, averaged over a few."""
    rng, n = np.random.default_rng(seed), weight.shape[1]
    rotation = np.eye(n, dtype=np.float32)
    start = time.perf_counter()
    for _ in range(iterations):
        step = np.eye(n, dtype=np.float32)
        angle, (i, j) = 0.9 * rng.beta(5, 1), rng.choice(n, 2, replace=False)
        step[[i, j, i, j], [i, j, j, i]] = np.cos(angle), np.cos(angle), -np.sin(angle), np.sin(angle)
        rotation = rotation @ step
        mean_rotation(weight, weight @ rotation.T)
    return (time.perf_counter() - start) / iterations


def main() -> None:
    """Print the ratios."""
    parser = arguments(__doc__)
    parser.add_argument("--samples", type=int, default=12_500)
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--lean", type=float, default=0.125)
    parser.add_argument("--sharpness", type=float, default=0.15)
    parser.add_argument("--angle-step", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=5, help="timed iterations of Algorithm 1 as printed")
    a = parser.parse_args()
    table, weight, bias = make(a.samples, a.features, a.classes, a.lean, a.sharpness)
    settings = SearchSettings(angle_step=a.angle_step)
    print(f"N {a.samples}, n {a.features}, C {a.classes}; {os.cpu_count()} cores, NumPy {np.__version__}")

    bare = functools.partial(bare_products, table, weight, len(settings.grid))
    pool: tuple[Candidate, ...] = ()

    def search() -> None:
        nonlocal pool
        pool = sparse_search(table, weight, bias, settings)

    pairs = [(timed(bare), timed(search)) for _ in range(a.repeats)]
    ratios = sorted(s / b for b, s in pairs)
    chosen = pool[choose(pool, settings)]
    for name, c in (("input", pool[0]), ("chosen", chosen)):
        print(
            f"{name:<7} {c.angle:g} degrees, {c.ensemble_size} members: accuracy {c.scores.hit.mean():.4f}, "
            f"ECE {ece(c.scores):.4f}"
        )
    print(f"bare    {len(settings.grid)} products: {np.median([b for b, _ in pairs]):.1f} s (median of {a.repeats})")
    print(f"search  {len(pool)} candidates scored: {np.median([s for _, s in pairs]):.1f} s")
    print(f"ratio   search / bare: median {ratios[len(ratios) // 2]:.2f}, range {ratios[0]:.2f} to {ratios[-1]:.2f}")

    per_iteration = printed_iteration(weight, a.iterations, seed=0)
    level = [c for c in pool if c.angle in settings.grid and c.ensemble_size == settings.ensemble_size]
    needed = sum(c.rotations * c.ensemble_size for c in level)
    total = per_iteration * needed
    print(
        f"printed {per_iteration:.3f} s an iteration ({a.iterations} timed), {needed:,.0f} iterations for the grid "
        f"({a.iterations / needed:.1e} of it was run): {total:,.0f} s, {total / np.median([s for _, s in pairs]):,.0f} "
        "times the search"
    )


if __name__ == "__main__":
    main()
