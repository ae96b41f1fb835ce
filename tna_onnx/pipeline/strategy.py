"""What `calibrate` looks for: a weight, and a map on top; and its honest estimate.

The weight is the original one (search `none`), the tilted one (`sparse`), or comes with the map fitted for it
(`complete`). The map is none, or one of `MAPS`. `auto` chooses among cross-fitted `Method`s (`pipeline.methods`).
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.engine.logits import HeadLogits, Logits, Reduction, score_all
from tna_onnx.errors import DataError
from tna_onnx.maps import CLAMPED, MAPS, maps_of
from tna_onnx.maps.base import CalibrationMap
from tna_onnx.maps.clamp import clamped_fit
from tna_onnx.numerics.averages import Ensemble
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline.crossfit import (
    Fit,
    MapFits,
    Mask,
    Scores,
    chosen_per_fold,
    cross_scores,
    folds,
    in_order,
    nested,
)
from tna_onnx.pipeline.methods import ENOUGH_TO_CLAMP, FOLDS, INPUT, Choice, Method, Reason, Rule, scarce
from tna_onnx.progress import Progress, silent
from tna_onnx.search.candidates import Candidate, Scorer, SearchSettings, candidate_weights, choose
from tna_onnx.search.sparse import search_complete, search_sparse


@dataclass(frozen=True, eq=False)
class Outcome:
    """What was chosen and fitted."""

    candidates: tuple[Candidate, ...]  # all weights that were scored, the original one first
    chosen: Candidate  # the one that was chosen
    weight: NDArray[Any] | None  # its (C, n) weight; None for a model without a head
    method: Method  # weight and map in a word
    fitted: CalibrationMap | None  # the map, None for none
    before: SampleScores  # scores of the input model on the calibration data
    logits: Logits  # logits of the calibration data under `weight`, before the map
    # cross-fitted scores of the methods that were compared; empty where nothing was `auto`
    scores: Scores = field(default_factory=dict)
    left_out: Mapping[Method, Reason] = field(default_factory=dict)  # those of them that a rule took out, and which
    # the one that would be chosen if predictions might change at any cost but accuracy, where it changes them and is
    # not chosen
    changing: Method | None = None
    # methods that could not be fitted without one of the folds, and why; a path by its first step
    failed: Mapping[Method, str] = field(default_factory=dict)
    # of two classes what would be chosen if predictions might change at any cost, where that is not what was chosen;
    # and its map, where it is one without a tilt
    unprotected: Method | None = None
    unprotected_fit: CalibrationMap | None = None
    by_likelihood: bool = False  # whether a likelihood ratio decided between the input and one temperature

    @functools.cached_property
    def after(self) -> SampleScores:
        """Scores of the result on the calibration data, which were fitted."""
        return self.logits.mapped_scores(self.fitted)

    @property
    def map(self) -> str:
        """Name of the map."""
        return self.method.map

    @property
    def label(self) -> str:
        """What was done in a word: `ts`, `tna + ets`; without a tilt that was no better."""
        return replace(self.method, tilted=self.chosen.angle != 0).label

    @property
    def words(self) -> str:
        """What was done, for readers who do not know the label."""
        return replace(self.method, tilted=self.chosen.angle != 0).words

    @property
    def unchanged(self) -> bool:
        """Whether the result is the input."""
        return self.chosen.angle == 0 and self.fitted is None

    @property
    def parameters(self) -> dict[str, Any]:
        """What a reader wants to know of the fitted map; empty for none."""
        if not self.fitted:
            return {}
        return self.fitted.brief

    @property
    def keeps_predictions(self) -> bool:
        """Whether no sample can change its predicted class."""
        if self.chosen.angle != 0:
            return False
        return self.fitted is None or self.fitted.keeps_order


# Of fewer samples, a search of angles follows the noise: what it chose was more often worse than better; and a
# likelihood ratio decides between the input and one temperature (`Strategy._likelier`).
_FEW = 200
_TS = Method(tilted=False, map="ts")

_LogitsOf = Callable[[Any], Logits]


@dataclass(frozen=True, eq=False)
class DataPart:
    """Some of the calibration data."""

    rows: NDArray[np.intp]  # which of all samples these are, in this order
    logits_of: _LogitsOf  # their logits under a weight


@dataclass(frozen=True, eq=False)
class _LogitsPair:
    """Logits under one weight: of all samples, which are scored, and of those that searches and fits of folds use."""

    scoring: Logits
    fitting: Logits

    def forget(self) -> None:
        """Free the memory of both."""
        self.scoring.forget()
        self.fitting.forget()


@dataclass(frozen=True, eq=False)
class Strategy:
    """A search, a map and their settings, on the calibration data."""

    logits_of: _LogitsOf  # logits of the calibration data under a weight; of None for a model without a head
    # (C, n) original class vectors; None for a model without a head, which cannot be searched
    weight: NDArray[Any] | None
    search: str  # `auto`, `none`, `sparse` or `complete`
    map: str  # `auto`, `none` or a name in `MAPS`
    settings: SearchSettings  # of the search
    # maps that `auto` may take; those for any number of classes, if not said
    allowed: tuple[str, ...] = field(default_factory=lambda: ("none", *maps_of(3)))
    # of the maps' fits, by name; each map takes those that it declares
    options: Mapping[str, Any] = field(default_factory=dict)
    # whether a choice may change predicted classes: where that is worth it (`auto`, rule 5 of `pipeline.methods`),
    # where it costs no accuracy (`change`), or never (`keep`)
    predictions: str = "auto"
    # whether probabilities come first, as callers compare them with thresholds of their own: predictions may change at
    # any cost, by maps of the logits alone
    free: bool = False
    two_classes: bool = False  # whether the model has two classes, and so P(positive)
    # maps that take part with predictions kept, too, where they are kept (rule 6): by their own names
    clamps: tuple[str, ...] = ()
    covered: bool = True  # whether every class has a sample, or is said not to occur
    # what searches and fits of folds see of very many samples (`crossfit.fit_rows`); None for all of them
    part: DataPart | None = None
    # where the fits of the next fold start: at those of the last one, where that only saves time
    _starts: dict[Method, CalibrationMap] = field(default_factory=dict, init=False)
    # fits of each fold by map, for those that may be clamped
    _fold_fits: dict[tuple[str, int], CalibrationMap] = field(default_factory=dict, init=False)
    # logits under one tilted weight, by angle and members
    _tilted: dict[tuple[float, int] | None, _LogitsPair] = field(default_factory=dict, init=False)

    def run(self, progress: Progress) -> Outcome:
        """Search and fit on all calibration data."""
        before = self._original.scores().labelled(np.asarray(self._original.labels))
        if bool(before.hit.all()):
            raise DataError(
                f"every calibration sample is classified right, all {len(before):,}, so no confidence seems too high; "
                "expected data with some errors (was the model trained on these samples?)"
            )
        return self.search_and_fit(before, progress)

    def search_and_fit(self, before: SampleScores, progress: Progress) -> Outcome:
        """Search and fit on all calibration data, whatever their scores are."""
        # one set of scores: every candidate and the report are held against these
        candidates: tuple[Candidate, ...] = (Candidate(0.0, 1, 0.0, before),)
        # what may not change a prediction is not tilted: there is nothing to search then
        best = candidates[0]
        if any(method.tilted for method in self._methods):
            candidates = self._search(None, functools.partial(progress, "search"))
            best = candidates[choose(candidates, self.settings)]
        failed: dict[Method, str] = {}
        scores = self._with_clamps(self._compared(best, before, failed, progress), before)
        choice = Choice(self._only, {}) if self._only else self._decided(scores, before)
        likelier = self._likelier(choice.method, scores, choice.left_out)
        choice = replace(choice, method=likelier or choice.method)
        method = choice.method
        chosen = best if method.tilted else candidates[0]
        weight = self._weight_of(chosen)
        logits = self._original
        if weight is not self.weight:
            self._original.forget()
            logits = self.logits_of(weight)
        # only the pairs of a complete search were fitted with their weights, on what it has seen
        fitted = chosen.fitted if self.part is None else None
        fitted = fitted or self._map_fits.chosen(method, logits)
        simpler = fitted.simpler() if fitted is not None else None
        if simpler is not None and (not scores or replace(method, map=simpler.name) in scores):
            fitted = simpler
            method = replace(method, map=simpler.name)
        if self.part is not None and (scores or len(candidates) > 1):
            self._fit_logits.forget()  # the final fit has seen all
            final = replace(chosen, fitted=fitted if chosen.fitted else None)
            candidates = tuple(final if candidate is chosen else candidate for candidate in candidates)
            chosen = final
        # what could not be fitted on one weight may have been fitted on another
        failed = {candidate: reason for candidate, reason in failed.items() if candidate not in scores}
        changing = self._changing(choice, scores, before)
        unprotected = self._unprotected(choice, scores, before)
        unprotected_fit = None
        if unprotected is not None and not unprotected.tilted and not unprotected.has_path:
            unprotected_fit = self._map_fits.chosen(unprotected, self._original)
        return Outcome(
            candidates, chosen, weight, method, fitted, before, logits, scores, choice.left_out, changing, failed,
            unprotected=unprotected, unprotected_fit=unprotected_fit, by_likelihood=likelier is not None,
        )  # fmt: skip

    def chosen_in_folds(self, outcome: Outcome) -> list[Method]:
        """Return the method for each fold, chosen without its samples; none where nothing was chosen."""
        if not outcome.scores:
            return []
        before, seed = outcome.before, self.settings.seed
        fold = folds(len(before), seed, before.clusters)
        methods = chosen_per_fold(self._comparable(outcome), before, self.rule, seed)
        shared = (outcome.scores, outcome.left_out)
        return [self._likelier(method, *shared, fold != k) or method for k, method in enumerate(methods)]

    def _comparable(self, outcome: Outcome) -> Scores:
        """Return the scores that folds may choose from: where the file keeps predictions, folds keep them too."""
        if not (self.rule.careful and outcome.method.keeps_order):
            return outcome.scores
        return {method: scores for method, scores in outcome.scores.items() if method.keeps_order}

    def cross_fitted(
        self, outcome: Outcome, progress: Progress = silent, methods: Sequence[Method] = ()
    ) -> SampleScores:
        """Return scores of the result, each sample scored by what was searched, chosen and fitted without it.

        `methods`: those of `chosen_in_folds`, if they are known.
        """
        seed = self.settings.seed
        if outcome.scores:
            self._original_pair.forget()
            return nested(self._comparable(outcome), methods or self.chosen_in_folds(outcome), seed)
        # the method that was asked for: the fit of a fold need not come to a simpler one too
        method = self._only or outcome.method
        fits = functools.partial(self._fits, progress, (method,), self._fold_choices(progress))
        clusters = outcome.before.clusters
        scores = cross_scores(len(outcome.before), seed, fits, clusters=clusters)[method]
        self._original_pair.forget()
        return scores

    @property
    def rule(self) -> Rule:
        """How one of several methods is chosen."""
        # what was asked for by name may cost what the user allows; what is chosen for the user must be worth it
        chosen_for_the_user = self.search in ("auto", "none") and self.map == "auto"
        drop = 0.0
        if not chosen_for_the_user:
            drop = self.settings.max_accuracy_drop
        # where the caller may move a threshold, accuracy at 0.5 is no measure of probabilities
        if self.free or (self.two_classes and self.predictions == "change"):
            drop = 1.0
        careful = self.predictions == "auto" and not self.free
        return Rule(self.settings.objective, self.settings.bins, drop, careful, self.two_classes)

    def _decided(self, scores: Scores, before: SampleScores) -> Choice:
        """Return what is chosen; with a scarce class, or no gain in the estimate, among what keeps predictions."""
        choice = self.rule.choice(scores, before)
        keeping = {method: after for method, after in scores.items() if method.keeps_order}
        if not self.rule.careful or choice.method.keeps_order or not keeping:
            return choice
        if self.covered and not scarce(before):
            seed = self.settings.seed
            estimate = nested(scores, chosen_per_fold(scores, before, self.rule, seed), seed)
            if self.rule.gains(before, estimate):
                return choice
        changing: dict[Method, Reason] = {method: "predictions" for method in scores if method not in keeping}
        choice = self.rule.choice(keeping, before)
        return Choice(choice.method, {**changing, **choice.left_out})

    def _likelier(
        self, method: Method, scores: Scores, left_out: Mapping[Method, Reason], rows: Mask | None = None
    ) -> Method | None:
        """Return the likelier one of the input and one temperature, of few samples, which may be some `rows`.

        None where another rule decides. In the place of one standard error, measured in November 2026 on 60 models, 20
        draws each, between these two alone: NLL gain in 0.001 nats 95 -> 107 (N = 50), 113 -> 118 (100) and 122 -> 123
        (190); calibrated models significantly worse in 5.8 -> 0.9, 2.2 -> 0.8 and 1.5 -> 1.1 % of runs.
        """
        if not {INPUT, _TS} <= set(scores) or _TS in left_out or method not in (INPUT, _TS):
            return None
        input_scores = scores[INPUT]
        alike = input_scores.clusters is None and input_scores.weights is None and input_scores.predicted is None
        if len(input_scores) >= _FEW or not alike or self.settings.objective != "nll":
            return None
        if self._map_fits.temperature_helps(self._original, rows):
            return _TS
        return INPUT

    def _changing(self, choice: Choice, scores: Scores, before: SampleScores) -> Method | None:
        """Return what would be chosen if predictions might change, where they do not."""
        if not choice.method.keeps_order or "predictions" not in choice.left_out.values():
            return None
        method = replace(self.rule, careful=False).choose(scores, before)
        if method.keeps_order:
            return None
        return method

    def _unprotected(self, choice: Choice, scores: Scores, before: SampleScores) -> Method | None:
        """Return what would be chosen of two classes if predictions might change at any cost, if that is another."""
        if not (self.two_classes and choice.left_out and self.rule.careful):
            return None
        method = replace(self.rule, careful=False, max_accuracy_drop=1.0).choose(scores, before)
        return None if method == choice.method or method.keeps_order else method

    # ---- what there is to choose from

    @property
    def _tilts(self) -> tuple[bool, ...]:
        """Whether the weight stays, or is tilted, or may be both."""
        if self.weight is None or self.search == "none":
            return (False,)
        if self.search == "auto":
            if len(self._original) >= _FEW:
                return (False, True)
            return (False,)
        return (True,)

    @property
    def _methods(self) -> tuple[Method, ...]:
        """What there is to choose from; of a map with a path, its first step."""
        if self.map != "auto":
            return self._with_predictions_kept(Method(tilted, self.map) for tilted in self._tilts)
        plain = [Method(tilted=False, map=name) for name in self.allowed if False in self._tilts]
        tilted = [Method(tilted=True, map=name) for name in self.allowed if True in self._tilts]
        if self.search == "auto":
            tilted = [method for method in tilted if method.map == "none" or MAPS[method.map].on_tilted]
        return self._with_predictions_kept([*plain, *tilted])

    def _with_predictions_kept(self, methods: Iterable[Method]) -> tuple[Method, ...]:
        """Leave out what can change a prediction, where they are to be kept and there is a choice."""
        every = tuple(methods)
        if self.predictions != "keep":
            return every
        return tuple(method for method in every if method.keeps_order or self._may_clamp(method)) or every

    def _may_clamp(self, method: Method) -> bool:
        return not method.tilted and method.map in self.clamps

    def _with_clamps(self, scores: Scores, before: SampleScores) -> Scores:
        """Add the maps that would be chosen at any cost, of all samples or without one fold, with predictions kept."""
        able = {method: after for method, after in scores.items() if method.keeps_order or self._may_clamp(method)}
        clamped: Scores = {}
        if self.clamps and able and not scarce(before, ENOUGH_TO_CLAMP):
            free = replace(self.rule, careful=False, max_accuracy_drop=1.0)
            seed = self.settings.seed
            best = dict.fromkeys([free.choose(able, before), *chosen_per_fold(able, before, free, seed)])
            clamped = {
                replace(method, map=CLAMPED + method.map): self._clamped_scores(method.map, before)
                for method in best
                if not method.keeps_order
            }
        if self.predictions == "keep":
            scores = {method: after for method, after in scores.items() if method.keeps_order} or scores
        return scores | clamped

    def _clamped_scores(self, name: str, before: SampleScores) -> SampleScores:
        """Return cross-fitted scores of a map with predictions kept, by its fits for the folds."""
        fold = folds(len(before), self.settings.seed, before.clusters)
        classes = 0
        if before.predicted is None:
            classes = self._original.at(np.zeros(1, np.int64)).shape[1]
        parts = []
        for k in range(FOLDS):
            fitted = clamped_fit(self._fold_fits[name, k], classes)
            parts.append(self._original.mapped_scores(fitted, fold == k))
        return in_order(parts, fold)

    @property
    def _only(self) -> Method | None:
        """The method, where there is nothing to choose."""
        methods = self._methods
        if not (len(methods) == 1 and not methods[0].has_path):
            return None
        return methods[0]

    def _compared(
        self, candidate: Candidate, before: SampleScores, failed: dict[Method, str], progress: Progress
    ) -> Scores:
        """Cross-fitted scores of all methods; none where there is one only. What cannot be fitted goes to `failed`.

        A weight that was found on all samples flatters the methods on it. If one of them would be chosen all the same,
        for all samples or outside of one fold, weights are searched again for each fold, and that decides.
        """
        if self._only:
            return {}
        methods = self._methods

        def crossed(methods: Sequence[Method], choices: Sequence[Candidate | None]) -> Scores:
            fits = functools.partial(self._fits, progress, methods, choices)
            return cross_scores(len(before), self.settings.seed, fits, self.rule, failed, before.clusters)

        # no angle is better than none: nothing but the input is tilted
        if candidate.angle == 0 and False in self._tilts:
            methods = tuple(method for method in methods if not method.tilted)
        if all(method.tilted for method in methods):
            return crossed(methods, self._fold_choices(progress))
        scores = crossed(methods, [candidate] * FOLDS)
        # none of the flattered ones stays: they would be shown as cross-fitted
        honest = {method: scored for method, scored in scores.items() if not method.tilted}
        if len(honest) == len(scores):
            return honest
        per_fold = chosen_per_fold(scores, before, self.rule, self.settings.seed)
        if not any(method.tilted for method in (self.rule.choose(scores, before), *per_fold)):
            return honest
        return honest | crossed([method for method in methods if method.tilted], self._fold_choices(progress))

    # ---- weights

    def _search(self, rows: Mask | None, progress: Callable[[int, int], None]) -> tuple[Candidate, ...]:
        """Score weights on the samples that searches use, or on the part `rows` of them."""
        if self._pairs:
            return search_complete(self._ensemble, functools.partial(self._pair, rows), self.settings, progress)
        return search_sparse(self._scored, self.settings, progress, rows)

    @functools.cached_property
    def _ensemble(self) -> Ensemble:
        """Members of the tilted weights."""
        assert self.weight is not None  # noqa: S101 - `_tilts`
        return self.settings.ensemble(self.weight)

    @functools.cached_property
    def _scored(self) -> Scorer:
        """Candidates that were scored; the searches of folds take their scores from those of the first search."""
        scaled = None
        if isinstance(self._fit_logits, HeadLogits):
            scaled = functools.partial(self._fit_logits.scaled_scores, with_bias=self.settings.tilt_bias)
        # the logits are there: one product less
        return Scorer(
            self._ensemble,
            lambda weights: score_all([self._fit_logits_of(weight) for weight in weights]),
            scaled,
            original=self._fit_logits.scores(),
        )

    @functools.cached_property
    def _original(self) -> Logits:
        """Logits under the original weight; kept, up to 1 GiB, for the limit of many members and the fits."""
        return self.logits_of(self.weight)

    @functools.cached_property
    def _fit_logits(self) -> Logits:
        """Logits under the original weight of the samples that searches and fits of folds use."""
        if self.part is None:
            return self._original
        return self.part.logits_of(self.weight)

    @property
    def _original_pair(self) -> _LogitsPair:
        return _LogitsPair(self._original, self._fit_logits)

    def _fit_mask(self, rows: Mask) -> Mask:
        """Return the part of a mask of all samples, (N,), for those that searches and fits of folds use."""
        if self.part is None:
            return rows
        return rows[self.part.rows]

    @property
    def _pairs(self) -> bool:
        # without a map there is nothing to pair weights with
        return self.search == "complete" and self.map != "none"

    def _fold_choices(self, progress: Progress) -> list[Candidate | None]:
        """Return what a search without each fold chooses, without its weight; None for the original weight."""
        if True not in self._tilts:
            return [None] * FOLDS
        choices: list[Candidate | None] = []
        logits = self._original
        fold = folds(len(logits), self.settings.seed, logits.clusters)
        for k in range(FOLDS):
            candidates = self._search(self._fit_mask(fold != k), lambda done, total: None)  # noqa: ARG005 - a fold is one step
            choices.append(replace(candidates[choose(candidates, self.settings)], weight=None))
            progress("search in folds", k + 1, FOLDS)
        return choices

    def _weight_of(self, candidate: Candidate | None) -> NDArray[Any] | None:
        if candidate is None or candidate.angle == 0:
            return self.weight
        ((_, weight),) = candidate_weights(self._ensemble, [candidate])
        return weight

    def _fit_logits_of(self, weight: NDArray[Any] | None) -> Logits:
        return (self.part or self).logits_of(weight)

    def _pair(self, rows: Mask | None, weight: NDArray[Any], start: Any) -> tuple[SampleScores, Any]:
        """Fit the map for a weight and score both, on the samples chosen."""
        logits = self._fit_logits_of(weight)
        fitted = self._map_fits.one(self.map, logits.reduce(rows, features=True), start)
        return logits.mapped_scores(fitted, rows), fitted

    # ---- maps

    @property
    def _map_fits(self) -> MapFits:
        return MapFits(self.options)

    def _fits_of(self, method: Method, logits: Logits, samples: Reduction, k: int) -> Iterator[Fit]:
        """Yield the fits of a method to some samples, with the logits of all samples, and keep them as starts."""
        fits: Iterable[tuple[Method, CalibrationMap | None]]
        if method.has_path:
            fits = self._map_fits.path(method, samples)
        else:
            fits = [(method, self._map_fits.one(method.map, samples, self._starts.get(method)))]
        for step, fitted in fits:
            if fitted is not None and self._may_clamp(method):
                self._fold_fits[method.map, k] = fitted
            if fitted is not None and fitted.starts_anywhere:
                self._starts[step] = fitted
            yield step, logits, fitted

    def _fits(
        self, progress: Progress, methods: Sequence[Method], choices: Sequence[Candidate | None], k: int, train: Mask
    ) -> Iterator[tuple[Method, Iterator[Fit]]]:
        """Fits of each method on the samples outside of fold k, with the tilted weight chosen for that fold."""
        original = self._original_pair
        tilted = self._tilted_pair(choices[k])
        rows = self._fit_mask(train)
        # else the fit to all samples may be to these
        if all(self._tilts):
            original.forget()  # it has served the search
        samples = {pair: pair.fitting.reduce(rows, features=True) for pair in (original, tilted)}
        for done, method in enumerate(methods, k * len(methods) + 1):
            pair = tilted if method.tilted else original
            yield method, self._fits_of(method, pair.scoring, samples[pair], k)
            progress("cross-validate", done, FOLDS * len(methods))
        if k == FOLDS - 1:
            self._forget_tilted()

    def _tilted_pair(self, choice: Candidate | None) -> _LogitsPair:
        """Return the logits under the weight of a candidate; None stands for the original weight.

        Those of one weight are kept, because weights may be large: neighbouring folds often have the same.
        """
        key = None if choice is None else (choice.angle, choice.ensemble_size)
        if key not in self._tilted:
            self._forget_tilted()
            weight = self._weight_of(choice)
            scoring = self.logits_of(weight)
            fitting = scoring if self.part is None else self.part.logits_of(weight)
            self._tilted[key] = _LogitsPair(scoring, fitting)
        return self._tilted[key]

    def _forget_tilted(self) -> None:
        for pair in self._tilted.values():
            pair.forget()
        self._tilted.clear()
