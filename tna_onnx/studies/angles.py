"""Angles between class vectors and features, before and after tilting.

The angle to the vector of the sample's own class is reported separately for right and wrong predictions; "other class"
is a random class that is not the label. With psi the angle before, and theta the angle between the class vector and
its tilted self, the theorem on the class-wise effect gives the mode of the angle after, arccos(cos psi cos theta).
Source: the paper, Figure "Distribution plot of the data samples" and the theorem before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.extraction.table import FeatureTable
from tna_onnx.numerics.averages import Average, Draws, averages
from tna_onnx.results.study import Cell, Chart, Column, Line, Study
from tna_onnx.studies.run import StudyData, rows_of
from tna_onnx.studies.settings import StudySettings

__all__ = ["feature_angles", "study"]


def feature_angles(weight: NDArray[Any], features: NDArray[Any], classes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (N,) angles in degrees between features (N, n) and the vectors of `classes` (N,); NaN of zero vectors."""
    z = np.asarray(features, np.float64)
    w = np.asarray(weight, np.float64)[classes]
    lengths = np.linalg.norm(z, axis=1) * np.linalg.norm(w, axis=1)
    lengths[lengths == 0] = np.nan
    angles: NDArray[np.float64] = np.degrees(np.arccos(np.clip(np.einsum("in,in->i", z, w) / lengths, -1, 1)))
    return angles


# The paper's number of samples, and its angles.
_SAMPLES = 4000
_ANGLES = (30.0, 45.0)
_MEMBERS = 10

_WIDTH = 3.0
_EDGES = np.arange(0, 180 + _WIDTH, _WIDTH)

_COLUMNS = (
    Column("weight", "Weight"),
    Column("mrc", "mRC, degrees", 1, 2),
    Column("kind", "Class vector"),
    Column("samples", "Samples"),
    Column("mean", "Mean angle, degrees", 1, 2, beside=("sd",)),
    Column("sd", "SD, degrees", 1, 2, hidden=True),
    Column("theorem", "Mean of arccos(cos psi cos theta), degrees", 1, 2),
    *(Column(f"bin_{low:g}", f"{low:g} to {low + _WIDTH:g} degrees, %", 100, 2, hidden=True) for low in _EDGES[:-1]),
)

Angles = dict[tuple[str, str], NDArray[np.float64]]
"""(weight, kind) -> angles in degrees."""


def study(data: StudyData, settings: StudySettings, progress: Callable[[int, int], None]) -> Study:
    """Measure the angles of held-out samples."""
    rng = np.random.default_rng(settings.seed)
    table = data.held_out
    if len(table) > _SAMPLES:
        table = rows_of(table, np.sort(rng.choice(len(table), _SAMPLES, replace=False)))
    classes = len(data.weight)
    other_classes = (table.labels + rng.integers(1, classes, len(table))) % classes
    angles: Angles = {}
    rows: list[tuple[Cell, ...]] = []
    for k, (name, average) in enumerate(_averages(data.weight, settings.seed).items()):
        by_kind = _angles_by_kind(name, average.weight, data, table, other_classes)
        angles |= by_kind
        expected = {}
        # the theorem is about one rotation, and the same samples before and after: right and wrong ones change
        if average.angle > 0 and "members" not in name:
            kinds = {"own class": table.labels, "other class": other_classes}
            expected = {kind: _expected(data.weight, average.weight, table, kinds[kind]) for kind in kinds}
        rows += [
            _row(key, average.reached, angle_values, expected.get(key[1]))
            for key, angle_values in by_kind.items()
            if len(angle_values)
        ]
        progress(k + 1, 1 + 2 * len(_ANGLES))
    charts = (
        _chart("One tilted weight", ["original", *(f"{a:g} degrees" for a in _ANGLES)], angles),
        _chart("Average of 10", ["original", *(f"{a:g} degrees, 10 members" for a in _ANGLES)], angles),
        _right_and_wrong(angles),
    )
    return Study(
        "angles",
        "Angles between class vectors and features",
        "distribution plots of the angles",
        _sentence(angles),
        _COLUMNS,
        tuple(rows),
        charts,
    )


