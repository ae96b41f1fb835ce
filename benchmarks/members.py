"""How many members are enough before the limit of many stands in: held-out figures of caps from 32 to 256.

    python benchmarks/members.py [MODEL.onnx CALIB HELD_OUT ...] [--seeds 3] [--caps 32 64 256]

Without models: the digits demo and random problems of several shapes. Each row is the sparse search with one cap, from
the same draws: NLL and ECE of held-out samples less those of the first cap, as mean and standard error over seeds, and
how many of the seeds ended with the limit of many members. Seeds draw the members, and of random problems the halves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import arguments, markdown
from problems import make, open_head, sparse_search

from tna_onnx.engine.logits import HeadLogits
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.numerics.metric import Objective
from tna_onnx.numerics.metrics import objective_value
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.search.candidates import candidate_weight, choose
from tna_onnx.search.settings import SearchSettings

DEMO = Path(__file__).parent.parent / "models" / "digits"
# samples, n, C, lean, sharpness: short and long features, few and many classes
SHAPES = [(2000, 64, 10, 0.2, 0.4), (2000, 256, 100, 0.15, 0.25), (2000, 512, 20, 0.1, 0.15)]
HEAD = ["data", "cap", "NLL less the first", "ECE less the first, points", "members", "limit"]


@dataclass(frozen=True, eq=False)
class Problem:
    """A head, and two sets of features."""

    name: str
    weight: np.ndarray
    bias: np.ndarray
    calibration: FeatureTable
    held_out: FeatureTable


def of_files(model: Path, calib: Path, held_out: Path) -> Problem:
    """Open a model with its data."""
    task, head = open_head(model, calib, held_out)
    assert task.held_out is not None
    return Problem(model.parent.name, head.weight, head.bias, task.calibration.table, task.held_out.table)


def at_random(shape: tuple[int, int, int, float, float], seed: int) -> Problem:
    """Draw a problem, and its halves."""
    table, weight, bias = make(*shape)
    order = np.random.default_rng(seed).permutation(len(table))
    halves = [FeatureTable(table.features[rows], table.labels[rows]) for rows in np.array_split(order, 2)]
    return Problem(f"random, n {shape[1]}, C {shape[2]}", weight, bias, *halves)


def found(problem: Problem, cap: int, seed: int) -> tuple[SampleScores, int]:
    """Search with a cap; return the scores of held-out samples and the members chosen, 0 for the limit."""
    settings = SearchSettings(max_ensemble_size=cap, seed=seed)
    candidates = sparse_search(problem.calibration, problem.weight, problem.bias, settings)
    best = candidates[choose(candidates, settings)]
    weight = candidate_weight(problem.weight, best, settings)
    return HeadLogits(problem.held_out, weight, problem.bias).scores(), best.ensemble_size


def row(name: str, cap: int, scores: list[SampleScores], first: list[SampleScores], members: list[int]) -> list[str]:
    """Write a row."""
    cells = []
    metrics: tuple[tuple[Objective, int], ...] = (("nll", 1), ("ece", 100))
    for metric, factor in metrics:
        less = [
            factor * (objective_value(a, metric, 15) - objective_value(b, metric, 15))
            for a, b in zip(scores, first, strict=True)
        ]
        error = np.std(less, ddof=1) / np.sqrt(len(less)) if len(less) > 1 else float("nan")
        cells.append(f"{np.mean(less):+.4f} ± {error:.4f}")
    finite = [size for size in members if size]
    return [
        name,
        str(cap),
        *cells,
        f"{np.mean(finite):.0f}" if finite else "none",
        f"{members.count(0)}/{len(members)}",
    ]


def rows(problems: list[Problem], caps: list[int]) -> Iterator[list[str]]:
    """Yield the rows of one data set; a problem for each seed."""
    first: list[SampleScores] = []
    for cap in caps:
        runs = [found(problem, cap, seed) for seed, problem in enumerate(problems)]
        scores = [each for each, _ in runs]
        first = first or scores
        yield row(problems[0].name, cap, scores, first, [size for _, size in runs])


def main() -> None:
    """Print a table."""
    parser = arguments(__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--caps", type=int, nargs="+", default=[32, 64, 256])
    a = parser.parse_args()
    files = a.files or [DEMO / "model.onnx", DEMO / "calib.npz", DEMO / "test.npz"]
    sets = [[of_files(*files[k : k + 3])] * a.seeds for k in range(0, len(files), 3)]
    if not a.files:
        sets += [[at_random(shape, seed) for seed in range(a.seeds)] for shape in SHAPES]
    print(markdown(HEAD, (cells for problems in sets for cells in rows(problems, a.caps)), words=1))


if __name__ == "__main__":
    main()
