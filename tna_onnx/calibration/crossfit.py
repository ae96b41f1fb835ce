"""Cross-fitting: an honest estimate of the result from the calibration data alone.

The samples are split into folds at random. For each fold, weight and map are chosen and fitted on the other folds, and
the fold is scored with them; the scores of all folds together are those of samples that were not fitted. In a sparse
search, candidates depend on the seed and the weight only; which angles were tried is the same for all folds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from tna_onnx.engine.logits import Logits
from tna_onnx.errors import DataError
from tna_onnx.maps.base import CalibrationMap, Reduce
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.search.candidates import Candidate, choose
from tna_onnx.search.settings import SearchSettings

__all__ = ["FOLDS", "choose_map", "cross_fit", "cross_score", "folds"]

# More folds would fit on more samples and cost as many more fits; five leave 80 %.
FOLDS = 5

Propose = Callable[[NDArray[np.bool_]], tuple[Logits, CalibrationMap | None]]
"""(N,) mask of training samples -> logits of all samples under the chosen weight, and the fitted map."""

Fit = Callable[[Reduce], CalibrationMap | None]
"""Fits a map."""


def folds(n: int, seed: int) -> NDArray[np.intp]:
    """Return the fold of each of n samples."""
    # at random: files often come sorted by class. Sizes differ by one at most
    return np.random.default_rng(seed).permutation(n) % FOLDS


def cross_score(n: int, seed: int, propose: Propose) -> tuple[SampleScores, NDArray[np.intp]]:
    """Score each of n samples with what `propose` makes of the other folds.

    Returns:
        (scores, rows): the scores, fold after fold, and the samples that they belong to.
    """
    fold = folds(n, seed)
    scores = []
    rows = []
    for k in range(FOLDS):
        logits, fitted = propose(fold != k)
        scores.append(logits.mapped_scores(fitted, fold == k))
        rows.append(np.flatnonzero(fold == k))
    return SampleScores.concatenate(scores), np.concatenate(rows)


def cross_fit(
    candidates: tuple[Candidate, ...],
    logits_of: Callable[[Candidate], Logits],
    fit: Fit,
    settings: SearchSettings,
    *,
    features: bool = False,
) -> tuple[SampleScores, SampleScores]:
    """Score each sample with what a sparse search chose, and the map fitted, without it.

    Args:
        candidates: as the search gave them, the original weight first.
        logits_of: logits of all samples under a candidate's weight.
        fit: fits the map.
        settings: of the search; its seed draws the folds.
        features: whether the map needs the features.

    Returns:
        (scores before, scores after), N samples each, in the same order.

    Raises:
        DataError: a fold's map cannot be fitted.
    """
    kept: dict[int, Logits] = {}  # of the last fold only: most choose the same candidate

    def propose(train: NDArray[np.bool_]) -> tuple[Logits, CalibrationMap | None]:
        # the choice sees the training folds only, like the fit
        chosen = choose(candidates, settings, train)
        if chosen not in kept:
            kept.clear()
            kept[chosen] = logits_of(candidates[chosen])
        return kept[chosen], fit(kept[chosen].reduce(train, features=features))

    after, rows = cross_score(len(candidates[0].scores), settings.seed, propose)
    return candidates[0].scores.take(rows), after


def choose_map(n: int, logits: Logits, fits: Mapping[str, Fit], seed: int) -> dict[str, float]:
    """Return the cross-validated NLL of each map on n samples, the best first; maps that cannot be fitted are left out.

    Raises:
        DataError: no map can be fitted.
    """
    values = {}
    for name, fit in fits.items():

        def propose(train: NDArray[np.bool_], fit: Fit = fit) -> tuple[Logits, CalibrationMap | None]:
            # every map may ask for features: `auto` compares them all
            return logits, fit(logits.reduce(train, features=True))

        # a map that cannot be fitted on some folds is no candidate, and no error: others can be
        try:
            scores, _ = cross_score(n, seed, propose)
        except DataError:
            continue
        values[name] = float(np.mean(scores.nll, dtype=np.float64))
    if not values:
        raise DataError("map auto: no map can be fitted on these data")
    return dict(sorted(values.items(), key=lambda item: item[1]))