def _averages(weight: NDArray[Any], seed: int) -> dict[str, Average]:
    """Return the original weight, tilted weights and averages, by name."""
    named = {"original": Average(0.0, weight, 0.0, 0.0)}
    for size, ending in ((1, ""), (_MEMBERS, f", {_MEMBERS} members")):
        averaged = averages(weight, _ANGLES, size, Draws(seed))
        named |= {f"{average.angle:g} degrees{ending}": average for average in averaged}
    return named


def _angles_by_kind(
    name: str, weight: NDArray[Any], data: StudyData, table: FeatureTable, other_classes: NDArray[np.int64]
) -> Angles:
    label_angles = feature_angles(weight, table.features, table.labels)
    right = data.logits(table, weight).predictions() == table.labels
    kinds = {
        "own class": label_angles,
        "own class, predicted right": label_angles[right],
        "own class, predicted wrong": label_angles[~right],
        "other class": feature_angles(weight, table.features, other_classes),
    }
    return {(name, kind): values[~np.isnan(values)] for kind, values in kinds.items()}


def _expected(
    weight: NDArray[Any], tilted: NDArray[Any], table: FeatureTable, classes: NDArray[np.int64]
) -> float | None:
    """Return the mean of the theorem's mode, given the angles by which the class vectors actually turned."""
    psi = np.radians(feature_angles(weight, table.features, classes))
    theta = np.radians(feature_angles(weight, tilted, np.arange(len(weight))))[classes]
    modes = np.degrees(np.arccos(np.cos(psi) * np.cos(theta)))
    defined = modes[~np.isnan(modes)]
    if not len(defined):
        return None
    return float(defined.mean())


def _row(
    key: tuple[str, str], reached: float, degrees: NDArray[np.float64], expected: float | None
) -> tuple[Cell, ...]:
    weight, kind = key
    spread = (float(degrees.mean()), float(degrees.std()))
    return (weight, reached, kind, len(degrees), *spread, expected, *map(float, _shares(degrees)))


def _shares(degrees: NDArray[np.float64]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = np.histogram(degrees, _EDGES)[0] / max(1, len(degrees))
    return shares


def _line(name: str, degrees: NDArray[np.float64], rank: int, dashed: bool) -> Line:
    """Return the histogram as a line over its non-empty bins and one more on each side."""
    shares = _shares(degrees)
    filled = np.flatnonzero(shares)
    bins = range(max(0, filled[0] - 1), min(len(shares), filled[-1] + 2))
    x = tuple(float(_EDGES[k] + _WIDTH / 2) for k in bins)
    return Line(name, x, tuple(float(100 * shares[k]) for k in bins), rank=rank, dashed=dashed, marked=False)


def _chart(title: str, weights: list[str], angles: Angles) -> Chart:
    lines = []
    for rank, weight in enumerate(weights, start=1):
        for kind in ("own class", "other class"):
            values = angles.get((weight, kind), np.empty(0))
            if len(values):
                lines.append(_line(f"{weight}, {kind}", values, rank, dashed=kind == "other class"))
    return Chart(title, "angle, degrees", f"share per {_WIDTH:g} degrees, %", tuple(lines))


def _right_and_wrong(angles: Angles) -> Chart:
    lines = []
    for rank, weight in enumerate(["original", *(f"{a:g} degrees" for a in _ANGLES)], start=1):
        for word in ("right", "wrong"):
            values = angles.get((weight, f"own class, predicted {word}"), np.empty(0))
            if len(values):
                lines.append(_line(f"{weight}, {word}", values, rank, dashed=word == "wrong"))
    return Chart("Own class, by the prediction", "angle, degrees", f"share per {_WIDTH:g} degrees, %", tuple(lines))


def _sentence(angles: Angles) -> str:
    parts = []
    for weight in ("original", *(f"{a:g} degrees" for a in _ANGLES)):
        if len(angles.get((weight, "own class"), ())):
            label_angle = angles[weight, "own class"].mean()
            other_angle = angles[weight, "other class"].mean()
            parts.append(f"{weight} {label_angle:.1f} and {other_angle:.1f}")
    return f"Mean angle to the own and to another class's vector, in degrees: {'; '.join(parts)}."
