"""A scale and an offset that a network may have been trained with, where no known recipe fits: u = a (x / 255 - m).

The loss of (a, m) is the NLL at its own temperature. A coarse grid and two finer ones around its best point are
halved on more and more images. A parabola is fitted there; near its lowest point, simple numbers are likelier.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.choices import Color
from tna_onnx.data.images.known_recipes import NamedRecipe
from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.extraction.recipe_trials import Trial, TrialImages, halved

FloatArray = NDArray[np.float64]
Point = tuple[float, float, Color]  # a, m and the order of the channels

# without those that lie near a known recipe
_POSITIVE = ((1, 0.5), (4, 0.0), (16, 0.0), (16, 0.5), (64, 0.0), (64, 0.5))
_GRID: tuple[tuple[float, float], ...] = (*_POSITIVE, *((-a, m) for a in (1, 4, 16, 64, 255) for m in (0.5, 1.0)))
_REVERSED: dict[Color, Color] = {"RGB": "BGR", "BGR": "RGB"}
_SHARE = 0.125  # of the runs, for each finer grid; twice that for the coarse one, and half for the parabola
_STAR = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1))  # where a parabola is fitted
_STAR_STEPS = (0.2, 0.08)  # of log |a|, and of m
# points of the grid are a factor 4 apart
_ZOOMS = ((0.7, 0.25), (0.35, 0.12))  # steps of log |a| and of m
_AROUND = tuple(itertools.product((0, -1, 1), (0, -1, 1)))
_USUAL = 0.45  # the mean of photographs
_LARGE = 40  # from this |a| on, a recipe is written for pixels of 0 to 255


def affine_search(images: TrialImages, best: Trial, budget: int) -> Trial | None:
    """Return a trial of one scale and one offset, run on a few images or none; None where too few may be run.

    `best`: of the known recipes. `budget`: images that may be run, each under one recipe.
    """
    color = best.resolved.color
    share = int(_SHARE * budget)
    grid = [_trial(images, best, (a, m, color)) for a, m in _GRID]
    # of inverted pixels, the best known recipe hardly tells the order of the channels
    reverse = [_trial(images, best, (a, m, _REVERSED[color])) for a, m in _GRID if color in _REVERSED]
    start = halved(images, grid + reverse, 2 * share) or halved(images, grid, 2 * share)
    if start is None:
        return None
    if start.behind(best)[0] > 0:
        start = best
    for steps in _ZOOMS:
        around = [_trial(images, best, _moved(_point_of(start), steps[0] * x, steps[1] * y)) for x, y in _AROUND]
        start = halved(images, around, share) or start
    centre = _point_of(start)
    count = min((budget - 4 * share) // len(_STAR), len(images.rows))
    return _likeliest(images, best, centre, count * _parabola(images, best, centre, count))


def _trial(images: TrialImages, like: Trial, point: Point, unit: float | None = None) -> Trial:
    """Return a trial at a point, without any images yet, with the sizes of another."""
    a, m, color = point
    return images.trial(NamedRecipe("", affine_recipe(replace(like.named.recipe, color=color), a, m, unit)))


def _moved(point: Point, log_a: float, m: float) -> Point:
    """Return a point with another m, and another log |a| under which a usual pixel stays what it is."""
    a, middle, color = point
    return a * math.exp(log_a), _USUAL + (middle + m - _USUAL) * math.exp(-log_a), color


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


def _parabola(images: TrialImages, like: Trial, centre: Point, count: int) -> FloatArray:
    """Return the parabola of the NLL of the first images around a point, as factors of `_terms`."""
    star = [_trial(images, like, _moved(centre, _STAR_STEPS[0] * x, _STAR_STEPS[1] * y)) for x, y in _STAR]
    images.run(star, count)
    return np.asarray(np.linalg.solve(_terms(*np.array(_STAR, float).T), [trial.nll for trial in star]), np.float64)


def _terms(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the terms of a parabola of two numbers, (N, 6)."""
    return np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], axis=1)


def _likeliest(images: TrialImages, like: Trial, centre: Point, nats: FloatArray) -> Trial | None:
    """Return the trial of the likeliest numbers around a point; None where none lie near.

    The logarithm of their probability is that of the labels, of which `nats` is the parabola, minus the nats that it
    takes to write the numbers down.
    """
    a, m, color = centre
    found = []
    for unit, cost in ((1.0, 0.0), (255.0, 1.5)):  # what a pixel of 255 becomes by `scale`
        means = _numbers(unit)
        stds = means | {1.0: 0.0}
        mean, std = (each.ravel() for each in np.meshgrid(list(means), [number for number in stds if number > 0]))
        ratio = unit / std / abs(a)
        # the m that it has where the scale is that of the centre
        x, y = np.log(ratio) / _STAR_STEPS[0], (_USUAL + (mean / unit - _USUAL) * ratio - m) / _STAR_STEPS[1]
        spent = np.array([cost + means[p] + stds[q] for p, q in zip(mean, std, strict=True)])
        total = _terms(x, y) @ nats + spent
        total[(np.abs(x) > 1) | (np.abs(y) > 1)] = math.inf
        k = int(np.argmin(total))
        found.append((float(total[k]), math.copysign(unit / std[k], a), mean[k] / unit, unit))
    least, a, m, unit = min(found)
    if math.isinf(least):  # no such numbers are near
        return None
    return _trial(images, like, (a, m, color), unit)


def _numbers(unit: float) -> dict[float, float]:
    """Return means and standard deviations that somebody may type, and the nats that each takes."""
    step = 0.01 if unit == 1 else 1.0
    nats: dict[float, float] = {}
    for every, cost in ((1, 4.0), (5, 2.5), (10, 1.5)):
        nats |= {round(k * step, 2): cost for k in range(-200, 301, every)}
    nats |= {2.0**k: 1.5 for k in range(-3, 8)}
    return nats | dict.fromkeys((0.0, unit, unit / 2, (unit + 1) / 2), 0.0)
