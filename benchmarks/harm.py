"""What recalibration does to models of all kinds: gains, harm, false improvements, and whether estimates are honest.

Every map, the search, the default and calibrators of other libraries, on pairs of a model and data, each split several
times at random. Libraries that are not installed are left out. Models and runs are kept in --work: a run that was
interrupted goes on there; remove runs/METHOD.jsonl to repeat a method. Writes Markdown to --output, and beside it means
and counts of every pair and method as JSON.

    python benchmarks/harm.py --cifar10 FOLDER --workers 2   # FOLDER: calib/, test/, resnet20.onnx, resnet20-wide.onnx
    python benchmarks/harm.py --quick --work quick --output quick.md
    python benchmarks/harm.py --families --output families.md
"""

from __future__ import annotations

import json
import platform
import time
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from common import arguments
from harm_methods import LIMITS, installed, versions_of
from harm_page import cells_of, document
from harm_pairs import FAMILIES, PAIRS, QUICK
from harm_runs import Run, load, run_all

_QUICK_SPLITS = 2


def _times(runs: list[Run]) -> str:
    """Write the seconds that each method took, estimates included."""
    seconds: dict[str, float] = defaultdict(float)
    for run in runs:
        seconds[run["method"]] += run["seconds"] + run.get("estimate_seconds", 0)
    return "seconds by method: " + ", ".join(f"{name} {value:.0f}" for name, value in seconds.items())


def _short(cell: dict[str, Any]) -> str:
    """Write a cell with five digits a number."""
    return json.dumps(json.loads(json.dumps(cell), parse_float=lambda text: float(f"{float(text):.5g}")))


def main() -> None:
    """Make all runs that are missing, and write the page."""
    parser = arguments(__doc__)
    parser.add_argument("--cifar10", type=Path, metavar="FOLDER", help="without it, its pairs are left out")
    parser.add_argument("--work", type=Path, default=Path("out/harm"), help="what is kept between runs")
    parser.add_argument("--output", type=Path, default=Path("docs/results/harm.md"))
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--quick", action="store_true", help=f"{len(QUICK)} pairs, {_QUICK_SPLITS} splits at most")
    parser.add_argument("--families", action="store_true", help="the ten families that no rule was made on, alone")
    a = parser.parse_args()
    pairs = list(FAMILIES) if a.families else [pair for pair in PAIRS if pair.data != "cifar10" or a.cifar10]
    splits = a.splits
    if a.quick:
        pairs, splits = list(QUICK), min(splits, _QUICK_SPLITS)
    start = time.perf_counter()
    run_all(pairs, splits, a.work, a.cifar10, a.workers, lambda line: print(line, flush=True))
    runs = load(a.work, pairs, splits)
    print(_times(runs))
    cells = cells_of(runs)
    peers, missing = installed()
    made_with = {"Python": platform.python_version(), "tna-onnx": version("tna-onnx"), "numpy": version("numpy")}
    head: dict[str, Any] = {
        "splits": splits,
        "limits": LIMITS,
        "missing": missing,
        "versions": made_with | versions_of(peers),
    }
    rows = ",\n".join(_short({"pair": p, "method": m, **cell}) for (p, m), cell in sorted(cells.items()))
    a.output.parent.mkdir(parents=True, exist_ok=True)
    a.output.with_suffix(".json").write_text(f'{json.dumps(head)[:-1]}, "cells": [\n{rows}\n]}}\n', "utf-8")
    a.output.write_text(document(head, cells, pairs), "utf-8")
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
