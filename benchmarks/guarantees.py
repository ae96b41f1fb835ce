"""Whether the promises of `guard` hold: coverage of sets and risk of accepted samples over random splits of real data.

Each model runs once over all samples; splits, thresholds and figures follow from its probabilities. Half of each split
decides, the other half judges. Reports how often a promise fails, beside how often it may.

    python benchmarks/guarantees.py MODEL DATA [DATA ...] --splits 1000
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tna_onnx.data.images.preprocess import PRESETS
from tna_onnx.data.options import Data
from tna_onnx.extraction.sessions import input_specs, open_model
from tna_onnx.graph.load import load_model
from tna_onnx.graph.outputs import class_output
from tna_onnx.numerics.conformal import coverage_band, quantile
from tna_onnx.numerics.selective import accept_above
from tna_onnx.runtime import parse_device


def _probabilities(model: Path, paths: list[Path], preset: str | None) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    loaded = load_model(model)
    output = class_output(loaded)
    session = open_model(loaded, parse_device("cpu"))
    parts = []
    labels = []
    for path in paths:
        data = Data(path, preprocessing=PRESETS[preset] if preset else None)
        names = data.class_names(loaded.metadata, output.labels, output.n_classes)
        source = data.open(input_specs(session), output.n_classes, names)
        labels.append(source.labels)
        parts += [output.probabilities(session.run([output.name], batch)[0]) for batch in source.batches(64)]
    return np.concatenate(parts).astype(np.float32), np.concatenate(labels)


def main() -> None:
    """Run all splits and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--preset", choices=sorted(PRESETS))
    parser.add_argument("--splits", type=int, default=1000)
    parser.add_argument("--samples", type=int, help="that decide; half of all by default")
    arguments = parser.parse_args()
    p, labels = _probabilities(arguments.model, arguments.data, arguments.preset)
    confidence = p.max(axis=1)
    hit = p.argmax(axis=1) == labels
    own = 1 - p[np.arange(len(p)), labels]
    n = arguments.samples or len(p) // 2
    new = len(p) - n
    print(f"{arguments.model.name}: {len(p):,} samples, {n:,} decide, accuracy {hit.mean():.4f}")
    for level in (0.9, 0.95, 0.99):
        inside = 0
        covered = []
        low, high = coverage_band(n, level, new, 0.95)
        for seed in range(arguments.splits):
            order = np.random.default_rng(seed).permutation(len(p))
            share = float(np.mean(own[order[n:]] <= np.float32(quantile(own[order[:n]], level))))
            covered.append(share)
            inside += low <= share <= high
        print(
            f"set {level:.0%}: coverage {np.mean(covered):.4f}, in the 95 % band ({low:.4f} to {high:.4f}) "
            f"{inside / arguments.splits:.3f} of splits"
        )
    for risk in (0.01, 0.02, 0.05):
        above = found = 0
        accepted = []
        for seed in range(arguments.splits):
            order = np.random.default_rng(seed).permutation(len(p))
            chosen = accept_above(confidence[order[:n]], hit[order[:n]], risk, 0.05, p.shape[1])
            if chosen is None:
                continue
            found += 1
            taken = confidence[order[n:]] >= chosen.threshold
            accepted.append(float(taken.mean()))
            # the risk itself is not known: the error of all samples above the threshold stands for it
            above += bool(np.mean(~hit[confidence >= chosen.threshold]) > risk)
        limit = stats.binomtest(above, arguments.splits).proportion_ci(0.95, "exact")
        print(
            f"accept {risk:.0%}: threshold found in {found / arguments.splits:.3f}, accepts "
            f"{np.mean(accepted) if accepted else 0:.3f}, risk above in {above / arguments.splits:.4f} "
            f"({limit.low:.4f} to {limit.high:.4f}) of splits, allowed 0.05"
        )


if __name__ == "__main__":
    main()
