"""A scale and an offset that a network may have been trained with, where no known recipe fits: u = a (x / 255 - m).

The loss of (a, m) is the NLL at its own temperature. The best point of a coarse grid, or the best known recipe, moves
to the lowest point of a parabola around it. Where that does clearly better, a narrower parabola there, of other images,
says which numbers are likeliest, of which simple ones are likelier.
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
_SHARE = 0.33  # of the runs of the coarse search, for the grid
_STAR = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))  # where a parabola is fitted, in steps, and in the best corner
_WIDE, _NARROW = (0.5, 0.2), (0.2, 0.08)  # steps of log |a|, in which points of the grid are 1.4 apart, and of m
_REACH = 1.25  # steps within which the lowest point of a parabola is trusted; twice as many for simple numbers
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


@dataclass(frozen=True, eq=False)
class AffineSearch:
    """The search of a scale and an offset for images of which no known recipe is right.

    Attributes:
        images: that are run.
        best: of the known recipes.
        trial: of the likeliest point, run on a few images.
        wide: the parabola that says where it lies.
    """

    images: TrialImages
    best: Trial
    trial: Trial
    wide: _Parabola

    @classmethod
    def coarse(cls, images: TrialImages, best: Trial, budget: int) -> AffineSearch | None:
        """Find about where the likeliest scale and offset lie; None where too few images may be run, or little is won.

        `budget`: images that may be run, each under one recipe.
        """
        color = best.resolved.color
        runs = int(_SHARE * budget)
        grid = [_trial(images, best, Point(a, m, color)) for a, m in _GRID]
        # of inverted pixels, the best known recipe hardly tells the order of the channels
        reverse = [
            _trial(images, best, Point(a, m, _REVERSED[color])) for a, m in _GRID if a < 0 and color in _REVERSED
        ]
        start = halved(images, grid + reverse, runs) or halved(images, grid, runs)
        if start is None:
            return None
        if start.behind(best)[0] > 0:
            start = best
        count = min((budget - runs) // (len(_STAR) + 3), len(best), len(images.rows) // 2)
        if not count:
            return None
        wide = _Parabola.fit(images, best, _point_of(start), _WIDE, count)
        trial = _trial(images, best, wide.lowest())
        images.run([start, trial], count)
        if trial.loses_clearly(start):  # far from a parabola, its lowest point may be worse than where it began
            trial = start
        if trial.behind(best)[0] > -_WORTH:
            return None
        return cls(images, best, trial, wide)

    def written(self, budget: int) -> Trial:
        """Return a trial of numbers that somebody may have typed, near the likeliest ones."""
        count = min(6 * budget // (10 * (len(_STAR) + 2)), len(self.images.rows) - self.wide.count)
        if not count:
            return self.trial
        narrow = _Parabola.fit(self.images.after(self.wide.count), self.best, _point_of(self.trial), _NARROW, count)
        # far from its centre a wide parabola is wrong, and a narrow one says little of where its centre lies
        found = [_likeliest(parabolas) for parabolas in ([narrow], [self.wide, narrow])]
        nats = {_trial(self.images, self.best, each.point, each.unit): each.written for each in found if each}
        lowest = narrow.lowest()
        nats[_trial(self.images, self.best, lowest, lowest.unit)] = 4 * _WRITTEN
        nats[self.trial] = 4 * _WRITTEN
        count = min(budget // 6, len(self.trial))
        self.images.run(list(nats), count)
        return min(nats, key=lambda trial: nats[trial] + float(np.sum(trial.losses[:count])))


@dataclass(frozen=True, eq=False)
class _Parabola:
    """The nats of some images around a point, as factors of `_terms` of steps in log |a| and m."""

    centre: Point
    steps: tuple[float, float]
    count: int  # of the images
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
        return cls(centre, steps, count, factors, points[int(np.argmin(star))])

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

    def nats(self, a: FloatArray, m: FloatArray) -> FloatArray:
        """Return the nats at points, and infinite ones too far from the centre."""
        ratio = a / abs(self.centre.a)
        # the m that it has where the scale is that of the centre
        x, y = np.log(ratio) / self.steps[0], (_USUAL + (m - _USUAL) * ratio - self.centre.m) / self.steps[1]
        return np.where(np.maximum(np.abs(x), np.abs(y)) <= 2 * _REACH, _terms(x, y) @ self.factors, math.inf)


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


@dataclass(frozen=True)
class _Written:
    """A point of two numbers that somebody may type, and the nats that it takes to write them down."""

    point: Point
    unit: float
    written: float


def _likeliest(parabolas: Sequence[_Parabola]) -> _Written | None:
    """Return the likeliest numbers near the centre of the last parabola; None without any.

    The logarithm of their probability is that of the labels minus the nats that it takes to write the numbers down.
    """
    centre = parabolas[-1].centre
    bent = [parabola for parabola in parabolas if parabola.bends_up]
    found = []
    for unit, cost in ((1.0, 0.0), (255.0, 1.5)):
        means = _numbers(unit)
        stds = {std: nats for std, nats in (means | {1.0: 0.0}).items() if std > 0}
        mean, std = (each.ravel() for each in np.meshgrid(list(means), list(stds)))
        written = np.add.outer(list(stds.values()), list(means.values())).ravel() + cost
        total = written + sum(parabola.nats(unit / std, mean / unit) for parabola in bent)
        k = int(np.argmin(total))
        point = Point(math.copysign(unit / std[k], centre.a), mean[k] / unit, centre.color)
        found.append((float(total[k]), _Written(point, unit, float(written[k]))))
    nats, likeliest = min(found, key=lambda each: each[0])
    return likeliest if bent and math.isfinite(nats) else None


def _numbers(unit: float) -> dict[float, float]:
    """Return means and standard deviations that somebody may type, and the nats that each takes."""
    step = 0.01 if unit == 1 else 1.0
    nats: dict[float, float] = {}
    for every, cost in ((1, _WRITTEN), (5, 2.5), (10, 1.5)):
        nats |= {round(k * step, 2): cost for k in range(-200, 301, every)}
    nats |= {2.0**k: 1.5 for k in range(-3, 8)}
    return nats | dict.fromkeys((0.0, unit, unit / 2, (unit + 1) / 2), 0.0)
