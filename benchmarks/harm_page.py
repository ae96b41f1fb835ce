"""The page of the harm benchmark: a cell for each pair and method, then means and rates over all pairs.

A pair counts once in a mean, with the mean of its splits; intervals of means come from drawing pairs with replacement.
"""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import markdown
from harm_methods import CHANGE, DEFAULT, KEEP, METHODS, OF_CHOICE, PEERS
from harm_pairs import GROUPS, Pair
from harm_runs import INPUT, METRICS, Run, exact_interval
from numpy.typing import NDArray

UNGATED = f"{DEFAULT}, gates ignored"
"""The default's result where it was refused too; else such a run counts as the input, which the user is left with."""

# All times are relative to this method on the same split.
_UNIT_OF_TIME = "ts"

_RESAMPLES = 2_000


def _commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=8", "HEAD"]
    found = subprocess.run(git, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
    return found.strip() or "unknown"  # a copy of the tree is no checkout


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
        if run["method"] in OF_CHOICE:
            if run["method"] == DEFAULT:
                groups[run["pair"], UNGATED].append(run)
            groups[run["pair"], run["method"]].append(_as_left(run, given[run["pair"], run["split"]]))
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
    cell["class_loses"] = sum(run["class_loses"] for run in made)
    cell["changed"] = float(np.mean([run["changed"] for run in made]))
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
    single = [INPUT, *(name for name in METHODS if name not in OF_CHOICE)]
    oracle = np.array([max(_gain(cells[pair, name]) for name in single if (pair, name) in cells) for pair in pairs])
    result: dict[str, Any] = {"gain": own.mean(), "oracle": oracle.mean(), "to_oracle": mean_interval(own - oracle)}
    ran = [name for name in (KEEP, CHANGE) if _everywhere(cells, pairs, name)]
    result["choices"] = {name: -_array(cells, pairs, name).mean() for name in ran}
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


_METHODS = (DEFAULT, *(name for name in METHODS if name != DEFAULT), *PEERS)

# Methods that the summary compares.
_COMPARED = (DEFAULT, "ts")

_COLUMNS = [
    "Method", "Pairs", "NLL gain, 0.001 nats", "Worse NLL, %",
    "ECE gain, points", "A class loses, %", "Worse accuracy, %",
]  # fmt: skip

# Intervals are shown for groups of at least this many pairs.
_FEWEST = 3


def document(head: dict[str, Any], cells: Cells, pairs: Sequence[Pair]) -> str:
    """Write the page: the setting, a summary, and one table over the pairs with something to gain."""
    with_gain = [pair.name for pair in pairs if "all" in pair.groups]
    calibrated = [pair.name for pair in pairs if "calibrated" in pair.groups]
    every = [pair.name for pair in pairs]
    sections = [
        "# Harm: how often recalibration makes a model worse",
        f"Generated by `benchmarks/harm.py` at commit {_commit()}; do not edit.",
        *_setting(head, len(pairs)),
        "## In short",
        "\n".join(f"- {line}" for line in _short(cells, with_gain, calibrated, every)),
        "By kind of data, for `default` and then `ts`: the log-loss gain in 0.001 nats, and the percentage of runs "
        "with significantly worse log loss or accuracy.",
        "\n".join(f"- {line}" for line in _by_group(cells, pairs)),
        "## Gains and harm",
        "The table has the pairs with something to gain. Gains are positive where the result is better; brackets hold "
        "95 % intervals (bootstrap over pairs; exact for shares of runs, but somewhat too narrow, since the splits of "
        "a pair share samples). *A class loses*: in these runs the recall of a class falls by more than 10 points and "
        "three standard errors. *Worse*: in these runs the test log loss or accuracy is significantly worse than the "
        "input's (paired z-test, one-sided 2.5 %).",
        _gain_table(cells, with_gain),
        "## How to make it",
        "```text\npython benchmarks/harm.py --cifar10 FOLDER --workers 2\n```",
        "[The JSON file](harm.json) has every pair and method, and why a method did not run on a pair. Made with "
        + ", ".join(f"{name} {number}" for name, number in head["versions"].items())
        + ".",
    ]
    return "\n\n".join(sections) + "\n"


def _setting(head: dict[str, Any], pairs: int) -> Iterator[str]:
    times = "once" if head["splits"] == 1 else f"{head['splits']} times"
    yield (
        f"{pairs} pairs of a model and data, each split {times} at random into 200 to 5,000 calibration samples and up "
        "to 5,000 test samples. The models are scikit-learn's classifiers, the demo network of this package and, if "
        "their files are given, two CIFAR-10 networks. Networks trained for this benchmark are overfitted on purpose. "
        "Kinds of data:"
    )
    yield (
        "- *Shifted*: classes are thinned out, down to a tenth for the last one, or every input gets normal noise of "
        "half a standard deviation.\n"
        "- *Wrong labels*: 5 to 20 % of the labels are drawn anew.\n"
        "- *Near copies*: calibration samples are four near copies each.\n"
        "- *Unknown groups*: ten samples each share noise of 0.7 deviations and their part of the split, which no "
        "method knows.\n"
        "- *Calibrated*: labels are drawn from the model's own probabilities, so there is nothing to gain."
    )
    yield (
        f"`{DEFAULT}` is `tna-onnx calibrate` without options; a model without a linear head is calibrated with "
        f"`--search none`. If a gate or an error leaves no file, the run counts as the input. {head['limits']}"
    )


def _short(cells: Cells, with_gain: Sequence[str], calibrated: Sequence[str], every: Sequence[str]) -> Iterator[str]:
    yield f"Significantly worse log loss than the input: {_both(cells, with_gain, 'nll_worse')}."
    best = share_of_best_peer(cells, with_gain)
    if "peer" in best:
        yield (
            f"Mean log-loss gain of `{DEFAULT}`: {_percent(best['gain'], best['peer_gain'])} of that of the best "
            f"single peer ({best['peer']}), and {_percent(best['gain'], best['oracle'])} of an oracle's, which knows "
            "the best of our methods for each pair."
        )
    if best["choices"]:
        of_oracle = (f"`{name}` {_percent(gain, best['oracle'])}" for name, gain in best["choices"].items())
        yield f"Of the oracle's gain: {', '.join(of_oracle)}."
    if calibrated:
        yield (
            f"On models that are already calibrated ({len(calibrated)} pairs), significantly worse log loss or "
            f"accuracy: {_both(cells, calibrated, 'worse')}."
        )
    bias = [cells[name, DEFAULT]["bias"] for name in every if cells[name, DEFAULT]["runs"]]
    off = {
        key: _interval([factor * entry[key] for entry in bias if entry.get(key) is not None], digits)
        for key, factor, digits in (("ece", 100, 3), ("accuracy", 100, 3), ("nll", 1e3, 2))
    }
    yield (
        f"Cross-fitted estimate of `{DEFAULT}` minus the value on test data, over all pairs: ECE {off['ece']} points "
        "(both on equally many samples), change in accuracy "
        f"{off['accuracy']} points, change in log loss {off['nll']} thousandths of a nat."
    )


def _by_group(cells: Cells, pairs: Sequence[Pair]) -> Iterator[str]:
    for group in GROUPS[1:-1]:
        names = [pair.name for pair in pairs if group in pair.groups]
        if not names:
            continue
        gains = (
            _interval([-1e3 * value for value in values(cells, names, method, "d_nll")], 1) for method in _COMPARED
        )
        rates = (_rate(rate(cells, names, method, "worse")) for method in _COMPARED)
        yield f"{group[0].upper()}{group[1:]} ({len(names)} pairs): {', '.join(gains)}; {', '.join(rates)}."


def _both(cells: Cells, names: Sequence[str], key: str) -> str:
    return ", ".join(f"`{method}` in {_rate(rate(cells, names, method, key))} % of runs" for method in _COMPARED)


def _gain_table(cells: Cells, names: Sequence[str]) -> str:
    def row(method: str) -> Iterator[str]:
        yield method
        yield str(len(values(cells, names, method, "runs")))
        yield _interval([-1e3 * value for value in values(cells, names, method, "d_nll")], 1)
        yield _rate(rate(cells, names, method, "nll_worse"))
        yield _figure(-100 * np.mean(values(cells, names, method, "d_ece")), 2)
        for key in ("class_loses", "accuracy_worse"):
            hits, runs, *_ = rate(cells, names, method, key)
            yield _figure(100 * hits / runs, 1)

    return markdown(_COLUMNS, (row(method) for method in _METHODS if values(cells, names, method, "runs")))


def _interval(figures: Sequence[float], digits: int) -> str:
    """Write a mean over pairs, with its interval where pairs are enough to draw from."""
    if len(figures) < _FEWEST:
        return f"{_figure(np.mean(figures), digits)}" if figures else ""
    return _three(mean_interval(figures), digits)


def _three(numbers: Iterable[float], digits: int) -> str:
    mean, low, high = (_figure(number, digits) for number in numbers)
    return f"{mean} ({low} to {high})"


def _figure(number: Any, digits: int) -> str:
    return f"{round(float(number), digits) + 0.0:.{digits}f}"  # + 0.0: no "-0.0"


def _rate(found: tuple[int, int, float, float]) -> str:
    hits, runs, low, high = found
    if not runs:
        return ""
    return f"{100 * hits / runs:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole > 0 else "no gain"
