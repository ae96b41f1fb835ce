"""What `calibrate` looks for: a weight, and a map on top, by one of three searches; and its honest estimate.

- `none`: the map on the original weight.
- `sparse`: the weight first, then the map.
- `complete`: every pair of a weight and the map fitted for it.

With `auto` the map is the one with the smallest cross-validated NLL: on the chosen weight in a sparse search, on the
original weight otherwise. A complete search without a map is the sparse one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.calibration.crossfit import choose_map, cross_fit, cross_score
from tna_onnx.engine.logits import HeadLogits, Logits, score_all
from tna_onnx.maps import MAPS
from tna_onnx.maps.base import CalibrationMap, Reduce
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.search.candidates import Candidate, candidate_weight, choose
from tna_onnx.search.complete import search_complete
from tna_onnx.search.settings import SearchSettings
from tna_onnx.search.sparse import search_sparse

__all__ = ["Outcome", "Strategy"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a search chose and fitted.

    Attributes:
        candidates: all that were scored, the original weight first.
        chosen: the one that was chosen.
        weight: its (C, n) weight; None for a model without a head.
        map: name of the map, after `auto`.
        fitted: the map, None for none.
        before: scores of the input model on the calibration data.
        logits: logits of the calibration data under `weight`, before the map.
        map_nll: cross-validated NLL per map, if `auto` compared them.
    """

    candidates: tuple[Candidate, ...]
    chosen: Candidate
    weight: NDArray[Any] | None
    map: str
    fitted: CalibrationMap | None
    before: SampleScores
    logits: Logits
    map_nll: dict[str, float] = field(default_factory=dict)

    @property
    def parameters(self) -> dict[str, Any]:
        """What a reader wants to know of the fitted map; empty for none."""
        return self.fitted.brief if self.fitted else {}

    @property
    def keeps_predictions(self) -> bool:
        """Whether no sample can change its predicted class."""
        return self.chosen.angle == 0 and (self.fitted is None or self.fitted.keeps_order)


@dataclass(frozen=True, eq=False)
class Strategy:
    """A search, a map and their settings, on the calibration data.

    Attributes:
        logits_of: logits of the calibration data under a weight; of None for a model without a head.
        weight: (C, n) original class vectors; None for a model without a head, which can be searched with `none` only.
        search: `none`, `sparse` or `complete`.
        map: `none`, `auto` or a name in `MAPS`.
        settings: of the search.
        allowed: maps that `auto` may take.
        options: of the maps' fits, by name; each map takes those that it declares.
    """

    logits_of: Callable[[Any], Logits]
    weight: NDArray[Any] | None
    search: str
    map: str
    settings: SearchSettings
    allowed: tuple[str, ...] = ("none", *MAPS)
    options: Mapping[str, Any] = field(default_factory=dict)

    def run(self, progress: Callable[[int, int], None]) -> Outcome:
        """Search and fit on all calibration data.

        Raises:
            ValueError: the weight cannot be tilted.
            DataError: the map cannot be fitted.
        """
        original = self.logits_of(self.weight)
        # once: every candidate and the report are held against these
        before = original.scores()
        name = self.map
        nll: dict[str, float] = {}
        # a complete search needs one map to pair weights with; a sparse one chooses it on the weight that it found
        if name == "auto" and self.search != "sparse":
            name, nll = self._auto(original)
        # the original weight alone, so that reports have a curve of one point
        if self.search == "none":
            candidates: tuple[Candidate, ...] = (Candidate(0.0, 1, 0.0, before),)
        elif self._pairs(name):
            candidates = search_complete(self._vectors, self._score_fit(name, None), self.settings, progress)
        else:
            scaled = original.scaled_scores if isinstance(original, HeadLogits) else None
            candidates = search_sparse(self._vectors, self._score_all, self.settings, progress, scaled)
        chosen = candidates[choose(candidates, self.settings)]
        weight = self._weight_of(chosen)
        original.forget()  # two sets of logits need not be in memory together
        logits = self.logits_of(weight)
        if name == "auto":
            name, nll = self._auto(logits)
        fitted = chosen.fitted if self._pairs(name) else self._fit(name, logits.reduce(features=_needs_features(name)))
        return Outcome(candidates, chosen, weight, name, fitted, before, logits, nll)

    def cross_fitted(self, outcome: Outcome) -> tuple[SampleScores, SampleScores]:
        """Scores before and after, each sample scored with what was chosen and fitted without it.

        A complete search is done again for every fold. `auto` is not: its choice among maps is taken as given.
        """
        name = outcome.map
        # candidates of a sparse search have no map yet, so their scores serve every fold
        if not self._pairs(name):
            return cross_fit(
                outcome.candidates,
                functools.partial(self._logits_of_candidate, outcome),
                functools.partial(self._fit, name),
                self.settings,
                features=_needs_features(name),
            )

        # maps of pairs were fitted on all samples: the fold would have been seen
        def propose(train: NDArray[np.bool_]) -> tuple[Logits, CalibrationMap | None]:
            score = self._score_fit(name, train)
            candidates = search_complete(self._vectors, score, self.settings, lambda done, total: None)  # noqa: ARG005
            chosen = candidates[choose(candidates, self.settings)]
            return self.logits_of(self._weight_of(chosen)), chosen.fitted

        after, rows = cross_score(len(outcome.before), self.settings.seed, propose)
        return outcome.before.take(rows), after

    @property
    def _vectors(self) -> NDArray[Any]:
        assert self.weight is not None  # noqa: S101 - a search needs a head, which the caller has seen to
        return self.weight

    def _weight_of(self, candidate: Candidate) -> NDArray[Any] | None:
        if self.weight is None:
            return None
        return candidate_weight(self.weight, candidate, self.settings)

    def _logits_of_candidate(self, outcome: Outcome, candidate: Candidate) -> Logits:
        if candidate is outcome.chosen:  # those are there already
            return outcome.logits
        return self.logits_of(self._weight_of(candidate))

    def _score_all(self, weights: Sequence[NDArray[Any]]) -> list[SampleScores]:
        return score_all([self.logits_of(weight) for weight in weights])

    def _pairs(self, name: str) -> bool:
        return self.search == "complete" and name != "none"

    def _fit(self, name: str, reduce: Reduce, start: Any = None) -> CalibrationMap | None:
        if name == "none":
            return None
        chosen = MAPS[name]
        options = {option: value for option, value in self.options.items() if option in chosen.options}
        return chosen.fit(reduce, start=start, **options)

    def _auto(self, logits: Logits) -> tuple[str, dict[str, float]]:
        fits = {name: functools.partial(self._fit, name) for name in self.allowed}
        nll = choose_map(len(logits), logits, fits, self.settings.seed)
        return next(iter(nll)), nll

    def _score_fit(
        self, name: str, rows: NDArray[np.bool_] | None
    ) -> Callable[[NDArray[Any], Any], tuple[SampleScores, Any]]:
        """Fit the map for a weight and score it, on the rows chosen."""

        def score(weight: NDArray[Any], start: Any) -> tuple[SampleScores, Any]:
            logits = self.logits_of(weight)
            fitted = self._fit(name, logits.reduce(rows, features=_needs_features(name)), start)
            return logits.mapped_scores(fitted, rows), fitted

        return score


def _needs_features(name: str) -> bool:
    return name in MAPS and MAPS[name].needs_features
