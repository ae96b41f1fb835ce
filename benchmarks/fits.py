"""Fits of maps beside what a user would pick instead, on the same logits, in one process, one after the other.

Temperature: ours; scikit-learn's (the calibrator inside `CalibratedClassifierCV(method="temperature")`), on float32 and
float64 logits; netcal's, on float64 probabilities; probmetrics' default; SciPy's `minimize_scalar` over the NLL. Each
result is judged by one float64 NLL that none of them uses. Isotonic: ours against a loop of scikit-learn's
`IsotonicRegression` over the classes; the step that both share, pooling adjacent violators, on the same cells; and how
far our function, which has cells and a prior, lies from the plain one. Runs take turns, so that a slow minute hits all.

    pip install '.[oracles]' && python benchmarks/fits.py --json fits.json
    python benchmarks/fits.py --help
"""

# ruff: noqa: PLC0415 (each of the others is optional)
from __future__ import annotations

import functools
import itertools
import json
import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, markdown, timed
from problems import make
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax

from tna_onnx.engine.local import sum_chunks
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.isotonic import CENTRES, cells, isotonic_log_odds, pool

CHUNK = 2**21  # logits in a chunk, as in a search with 2048 features


def reduce_of(logits: np.ndarray, labels: np.ndarray) -> Callable[..., Any]:
    """Reduce over chunks as the search makes them."""
    rows = max(1, CHUNK // logits.shape[1])
    cuts = [*range(0, len(labels), rows), len(labels)]

    def run(of: Callable[..., Any], *aligned: np.ndarray) -> Any:
        return sum_chunks(
            of, [(logits[a:b], labels[a:b], None, *(x[a:b] for x in aligned)) for a, b in itertools.pairwise(cuts)]
        )

    return run


def nll(logits: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    """Mean NLL in float64."""
    rows = np.arange(len(labels))
    return float(-np.mean(log_softmax(logits.astype(np.float64) / temperature, axis=1)[rows, labels]))


def temperature_fits(logits: np.ndarray, labels: np.ndarray) -> dict[str, Callable[[], float]]:
    """Return fits by name, each giving T; what they take as input is made beforehand."""
    double = logits.astype(np.float64)
    fits: dict[str, Callable[[], float]] = {
        "tna-onnx": lambda: Temperature.fit(reduce_of(logits, labels)).temperature,
        "SciPy minimize_scalar": lambda: math.exp(
            minimize_scalar(
                lambda u: nll(logits, labels, math.exp(u)), bounds=(-5, 5), method="bounded", options={"xatol": 1e-8}
            ).x
        ),
    }
    try:
        from sklearn.calibration import _TemperatureScaling

        def sklearn_temperature(values: np.ndarray) -> float:
            return 1 / float(_TemperatureScaling().fit(values, labels).beta_)

        for name, values in (("float32", logits), ("float64", double)):
            fits[f"scikit-learn, {name}"] = functools.partial(sklearn_temperature, values)
    except ImportError:
        print("left out: scikit-learn 1.8 or newer is not installed")
    try:
        import torch
        from probmetrics.calibrators.temperature_scaling import TemperatureScalingCalibrator
        from probmetrics.distributions import CategoricalLogits

        given, target = CategoricalLogits(torch.from_numpy(logits)), torch.from_numpy(labels)
        fits["probmetrics"] = lambda: 1 / float(TemperatureScalingCalibrator().fit_torch(given, target).invtemp_)
    except ImportError:
        print("left out: probmetrics is not installed")
    try:
        from netcal.scaling import TemperatureScaling

        p = np.exp(log_softmax(double, axis=1))
        fits["netcal, float64"] = lambda: 1 / float(TemperatureScaling().fit(p, labels).temperature[0])
    except ImportError:
        print("left out: netcal is not installed")
    return fits


def take_turns(fits: dict[str, Callable[[], Any]], repeats: int) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Return (seconds of every run, last result) by name."""
    seconds: dict[str, list[float]] = {name: [] for name in fits}
    results: dict[str, Any] = {}
    for _ in range(repeats):
        for name, fit in fits.items():

            def keep(name: str = name, fit: Callable[[], Any] = fit) -> None:
                results[name] = fit()

            seconds[name].append(timed(keep))
    return seconds, results


def spread(seconds: list[float]) -> str:
    """Median and range in milliseconds."""
    low, mid, high = 1e3 * min(seconds), 1e3 * float(np.median(seconds)), 1e3 * max(seconds)
    return f"{mid:.3g} ({low:.3g} to {high:.3g})"


def ratio(seconds: dict[str, list[float]], name: str) -> float:
    """Median over turns of another fit's time over ours."""
    return float(np.median(np.array(seconds[name]) / np.array(seconds["tna-onnx"])))


def show_temperature(logits: np.ndarray, labels: np.ndarray, repeats: int) -> list[dict[str, Any]]:
    """Print the table of temperature fits, and return its rows."""
    seconds, temperatures = take_turns(temperature_fits(logits, labels), repeats)
    print(f"\n### Temperature, {len(labels):,} x {logits.shape[1]:,} logits, {repeats} turns\n")
    nlls = {name: nll(logits, labels, t) for name, t in temperatures.items()}
    rows = []
    for name, t in temperatures.items():
        off = t / temperatures["tna-onnx"] - 1
        more = nlls[name] - nlls["tna-onnx"]
        times = [spread(seconds[name]), f"{ratio(seconds, name):.1f}"]
        rows.append([name, *times, f"{t:.8f}", f"{off:+.1e}", f"{nlls[name]:.10f}", f"{more:+.1e}"])
    head = ["fit", "ms: median (range)", "times ours", "T", "relative difference of T", "NLL", "NLL - ours"]
    print(markdown(head, rows), flush=True)
    return [
        {"fit": name, "seconds": seconds[name], "temperature": t, "nll": nlls[name]} for name, t in temperatures.items()
    ]


def show_isotonic(logits: np.ndarray, labels: np.ndarray, repeats: int) -> dict[str, Any]:
    """Print times of the isotonic fits and how far they agree."""
    from sklearn.isotonic import IsotonicRegression

    p = np.exp(log_softmax(logits, axis=1))
    classes = range(logits.shape[1])

    def loop() -> list[Any]:
        return [IsotonicRegression(out_of_bounds="clip").fit(p[:, c], labels == c) for c in classes]

    def in_cells() -> list[Any]:
        return [isotonic_log_odds(p[:, c], labels == c) for c in classes]

    fits = {"tna-onnx": in_cells, "scikit-learn": loop}
    seconds, found = take_turns(fits, repeats)
    pooled, function = [], []
    for c, (log_odds, plain) in enumerate(zip(found["tna-onnx"], found["scikit-learn"], strict=True)):
        count, hits = cells(p[:, c], labels == c)
        filled = np.flatnonzero(count)
        frequency = hits[filled] / count[filled]
        expected = IsotonicRegression().fit(filled, frequency, count[filled]).predict(filled)
        pooled.append(np.abs(expected - pool(frequency, count[filled])[0]).max())
        function.append(np.abs(np.interp(p[:, c], expit(CENTRES), expit(log_odds)) - plain.predict(p[:, c])))
    largest = np.array([f.max() for f in function])
    print(f"\n### Isotonic, {len(labels):,} x {len(classes):,}, {repeats} turns\n")
    rows = ([name, spread(values), f"{ratio(seconds, name):.1f}"] for name, values in seconds.items())
    print(markdown(["fit", "ms: median (range)", "times ours"], rows))
    print(f"\nPooling on the same cells: largest difference over all classes {max(pooled):.1e}.")
    print(
        f"Final function (72 cells of log-odds, a beta prior) to the plain one at the samples: mean "
        f"{np.mean(function):.1e}, largest of a class: median {np.median(largest):.3f}, maximum {largest.max():.3f}."
    )
    return {"seconds": seconds, "pooling": float(max(pooled)), "function_mean": float(np.mean(function))}


def main() -> None:
    """Print the tables."""
    parser = arguments(__doc__)
    parser.add_argument("--samples", type=int, default=12_500)
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="file for the numbers")
    a = parser.parse_args()
    warnings.simplefilter("ignore")  # of the libraries compared with
    table, weight, _ = make(a.samples, a.features, a.classes, 0.125, 0.15)
    labels = table.labels
    logits = table.features @ weight.T
    rng = np.random.default_rng(0)
    honest = 2 * rng.standard_normal((500, 10))
    small = (2.5 * honest).astype(np.float32), (honest + rng.gumbel(size=honest.shape)).argmax(axis=1)
    print(f"{os.cpu_count()} cores, NumPy {np.__version__}")
    result = {
        "temperature": show_temperature(logits, labels, a.repeats),
        "temperature_small": show_temperature(*small, 4 * a.repeats),
        "isotonic": show_isotonic(logits, labels, a.repeats),
    }
    if a.json:
        a.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
