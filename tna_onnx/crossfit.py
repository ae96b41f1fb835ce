"""Cross-fitting: an honest estimate of the result from the calibration data alone.

The samples are split into folds at random. For each fold, the candidate is chosen and the map fitted on the other
folds, and the fold is scored with them; the scores of all folds together are those of samples that were not fitted.
Candidates themselves depend on the seed and the weight only; which angles were tried is shared by all folds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tna_onnx.engine.logits import HeadLogits
from tna_onnx.maps import CalibrationMap, Reduce
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.search import Candidate, SearchSettings, choose

__all__ = ["FOLDS", "cross_fit"]

FOLDS = 5


def cross_fit(
    candidates: tuple[Candidate, ...],
    logits_of: Callable[[Candidate], HeadLogits],
    fit: Callable[[Reduce], CalibrationMap | None],
    settings: SearchSettings,
) -> tuple[SampleScores, SampleScores]:
    """Score each sample with what was chosen and fitted without it.

    Args:
        candidates: as the search gave them, the original weight first.
        logits_of: logits of all samples under a candidate's weight.
        fit: fits the map.
        settings: of the search; its seed draws the folds.

    Returns:
        (scores before, scores after), N samples each, in the same order.

    Raises:
        DataError: a fold's map cannot be fitted.
    """
    n = len(candidates[0].scores)
    fold = np.random.default_rng(settings.seed).permutation(n) % FOLDS
    kept: dict[int, HeadLogits] = {}
    after, order = [], []
    for k in range(FOLDS):
        train = fold != k
        chosen = choose(candidates, settings, train)
        if chosen not in kept:
            kept[chosen] = logits_of(candidates[chosen])
        fitted = fit(kept[chosen].reduce(train))
        after.append(kept[chosen].mapped_scores(fitted, ~train))
        order.append(np.flatnonzero(~train))
    return candidates[0].scores.take(np.concatenate(order)), SampleScores.concatenate(after)
