"""The complete search: pairs of a weight and the map fitted for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.numerics.averages import Ensemble
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.search.candidates import Candidate, candidate_of
from tna_onnx.search.settings import SearchSettings
from tna_onnx.search.walk import Walk

__all__ = ["ScoreFit", "search_complete"]


ScoreFit = Callable[[NDArray[Any], Any], tuple[SampleScores, Any]]
"""(weight, map to start from) -> scores of all samples after a map fitted for this weight, and that map."""


def search_complete(
    ensemble: Ensemble, score: ScoreFit, settings: SearchSettings, progress: Callable[[int, int], None]
) -> tuple[Candidate, ...]:
    """Score pairs of a weight and the map fitted for it, from coarse to fine around the best four.

    The first is the original weight with its map; accuracy is held against that one. Fits start from the neighbour's.

    Args:
        ensemble: members of the weight that is searched around.
        score: fits the map for a weight and scores all calibration samples.
        settings: grid, objective and constraint; the ensemble size stays as it is.
        progress: called with (candidates scored, candidates expected).

    Raises:
        ValueError: the weight cannot be tilted (n < 2, or all class vectors zero).

    Source: the paper's TNA (comp.), section "Experimental Details".
    """
    scores, fitted = score(ensemble.weight, None)
    # angle 0 with a map of its own: accuracy is held against this pair
    walk = Walk(Candidate(0.0, 1, 0.0, scores, fitted), settings, progress)
    members = settings.ensemble_size

    def extend(quarters: Sequence[int]) -> None:
        for average in ensemble.averages(settings.angles(quarters), members):
            # the map changes little with the angle: a fit from the neighbour's takes fewer passes
            neighbour = min(walk.pool, key=lambda other: abs(other.angle - average.angle))
            try:
                scores, fitted = score(average.weight, neighbour.fitted)
            except DataError:  # no map for this weight: it is no candidate
                continue
            walk.add([candidate_of(average, members, scores, fitted)])

    extend(settings.steps(settings.coarse))
    walk.refine(settings.coarse, 1, extend, members, centres=4)  # fitted maps leave a flat curve with several dips
    walk.end()
    return tuple(walk.pool)
