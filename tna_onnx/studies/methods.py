"""Ways to a last layer, for studies: a weight that is searched or not, and a map that is fitted on it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.calibration.strategy import Strategy
from tna_onnx.engine.logits import Logits, score_all
from tna_onnx.errors import DataError
from tna_onnx.maps import MAPS, maps_of
from tna_onnx.maps.base import CalibrationMap
from tna_onnx.numerics.averages import Average, averages
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.progress import silent
from tna_onnx.search.candidates import Candidate, candidate_of, candidate_weight, choose
from tna_onnx.search.scored import Scored
from tna_onnx.search.settings import SearchSettings
from tna_onnx.search.sparse import search_sparse
from tna_onnx.search.walk import Walk
from tna_onnx.studies.data import StudyData
from tna_onnx.studies.printed import MEMBERS, Printed, search_printed
from tna_onnx.studies.settings import StudySettings

__all__ = ["PAPER_MAPS", "Found", "chosen", "complete", "fit", "maps_for", "plain", "scored", "sparse"]

PAPER_MAPS = ("irova", "ts", "ets", "aar")
"""Maps of the paper's table, in its order."""

GRID_STEP = 3.0
"""Degrees between the angles of the complete search: the curves are smooth at that scale."""


@dataclass(frozen=True, eq=False)
class Found:
    """A weight, a map on top and where they were found.

    Attributes:
        weight: (C, n); the original one for angle 0.
        fitted: None for no map.
        angle: mRC in degrees.
        members: averaged; 0 for the limit of many.
        candidates: weights that were scored.
        label: what was chosen, where there was a choice of methods.
    """

    weight: NDArray[Any]
    fitted: CalibrationMap | None = None
    angle: float = 0.0
    members: int = 1
    candidates: int = 1
    label: str = ""


def maps_for(classes: int) -> tuple[str, ...]:
    """Return the maps for this number of classes, the paper's first."""
    others = (name for name in maps_of(classes) if name not in PAPER_MAPS)
    return (*PAPER_MAPS, *others)


def scored(data: StudyData, found: Found) -> SampleScores:
    """Score the held-out samples."""
    return data.logits(data.held_out, found.weight).mapped_scores(found.fitted)


def plain(data: StudyData, name: str, settings: StudySettings, seed: int) -> Found:
    """Fit a map on the original weight.

    Raises:
        DataError: it cannot be fitted.
    """
    if name != "none" and hasattr(MAPS[name], "strengths"):
        return chosen(data, settings, seed, search="none", map=name)
    return Found(data.weight, fit(name, data.logits(data.calibration), settings))


def fit(name: str, logits: Logits, settings: StudySettings, start: Any = None) -> CalibrationMap | None:
    """Fit a map by its own loss, as its source does; the objective is for the angle alone.

    Raises:
        DataError: it cannot be fitted.
    """
    if name == "none":
        return None
    kind = MAPS[name]
    # the source of ETS minimises the squared error by default
    known = {"ets_loss": "squared", "objective": "nll", "bins": settings.bins}
    options: dict[str, Any] = {option: known[option] for option in kind.options if option in known}
    return kind.fit(logits.reduce(features=kind.needs_features), start=start, **options)


def sparse(data: StudyData, settings: StudySettings, seed: int) -> Found:
    """Search the weight alone."""
    own = settings.search(seed)

    def score(weights: Sequence[NDArray[Any]]) -> list[SampleScores]:
        return score_all([data.logits(data.calibration, weight) for weight in weights])

    if settings.printed:
        return _of_printed(search_printed(data.weight, lambda weight: score([weight])[0], own))
    scaled = functools.partial(data.logits(data.calibration).scaled_scores, with_bias=data.tilt_bias)
    candidates = search_sparse(Scored(own.ensemble(data.weight), score, scaled), own, _silent)
    best = candidates[choose(candidates, own)]
    return _found(best, candidate_weight(data.weight, best, own), len(candidates))


def complete(data: StudyData, names: Sequence[str], settings: StudySettings, seed: int) -> dict[str, Found]:
    """Search pairs of a weight and a map fitted for it: the whole grid, once for all maps.

    A map that cannot be fitted on the original weight is left out.
    """
    own = settings.search(seed)
    if settings.printed:
        pairs = {name: _complete_printed(data, name, settings, own) for name in names}
        return {name: found for name, found in pairs.items() if found is not None}
    # of all weights, a walk keeps the best
    walks: dict[str, Walk] = {}
    members = own.ensemble_size
    original = Average(0.0, data.weight, 0.0, 0.0)
    grid = np.arange(GRID_STEP, 90, GRID_STEP).tolist()
    for average in itertools.chain([original], averages(data.weight, grid, members, own.draws)):
        logits = data.logits(data.calibration, average.weight)
        for name in names if average is original else [*walks]:
            # the map changes little with the angle: the neighbour's is a good start
            start = walks[name].pool[-1].fitted if name in walks else None
            try:
                fitted = fit(name, logits, settings, start)
            except DataError:
                continue
            candidate = candidate_of(average, members, logits.mapped_scores(fitted), fitted)
            if name in walks:
                walks[name].add([candidate])
            else:
                walks[name] = Walk(candidate, own)
        logits.forget()
    best = {name: walk.pool[choose(walk.pool, own)] for name, walk in walks.items()}
    return {name: _found(each, each.weight, len(walks[name].pool)) for name, each in best.items()}


def _complete_printed(data: StudyData, name: str, settings: StudySettings, own: SearchSettings) -> Found | None:
    """Search pairs as printed; None where no map can be fitted."""
    found: list[CalibrationMap | None] = []

    def score(weight: NDArray[Any]) -> SampleScores | None:
        logits = data.logits(data.calibration, weight)
        try:
            # each pair is fitted anew: nothing of a neighbour's fit is taken over
            found.append(fit(name, logits, settings))
        except DataError:  # near 90 degrees a weight is noise
            found.append(None)
            return None
        return logits.mapped_scores(found[-1])

    printed = search_printed(data.weight, score, own)
    fitted = found[printed.index]
    if fitted is None:
        return None
    return _of_printed(printed, fitted)


def chosen(data: StudyData, settings: StudySettings, seed: int, **words: Any) -> Found:
    """Let cross-validation choose, as `calibrate` does.

    Raises:
        DataError: every sample is classified right, or nothing can be fitted.
    """
    asked = settings.calibration(seed, **{"search": "auto", "map": "auto", "objective": "nll", **words})
    strategy = Strategy(
        lambda weight: data.logits(data.calibration, weight),
        data.weight,
        asked.resolved_search,
        asked.resolved_map,
        asked.for_search,
        allowed=("none", *maps_for(len(data.weight))),
        options=asked.fit_options,
    )
    outcome = strategy.run(silent)
    assert outcome.weight is not None  # noqa: S101 - there is a head
    best = outcome.chosen
    return Found(
        outcome.weight, outcome.fitted, best.angle, best.ensemble_size, len(outcome.candidates), outcome.method.label
    )


def _found(candidate: Candidate, weight: Any, candidates: int) -> Found:
    return Found(weight, candidate.fitted, candidate.angle, candidate.ensemble_size, candidates)


def _of_printed(printed: Printed, fitted: CalibrationMap | None = None) -> Found:
    return Found(printed.weight, fitted, printed.angle, MEMBERS, printed.candidates)


def _silent(done: int, total: int) -> None:
    """Show nothing: a study has a bar of its own."""
