"""A scale and an offset that a network may have been trained with, where no known recipe fits: u = a (x / 255 - m).

The loss of (a, m) is the NLL at its own temperature. The best point of a coarse grid, or the best known recipe, moves
to the lowest point of a parabola around it. Both that and a narrower one there, of other images, say which numbers are
likeliest, of which simple ones are likelier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.choices import Color
from tna_onnx.data.images.known_recipes import NamedRecipe
from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.extraction.recipe_trials import Trial, TrialImages, halved

FloatArray = NDArray[np.float64]

# without those that lie near a known recipe
_POSITIVE = ((1, 0.5), (4, 0.0), (16, 0.0), (16, 0.5), (64, 0.0), (64, 0.5))
_GRID: tuple[tuple[float, float], ...] = (*_POSITIVE, *((-a, m) for a in (1, 4, 16, 64, 255) for m in (0.5, 1.0)))
_REVERSED: dict[Color, Color] = {"RGB": "BGR", "BGR": "RGB"}
_SHARE = 0.25  # of the runs, for the grid
_STAR = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))  # where a parabola is fitted, in steps, and in the best corner
_WIDE, _NARROW = (0.5, 0.2), (0.2, 0.08)  # steps of log |a|, in which points of the grid are 1.4 apart, and of m
_REACH = 1.25  # steps within which the lowest point of a parabola is trusted; twice as many, with another parabola
_WORTH = 0.02  # nats by which the NLL is to fall
_USUAL = 0.45  # the mean of photographs
_LARGE = 40  # from this |a| on, a recipe is written for pixels of 0 to 255
_WRITTEN = 4.0  # nats that it takes to write down a number of two digits


@dataclass(frozen=True)
class Point:
    """u = a (x / 255 - m), and the order of the channels."""

    a: float
    m: float
    color: Color

    def moved(self, log_a: float, m: float) -> Point:
        """Return the point with another log |a|, under which a usual pixel stays what it is, and another m."""
        m = _USUAL + (self.m + m - _USUAL) * math.exp(-log_a)
        return replace(self, a=self.a * math.exp(log_a), m=m)

    @property
    def unit(self) -> float:
        """What a pixel of 255 becomes by `scale`, as a rule."""
        return 255.0 if abs(self.a) >= _LARGE else 1.0

    def recipe(self, like: Recipe, unit: float | None = None) -> Recipe:
        """Return the recipe, with the sizes of another.

        `unit`: what a pixel of 255 becomes by `scale`, where numbers are rounded for somebody who types them.
        """
        digits = 9
        if unit is None:
            unit = self.unit
        else:
            digits = 3 if unit == 1 else 1
        sign = math.copysign(1.0, self.a)
        scale = None if (unit, sign) == (1.0, 1.0) else sign * unit / 255
        mean = (round(float(sign * unit * self.m), digits),)
        std = (round(float(unit / abs(self.a)), digits),)
        return replace(like, scale=scale, mean=mean, std=std, per_image=False, color=self.color)


def affine_search(images: TrialImages, best: Trial, budget: int) -> Trial | None:
    """Return a trial of one scale and one offset, run on a few images or none; None where too few may be run.

    `best`: of the known recipes. `budget`: images that may be run, each under one recipe.
    """
    color = best.resolved.color
    grid_runs = int(_SHARE * budget)
    grid = [_trial(images, best, Point(a, m, color)) for a, m in _GRID]
    # of inverted pixels, the best known recipe hardly tells the order of the channels
    reverse = [_trial(images, best, Point(a, m, _REVERSED[color])) for a, m in _GRID if a < 0 and color in _REVERSED]
    start = halved(images, grid + reverse, grid_runs) or halved(images, grid, grid_runs)
    if start is None:
        return None
    if start.behind(best)[0] > 0:
        start = best
    count = min((budget - grid_runs) // (2 * (len(_STAR) + 2)), len(images.rows) // 2)
    if not count:
        return None
    wide = _Parabola.fit(images, best, _point_of(start), _WIDE, count)
    best_nats = float(np.sum(best.losses[:count])) if len(best) >= count else math.inf
    if wide.least >= best_nats - _WORTH * count:
        return None
    narrow = _Parabola.fit(images.after(count), best, wide.lowest(), _NARROW, count)
    lowest = narrow.lowest()
    point, unit = _likeliest([each for each in (wide, narrow) if each.bends_up]) or (lowest, lowest.unit)
    found = _trial(images, best, point, unit)
    images.run([start, found], count)
    # far from a parabola, its lowest point may be worse than where it began
    return start if found.loses_clearly(start) else found


@dataclass(frozen=True, eq=False)
class _Parabola:
    """The nats of some images around a point, as factors of `_terms` of steps in log |a| and m."""

    centre: Point
    steps: tuple[float, float]
    factors: FloatArray
    best: tuple[int, int]  # of the steps that were run

    @classmethod
    def fit(cls, images: TrialImages, like: Trial, centre: Point, steps: tuple[float, float], count: int) -> _Parabola:
        """Run the first images at points around one."""

        def nats(points: Sequence[tuple[int, int]]) -> list[float]:
            trials = [_trial(images, like, centre.moved(steps[0] * x, steps[1] * y)) for x, y in points]
            images.run(trials, count)
            return [count * trial.nll for trial in trials]

        star = nats(_STAR)
        corner = (1 if star[1] < star[2] else -1, 1 if star[3] < star[4] else -1)
        star += nats([corner])
        points = [*_STAR, corner]
        factors = np.asarray(np.linalg.solve(_terms(*np.array(points, float).T), star), np.float64)
        return cls(centre, steps, factors, points[int(np.argmin(star))])

    @property
    def bends_up(self) -> bool:
        """Whether it has a lowest point; where a network is steep, no parabola may say what lies between."""
        _, _, _, xx, xy, yy = self.factors
        return bool(xx > 0 and 4 * xx * yy > xy**2)

    def lowest(self) -> Point:
        """Return the point where it is lowest, as far as it is trusted; without one, the best that was run."""
        if not self.bends_up:
            return self.centre.moved(self.steps[0] * self.best[0], self.steps[1] * self.best[1])
        x, y = (each.ravel() for each in np.meshgrid(*2 * [np.linspace(-_REACH, _REACH, 51)]))
        k = int(np.argmin(_terms(x, y) @ self.factors))
        return self.centre.moved(self.steps[0] * x[k], self.steps[1] * y[k])

    @property
    def least(self) -> float:
        """The nats where it is lowest, as far as it is trusted."""
        x, y = (each.ravel() for each in np.meshgrid(*2 * [np.linspace(-_REACH, _REACH, 51)]))
        return float(np.min(_terms(x, y) @ self.factors))

    def nats(self, a: FloatArray, m: FloatArray, reach: float) -> FloatArray:
        """Return the nats at points, and infinite ones more steps from the centre."""
        ratio = a / abs(self.centre.a)
        # the m that it has where the scale is that of the centre
        x, y = np.log(ratio) / self.steps[0], (_USUAL + (m - _USUAL) * ratio - self.centre.m) / self.steps[1]
        return np.where(np.maximum(np.abs(x), np.abs(y)) <= reach, _terms(x, y) @ self.factors, math.inf)


def _trial(images: TrialImages, like: Trial, point: Point, unit: float | None = None) -> Trial:
    """Return a trial at a point, without any images yet, with the sizes of another."""
    return images.trial(NamedRecipe("", point.recipe(like.named.recipe, unit)))


def _point_of(trial: Trial) -> Point:
    """Return the point that comes near a known recipe, of which each channel may have a scale of its own."""
    resolved = trial.resolved
    std = sum(resolved.std) / len(resolved.std)
    mean = sum(resolved.mean) / len(resolved.mean)
    return Point(255 * resolved.scale / std, mean / (255 * resolved.scale), resolved.color)


def _terms(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the terms of a parabola of two numbers, (..., 6)."""
    return np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=-1)


