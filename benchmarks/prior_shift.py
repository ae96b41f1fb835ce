"""What `shift` does where class frequencies change: accuracy and NLL before and after, and how often it refuses.

Frequencies are drawn from a Dirichlet distribution with all parameters 1. Samples of POOL are drawn to have them: one
half of its samples gives those without labels, the other half judges. With --noise, normal noise on the inputs of POOL
makes samples look different, so that `shift` has to refuse. The model runs once over all samples.

    python benchmarks/prior_shift.py CALIBRATED_MODEL CALIB POOL --draws 10
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.data.options import Data
from tna_onnx.errors import CheckFailed
from tna_onnx.extraction.sessions import input_specs, open_model
from tna_onnx.graph.load import load_model
from tna_onnx.graph.outputs import class_output
from tna_onnx.numerics.prior_shift import log_ratio
from tna_onnx.numerics.shift_evidence import Observed
from tna_onnx.runtime import parse_device
from tna_onnx.shifting.estimate import estimate, source_counts
from tna_onnx.shifting.settings import ShiftSettings
from tna_onnx.shifting.writing import shifted


def _seen(
    model: Path, path: Path, recipe: Recipe | None, noise: float
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Probabilities and labels."""
    loaded = load_model(model)
    output = class_output(loaded)
    session = open_model(loaded, parse_device("cpu"))
    data = Data(path, preprocessing=recipe)
    names = data.class_names(loaded.metadata, output.labels, output.n_classes)
    source = data.open(input_specs(session), output.n_classes, names)
    rng = np.random.default_rng(0)
    parts = []
    for batch in source.batches(64):
        noisy = {k: (v + noise * rng.standard_normal(v.shape)).astype(v.dtype) for k, v in batch.items()}
        parts.append(output.probabilities(session.run([output.name], noisy)[0]))
    return np.concatenate(parts), source.labels


def main() -> None:
    """Run all draws and print a line each, and their means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("calib", type=Path)
    parser.add_argument("pool", type=Path)
    parser.add_argument("--mean", type=float, nargs="+", help="of images, 0 to 1")
    parser.add_argument("--std", type=float, nargs="+")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--samples", type=int, default=1000, help="without labels, and as many that judge")
    parser.add_argument("--estimator", choices=("em", "bbse"), default="em")
    parser.add_argument("--noise", type=float, default=0.0, help="standard deviation, in units of the inputs")
    arguments = parser.parse_args()
    recipe = None
    if arguments.mean:
        recipe = Recipe(mean=tuple(arguments.mean), std=tuple(arguments.std))
    old, old_labels = _seen(arguments.model, arguments.calib, recipe, 0)
    pool, labels = _seen(arguments.model, arguments.pool, recipe, arguments.noise)
    classes = pool.shape[1]
    source = source_counts(old_labels, [str(k) for k in range(classes)], "calib")
    results = []
    refused = 0
    for draw in range(arguments.draws):
        rng = np.random.default_rng(draw)
        q = rng.dirichlet(np.ones(classes))
        order = rng.permutation(len(labels))
        halves = []
        for half in (order[: len(order) // 2], order[len(order) // 2 :]):
            wanted = rng.choice(classes, arguments.samples, p=q)
            halves.append(np.array([rng.choice(half[labels[half] == k]) for k in wanted]))
        observed = Observed(old_labels, old.argmax(axis=1), old.max(axis=1), pool[halves[0]], source, counted=True)
        try:
            found = estimate(observed, ShiftSettings(estimator=arguments.estimator), "target")
        except CheckFailed as error:
            refused += 1
            print(f"{draw}: refused: {error}")
            continue
        judged = labels[halves[1]]
        before = pool[halves[1]]
        after = shifted(before, log_ratio(source, found.prior))
        row = [
            value
            for p in (before, after)
            for value in (
                float(np.mean(p.argmax(axis=1) == judged)),
                float(-np.mean(np.log(np.maximum(p[np.arange(len(judged)), judged], 1e-12)))),
            )
        ]
        held = np.mean((found.interval[:, 0] <= q) & (q <= found.interval[:, 1]))
        results.append([*row, np.abs(q - source).sum() / 2, np.abs(q - found.prior).sum() / 2, held])
        print(
            f"{draw}: accuracy {row[0]:.4f} -> {row[2]:.4f}, NLL {row[1]:.4f} -> {row[3]:.4f}, frequencies off by "
            f"{results[-1][4]:.3f} -> {results[-1][5]:.3f}, {held:.0%} in their intervals"
        )
    print(f"refused {refused} of {arguments.draws}")
    if results:
        means = np.mean(results, axis=0)
        print(
            f"mean: accuracy {means[0]:.4f} -> {means[2]:.4f}, NLL {means[1]:.4f} -> {means[3]:.4f}, frequencies off "
            f"by {means[4]:.3f} -> {means[5]:.3f}, {means[6]:.0%} in their intervals"
        )


if __name__ == "__main__":
    main()
