"""What suits a model clearly better than the best known recipe of its images, and what to do then.

A model is best under the recipe that it was trained with, on images like those of its training. If something else suits
it better, one of the two differs, and accuracies are the same whichever it is. Three things are looked for: one scale
and one offset; other orders of the channels, grey ones and standardised ones; and small changes of each channel, of
which a trained model wants none.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.choices import Color
from tna_onnx.data.images.known_recipes import NamedRecipe
from tna_onnx.data.images.preprocess import Recipe, ResolvedRecipe
from tna_onnx.extraction.recipe_trials import (
    CLEAR,
    MOST_RUNS,
    USUAL,
    Change,
    Trial,
    TrialImages,
    worse_than_guessing,
)

FloatArray = NDArray[np.float64]

_MEAN, _DEVIATION = USUAL
_COARSE, _COMPARED, _CHANGES = 0.35, 0.2, 0.1  # shares of the runs: of a search, of what it found, and of the next
_MIN_GAIN = 0.04  # nats, of the NLL; a quarter of it for a quarter of a change
_ORDERS = ((0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1))  # of three channels, but as they are and reversed
_PRESENT = "give arrays that are prepared so"
_FARTHEST = 1.5  # steps that are trusted
_FEW, _SLOPES = 24, 80  # images on which slopes are measured: at least, and at most
_MANY = 600  # images on which what they ask for is compared


class _Direction(NamedTuple):
    """A change of prepared channels: a step, times a weight for each, times a function of its standardised values z."""

    function: Callable[[FloatArray], FloatArray]
    weights: tuple[float, float, float]
    step: float  # standard deviations
    bend: float  # nats by which the NLL of a network of photographs usually bends within a step
    off: float  # steps by which a recipe that is not the right one usually is off


_ALL, _ENDS, _MIDDLE = (1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (0.7, -1.4, 0.7)
_DIRECTIONS = (
    _Direction(np.ones_like, _ALL, 0.25, 0.013, 1.6),  # brightness
    _Direction(np.ones_like, _ENDS, 0.25, 0.16, 0.8),
    _Direction(np.ones_like, _MIDDLE, 0.25, 0.24, 0.8),
    _Direction(np.positive, _ALL, 0.25, 0.07, 0.8),  # contrast
    _Direction(np.positive, _ENDS, 0.25, 0.09, 0.5),
    _Direction(np.positive, _MIDDLE, 0.25, 0.1, 0.5),
    _Direction(lambda z: z * z - 1, _ALL, 0.1, 0.006, 1.0),  # a curve of tones
)


def better_outside_the_list(images: TrialImages, best: Trial) -> tuple[Trial, str] | None:
    """Return what has a clearly lower NLL than the best known recipe, and what to do."""
    if best.leaves_nothing_to_gain:
        return None
    budget = min(len(images.source), MOST_RUNS)
    end = max(MOST_RUNS, images.runs) + budget  # the race takes more where the way of resizing is open
    scaled = best.resolved.dtype.kind == "f" and not images.source.mixed_sizes
    if scaled:
        for_affine = images.runs + budget
        coarse = int(_COARSE * budget)
        affine = _affine(images, best, coarse)
        if affine is not None and _is_right(images, affine[0], best, int(_COMPARED * budget), for_affine - coarse):
            trial = _written(images, best, *affine, for_affine - images.runs)
            how = "inverted pixels (of a negative)" if trial.resolved.scale < 0 else "another scale or offset"
            return trial, f"{how}. If the model was trained with that, add {trial.named.flags}"
    changed = _best_change(images, best, int(_CHANGES * budget))
    if changed is not None and _is_clearly_better(images, changed[0], best, int(_COMPARED * budget)):
        return changed
    if scaled:
        moved = _moved(images, best, end - images.runs)
        if moved is not None and _gains_on_many(images, moved[0], best, end):
            return moved
    return None


def _is_right(images: TrialImages, affine: Trial, best: Trial, budget: int, end: int) -> bool:
    """Whether a scale and an offset suit the model clearly better than the best known recipe, or a part of the way."""
    if _is_clearly_better(images, affine, best, budget):
        return True
    first, second = best.resolved, affine.resolved
    if first.per_image or first.color != second.color or affine.behind(best)[0] >= 0:
        return False
    part = images.trial(best.named, functools.partial(_part_way, first, second))
    return _gains_on_many(images, part, best, end)


def _gains_on_many(images: TrialImages, part: Trial, best: Trial, end: int) -> bool:
    """Whether a quarter of a change gains a quarter of what counts, on many images; up to `end` are run in all.

    Where the NLL is convex, a whole step gains four times as much at most.
    """
    budget = min(end - images.runs, max(_MANY, 2 * _MANY - len(best)))
    return _is_clearly_better(images, part, best, budget, _MIN_GAIN / 4)


def _is_clearly_better(images: TrialImages, trial: Trial, best: Trial, budget: int, least: float = _MIN_GAIN) -> bool:
    """Whether something suits the model clearly better, by so many nats, on as many images as may be run."""
    count = min(budget + len(trial), (budget + len(trial) + len(best)) // 2)
    if budget <= 0 or count < 2 or (len(trial) and trial.loses_clearly(best)):
        return False
    images.run([best, trial], count // 2)
    if best.behind(trial)[0] <= least / 2:
        return False
    if trial.z(best) > -2 * CLEAR:  # else more images would say the same
        images.run([best, trial], count)
    if not math.isfinite(best.nll):
        return False
    if worse_than_guessing(trial.plain_nll, 0.0, trial.n_classes):
        return False
    return best.loses_clearly(trial) and best.behind(trial)[0] > least


def _halved(images: TrialImages, trials: Sequence[Trial], budget: int) -> Trial | None:
    """Return the best recipe by successive halving: the better half goes on with twice as many images.

    None where that takes more images, each under one recipe, than may be run.
    """
    rounds = int(math.log2(len(trials)))
    # n recipes run c images, n / 2 another c, n / 4 another 2 c, and so on
    count = 2 * budget // (len(trials) * (rounds + 1))
    if not count:
        return None
    for _ in range(rounds):
        images.run(trials, count)
        trials = sorted(trials, key=lambda trial: trial.nll)[: len(trials) // 2]
        count *= 2
    return trials[0]


def _best_change(images: TrialImages, best: Trial, budget: int) -> tuple[Trial, str] | None:
    """Return the best of changes that no option can state."""
    color = best.resolved.color
    if color == "L":
        return None
    changes: dict[str, Change] = {"each channel of each image standardised": _standardised, "grey images": _grey}
    for order in _ORDERS:
        changes[f"channels in the order {''.join(color[k] for k in order)}"] = functools.partial(_reorder, order)
    names = {images.trial(best.named, change): name for name, change in changes.items()}
    trial = _halved(images, list(names), budget)
    if trial is None:
        return None
    return trial, f"{names[trial]}. State what it was trained with, or {_PRESENT}"


def _changed(resolved: ResolvedRecipe, coefficients: FloatArray, values: NDArray[Any], axis: int) -> NDArray[Any]:
    """Return prepared channels changed by a multiple of each direction."""
    mean, std = np.array(resolved.mean), np.array(resolved.std)
    centre, spread = np.zeros_like(mean), np.ones_like(mean)
    if not resolved.per_image:
        centre = (255 * resolved.scale * _MEAN - mean) / std
        spread = 255 * resolved.scale * _DEVIATION / std
    aside = tuple(range(1, 4 - axis))
    centre, spread = np.expand_dims(centre, aside), np.expand_dims(spread, aside)
    z = (values - centre.astype(values.dtype)) / spread.astype(values.dtype)
    changed: NDArray[Any] = np.array(values)
    for coefficient, direction in zip(coefficients, _DIRECTIONS, strict=True):
        if coefficient:
            weights = np.expand_dims(np.array(direction.weights[: len(mean)]), aside)
            changed += float(coefficient) * (spread * weights).astype(values.dtype) * direction.function(z)
    return changed


def _part_way(first: ResolvedRecipe, second: ResolvedRecipe, values: NDArray[Any], axis: int) -> NDArray[Any]:
    """Return what the first of two recipes prepares, moved a quarter of the way to what the second does."""
    mean, std, second_mean, second_std = (
        np.expand_dims(np.array(numbers, values.dtype), tuple(range(1, 4 - axis)))
        for numbers in (first.mean, first.std, second.mean, second.std)
    )
    target = ((values * std + mean) * float(second.scale / first.scale) - second_mean) / second_std
    moved: NDArray[Any] = values + (target - values) / 4
    return moved


def _moved(images: TrialImages, trial: Trial, budget: int) -> tuple[Trial, str] | None:
    """Return a quarter of the change that the slopes of the NLL ask for; None with few images, or few runs.

    Whole steps may be wrong, where directions depend on one another. Along a small one the NLL falls for all that, and
    images hardly differ in by how much.
    """
    used = [k for k, direction in enumerate(_DIRECTIONS) if len(trial.resolved.mean) > 1 or direction.weights == _ALL]
    count = min(_SLOPES, len(images.rows) // 3)
    if count < _FEW or (2 * len(used) + 3) * count > budget:
        return None

    def changed(coefficients: FloatArray) -> Trial:
        return images.trial(trial.named, functools.partial(_changed, trial.resolved, coefficients))

    steps = np.diag([direction.step for direction in _DIRECTIONS])
    base = images.trial(trial.named)
    sides = {k: (changed(steps[k]), changed(-steps[k])) for k in used}
    last = images.after(len(images.rows) - count)  # of few images, `_is_clearly_better` comes to these too
    last.run([base, *itertools.chain.from_iterable(sides.values())], count)
    if not np.isfinite(base.losses).all():
        return None
    wanted_steps = np.zeros(len(_DIRECTIONS))
    for k, (up, down) in sides.items():
        if not np.isfinite(up.losses).all() or not np.isfinite(down.losses).all():
            continue  # too far for the model
        wanted_steps[k] = _newton_step(_DIRECTIONS[k], up.losses - base.losses, down.losses - base.losses)
    how = "a small change of each channel, by which a trained model would not gain"
    return (
        changed(wanted_steps @ steps / 4),
        f"{how}. State the means and standard deviations that it was trained with, or {_PRESENT}",
    )


def _newton_step(direction: _Direction, up: FloatArray, down: FloatArray) -> float:
    """Return how many steps images ask for.

    `up`, `down`: what a step and its opposite cost each image. The slope is what is likely under a normal distribution
    of how far recipes are off.
    """
    slope, error = float(np.mean(up - down)) / 2, float(np.std(up - down)) / 2 / math.sqrt(len(up))
    bend = (max(float(np.mean(up + down)) / 2, 0.0) + direction.bend) / 2
    likely = (2 * bend * direction.off) ** 2
    return float(np.clip(-slope * likely / (likely + error**2) / (2 * bend), -_FARTHEST, _FARTHEST))


def _reorder(order: tuple[int, ...], values: NDArray[Any], axis: int) -> NDArray[Any]:
    """Return channels in another order."""
    return np.take(values, order, axis)


def _grey(values: NDArray[Any], axis: int) -> NDArray[Any]:
    """Return the mean of the channels in each of them."""
    return np.broadcast_to(values.mean(axis, keepdims=True), values.shape)


def _standardised(values: NDArray[Any], axis: int) -> NDArray[Any]:
    """Take mean and standard deviation out of each channel of each image."""
    pixels = tuple(k for k in (1, 2, 3) if k != axis)
    centred = values - values.mean(pixels, keepdims=True)
    unit: NDArray[Any] = centred / np.maximum(centred.std(pixels, keepdims=True), np.finfo(np.float32).eps)
    return unit


# One scale and one offset: u = a (x / 255 - m).
#
# The loss of (a, m) is the NLL at its own temperature. The best point of a coarse grid, or the best known recipe, moves
# to the lowest point of a parabola around it. Where that does clearly better, a narrower parabola there, of other
# images, says which numbers are likeliest, of which simple ones are likelier.

# without those that lie near a known recipe
_POSITIVE = ((1, 0.5), (4, 0.0), (16, 0.0), (16, 0.5), (64, 0.0), (64, 0.5))
_GRID: tuple[tuple[float, float], ...] = (*_POSITIVE, *((-a, m) for a in (1, 4, 16, 64, 255) for m in (0.5, 1.0)))
_REVERSED: dict[Color, Color] = {"RGB": "BGR", "BGR": "RGB"}
_SHARE = 0.33  # of the runs of the coarse search, for the grid
_STAR = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))  # where a parabola is fitted, in steps, and in the best corner
_WIDE, _NARROW = (0.5, 0.2), (0.2, 0.08)  # steps of log |a|, in which points of the grid are 1.4 apart, and of m
_REACH = 1.25  # steps within which the lowest point of a parabola is trusted; twice as many for simple numbers
_WORTH = 0.02  # nats by which the NLL is to fall
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
        m = _MEAN + (self.m + m - _MEAN) * math.exp(-log_a)
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


def _affine(images: TrialImages, best: Trial, budget: int) -> tuple[Trial, _Parabola] | None:
    """Find about where the likeliest scale and offset lie, for images of which no known recipe is right.

    Gives a trial of that point, run on a few images, and the parabola that says where it lies; None where too few
    images may be run, or little is won. `budget`: images that may be run, each under one recipe.
    """
    color = best.resolved.color
    runs = int(_SHARE * budget)
    grid = [_trial(images, best, Point(a, m, color)) for a, m in _GRID]
    # of inverted pixels, the best known recipe hardly tells the order of the channels
    reverse = [_trial(images, best, Point(a, m, _REVERSED[color])) for a, m in _GRID if a < 0 and color in _REVERSED]
    start = _halved(images, grid + reverse, runs) or _halved(images, grid, runs)
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
    return (trial, wide) if trial.behind(best)[0] <= -_WORTH else None


def _written(images: TrialImages, best: Trial, affine: Trial, wide: _Parabola, budget: int) -> Trial:
    """Return a trial of numbers that somebody may have typed, near the likeliest ones (`_affine`)."""
    count = min(6 * budget // (10 * (len(_STAR) + 2)), len(images.rows) - wide.count)
    if not count:
        return affine
    narrow = _Parabola.fit(images.after(wide.count), best, _point_of(affine), _NARROW, count)
    # far from its centre a wide parabola is wrong, and a narrow one says little of where its centre lies
    typed = [_likeliest(parabolas) for parabolas in ([narrow], [wide, narrow])]
    nats = {_trial(images, best, point, unit): cost for point, unit, cost in filter(None, typed)}
    lowest = narrow.lowest()
    nats[_trial(images, best, lowest, lowest.unit)] = 4 * _WRITTEN
    nats[affine] = 4 * _WRITTEN
    count = min(budget // 6, len(affine))
    images.run(list(nats), count)
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
        x, y = map(np.ravel, np.meshgrid(*2 * [np.linspace(-_REACH, _REACH, 51)]))
        k = int(np.argmin(_terms(x, y) @ self.factors))
        return self.centre.moved(self.steps[0] * x[k], self.steps[1] * y[k])

    def nats(self, a: FloatArray, m: FloatArray) -> FloatArray:
        """Return the nats at points, and infinite ones too far from the centre."""
        ratio = a / abs(self.centre.a)
        # the m that it has where the scale is that of the centre
        x, y = np.log(ratio) / self.steps[0], (_MEAN + (m - _MEAN) * ratio - self.centre.m) / self.steps[1]
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


def _likeliest(parabolas: Sequence[_Parabola]) -> tuple[Point, float, float] | None:
    """Return the likeliest numbers near the centre of the last parabola; None without any.

    The logarithm of their probability is that of the labels minus the nats that it takes to write the numbers down.
    Gives the point, what a pixel of 255 becomes by `scale`, and these nats.
    """
    centre = parabolas[-1].centre
    bent = [parabola for parabola in parabolas if parabola.bends_up]
    candidates = []
    for unit, cost in ((1.0, 0.0), (255.0, 1.5)):
        means = _numbers(unit)
        stds = {std: nats for std, nats in (means | {1.0: 0.0}).items() if std > 0}
        mean, std = map(np.ravel, np.meshgrid(list(means), list(stds)))
        written = np.add.outer(list(stds.values()), list(means.values())).ravel() + cost
        total = written + sum(parabola.nats(unit / std, mean / unit) for parabola in bent)
        k = int(np.argmin(total))
        point = Point(math.copysign(unit / std[k], centre.a), mean[k] / unit, centre.color)
        candidates.append((float(total[k]), (point, unit, float(written[k]))))
    nats, likeliest = min(candidates, key=lambda candidate: candidate[0])
    return likeliest if bent and math.isfinite(nats) else None


def _numbers(unit: float) -> dict[float, float]:
    """Return means and standard deviations that somebody may type, and the nats that each takes."""
    step = 0.01 if unit == 1 else 1.0
    nats: dict[float, float] = {}
    for every, cost in ((1, _WRITTEN), (5, 2.5), (10, 1.5)):
        nats |= {round(k * step, 2): cost for k in range(-200, 301, every)}
    nats |= {2.0**k: 1.5 for k in range(-3, 8)}
    return nats | dict.fromkeys((0.0, unit, unit / 2, (unit + 1) / 2), 0.0)