def _likeliest(parabolas: Sequence[_Parabola]) -> tuple[Point, float] | None:
    """Return the likeliest numbers of parabolas, and what a pixel of 255 becomes by `scale`; None without any near.

    The logarithm of their probability is that of the labels minus the nats that it takes to write the numbers down.
    """
    if not parabolas:
        return None
    centre = parabolas[-1].centre
    reach = len(parabolas) * _REACH
    found = []
    for unit, cost in ((1.0, 0.0), (255.0, 1.5)):
        means = _numbers(unit)
        stds = {std: nats for std, nats in (means | {1.0: 0.0}).items() if std > 0}
        mean, std = (each.ravel() for each in np.meshgrid(list(means), list(stds)))
        written = np.add.outer(list(stds.values()), list(means.values())).ravel() + cost
        total = written + sum(parabola.nats(unit / std, mean / unit, reach) for parabola in parabolas)
        k = int(np.argmin(total))
        a = math.copysign(unit / std[k], centre.a)
        found.append((float(total[k]), Point(a, mean[k] / unit, centre.color), unit))
    nats, point, unit = min(found, key=lambda each: each[0])
    if math.isinf(nats):
        return None
    return point, unit


def _numbers(unit: float) -> dict[float, float]:
    """Return means and standard deviations that somebody may type, and the nats that each takes."""
    step = 0.01 if unit == 1 else 1.0
    nats: dict[float, float] = {}
    for every, cost in ((1, _WRITTEN), (5, 2.5), (10, 1.5)):
        nats |= {round(k * step, 2): cost for k in range(-200, 301, every)}
    nats |= {2.0**k: 1.5 for k in range(-3, 8)}
    return nats | dict.fromkeys((0.0, unit, unit / 2, (unit + 1) / 2), 0.0)
