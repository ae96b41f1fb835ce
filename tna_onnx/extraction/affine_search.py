"""A scale and an offset that a network may have been trained with, where no known recipe fits: u = a (x / 255 - m).

The loss of (a, m) is the NLL at its own temperature. A coarse grid is thinned out on more and more images; coordinates
go downhill by parabolas. That runs 4,000 images at most, and no more than there are. `likeliest` then tells neighbours
apart on 1,024 images at most, and takes simple numbers for likelier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.choices import Color
from tna_onnx.data.images.known_recipes import NamedRecipe
from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.extraction.recipe_trials import SAMPLES, Trial, TrialImages

FloatArray = NDArray[np.float64]
Point = tuple[float, float, Color]  # a, m and the order of the channels

_MOST_RUNS = 4000
# without those that lie near a known recipe
_POSITIVE = ((1, 0.5), (4, 0.0), (16, 0.0), (16, 0.5), (64, 0.0), (64, 0.5))
_GRID: tuple[tuple[float, float], ...] = (*_POSITIVE, *((-a, m) for a in (1, 4, 16, 64, 255) for m in (0.5, 1.0)))
_ORDERS: dict[Color, tuple[Color, ...]] = {"RGB": ("BGR",), "BGR": ("RGB",)}
_FIRST = 8  # images under each point of the grid
_FOLLOWED = 32  # images that tell neighbours apart
_STEPS = (0.7, 0.2)  # of log |a|, as points of the grid are a factor 4 apart, and of m
_FINEST = 0.3  # of these steps
_STAR = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1))  # where a parabola is fitted
_STAR_STEPS = (0.1, 0.05)  # of log |a|, and of m
_USUAL = 0.45  # the mean of photographs
_CLOSER = ((2, 128), (2, 128), (1, 256))  # in these steps, and on how many images, the centre moves
_MOST_EXACT = 8  # pairs of numbers under which all images are run
_REACH = 2  # of these steps: how far the parabola is trusted
_LARGE = 40  # from this |a| on, a recipe is written for pixels of 0 to 255


@dataclass
class _Search:
    """What has been run, and how many images may still be."""

    images: TrialImages
    like: Trial  # whose sizes are kept
    left: int
    seen: dict[Point, Trial] = field(default_factory=dict)

    def run(self, points: Sequence[Point], count: int) -> list[Trial]:
        """Run the first `count` images under each point; under none where there are not so many left to run."""
        trials = [self.seen.get(point) or _trial(self.images, self.like, point) for point in points]
        cost = sum(max(0, count - len(trial)) for trial in trials)
        if cost > self.left:
            return []
        self.left -= cost
        self.images.run(trials, count)
        self.seen |= zip(points, trials, strict=True)
        return trials

    def nll(self, point: Point, count: int) -> float:
        """Return the NLL of the first images under a point."""
        return float(np.mean(self.seen[point].losses[:count]))


def affine_search(images: TrialImages, best: Trial) -> Trial | None:
    """Return the best trial of one scale and one offset; None where there is none, or too few images may be run.

    `best`: of the known recipes.
    """
    search = _Search(images, best, min(len(images.source), _MOST_RUNS))
    final = min(SAMPLES, search.left // 8)
    search.left -= final  # for what is found
    color = best.resolved.color
    # the best known recipe tells nothing of the order of the channels where it tells nothing of the classes
    orders = [color] if best.suspicion(images.labels) is None else [color, *_ORDERS.get(color, ())]
    points: list[Point] = [(a, m, order) for a, m in _GRID for order in orders]
    count = max(1, min(_FIRST, int(search.left / (4.5 * len(points)))))  # two thirds of the runs, at most, for the grid
    while len(points) > 1:
        trials = search.run(points, count)
        if not trials:
            return None
        ranked = sorted(zip(points, trials, strict=True), key=lambda pair: pair[1].nll)
        points = [point for point, _ in ranked[: len(ranked) // 2]]
        count = min(2 * count, _FOLLOWED)
    points += [(a, m, other) for a, m, order in points for other in _ORDERS.get(order, ())]
    trials = search.run(points, count)
    if not trials:
        return None
    usual = _point_of(best)
    search.seen[usual] = best
    start = min([*points, usual], key=lambda point: search.nll(point, count))
    lowest = _downhill(search, start, count)
    if lowest == usual:
        return None
    images.run([search.seen[lowest]], final)
    return search.seen[lowest]


def _trial(images: TrialImages, like: Trial, point: Point, unit: float | None = None) -> Trial:
    """Return a trial at a point, without any images yet, with the sizes of another."""
    a, m, color = point
    return images.trial(NamedRecipe("", affine_recipe(replace(like.named.recipe, color=color), a, m, unit)))


def _downhill(search: _Search, start: Point, count: int) -> Point:
    """Return the lowest point that is found, along one coordinate after the other."""
    here, steps, axis = start, list(_STEPS), 0
    while max(steps[0] / _STEPS[0], steps[1] / _STEPS[1]) > _FINEST:
        step = steps[axis]
        around = [_moved(here, axis, change) for change in (-step, step)]
        trials = search.run([here, *around], count)
        if not trials:
            break
        middle, low, high = (search.nll(point, count) for point in (here, *around))
        if middle <= min(low, high):
            bend = low + high - 2 * middle
            # the lowest point of the parabola through the three, at most half a step away
            if bend > 0:
                here = _moved(here, axis, step / 2 * (low - high) / bend)
            steps[axis] /= 2
        else:
            here = around[int(high < low)]
            continue
        axis = 1 - axis
    seen = [point for point, trial in search.seen.items() if len(trial) >= count]
    return min(seen, key=lambda point: search.nll(point, count))


def _moved(point: Point, axis: int, change: float) -> Point:
    """Return a point with another log |a|, axis 0, under which a usual pixel stays what it is, or m, axis 1."""
    a, m, color = point
    if axis == 0:
        return a * math.exp(change), _USUAL + (m - _USUAL) * math.exp(-change), color
    return a, m + change, color


def affine_recipe(like: Recipe, a: float, m: float, unit: float | None = None) -> Recipe:
    """Return the recipe of u = a (x / 255 - m), with the sizes and the order of channels of another.

    `unit`: what a pixel of 255 becomes by `scale`.
    """
    if unit is None:
        unit = 255.0 if abs(a) >= _LARGE else 1.0
    sign = math.copysign(1.0, a)
    scale = None if (unit, sign) == (1.0, 1.0) else sign * unit / 255
    return replace(like, scale=scale, mean=(sign * unit * m,), std=(unit / abs(a),), per_image=False)


def _point_of(trial: Trial) -> Point:
    """Return the point that comes near a known recipe, which may differ from channel to channel."""
    resolved = trial.resolved
    std = sum(resolved.std) / len(resolved.std)
    mean = sum(resolved.mean) / len(resolved.mean)
    return 255 * resolved.scale / std, mean / (255 * resolved.scale), resolved.color


def likeliest(images: TrialImages, near: Trial) -> Trial:
    """Return the trial of the likeliest numbers near one.

    With n images, the logarithm of the probability is -n NLL, minus the nats that it takes to write the numbers down. A
    parabola says for which few the NLL is worth a run.
    """
    point = _point_of(near)
    grid = np.linspace(-1, 1, 41)
    x, y = (each.ravel() for each in np.meshgrid(grid, grid))
    for width, count in _CLOSER:
        k = int(np.argmin(_terms(x, y) @ _parabola(images, near, point, width, count)))
        point = _between(point, width * x[k], width * y[k])
    a, m, color = point
    count = len(images.rows)
    parabola = _parabola(images, near, point, 1, count // 2)
    promising: list[tuple[float, float, Trial]] = []
    for unit, cost in ((1.0, 0.0), (255.0, 1.5)):  # what a pixel of 255 becomes by `scale`
        means = _numbers(unit)
        stds = means | {1.0: 0.0}
        mean, std = (each.ravel() for each in np.meshgrid(list(means), [number for number in stds if number > 0]))
        x = np.log(unit / std / abs(a)) / _STAR_STEPS[0]
        # the m that it has where the scale is that of the centre
        y = (_USUAL + (mean / unit - _USUAL) * unit / std / abs(a) - m) / _STAR_STEPS[1]
        spent = np.array([cost + means[p] + stds[q] for p, q in zip(mean, std, strict=True)])
        nats = count * (_terms(x, y) @ parabola) + spent
        nats[(np.abs(x) > _REACH) | (np.abs(y) > _REACH)] = math.inf
        for k in np.argsort(nats)[:_MOST_EXACT]:
            trial = _trial(images, near, (math.copysign(unit / std[k], a), mean[k] / unit, color), unit)
            promising.append((float(nats[k]), float(spent[k]), trial))
    promising = sorted(promising, key=lambda each: each[0])[:_MOST_EXACT]
    images.run([trial for _, _, trial in promising], count)
    return min(promising, key=lambda each: count * each[2].nll + each[1])[2]


def _parabola(images: TrialImages, like: Trial, centre: Point, width: float, count: int) -> FloatArray:
    """Return the parabola of the NLL of the first images around a point, as factors of `_terms`."""
    star = [_trial(images, like, _between(centre, width * x, width * y)) for x, y in _STAR]
    images.run(star, count)
    return np.asarray(np.linalg.solve(_terms(*np.array(_STAR, float).T), [trial.nll for trial in star]), np.float64)


def _between(point: Point, x: float, y: float) -> Point:
    """Return a point that is so many steps of the star away."""
    return _moved(_moved(point, 1, _STAR_STEPS[1] * y), 0, _STAR_STEPS[0] * x)


def _terms(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the terms of a parabola of two numbers, (N, 6)."""
    return np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=1)


def _numbers(unit: float) -> dict[float, float]:
    """Return means and standard deviations that somebody may type, and the nats that each takes."""
    step = 0.01 if unit == 1 else 1.0
    nats: dict[float, float] = {}
    for every, cost in ((1, 4.0), (5, 2.5), (10, 1.5)):
        nats |= {round(k * step, 2): cost for k in range(-200, 301, every)}
    nats |= {2.0**k: 1.5 for k in range(-3, 8)}
    return nats | dict.fromkeys((0.0, unit, unit / 2, (unit + 1) / 2), 0.0)
