"""Statistics over the runs of the harm benchmark: a cell for each pair and method, then means and rates of groups.

A pair counts once in a mean, with the mean of its splits; intervals of means come from drawing pairs with replacement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from harm_ours import DEFAULT, METHODS
from harm_peers import PEERS
from harm_runs import INPUT, Run
from harm_scores import METRICS, exact_interval
from numpy.typing import NDArray

__all__ = ["UNGATED", "Cell", "Cells", "cells_of", "mean_interval", "rate", "share_of_best_peer", "values"]

UNGATED = f"{DEFAULT}, gates ignored"
"""The default's result where it was refused too; else such a run counts as the input, which the user is left with."""

# All times are relative to this method on the same split.
_UNIT_OF_TIME = "ts"

_RESAMPLES = 2_000

Cell = dict[str, Any]
"""Means and counts over the splits of one method on one pair."""

Cells = dict[tuple[str, str], Cell]
"""By (pair, method)."""


def cells_of(runs: Iterable[Run]) -> Cells:
    """Reduce runs to cells; methods that did not run on a pair have a cell with `runs` 0 and the reasons."""
    groups: dict[tuple[str, str], list[Run]] = defaultdict(list)
    every = list(runs)
    given = {(run["pair"], run["split"]): run for run in every if run["method"] == INPUT}
    for run in every:
        if run["method"] == DEFAULT:
            groups[run["pair"], UNGATED].append(run)
            groups[run["pair"], DEFAULT].append(_as_left(run, given[run["pair"], run["split"]]))
        else:
            groups[run["pair"], run["method"]].append(run)
    unit = {
        (run["pair"], run["split"]): run["seconds"]
        for run in every
        if run["method"] == _UNIT_OF_TIME and "left_out" not in run
    }
    return {key: _cell(own, unit) for key, own in groups.items()}


def _as_left(run: Run, given: Run) -> Run:
    """Return the input's scores where no file would have been written, by a gate or by an error."""
    if "left_out" in run:
        nothing = {"verdict": 0, "unchanged": False, "refused": True, "chosen": "error", "bias": {}}
        return given | nothing | {"seconds": run["seconds"]}
    if run["refused"]:
        return run | {key: value for key, value in given.items() if key not in ("method", "seconds")}
    return run


def _cell(runs: Sequence[Run], unit: dict[tuple[str, int], float]) -> Cell:
    made = [run for run in runs if "left_out" not in run]
    cell: Cell = {
        "runs": len(made),
        "splits": len(runs),
        "left_out": sorted({run["left_out"] for run in runs if "left_out" in run}),
    }
    if not made:
        return cell
    for name in (*METRICS, *(f"d_{name}" for name in METRICS)):
        cell[name] = float(np.mean([run[name] for run in made]))
    for name in ("nll", "accuracy"):
        cell[f"{name}_worse"] = sum(run[f"{name}_change"] > 0 for run in made)
    cell["worse"] = sum(max(run["nll_change"], run["accuracy_change"]) > 0 for run in made)
    ratios = [run["seconds"] / unit[key] for run in made if (key := (run["pair"], run["split"])) in unit]
    cell["time"] = float(np.median(ratios)) if ratios else None
    if "verdict" in made[0]:
        cell["improved"] = sum(run["verdict"] > 0 and not run["refused"] for run in made)
        cell["refused"] = sum(run["refused"] for run in made)
        cell["unchanged"] = sum(run["unchanged"] for run in made)
        cell["bias"] = {name: _mean(run["bias"].get(name) for run in made) for name in ("ece", "accuracy", "nll")}
        cell["chosen"] = sorted({run["chosen"].partition(",")[0] for run in made})
    return cell


def _mean(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return float(np.mean(there)) if there else None


def mean_interval(figures: Sequence[float] | NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the mean over pairs and its 95 % interval from drawing pairs with replacement."""
    array = np.asarray(figures, np.float64)
    # the same draws for every method: their differences are paired
    rows = np.random.default_rng(0).integers(0, len(array), (_RESAMPLES, len(array)))
    low, high = np.quantile(array[rows].mean(1), [0.025, 0.975])
    return float(array.mean()), float(low), float(high)


def values(cells: Cells, pairs: Iterable[str], method: str, key: str) -> list[float]:
    """Return a figure of a method on all pairs on which it ran."""
    found = (cells.get((pair, method), {"runs": 0}) for pair in pairs)
    return [cell[key] for cell in found if cell["runs"] and cell[key] is not None]


def rate(cells: Cells, pairs: Iterable[str], method: str, key: str) -> tuple[int, int, float, float]:
    """Return how many runs of a method have a property, of how many, and the exact 95 % interval of the share."""
    pairs = list(pairs)
    hits, runs = (int(sum(values(cells, pairs, method, name))) for name in (key, "runs"))
    return hits, runs, *exact_interval(hits, runs)


def share_of_best_peer(cells: Cells, pairs: Sequence[str]) -> dict[str, Any]:
    """Compare the default's mean log-loss gain with the best single peer's, and with the best of our maps on each pair.

    Only peers that ran on every pair take part.
    """
    gains = {name: -_array(cells, pairs, name) for name in (DEFAULT, *PEERS) if _everywhere(cells, pairs, name)}
    own = gains.pop(DEFAULT)
    single = [INPUT, *(name for name in METHODS if name != DEFAULT)]
    oracle = np.array([max(_gain(cells[pair, name]) for name in single if (pair, name) in cells) for pair in pairs])
    result: dict[str, Any] = {"gain": own.mean(), "oracle": oracle.mean(), "to_oracle": mean_interval(own - oracle)}
    if gains:
        best = max(gains, key=lambda name: float(gains[name].mean()))
        result |= {"peer": best, "peer_gain": gains[best].mean(), "to_peer": mean_interval(own - gains[best])}
    return result


def _gain(cell: Cell) -> float:
    # a split on which a map cannot be fitted is left as it is
    return float(-cell["d_nll"] * cell["runs"] / cell["splits"]) if cell["runs"] else 0.0


def _everywhere(cells: Cells, pairs: Sequence[str], method: str) -> bool:
    return len(values(cells, pairs, method, "d_nll")) == len(pairs)


def _array(cells: Cells, pairs: Sequence[str], method: str) -> NDArray[np.float64]:
    return np.array(values(cells, pairs, method, "d_nll"))
