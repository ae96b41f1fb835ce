"""What it costs that `calibrate --add` splits the samples: coverage and size of sets, beside all samples for both.

A temperature is fitted and `lac` sets are made at 95 %, from N samples, in four ways:

    split        the temperature from one half, the threshold from the other: at least 95 % is proven
    twice        both from all samples: nothing is proven
    CV+ 95       cross-conformal in 10 folds, at 95 %: 90 % is proven
    CV+ 97.5     the same at 97.5 %: 95 % is proven, as the split has it

    python benchmarks/split_cost.py MODEL DATA... --samples 200 1000 --splits 100

Source: Y. Romano, M. Sesia, E. Candes, NeurIPS 2020, section 3 (CV+ for classes: 1 - 2 alpha at alpha); R. Barber et
al., Predictive inference with the jackknife+, Annals of Statistics 2021.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, markdown
from guarantees_data import predictions
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from tna_onnx.data import Recipe
from tna_onnx.numerics.conformal import quantile
from tna_onnx.numerics.set_scores import tempered

Floats = NDArray[np.floating]
Ints = NDArray[np.int64]

_LEVEL = 0.95
_FOLDS = 10
_JUDGING = 3000


def fitted(p: Floats, y: Ints) -> float:
    """Return the temperature with the lowest NLL."""

    def nll(log_t: float) -> float:
        return -float(np.mean(np.log(np.maximum(tempered(p, np.exp(log_t))[np.arange(len(y)), y], 1e-30))))

    return float(np.exp(minimize_scalar(nll, bounds=(-2, 3), method="bounded", options={"xatol": 1e-3}).x))


def own(scores: NDArray[Any], y: Ints) -> NDArray[Any]:
    """Return the columns of the true classes."""
    return scores[np.arange(len(y)), y]


def plain(fit: tuple[Floats, Ints], decide: tuple[Floats, Ints], new: Floats) -> NDArray[np.bool_]:
    """Return sets of one temperature and one threshold."""
    temperature = fitted(*fit)
    limit = quantile(own(1 - tempered(decide[0], temperature), decide[1]), _LEVEL)
    return np.asarray(1 - tempered(new, temperature) <= limit)


def above(p: Floats, y: Ints, new: Floats) -> Ints:
    """Return how many samples have a score that is at least that of each class (M, C), each from a fit without it."""
    fold = np.arange(len(y)) % _FOLDS
    counts = np.zeros(new.shape, np.int64)
    for k in range(_FOLDS):
        temperature = fitted(p[fold != k], y[fold != k])
        scores = np.sort(own(1 - tempered(p[fold == k], temperature), y[fold == k]))
        counts += len(scores) - np.searchsorted(scores, 1 - tempered(new, temperature), side="left")
    return counts


def ways(p: Floats, y: Ints, new: Floats) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield the sets of each way."""
    half = len(y) // 2
    yield "split", plain((p[:half], y[:half]), (p[half:], y[half:]), new)
    yield "twice", plain((p, y), (p, y), new)
    counts = above(p, y, new)
    for level in (0.95, 0.975):
        yield f"CV+ {100 * level:g}", counts + 1 > (1 - level) * (len(y) + 1)


def main() -> None:
    """Print a row for each number of samples and each way."""
    parser = arguments(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--mean", type=float, nargs=3, help="of the channels of images")
    parser.add_argument("--std", type=float, nargs=3)
    parser.add_argument("--samples", type=int, nargs="+", default=[200, 1000])
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--keep", type=Path, help="file that keeps probabilities")
    options = parser.parse_args()
    recipe = Recipe(mean=tuple(options.mean), std=tuple(options.std)) if options.mean else None
    found = predictions(options.model, options.data, recipe, options.keep)
    rng = np.random.default_rng(0)
    rows = []
    for n in options.samples:
        seen: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for _ in range(options.splits):
            order = rng.permutation(len(found.labels))
            judging = order[n : n + _JUDGING]
            for way, sets in ways(found.p[order[:n]], found.labels[order[:n]], found.p[judging]):
                seen[way].append((float(own(sets, found.labels[judging]).mean()), float(sets.sum(axis=1).mean())))
        for way, pairs in seen.items():
            (held, size), (held_sd, size_sd) = np.mean(pairs, axis=0), np.std(pairs, axis=0)
            rows.append([f"{n:,}", way, f"{held:.2%} ({held_sd:.2%})", f"{size:.3f} ({size_sd:.3f})"])
    print(markdown(["samples", "way", "coverage (s. d.)", "classes in a set (s. d.)"], rows, words=2))


if __name__ == "__main__":
    main()
