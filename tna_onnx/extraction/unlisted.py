"""What suits a model clearly better than the best known recipe of its images, and what to do then.

A model is best under the recipe that it was trained with, on images like those of its training. If something else suits
it better, one of the two differs, and accuracies are the same whichever it is. Three things are looked for: one scale
and one offset (`affine_search`); other orders of the channels, grey ones and standardised ones; and small changes of
each channel, of which a trained model wants none.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.images.preprocess import ResolvedRecipe
from tna_onnx.extraction.affine_search import AffineSearch
from tna_onnx.extraction.recipe_trials import (
    CLEAR,
    MOST_RUNS,
    USUAL,
    Change,
    Trial,
    TrialImages,
    halved,
    is_rarely_right,
    leaves_nothing_to_gain,
    worse_than_guessing,
)

FloatArray = NDArray[np.float64]

_COARSE, _COMPARED, _WAYS = 0.35, 0.2, 0.1  # shares of the runs: of a search, of what it found, and of the next
_MIN_GAIN = 0.04  # nats, of the NLL; a quarter of it for a quarter of a change
_ORDERS = ((0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1))  # of three channels, but as they are and reversed
_PRESENT = "give arrays that are prepared so"
_FARTHEST = 1.5  # steps that are trusted
_FEW, _SLOPES = 24, 80  # images on which slopes are measured: at least, and at most
_MANY = 600  # images on which what they ask for is compared


class _Direction(NamedTuple):
    """A change of prepared channels: a step times `way` times a function of their standardised values z."""

    function: Callable[[FloatArray], FloatArray]
    way: tuple[float, float, float]
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
    """Return what suits the model clearly better than the best known recipe, and what to do."""
    if leaves_nothing_to_gain(best.logs, images.labels[: len(best)]):
        return None
    found = _clearly_better(images, best)
    if found is None or is_rarely_right(found[0], images.labels):
        return None
    return found


def _clearly_better(images: TrialImages, best: Trial) -> tuple[Trial, str] | None:
    """Return what has a clearly lower NLL than the best known recipe, and what to do."""
    budget = min(len(images.source), MOST_RUNS)
    end = max(MOST_RUNS, images.runs) + budget  # the race takes more where the way of resizing is open
    scaled = best.resolved.dtype.kind == "f" and not images.source.mixed_sizes
    if scaled:
        for_affine = images.runs + budget
        affine = AffineSearch.coarse(images, best, int(_COARSE * budget))
        if affine is not None and _is_right(
            images, affine.trial, best, int(_COMPARED * budget), for_affine - int(_COARSE * budget)
        ):
            found = affine.written(for_affine - images.runs)
            how = "inverted pixels (of a negative)" if found.resolved.scale < 0 else "another scale or offset"
            return found, f"{how}. If the model was trained with that, add {found.named.flags}"
    way = _best_way(images, best, int(_WAYS * budget))
    if way is not None and _is_clearly_better(images, way[0], best, int(_COMPARED * budget)):
        return way
    if scaled:
        moved = _moved(images, best, end - images.runs)
        # where the NLL is convex, a whole step gains four times as much at most
        if moved is not None and _is_clearly_better(
            images, moved[0], best, _for_many(images, best, end), _MIN_GAIN / 4
        ):
            return moved
    return None


def _is_right(images: TrialImages, affine: Trial, best: Trial, budget: int, end: int) -> bool:
    """Whether a scale and an offset suit the model clearly better than the best known recipe, or a part of the way."""
    if _is_clearly_better(images, affine, best, budget):
        return True
    first, second = best.resolved, affine.resolved
    if first.per_image or first.color != second.color or affine.behind(best)[0] >= 0:
        return False
    change = functools.partial(_part_way, first, second)
    part = replace(images.trial(best.named), change=change)
    return _is_clearly_better(images, part, best, _for_many(images, best, end), _MIN_GAIN / 4)


def _for_many(images: TrialImages, best: Trial, end: int) -> int:
    """Return how many images may be run to compare something with the best known recipe on many, up to `end` in all."""
    return min(end - images.runs, max(_MANY, 2 * _MANY - len(best)))


def _is_clearly_better(images: TrialImages, found: Trial, best: Trial, budget: int, least: float = _MIN_GAIN) -> bool:
    """Whether something suits the model clearly better, by so many nats, on as many images as may be run."""
    count = min(budget + len(found), (budget + len(found) + len(best)) // 2)
    if budget <= 0 or count < 2 or (len(found) and found.loses_clearly(best)):
        return False
    images.run([best, found], count // 2)
    if best.behind(found)[0] <= least / 2:
        return False
    if found.z(best) > -2 * CLEAR:  # else more images would say the same
        images.run([best, found], count)
    if not math.isfinite(best.nll):
        return False
    if worse_than_guessing(found.plain_nll(images.labels), 0.0, found.logs.shape[1]):
        return False
    return best.loses_clearly(found) and best.behind(found)[0] > least


def _best_way(images: TrialImages, best: Trial, budget: int) -> tuple[Trial, str] | None:
    """Return the best of changes that no option can state."""
    color = best.resolved.color
    if color == "L":
        return None
    ways: dict[str, Change] = {"each channel of each image standardised": _standardised, "grey images": _grey}
    for order in _ORDERS:
        ways[f"channels in the order {''.join(color[k] for k in order)}"] = functools.partial(_reorder, order)
    others = {name: replace(images.trial(best.named), change=change) for name, change in ways.items()}
    found = halved(images, list(others.values()), budget)
    if found is None:
        return None
    name = next(name for name, trial in others.items() if trial is found)
    return found, f"{name}. State what it was trained with, or {_PRESENT}"


def _changed(resolved: ResolvedRecipe, coefficients: FloatArray, values: NDArray[Any], axis: int) -> NDArray[Any]:
    """Return prepared channels changed by a multiple of each direction."""
    mean, std = np.array(resolved.mean), np.array(resolved.std)
    centre, spread = np.zeros_like(mean), np.ones_like(mean)
    if not resolved.per_image:
        centre, spread = (255 * resolved.scale * USUAL[0] - mean) / std, 255 * resolved.scale * USUAL[1] / std
    aside = tuple(range(1, 4 - axis))
    centre, spread = np.expand_dims(centre, aside), np.expand_dims(spread, aside)
    z = (values - centre.astype(values.dtype)) / spread.astype(values.dtype)
    changed: NDArray[Any] = np.array(values)
    for coefficient, direction in zip(coefficients, _DIRECTIONS, strict=True):
        if coefficient:
            way = np.expand_dims(np.array(direction.way[: len(mean)]), aside)
            changed += float(coefficient) * (spread * way).astype(values.dtype) * direction.function(z)
    return changed


def _part_way(first: ResolvedRecipe, second: ResolvedRecipe, values: NDArray[Any], axis: int) -> NDArray[Any]:
    """Return what the first of two recipes prepares, moved a quarter of the way to what the second does."""
    mean, std, other_mean, other_std = (
        np.expand_dims(np.array(each, values.dtype), tuple(range(1, 4 - axis)))
        for each in (first.mean, first.std, second.mean, second.std)
    )
    other = ((values * std + mean) * float(second.scale / first.scale) - other_mean) / other_std
    moved: NDArray[Any] = values + (other - values) / 4
    return moved


def _moved(images: TrialImages, trial: Trial, budget: int) -> tuple[Trial, str] | None:
    """Return a quarter of the change that the slopes of the NLL ask for; None with few images, or few runs.

    Whole steps may be wrong, where directions depend on one another. Along a small one the NLL falls for all that, and
    images hardly differ in by how much.
    """
    used = [k for k, each in enumerate(_DIRECTIONS) if len(trial.resolved.mean) > 1 or each.way == _ALL]
    count = min(_SLOPES, len(images.rows) // 3)
    if count < _FEW or (2 * len(used) + 3) * count > budget:
        return None

    def changed(coefficients: FloatArray) -> Trial:
        change = functools.partial(_changed, trial.resolved, coefficients)
        return replace(images.trial(trial.named), change=change)

    steps = np.diag([direction.step for direction in _DIRECTIONS])
    base = images.trial(trial.named)
    sides = {k: (changed(steps[k]), changed(-steps[k])) for k in used}
    last = images.after(len(images.rows) - count)  # of few images, `_is_clearly_better` comes to these too
    last.run([base, *itertools.chain.from_iterable(sides.values())], count)
    if not np.isfinite(base.losses).all():
        return None
    asked = np.zeros(len(_DIRECTIONS))
    for k, (up, down) in sides.items():
        if not np.isfinite(up.losses).all() or not np.isfinite(down.losses).all():
            continue  # too far for the model
        asked[k] = _newton_step(_DIRECTIONS[k], up.losses - base.losses, down.losses - base.losses)
    how = "a small change of each channel, by which a trained model would not gain"
    return (
        changed(asked @ steps / 4),
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
