"""How the cost of the sparse search grows with N, n, C, n_e and the fineness of the grid, one at a time.

Around N = 8,000, n = 256, C = 100, n_e = 10 and a step of 2 degrees, each is halved, doubled, ... Members do not grow
here (`max_ensemble_size` is n_e, the accuracy constraint is off), so that what is seen is cost and not a different
course. Medians over turns that go through all points; the exponent is the slope of log time over log
size.

    python benchmarks/scaling.py --figure docs/results/scaling.svg
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from common import arguments, markdown, timed
from problems import make, sparse_search

from tna_onnx.search.settings import SearchSettings

BASE = {"N": 8000, "n": 256, "C": 100, "n_e": 10, "angles": 45}
POINTS = {
    "N": [2000, 4000, 8000, 16_000, 32_000, 64_000],
    "n": [64, 128, 256, 512, 1024, 2048],
    "C": [10, 30, 100, 300, 1000],
    "n_e": [5, 10, 20, 40, 80, 160],
    "angles": [11, 23, 45, 90, 180, 360],
}


def seconds(N: int, n: int, C: int, n_e: int, angles: int, *, adaptive: bool) -> float:
    """Time of one search."""
    table, weight, bias = make(N, n, C, lean=0.5, sharpness=0.3)
    settings = SearchSettings(
        ensemble_size=n_e, max_ensemble_size=n_e, angle_step=90 / angles, max_accuracy_drop=1.0, adaptive=adaptive
    )
    return timed(lambda: sparse_search(table, weight, bias, settings))


def main() -> None:
    """Print the table, draw the figure."""
    parser = arguments(__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--figure", type=Path)
    a = parser.parse_args()
    cases = [(kind, name, value) for kind in (True, False) for name in POINTS for value in POINTS[name]]
    cases = [case for case in cases if case[0] or case[1] == "angles"]
    times: dict[tuple[bool, str, int], list[float]] = {case: [] for case in cases}
    for _ in range(a.turns):
        for adaptive, name, value in cases:
            times[adaptive, name, value].append(seconds(**{**BASE, name: value}, adaptive=adaptive))
    print(f"Base: {', '.join(f'{k} {v}' for k, v in BASE.items())}; {a.turns} turns, median seconds.\n")
    curves = {}
    rows = []
    for adaptive, name in dict.fromkeys((kind, name) for kind, name, _ in cases):
        x = np.array(POINTS[name])
        y = np.array([np.median(times[adaptive, name, value]) for value in x])
        slope = np.polyfit(np.log(x[-3:]), np.log(y[-3:]), 1)[0]
        label = name if adaptive else f"{name}, whole grid"
        curves[label] = (x / BASE[name], y, slope)
        search = "adaptive" if adaptive else "whole grid"
        rows.append([name, search, ", ".join(f"{v:,}" for v in x), ", ".join(f"{v:.3g}" for v in y), f"{slope:.2f}"])
    print(markdown(["varied", "search", "values", "seconds", "exponent over the last three"], rows, words=4))
    if a.figure:
        draw(curves, a.figure)


def draw(curves: dict[str, tuple[np.ndarray, np.ndarray, float]], path: Path) -> None:
    """Write the figure (needs matplotlib, extra `plot`)."""
    import matplotlib as mpl  # noqa: PLC0415 - optional

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "tna-onnx"
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for (label, (x, y, slope)), marker in zip(curves.items(), "osD^vP", strict=True):
        axes.loglog(x, y, marker=marker, markersize=4, label=f"{label} (exponent {slope:.2f})")
    axes.set(xlabel="size over that of the base", ylabel="seconds of one sparse search")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
