"""What a search loses that sees a part of very many samples: NLL on held-out samples, beside one that sees all.

Four kinds of data, ten seeds: logits of a random linear head on random features, overconfident by a factor, with and
without features that lean towards a common mean, and with frequent and rare classes. The search is `sparse` with `ts`.
N is above what a search sees (62,500), and the same number is held out.

    python benchmarks/part.py
    python benchmarks/part.py --samples 200000 --seeds 3
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from common import arguments, markdown

from tna_onnx.calibration.crossfit import seen
from tna_onnx.calibration.strategy import Part, Strategy
from tna_onnx.engine.logits import HeadLogits
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.numerics.threads import one_thread
from tna_onnx.runtime import allowed_cores
from tna_onnx.search.settings import SearchSettings

KINDS: dict[str, tuple[int, int, float, float, float]] = {
    # features, classes, factor of the logits, lean towards a common mean, spread of the log frequencies of classes
    "64 x 10": (64, 10, 1.5, 0.0, 0.0),
    "256 x 100": (256, 100, 2.0, 0.0, 0.0),
    "256 x 100, features that lean": (256, 100, 1.5, 0.5, 0.0),
    "64 x 20, rare classes": (64, 20, 2.0, 0.0, 1.5),
}

Data = tuple[FeatureTable, FeatureTable, np.ndarray, np.ndarray]


def make(kind: str, samples: int, seed: int) -> Data:
    """Return calibration and held-out samples, weight (C, n) and bias (C,)."""
    n, classes, factor, lean, spread = KINDS[kind]
    rng = np.random.default_rng((seed, n, classes))
    weight = (2 * rng.standard_normal((classes, n)) / np.sqrt(n)).astype(np.float32)
    bias = (spread * rng.standard_normal(classes)).astype(np.float32)
    tables = []
    for _ in range(2):
        features = rng.standard_normal((samples, n), np.float32) + np.float32(lean)
        logits = features @ weight.T + bias
        tables.append(FeatureTable(features, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)))
    return tables[0], tables[1], np.float32(factor) * weight, np.float32(factor) * bias


def held_out_nll(data: Data, seed: int, *, part: bool) -> tuple[float, float]:
    """Search and fit; return the mean NLL on the held-out samples, and its standard error."""
    calib, held_out, weight, bias = data

    def logits_of(table: FeatureTable, new: np.ndarray) -> HeadLogits:
        return HeadLogits(table, new, bias)

    of_all: Callable[..., HeadLogits] = functools.partial(logits_of, calib)
    rows = seen(len(calib), seed)
    some = Part(rows, lambda: functools.partial(logits_of, calib.part(rows))) if part else None
    settings = SearchSettings(objective="nll", seed=seed, tilt_bias=False)
    strategy = Strategy(of_all, weight, "sparse", "ts", settings, part=some)
    with one_thread(allowed_cores()):
        outcome = strategy.run(lambda *_: None)
    after = logits_of(held_out, np.asarray(outcome.weight)).mapped_scores(outcome.fitted)
    nll = after.nll.astype(np.float64)
    return float(nll.mean()), float(nll.std() / np.sqrt(len(nll)))


def main() -> None:
    """Print the table."""
    parser = arguments(__doc__)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=10)
    a = parser.parse_args()
    heads = ["data", "NLL, all seen", "a part seen: difference, mean (range)", "standard error of a held-out NLL"]
    print(markdown(heads, []), flush=True)
    for kind in KINDS:
        pairs = []
        for seed in range(a.seeds):
            data = make(kind, a.samples, seed)
            pairs.append((held_out_nll(data, seed, part=False), held_out_nll(data, seed, part=True)))
        (every, error), (some, _) = np.array(pairs).transpose(1, 2, 0)
        change = some - every
        words = f"{change.mean():+.1e} ({change.min():+.1e} to {change.max():+.1e})"
        print(f"| {kind} | {every.mean():.4f} | {words} | {error.mean():.1e} |", flush=True)


if __name__ == "__main__":
    main()
