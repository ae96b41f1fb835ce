"""mRC against the number of rotations n_r, for several theta_s and Beta shapes, with the expectation.

    E<w, R w> / |w|^2 = a^k,    a = 1 - 2/n (1 - E cos t),    t = theta_s tau,  tau ~ Beta(alpha, beta)

in n dimensions after k rotations. E cos t is the real part of Kummer's function 1F1(alpha; alpha + beta; i theta_s),
the characteristic function of Beta. In many dimensions <w, R w> varies little, so that mRC is near arccos a^k.
Source: the paper, Figure "Plots of mRC corresponding to the number of rotations"; docs/explanation/theory.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from tna_onnx.numerics.rotations import TiltParameters
from tna_onnx.results.study import Cell, Chart, Column, Line, Study
from tna_onnx.studies.methods import walk
from tna_onnx.studies.run import StudyData
from tna_onnx.studies.settings import StudySettings

__all__ = ["expected_angle", "study"]

# theta_s, alpha, beta: the paper's own setting, its three other theta_s, and its theta_s with other shapes.
_SHAPES = ((0.9, 5.0, 1.0), (0.5, 5.0, 1.0), (1.0, 5.0, 1.0), (1.5, 5.0, 1.0), (0.9, 1.0, 1.0), (0.9, 1.0, 5.0))

# Points of a curve, and walks behind each for every repeat.
_POINTS = 24
_DRAWS = 4

# Bytes of class vectors that are walked side by side.
_TOGETHER = 2**26


def study(data: StudyData, settings: StudySettings, progress: Callable[[int, int], None]) -> Study:
    """Walk from the original weight, and measure mRC along the way."""
    rows: list[tuple[Cell, ...]] = []
    n = data.weight.shape[1]
    end = _rotations(n)
    draws = _DRAWS * settings.repeats
    for k, (theta_s, alpha, beta) in enumerate(_SHAPES):
        tilt = TiltParameters(alpha, beta, theta_s)

        def tick(share: float, k: int = k) -> None:
            progress(round(1000 * (k + share)), 1000 * len(_SHAPES))

        for rotations, *measured in _measured(data.weight, tilt, draws, end, (settings.seed, k), tick):
            rows.append((theta_s, alpha, beta, rotations, *measured, expected_angle(n, rotations, tilt)))
        tick(1.0)
    columns = (
        Column("theta_s", "theta_s, radians", 1, 1),
        Column("alpha", "alpha", 1, 0),
        Column("beta", "beta", 1, 0),
        Column("rotations", "Rotations n_r"),
        Column("mrc", "mRC, degrees", 1, 2, beside=("mrc_sd",)),
        Column("mrc_sd", "SD of mRC over draws, degrees", 1, 2, hidden=True),
        Column("over_classes", "SD over classes, degrees", 1, 2),
        Column("expected", "Expected, degrees", 1, 2),
    )
    return Study(
        "rotations",
        "mRC against the number of rotations",
        "plots of mRC against n_r",
        _sentence(rows, n),
        columns,
        tuple(rows),
        (_mean_chart(rows), _deviation_chart(rows)),
        (f"Each point is the mean of {draws} tilted weights; dashed lines are the expectation.",),
    )


def expected_angle(n: int, rotations: int, tilt: TiltParameters) -> float:
    """Return arccos a^k in degrees, for n dimensions and k rotations.

    >>> expected_angle(10**9, 1, TiltParameters())  # one rotation of two of very many coordinates
    0.0...
    """
    cosine = float(special.hyp1f1(tilt.alpha, tilt.alpha + tilt.beta, 1j * tilt.theta_s).real)
    cosine_left = (1 - 2 / n * (1 - cosine)) ** rotations
    return math.degrees(math.acos(max(-1.0, min(1.0, cosine_left))))


def _rotations(n: int) -> int:
    """Return the number of rotations after which the slowest of the paper's three settings is past 85 degrees."""
    tilt = TiltParameters(theta_s=min(theta_s for theta_s, alpha, _ in _SHAPES if alpha > 1))
    slowest = 1 - special.hyp1f1(tilt.alpha, tilt.alpha + tilt.beta, 1j * tilt.theta_s).real
    return max(_POINTS, math.ceil(math.log(math.cos(math.radians(85))) / math.log1p(-2 / n * slowest)))


def _measured(
    weight: NDArray[Any],
    tilt: TiltParameters,
    draws: int,
    end: int,
    seed: tuple[int, int],
    tick: Callable[[float], None],
) -> Iterator[tuple[int, float, float, float]]:
    """Yield n_r, mean mRC over draws, its deviation, and the mean deviation over classes, in degrees."""
    by_step: dict[int, list[tuple[NDArray[np.float64], NDArray[np.float64]]]] = {}
    together = max(1, _TOGETHER // weight.nbytes)
    for first in range(0, draws, together):
        rng = np.random.default_rng([*seed, first])
        for stop in walk(weight, min(together, draws - first), tilt, rng, end, max(1, end // _POINTS)):
            by_step.setdefault(stop.rotations, []).append((stop.mrc, np.degrees(np.nanstd(stop.angles, axis=1))))
            tick((first + min(together, draws - first) * min(1.0, stop.rotations / end)) / draws)
    for rotations, parts in by_step.items():
        mrc, deviations = (np.concatenate(values) for values in zip(*parts, strict=True))
        yield rotations, float(mrc.mean()), float(mrc.std(ddof=1)), float(deviations.mean())


def _name(row: tuple[Cell, ...]) -> str:
    theta_s, alpha, beta = row[:3]
    return f"theta_s {theta_s:g}, Beta({alpha:g}, {beta:g})"


def _by_shape(rows: list[tuple[Cell, ...]]) -> dict[str, list[tuple[float, ...]]]:
    shapes: dict[str, list[tuple[float, ...]]] = {}
    for row in rows:
        shapes.setdefault(_name(row), []).append(tuple(float(value or 0) for value in row))
    return shapes


def _mean_chart(rows: list[tuple[Cell, ...]]) -> Chart:
    lines = []
    for rank, (name, shape_rows) in enumerate(_by_shape(rows).items()):
        x = tuple(row[3] for row in shape_rows)
        low = tuple(row[4] - row[5] for row in shape_rows)
        high = tuple(row[4] + row[5] for row in shape_rows)
        lines.append(Line(name, x, tuple(row[4] for row in shape_rows), low, high, rank))
        lines.append(
            Line(f"{name}, expected", x, tuple(row[7] for row in shape_rows), rank=rank, dashed=True, marked=False)
        )
    return Chart("mRC against rotations", "rotations n_r", "mRC, degrees", tuple(lines))


def _deviation_chart(rows: list[tuple[Cell, ...]]) -> Chart:
    lines = []
    for rank, (name, shape_rows) in enumerate(_by_shape(rows).items()):
        x = tuple(row[3] for row in shape_rows)
        lines.append(Line(name, x, tuple(row[6] for row in shape_rows), rank=rank))
    return Chart("Deviation over classes", "rotations n_r", "SD over classes, degrees", tuple(lines))


def _sentence(rows: list[tuple[Cell, ...]], n: int) -> str:
    gaps = [abs(float(row[4] or 0) - float(row[7] or 0)) for row in rows]
    last = max(float(row[4] or 0) for row in rows)
    return (
        f"mRC rises with the rotations towards 90 degrees (up to {last:.1f}), as theta_s and Beta say; "
        f"it is within {max(gaps):.1f} degrees of the expectation in {n:,} dimensions."
    )
