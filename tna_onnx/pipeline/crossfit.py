"""Cross-fitting: each calibration sample is scored by what was chosen and fitted without it.

For each fold, weights and maps are searched and fitted on the other folds, and a method is chosen by their scores. All
samples are scored; of very many, searches and fits see some. `MapFits` fits the maps of methods to logits.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.engine.logits import Logits, Reduction
from tna_onnx.errors import DataError
from tna_onnx.maps import MAPS
from tna_onnx.maps.base import CalibrationMap
from tna_onnx.numerics.metrics import independent_count
from tna_onnx.numerics.scores import SampleScores, mean_and_error, weighted_mean
from tna_onnx.pipeline.methods import FOLDS, Method, Rule

SEEN = 62_500
"""Samples that searches and fits of folds see at most. A fit of k numbers to M of many costs k / (2 M) nats of NLL."""

Mask = NDArray[np.bool_]

Scores = dict[Method, SampleScores]
"""Scores of all samples by method, in the order of the samples."""

Fit = tuple[Method, Logits, "CalibrationMap | None"]
"""A method, logits of all samples under its weight, and its fitted map."""

Fits = Callable[[int, Mask], Iterable[tuple[Method, Iterable[Fit]]]]
"""(k, (N,) mask of samples outside of fold k) -> each method, and its fits: one, or those along its path."""

# A method that has lost so clearly on the folds so far that the others can hardly make up for it is not fitted again.
# Their mean difference is predicted to be that of the folds so far, with an error from both; this is how many of these
# errors it must lie off the one that would make up for the loss: one chance in 2,500, by the normal distribution.
_LOST = 3.35
_ENOUGH = 200  # independent samples that say so

# 99 % of a chi-squared number with one degree of freedom are below.
_LIKELY = 6.635


def folds(n: int, seed: int, clusters: NDArray[np.int64] | None = None) -> NDArray[np.intp]:
    """Return the fold of each of n samples; a cluster is in one fold as a whole."""
    if clusters is not None:
        numbers, number = np.unique(clusters, return_inverse=True)
        return folds(len(numbers), seed)[number]
    # at random: files often come sorted by class. Sizes differ by one at most
    return np.random.default_rng(seed).permutation(n) % FOLDS


def fit_rows(n: int, seed: int, clusters: NDArray[np.int64] | None = None) -> NDArray[np.intp]:
    """Return the rows, of n, that searches and fits of folds use: all, or of very many a random part of each fold.

    One fold follows the other, so that leaving one out takes no copy of the others.
    """
    fold = folds(n, seed, clusters)
    per_fold = n if n <= SEEN else SEEN // FOLDS
    rows = []
    for k in range(FOLDS):
        places = np.flatnonzero(fold == k)
        rows.append(np.sort(np.random.default_rng((seed, k)).permutation(places)[:per_fold]))
    return np.concatenate(rows)


def cross_scores(
    n: int,
    seed: int,
    fits: Fits,
    rule: Rule = Rule(),  # noqa: B008 - a frozen value
    failed: dict[Method, str] | None = None,
    clusters: NDArray[np.int64] | None = None,
    *,
    race: bool = True,
) -> Scores:
    """Score each of n samples with the fits of the other folds.

    A map that cannot be fitted without one of the folds is left out, and one that has lost before the last. So are
    steps of a path that not all folds have: it is left once it has got worse in a fold.

    `fits`: fits of the methods without a fold, on the samples of `fit_rows`. `failed`: takes the methods that could not
    be fitted without one of the folds, and why; a path by its first step. `clusters`: of the samples, (n,), if they are
    not independent. `race`: whether those are left out that have lost before the last fold.
    """
    fold = folds(n, seed, clusters)
    looked_at = np.zeros(n, bool)
    looked_at[fit_rows(n, seed, clusters)] = True
    failures: dict[Method, str] = {}
    parts: list[Scores] = []
    lost: set[Method] = set()
    rivals: set[Method] = set()  # what others have lost against
    for k in range(FOLDS):
        train = looked_at & (fold != k)
        remaining = ((method, path) for method, path in fits(k, train) if method not in lost)
        part, refused = _scores_of_fold(remaining, fold == k, parts)
        parts.append(part)
        failures = {
            **{method: f"without fold {k + 1} of {FOLDS}: {why}" for method, why in refused.items()},
            **failures,
        }
        if race:
            beaten, best = _lost(parts, rule)
            lost |= beaten
            if best and any(method.step == 0 for method in beaten):
                rivals.add(best)
        # of very many samples, scores of methods that nobody asks for any more take gigabytes
        parts = [
            {method: after for method, after in part.items() if not {method, _family(method)} & lost} for part in parts
        ]
    if rivals & {*failures}:
        # they are no candidates after all, and what they have beaten may be the best
        return cross_scores(n, seed, fits, rule, failed, clusters, race=False)
    shared = [method for method in parts[0] if all(method in part for part in parts)]
    if not shared:
        raise DataError(f"cross-fitting: {next(iter(failures.values()))}")
    if failed is not None:
        failed.update(failures)
    return {method: in_order([part[method] for part in parts], fold) for method in shared}


def _family(method: Method) -> Method:
    """Return the first step of a path."""
    return dataclasses.replace(method, step=0)


def _lost(parts: Sequence[Scores], rule: Rule) -> tuple[set[Method], Method | None]:
    """Return the methods whose losses on the folds so far are too far above the best, and that; paths by a first step.

    Only what the rule cannot leave out for changed predictions rules another method out. The last steps of a path are
    ruled out by an earlier one, too: they follow the training samples closer, and are its longest fits.
    """
    folds_to_come = FOLDS - len(parts)
    shared = [method for method in parts[0] if all(method in part for part in parts)]
    if not folds_to_come or not shared:
        return set(), None
    counts = [len(part[shared[0]]) for part in parts]
    places = np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])
    scored = SampleScores.in_places(places, [part[shared[0]] for part in parts])
    if (independent_count(scored) or len(scored)) < _ENOUGH:
        return set(), None
    losses = {method: np.concatenate([rule.losses(part[method]) for part in parts]) for method in shared}
    means = {method: weighted_mean(losses[method], scored.weights) for method in shared}

    def is_hopeless(method: Method, rival: Method) -> bool:
        worse, error = mean_and_error(losses[method] - losses[rival], scored.clusters, scored.weights)
        beyond = worse - rule.tie(scored, error)
        return beyond * math.sqrt(FOLDS / folds_to_come) > _LOST * error

    rivals = [method for method in shared if rule.always_allows(method) and not _reads_features(method)]
    best = min(rivals, key=lambda method: means[method], default=None)
    lost = set()
    for first, steps in itertools.groupby(shared, _family):
        path = [*steps]
        best_step = min(path, key=lambda method: means[method])
        lost |= set(itertools.takewhile(lambda step: is_hopeless(step, best_step), reversed(path[1:])))  # noqa: B023
        # the input, one temperature and their like cost little, and are what others are held against
        if best and (_reads_features(first) or not first.keeps_order) and is_hopeless(best_step, best):
            lost.add(first)
    return lost, best


def _reads_features(method: Method) -> bool:
    return method.tilted or (method.map != "none" and MAPS[method.map].needs_features)


def _scores_of_fold(
    fits: Iterable[tuple[Method, Iterable[Fit]]], rows: Mask, earlier: Sequence[Scores]
) -> tuple[Scores, dict[Method, str]]:
    """Score the samples of one fold; also say which methods could not be fitted, and why."""
    scores: Scores = {}
    failed: dict[Method, str] = {}
    for first, path in fits:
        last = math.inf
        try:
            for method, logits, fitted in path:
                scores[method] = logits.mapped_scores(fitted, rows)
                # what the fits along a path minimise, whatever is chosen by: it is smooth in few samples, too
                value = scores[method].mean("nll")
                # further steps only follow the training samples closer, and one that a fold lacks is left out
                following = dataclasses.replace(method, step=method.step + 1)
                if value > last or any(following not in part for part in earlier):
                    break
                last = value
        # a map that cannot be fitted is no candidate, and no error: others can be
        except DataError as error:
            failed[first] = str(error)
    return scores, failed


def chosen_per_fold(scores: Mapping[Method, SampleScores], before: SampleScores, rule: Rule, seed: int) -> list[Method]:
    """Return the method for each fold, chosen by the scores of the other folds."""
    fold = folds(len(before), seed, before.clusters)
    methods = []
    for k in range(FOLDS):
        outside = {method: after.take(fold != k) for method, after in scores.items()}
        methods.append(rule.choose(outside, before.take(fold != k)))
    return methods


def nested(scores: Mapping[Method, SampleScores], methods: Sequence[Method], seed: int) -> SampleScores:
    """Score each sample with the method that was chosen for its fold (`chosen_per_fold`).

    A fold's own scores have no part in the choice for it, but for how far a path was followed and what was given up
    after a fold. The fits behind the scores of the other folds have seen this one.

    Source: Tibshirani & Tibshirani (2009), "A bias correction for the minimum error rate in cross-validation".
    """
    any_scores = scores[methods[0]]
    fold = folds(len(any_scores), seed, any_scores.clusters)
    return in_order([scores[method].take(fold == k) for k, method in enumerate(methods)], fold)


def in_order(parts: list[SampleScores], fold: NDArray[np.intp]) -> SampleScores:
    """Join the scores of all folds in the order of the samples."""
    return SampleScores.in_places([np.flatnonzero(fold == k) for k in range(FOLDS)], parts)


@dataclass(frozen=True)
class MapFits:
    """Fits of maps with the same options."""

    options: Mapping[str, Any]  # by name; each map takes those that it declares

    def path(self, method: Method, samples: Reduction) -> Iterator[tuple[Method, CalibrationMap | None]]:
        """Yield the fits to some samples along the path of a map that has one."""
        path: Any = MAPS[method.map]
        for step, fitted in enumerate(path.fit_path(samples)):
            yield dataclasses.replace(method, step=step), fitted

    def chosen(self, method: Method, logits: Logits) -> CalibrationMap | None:
        """Return the fit to all samples, up to the step chosen."""
        samples = logits.reduce(features=True)
        if not method.has_path:
            return self.one(method.map, samples)
        _, fitted = next(itertools.islice(self.path(method, samples), method.step, None))
        return fitted

    def temperature_helps(self, logits: Logits, rows: Mask | None = None) -> bool:
        """Whether the likelihood ratio of one temperature against none is beyond the 99 % point of chi-squared.

        Twice the gain in log likelihood of a fit of one number to samples that need none is chi-squared with one
        degree of freedom. Of few samples that knows more than the standard error of cross-fitted losses, a few of
        which make most of both.
        Source: Wilks (1938), "The large-sample distribution of the likelihood ratio for testing composite hypotheses".
        """
        try:
            fitted = self.one("ts", logits.reduce(rows))
        except DataError:
            return False
        before, after = (logits.mapped_scores(fit, rows).nll for fit in (None, fitted))
        return 2 * float(np.sum(before - after, dtype=np.float64)) > _LIKELY

    def one(self, name: str, samples: Reduction, start: Any = None) -> CalibrationMap | None:
        """Return a map fitted to some samples, starting at `start`; None for the map `none`."""
        if name == "none":
            return None
        kind = MAPS[name]
        options = {option: value for option, value in self.options.items() if option in kind.options}
        return kind.fit(samples if kind.needs_features else samples.bare, start=start, **options)
