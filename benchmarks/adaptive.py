"""What looking from coarse to fine leaves on the table: the adaptive search against the whole grid.

Sparse search: the adaptive search ends with some number of members; beside it every angle of the 2-degree grid is
scored with as many. Complete search with TS: the same search over the whole grid first (`adaptive=False`). Objectives
are those of the calibration data, which the search minimises; a difference below zero says that the adaptive search,
which goes down to half a degree, found a better one than the grid holds.

    python benchmarks/adaptive.py MODEL.onnx CALIB [--mean .. --std ..] [--seeds 5]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import numpy as np
from common import arguments, markdown
from problems import open_head

from tna_onnx.calibration.strategy import Strategy
from tna_onnx.calibration.task import Task
from tna_onnx.data import Recipe
from tna_onnx.engine.logits import score_all
from tna_onnx.graph.readout import Head
from tna_onnx.numerics.averages import averages
from tna_onnx.numerics.metric import Objective
from tna_onnx.numerics.metrics import objective_value
from tna_onnx.search.candidates import Candidate, choose
from tna_onnx.search.settings import SearchSettings

HEAD = [
    "search", "objective", "input", "whole grid", "adaptive", "adaptive minus grid, mean (least to most)",
    "as good or better", "candidates of the grid", "adaptive",
]  # fmt: skip
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)

Row = tuple[str, Objective, float, float, float, int, int]
"""Search, objective, its value for the input, the grid and the adaptive search; candidates of these two."""


def runs(task: Task, head: Head, seeds: int) -> Iterator[Row]:
    """Yield a row for each search, objective and seed."""
    weight = head.weight
    for search, name in (("sparse", "none"), ("complete", "ts")):
        for objective in OBJECTIVES:
            for seed in range(seeds):
                settings = SearchSettings(objective=objective, seed=seed, max_ensemble_size=2560)
                outcome = Strategy(task.logits, weight, search, name, settings).run(lambda *_: None)
                tried = outcome.candidates
                if search == "sparse":
                    members = max(c.ensemble_size for c in tried)
                    whole = (tried[0], *grid_candidates(task, head, members, settings))
                else:
                    full = SearchSettings(objective=objective, seed=seed, adaptive=False)
                    whole = Strategy(task.logits, weight, search, name, full).run(lambda *_: None).candidates
                before, grid, adaptive = (
                    objective_value(c.scores, objective, settings.bins)
                    for c in (tried[0], whole[choose(whole, settings)], outcome.chosen)
                )
                yield search, objective, before, grid, adaptive, len(whole), len(tried)


def grid_candidates(task: Task, head: Head, members: int, settings: SearchSettings) -> Iterator[Candidate]:
    """Yield a candidate for every angle of the grid, with the same number of members."""
    for average in averages(head.weight, settings.grid, members, settings.draws):
        (scores,) = score_all([task.logits(average.weight)])
        yield Candidate(average.angle, members, average.rotations, scores)


def numbers(text: str) -> list[float]:
    """Read comma-separated numbers."""
    return [float(part) for part in text.split(",")]


def main() -> None:
    """Print the table."""
    parser = arguments(__doc__)
    parser.add_argument("model")
    parser.add_argument("calib")
    parser.add_argument("--mean", type=numbers)
    parser.add_argument("--std", type=numbers)
    parser.add_argument("--cache")
    parser.add_argument("--seeds", type=int, default=5)
    a = parser.parse_args()
    recipe = Recipe(mean=tuple(a.mean), std=tuple(a.std)) if a.mean else None
    task, head = open_head(a.model, a.calib, recipe=recipe, cache=a.cache)
    print(f"{task.model.name}, {task.source.describe()}, head {head.weight.shape}, {a.seeds} seeds\n")
    results = list(runs(task, head, a.seeds))
    rows = [
        cells(search, objective, np.array([row[2:] for row in results if row[:2] == (search, objective)]))
        for search in ("sparse", "complete")
        for objective in OBJECTIVES
    ]
    print(markdown(HEAD, rows, words=2))


def cells(search: str, objective: Objective, values: np.ndarray) -> list[str]:
    """Write the row of one search and objective: (seeds, 5) values of `runs`."""
    factor, unit = (1, "nats") if objective == "nll" else (100, "%")
    before, grid, adaptive = factor * values[:, :3].T
    gap = adaptive - grid
    return [
        search,
        f"{objective}, {unit}",
        *(f"{value.mean():.4f}" for value in (before, grid, adaptive)),
        f"{gap.mean():+.4f} ({gap.min():+.4f} to {gap.max():+.4f})",
        f"{np.sum(gap <= 1e-12)} of {len(gap)}",
        *(f"{counts.mean():.0f}" for counts in values[:, 3:].T),
    ]


if __name__ == "__main__":
    main()
