"""What looking from coarse to fine leaves on the table: the adaptive search against the whole grid.

Sparse search: the adaptive search ends with some number of members; beside it every angle of the 2-degree grid is
scored with as many. Complete search with TS: the same search over the whole grid first (`adaptive=False`). Objectives
are those of the calibration data, which the search minimises; a difference below zero says that the adaptive search,
which goes down to half a degree, found a better one than the grid holds.

    python benchmarks/adaptive.py MODEL.onnx CALIB [--mean .. --std ..] [--seeds 5]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tna_onnx.calibration.strategy import Strategy
from tna_onnx.calibration.task import Task, open_task
from tna_onnx.data import Recipe
from tna_onnx.data.options import DataOptions
from tna_onnx.engine.logits import score_all
from tna_onnx.numerics.averages import averages
from tna_onnx.numerics.metrics import objective_value
from tna_onnx.progress import silent
from tna_onnx.search.candidates import Candidate, choose
from tna_onnx.search.settings import SearchSettings

OBJECTIVES = ("ece", "adaece", "nll")


def opened(a: argparse.Namespace) -> Task:
    """Features of the calibration data."""
    recipe = Recipe(mean=tuple(a.mean), std=tuple(a.std)) if a.mean else None
    return open_task(
        a.model, a.calib, None, None, needs_head=True, head=None, output_name=None, output_kind=None,
        quantized_head="requantize", data=DataOptions(recipe), labels=None, held_out_labels=None, device="cpu",
        batch_size=64, cache=a.cache, overwrite=False, bins=15, show=silent,
    )  # fmt: skip


def runs(task: Task, seeds: int) -> Iterator[tuple[str, str, float, float, float, int, int]]:
    """Yield (search, objective, input, grid, adaptive, candidates of the grid, candidates of the adaptive search)."""
    weight = task.head.weight
    for search, name in (("sparse", "none"), ("complete", "ts")):
        for objective in OBJECTIVES:
            for seed in range(seeds):
                settings = SearchSettings(objective=objective, seed=seed, max_ensemble_size=2560)
                found = Strategy(task.logits, weight, search, name, settings).run(lambda *_: None)
                some = found.candidates
                if search == "sparse":
                    members = max(c.ensemble_size for c in some)
                    whole = [some[0]]
                    for average in averages(weight, settings.grid, members, settings.draws):
                        (scores,) = score_all([task.logits(average.weight)])
                        whole.append(Candidate(average.angle, members, average.rotations, scores))
                else:
                    full = SearchSettings(objective=objective, seed=seed, adaptive=False)
                    whole = Strategy(task.logits, weight, search, name, full).run(lambda *_: None).candidates
                value = [
                    objective_value(c.scores, objective, 15)
                    for c in (some[0], whole[choose(whole, settings)], found.chosen)
                ]
                yield search, objective, *value, len(whole), len(some)


def numbers(text: str) -> list[float]:
    """Read comma-separated numbers."""
    return [float(part) for part in text.split(",")]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("calib")
    parser.add_argument("--mean", type=numbers)
    parser.add_argument("--std", type=numbers)
    parser.add_argument("--cache")
    parser.add_argument("--seeds", type=int, default=5)
    a = parser.parse_args()
    task = opened(a)
    print(f"{Path(a.model).name}, {task.source.describe()}, head {task.head.weight.shape}, {a.seeds} seeds\n")
    print(
        "| search | objective | input | whole grid | adaptive | adaptive minus grid, mean (least to most) | "
        "as good or better | candidates of the grid | adaptive |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    rows = list(runs(task, a.seeds))
    for search in ("sparse", "complete"):
        for objective in OBJECTIVES:
            mine = np.array([row[2:] for row in rows if row[:2] == (search, objective)])
            factor, unit = (1, "nats") if objective == "nll" else (100, "%")
            before, grid, found = (factor * mine[:, k] for k in range(3))
            gap = found - grid
            print(
                f"| {search} | {objective}, {unit} | {before.mean():.4f} | {grid.mean():.4f} | {found.mean():.4f} | "
                f"{gap.mean():+.4f} ({gap.min():+.4f} to {gap.max():+.4f}) | {np.sum(gap <= 1e-12)} of {len(gap)} | "
                f"{mine[:, 3].mean():.0f} | {mine[:, 4].mean():.0f} |"
            )


if __name__ == "__main__":
    main()
