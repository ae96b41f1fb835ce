"""Ablations: theta_s, the Beta distribution, n_t and the bins, one at a time, the others as the paper has them.

For theta_s, Beta and bins the search runs with 10 members, and its choice is scored on the held-out samples. n_t says
how often mRC is looked at: with it, Algorithm 1 stops past 30 degrees, and what it overshoots is measured.
Source: the paper, sections "Hyperparameters" and "Assumptions".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.averages import Average, averages
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Metrics, objective_value
from tna_onnx.numerics.rotations import TiltParameters
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.results.study import Cell, Chart, Column, Line, Study
from tna_onnx.search.settings import SearchSettings
from tna_onnx.studies.data import StudyData
from tna_onnx.studies.printed import MEMBERS, walk
from tna_onnx.studies.settings import StudySettings
from tna_onnx.studies.spread import deviation, mean

__all__ = ["study"]

# Smaller angles take many more rotations, and with those the walks most of the time.
_THETAS = (0.5, 0.9, 1.0, 1.5)
_BETAS = ((5.0, 1.0), (2.0, 2.0), (1.0, 1.0))
_CHECKS = (1, 10, 50, 200)
_BINS = (5, 10, 15, 20, 30, 50)
_TARGET = 30.0
_GRID = tuple(float(angle) for angle in range(4, 85, 4))
_NAMES = ("accuracy", "ece", "nll")

Repeat = dict[str, float]


def study(data: StudyData, settings: StudySettings, progress: Callable[[int, int], None]) -> Study:
    """Change one parameter at a time."""
    cases = list(_cases(settings))
    rows: list[tuple[Cell, ...]] = []
    for k, (parameter, value, make) in enumerate(cases):
        repeats = [make(data, settings.seed + repeat) for repeat in range(settings.repeats)]
        rows.append((parameter, value, *_cells(repeats)))
        progress(k + 1, len(cases))
    metrics = [column for name in _NAMES for column in _columns(name)]
    columns = (
        Column("parameter", "Parameter"),
        Column("value", "Value"),
        Column("angle", "mRC, degrees", 1, 1, beside=("angle_sd",)),
        Column("angle_sd", "SD of mRC, degrees", 1, 1, hidden=True),
        Column("rotations", "Rotations n_r", 1, 0),
        *metrics,
    )
    charts = tuple(_chart(parameter, rows) for parameter in dict.fromkeys(str(row[0]) for row in rows))
    note = (
        f"For n_t, Algorithm 1 stops past {_TARGET:g} degrees; elsewhere the angle is searched, with {MEMBERS} members."
    )
    return Study("parameters", "Parameters", "hyperparameters", _sentence(rows), columns, tuple(rows), charts, (note,))


def _cases(settings: StudySettings) -> Iterator[tuple[str, str, Callable[[StudyData, int], Repeat]]]:
    """Yield (parameter, value, what measures it with a seed)."""
    searches = _Searches(settings.search(settings.seed))
    for theta_s in _THETAS:
        tilt = TiltParameters(theta_s=theta_s)
        yield "theta_s", f"{theta_s:g}", searches.case(tilt, settings.bins)
    for alpha, beta in _BETAS:
        tilt = TiltParameters(alpha, beta)
        yield "Beta", f"({alpha:g}, {beta:g})", searches.case(tilt, settings.bins)
    for n_t in _CHECKS:
        yield "n_t", str(n_t), _stopped(n_t, settings.bins)
    for bins in _BINS:
        yield "bins", str(bins), searches.case(TiltParameters(), bins)


@dataclass(frozen=True, eq=False)
class _Searches:
    """Averages along the grid, scored on both sets of samples; each is made once for all numbers of bins."""

    own: SearchSettings
    made: dict[tuple[TiltParameters, int], list[_Scored]] = field(default_factory=dict)

    def case(self, tilt: TiltParameters, bins: int) -> Callable[[StudyData, int], Repeat]:
        """Return what chooses the angle with the least objective, and gives its metrics."""

        def make(data: StudyData, seed: int) -> Repeat:
            along = self._along(data, tilt, seed)
            best = min(along, key=lambda each: objective_value(each.calibration, self.own.objective, bins))
            # the errors are shown over the bins that chose
            return {"angle": best.reached, "rotations": best.rotations} | _metrics(best.held_out, bins)

        return make

    def _along(self, data: StudyData, tilt: TiltParameters, seed: int) -> list[_Scored]:
        key = (tilt, seed)
        if key not in self.made:
            original = Average(0.0, data.weight, 0.0, 0.0)
            others = averages(data.weight, _GRID, MEMBERS, replace(self.own, seed=seed, tilt=tilt).draws)
            self.made[key] = [_Scored.of(data, average) for average in itertools.chain([original], others)]
        return self.made[key]


@dataclass(frozen=True, eq=False)
class _Scored:
    """An average: its angle, its rotations, and scores of both sets of samples."""

    reached: float
    rotations: float
    calibration: SampleScores
    held_out: SampleScores

    @classmethod
    def of(cls, data: StudyData, average: Average) -> _Scored:
        calibration = data.logits(data.calibration, average.weight).scores()
        return cls(average.reached, average.rotations, calibration, data.scores(average.weight))


def _stopped(n_t: int, bins: int) -> Callable[[StudyData, int], Repeat]:
    """Stop where mRC, looked at every n_t rotations, has passed the target."""

    def make(data: StudyData, seed: int) -> Repeat:
        rng = np.random.default_rng([seed, n_t])
        tilt = TiltParameters(n_t=n_t)
        last = tilt.max_rotations(data.weight.shape[1]) + n_t
        weights: dict[int, tuple[NDArray[Any], float, int]] = {}
        for stop in walk(data.weight, MEMBERS, tilt, rng, last):
            mrc = stop.mrc
            for member in np.flatnonzero(mrc > _TARGET):
                weights.setdefault(int(member), (stop.tilted[member].T.copy(), float(mrc[member]), stop.rotations))
            if len(weights) == MEMBERS:
                break
        average = np.mean([weight for weight, _, _ in weights.values()], axis=0, dtype=np.float64)
        return {
            "angle": mean([angle for _, angle, _ in weights.values()]),
            "rotations": mean([rotations for _, _, rotations in weights.values()]),
        } | _metrics(data.scores(average.astype(data.weight.dtype)), bins)

    return make


def _metrics(scores: SampleScores, bins: int) -> Repeat:
    metrics = Metrics.of(scores, bins)
    return {name: float(getattr(metrics, name)) for name in _NAMES}


def _columns(name: str) -> tuple[Column, Column]:
    metric = METRICS[name]
    spread = Column(f"{name}_sd", f"SD of {metric.title}", metric.factor, metric.digits, hidden=True)
    return Column(name, metric.title, metric.factor, metric.digits, beside=(spread.name,)), spread


def _cells(repeats: list[Repeat]) -> list[Cell]:
    angles = [each["angle"] for each in repeats]
    cells: list[Cell] = [mean(angles), deviation(angles), mean([each["rotations"] for each in repeats])]
    for name in _NAMES:
        own = [each[name] for each in repeats]
        cells += [mean(own), deviation(own)]
    return cells


def _chart(parameter: str, rows: list[tuple[Cell, ...]]) -> Chart:
    """ECE against the values of a parameter; those of Beta are numbered."""
    own = [row for row in rows if row[0] == parameter]
    x = tuple(float(k + 1) if parameter == "Beta" else float(str(row[1])) for k, row in enumerate(own))
    metric = METRICS["ece"]
    y = tuple(metric.factor * float(row[7] or 0) for row in own)
    spread = [metric.factor * float(row[8] or 0) for row in own]
    low = tuple(a - b for a, b in zip(y, spread, strict=True))
    high = tuple(a + b for a, b in zip(y, spread, strict=True))
    label = f"Beta: {', '.join(str(row[1]) for row in own)}" if parameter == "Beta" else parameter
    return Chart(f"ECE against {parameter}", label, metric.title, (Line("held-out", x, y, low, high, 2),))


def _sentence(rows: list[tuple[Cell, ...]]) -> str:
    parts = []
    for parameter in ("theta_s", "Beta", "bins"):
        own = [100 * float(row[7] or 0) for row in rows if row[0] == parameter]
        parts.append(f"{parameter} {min(own):.2f} to {max(own):.2f} %")
    over = {str(row[1]): float(row[2] or 0) - _TARGET for row in rows if row[0] == "n_t"}
    past = ", ".join(f"{angle:.1f} with {value}" for value, angle in over.items())
    return f"Mean ECE by parameter: {'; '.join(parts)}. Past 30 degrees by n_t, in degrees: {past}."
