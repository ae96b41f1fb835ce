"""Sets and accepted samples where class frequencies change: the dial left alone, and turned to the new frequencies.

Thresholds come from half of the samples; the others are drawn again with frequencies of a Dirichlet distribution. The
sets are those that the file makes, from the same formulas in NumPy (`tests/guarding/test_dials.py` compares both).

    python benchmarks/turned_prior.py MODEL DATA... --draws 100
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from common import arguments, markdown
from guarantees_data import predictions
from numpy.typing import NDArray

from tna_onnx.data import Recipe
from tna_onnx.numerics.prior_shift import smoothed
from tna_onnx.numerics.selective import accept_above

_COVERAGE = 0.95
_RISK = 0.02
_DELTA = 0.05


def limit(scores: NDArray[np.floating], labels: NDArray[np.int64], ratio: NDArray[np.float64]) -> float:
    """Return the weighted quantile of calibration scores."""
    order = np.argsort(scores, kind="stable")
    weights = ratio[labels[order]]
    share = np.cumsum(weights) / (weights.sum() + ratio.max())
    reached = np.flatnonzero(share >= _COVERAGE)
    return float(scores[order][reached[0]]) if len(reached) else float("inf")


def main() -> None:
    """Print a row for the dial left alone, and one for the dial turned."""
    parser = arguments(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--mean", type=float, nargs=3, help="of the channels of images")
    parser.add_argument("--std", type=float, nargs=3)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--samples", type=int, default=1000, help="that judge")
    parser.add_argument("--concentration", type=float, default=0.3)
    parser.add_argument("--keep", type=Path, help="file that keeps probabilities")
    options = parser.parse_args()
    recipe = Recipe(mean=tuple(options.mean), std=tuple(options.std)) if options.mean else None
    found = predictions(options.model, options.data, recipe, options.keep)
    classes = found.p.shape[1]
    rows: dict[str, list[tuple[float, ...]]] = {"left alone": [], "turned": []}
    for draw in range(options.draws):
        rng = np.random.default_rng(draw)
        order = rng.permutation(len(found.labels))
        own, pool = np.split(order, [len(order) // 2])
        p, y = found.p[own], found.labels[own]
        default = smoothed(np.bincount(y, minlength=classes) / len(y), len(y))
        target = np.maximum(rng.dirichlet(np.full(classes, options.concentration)), 1e-4)
        target /= target.sum()
        wanted = rng.choice(classes, options.samples, p=target)
        drawn = np.array([rng.choice(pool[found.labels[pool] == k]) for k in wanted])
        scores = (1 - p)[np.arange(len(y)), y]
        chosen = accept_above(p.max(axis=1), p.argmax(axis=1) == y, _RISK, _DELTA, classes)
        threshold = 2.0 if chosen is None else chosen.threshold
        for name, ratio in (("left alone", np.ones(classes)), ("turned", target / default)):
            new = found.p[drawn]
            sets = 1 - new <= limit(scores, y, ratio)
            posterior = new * ratio / (new @ ratio)[:, None]
            taken = posterior.max(axis=1) >= threshold
            wrong = posterior.argmax(axis=1) != wanted
            risk = float(wrong[taken].mean()) if taken.any() else 0.0
            held = float(sets[np.arange(len(drawn)), wanted].mean())
            rows[name].append((held, float(sets.sum(axis=1).mean()), taken.mean(), risk, 1 - wrong.mean()))
    table = []
    for name, values in rows.items():
        held, size, taken, risk, accuracy = np.mean(values, axis=0)
        lowest, highest = np.quantile([v[0] for v in values], 0.05), np.quantile([v[3] for v in values], 0.95)
        above = np.mean([v[3] > _RISK for v in values])
        table.append([
            options.model.stem, name, f"{held:.1%} ({lowest:.1%})", f"{size:.2f}", f"{taken:.1%}",
            f"{risk:.2%} ({highest:.2%})", f"{above:.0%}", f"{accuracy:.1%}",
        ])  # fmt: skip
    heads = ["model", "dial", "sets that hold the class (worst 5 %)", "classes in a set", "accepted",
             "wrong among accepted (worst 5 %)", "above 2 %", "accuracy"]  # fmt: skip
    print(markdown(heads, table, words=2))


if __name__ == "__main__":
    main()
