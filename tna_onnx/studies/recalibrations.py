"""What studies compute on (`StudyData`: features of two sets of samples, and the linear layer), and the methods
compared.

Algorithm 1 and its grid search are here as the paper prints them: n_e members, no constraint, a look at mRC after every
n_t rotations; the best average wins, the original weight included. The walk ends where the expected cosine is below
0.01.
Source: Cho & Youn (2024), Algorithm 1 and section "Experimental Details".
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.engine.logits import HeadLogits, Logits, score_all
from tna_onnx.engine.placement import Host, Placement
from tna_onnx.errors import DataError, UnsupportedModel
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.maps import MAPS, maps_of
from tna_onnx.maps.atypicality import AtypicalityAware
from tna_onnx.maps.base import CalibrationMap
from tna_onnx.numerics.averages import Average, averages, kept_part
from tna_onnx.numerics.metrics import metric_value
from tna_onnx.numerics.rotations import TiltParameters
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline.job import Task
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.strategy import Strategy
from tna_onnx.progress import silent
from tna_onnx.search.candidates import Scorer, SearchSettings, candidate_of, candidate_weight, choose
from tna_onnx.search.sparse import Walk, search_sparse
from tna_onnx.studies.settings import PAPER_N_T, StudySettings


@dataclass(frozen=True, eq=False)
class StudyData:
    """Features of two sets of samples, and the layer s = W z + b."""

    weight: NDArray[Any]  # (C, n) class vectors, float32 or float64
    bias: NDArray[Any]  # (C,) in the dtype of the weight
    calibration: FeatureTable  # samples to search and fit on
    held_out: FeatureTable  # samples to score
    tilt_bias: bool = True  # whether the bias is scaled by what is left of a tilted weight
    # where products are computed
    placement: Placement = Host()  # noqa: RUF009 - a frozen value

    def logits(self, table: FeatureTable, weight: NDArray[Any] | None = None) -> HeadLogits:
        """Logits of samples under a (C, n) weight; the original one by default."""
        if weight is None or weight is self.weight:
            return HeadLogits(table, self.weight, self.bias, self.placement)
        bias = self.bias
        if self.tilt_bias:
            bias = bias * self.bias.dtype.type(kept_part(self.weight, weight))
        return HeadLogits(table, weight, bias, self.placement)

    def scores(self, weight: NDArray[Any] | None = None) -> SampleScores:
        """Scores of the held-out samples under a weight."""
        return self.logits(self.held_out, weight).scores()

    def joined(self) -> FeatureTable:
        """Return the samples of both sets."""
        features = np.concatenate([self.calibration.features, self.held_out.features])
        return FeatureTable(features, np.concatenate([self.calibration.labels, self.held_out.labels]))

    def divided(self, table: FeatureTable, samples: int, rng: np.random.Generator) -> StudyData:
        """Return a stratified draw of a table as calibration samples, and the others as held-out ones."""
        rows = stratified(table.labels, samples, rng)
        rest = np.setdiff1d(np.arange(len(table)), rows)
        return replace(self, calibration=table_rows(table, rows), held_out=table_rows(table, rest))

    def split(self, repeat: int, seed: int) -> StudyData:
        """Return all samples split anew into sets of the same sizes, stratified by class."""
        return self.divided(self.joined(), len(self.calibration), np.random.default_rng([seed, repeat]))

    def fewer(self, samples: int, rng: np.random.Generator) -> StudyData:
        """Return a stratified draw of the calibration samples, and all held-out ones."""
        rows = stratified(self.calibration.labels, samples, rng)
        return replace(self, calibration=table_rows(self.calibration, rows))


def table_rows(table: FeatureTable, rows: NDArray[Any]) -> FeatureTable:
    """Return some rows of a table."""
    return FeatureTable(np.asarray(table.features)[rows], table.labels[rows])


def stratified(labels: NDArray[np.int64], samples: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw rows, ascending, so that each class keeps its share within about one sample."""
    order = rng.permutation(len(labels))
    place = np.empty(len(labels))
    for label in np.unique(labels):
        rows = order[labels[order] == label]
        # evenly spaced in [0, 1): the first m of all places hold the share m / N of every class
        place[rows] = (np.arange(len(rows)) + rng.random()) / len(rows)
    return np.sort(np.argsort(place, kind="stable")[:samples])


def data_of_task(task: Task) -> StudyData:
    """Return the features and the head of an opened task."""
    head = task.head
    if head is None or task.probed.tail is not None or task.held_out is None:
        raise UnsupportedModel(
            f"{task.model.name}: {task.where}: logits that only the graph can compute; use calibrate"
        )
    if head.weight.shape[1] < 2 or not np.any(head.weight):
        raise UnsupportedModel(
            f"{task.model.name}: {task.where}: a weight with one feature, or of zeros, cannot be tilted"
        )
    tables = (task.calibration.table, task.held_out.table)
    # a study goes over them hundreds of times, and splits them
    calibration, held_out = (FeatureTable(np.asarray(table.features), table.labels) for table in tables)
    return StudyData(head.weight, head.bias, calibration, held_out, task.settings.tilt_bias, task.placement)


PAPER = Settings(
    method="tna",
    objective="ece",
    map_objective="nll",
    ets_loss="squared",
    max_accuracy_drop=100.0,  # the paper reports what the accuracy loses, and bounds nothing
    ensemble_size=10,
    n_t=PAPER_N_T,
    tilt_bias=False,
    adaptive=False,
)
"""What the paper prints in "Hyperparameters" and "Methods"; see docs/explanation/paper.md."""

PAPER_MAPS = ("irova", "ts", "ets", "aar")
"""Maps of the paper's table, in its order."""

GRID_STEP = 3.0
"""Degrees between the angles of the complete search: the curves are smooth at that scale."""


@dataclass(frozen=True, eq=False)
class Recalibration:
    """A weight and the map fitted on it, as one method chose them."""

    weight: NDArray[Any]  # (C, n); the original one for angle 0
    fitted: CalibrationMap | None = None  # None for no map
    angle: float = 0.0  # mRC in degrees
    members: int = 1  # averaged; 0 for the limit of many


@dataclass(frozen=True, eq=False)
class Stop:
    """Tilted weights after n_r rotations each."""

    rotations: int  # n_r
    tilted: NDArray[Any]  # (D, n, C) class vectors of D draws
    angles: NDArray[np.float64]  # (D, C) between each class vector and its tilted self, radians; NaN for zero vectors

    @property
    def mrc(self) -> NDArray[np.float64]:
        """(D,) mRC in degrees."""
        mean: NDArray[np.float64] = np.degrees(np.nanmean(self.angles, axis=1))
        return mean


def walk(
    weight: NDArray[Any], draws: int, tilt: TiltParameters, rng: np.random.Generator, rotations: int, every: int
) -> Iterator[Stop]:
    """Yield the tilted weights after every few rotations. `weight`: (C, n) class vectors."""
    start = np.ascontiguousarray(weight.T)
    n = len(start)
    squares = np.sum(np.square(start, dtype=np.float64), axis=0)
    # a zero vector has no direction
    squares[squares == 0] = np.nan
    draw = np.arange(draws)
    tilted = np.repeat(start[None], draws, axis=0)
    for stop in range(every, rotations + 1, every):
        # an ordered pair of two different coordinates for each draw
        first = rng.integers(0, n, (every, draws))
        second = (first + rng.integers(1, n, (every, draws))) % n
        turn = tilt.theta_s * rng.beta(tilt.alpha, tilt.beta, (every, draws))
        cos = np.cos(turn).astype(weight.dtype)[..., None]
        sin = np.sin(turn).astype(weight.dtype)[..., None]
        for k in range(every):
            one = tilted[draw, first[k]]
            two = tilted[draw, second[k]]
            tilted[draw, first[k]] = cos[k] * one - sin[k] * two
            tilted[draw, second[k]] = sin[k] * one + cos[k] * two
        inner = np.einsum("nc,dnc->dc", start, tilted, dtype=np.float64)
        yield Stop(stop, tilted, np.arccos(np.clip(inner / squares, -1, 1)))


Score = Callable[[NDArray[Any]], tuple[SampleScores, CalibrationMap | None]]
"""(C, n) weight -> scores of all calibration samples, and the map that was fitted for it; DataError: there is none."""


def search_printed(weight: NDArray[Any], score: Score, settings: SearchSettings) -> Recalibration | None:
    """Score the average of n_e members after every n_t rotations; return the best, None where no weight has a score."""
    members = settings.ensemble_size
    rng = np.random.default_rng(settings.seed)
    last = settings.tilt.max_rotations(weight.shape[1])
    stops = walk(weight, members, settings.tilt, rng, last, settings.tilt.n_t)
    tilted = (
        (np.ascontiguousarray(stop.tilted.mean(axis=0, dtype=np.float64).T, weight.dtype), float(stop.mrc.mean()))
        for stop in stops
    )
    best: Recalibration | None = None
    least = math.inf
    for average, angle in itertools.chain([(weight, 0.0)], tilted):
        try:
            scores, fitted = score(average)
        except DataError:  # near 90 degrees a weight is noise
            continue
        value = metric_value(scores, settings.objective, settings.bins)
        if best is None or value < least:
            least = value
            best = Recalibration(average, fitted, angle, members)
    return best


def maps_for(classes: int) -> tuple[str, ...]:
    """Return the maps for this number of classes, the paper's first."""
    extra_maps = (name for name in maps_of(classes) if name not in PAPER_MAPS)
    return (*PAPER_MAPS, *extra_maps)


def scored(data: StudyData, result: Recalibration) -> SampleScores:
    """Score the held-out samples."""
    return data.logits(data.held_out, result.weight).mapped_scores(result.fitted)


def plain(data: StudyData, name: str, settings: StudySettings, seed: int) -> Recalibration:
    """Fit a map on the original weight."""
    if name != "none" and hasattr(MAPS[name], "strengths"):
        return chosen(data, settings, seed, search="none", map=name)
    return Recalibration(data.weight, fit(name, data.logits(data.calibration), settings))


def fit(name: str, logits: Logits, settings: StudySettings, start: Any = None) -> CalibrationMap | None:
    """Fit a map by its own loss, as in its source; the objective chooses only the angle.

    Raises:
        DataError: it cannot be fitted.
    """
    if name == "none":
        return None
    kind = MAPS[name]
    # the source of ETS minimises the squared error by default
    keywords = {"ets_loss": "squared", "objective": "nll", "bins": settings.bins}
    options: dict[str, Any] = {option: keywords[option] for option in kind.options if option in keywords}
    reduce = logits.reduce(features=kind.needs_features)
    if kind is AtypicalityAware:
        return AtypicalityAware.fit_published(reduce, start=start)
    return kind.fit(reduce, start=start, **options)


def sparse(data: StudyData, settings: StudySettings, seed: int) -> Recalibration:
    """Search the weight alone."""
    search = settings.search(seed)

    def score(weights: Sequence[NDArray[Any]]) -> list[SampleScores]:
        return score_all([data.logits(data.calibration, weight) for weight in weights])

    if settings.printed:
        printed = search_printed(data.weight, lambda weight: (score([weight])[0], None), search)
        assert printed is not None  # noqa: S101 - every weight has scores
        return printed
    scaled = functools.partial(data.logits(data.calibration).scaled_scores, with_bias=data.tilt_bias)
    candidates = search_sparse(Scorer(search.ensemble(data.weight), score, scaled), search, lambda *_: None)
    best = candidates[choose(candidates, search)]
    return Recalibration(candidate_weight(data.weight, best, search), None, best.angle, best.ensemble_size)


def complete(data: StudyData, names: Sequence[str], settings: StudySettings, seed: int) -> dict[str, Recalibration]:
    """Search pairs of a weight and a map fitted for it; one pass over the grid serves all maps.

    A map that cannot be fitted on the original weight is left out.
    """
    search = settings.search(seed)

    def score(name: str, logits: HeadLogits, start: Any = None) -> tuple[SampleScores, CalibrationMap | None]:
        fitted = fit(name, logits, settings, start)
        return logits.mapped_scores(fitted), fitted

    def score_anew(name: str, weight: NDArray[Any]) -> tuple[SampleScores, CalibrationMap | None]:
        return score(name, data.logits(data.calibration, weight))

    if settings.printed:
        printed = {name: search_printed(data.weight, functools.partial(score_anew, name), search) for name in names}
        return {name: pair for name, pair in printed.items() if pair is not None}
    # of all weights, a walk keeps the best
    walks: dict[str, Walk] = {}
    members = search.ensemble_size
    original = Average(0.0, data.weight, 0.0, 0.0)
    grid = np.arange(GRID_STEP, 90, GRID_STEP).tolist()
    for average in itertools.chain([original], averages(data.weight, grid, members, search.draws)):
        logits = data.logits(data.calibration, average.weight)
        for name in names if average is original else [*walks]:
            walked = walks.get(name)
            try:
                # the map changes little with the angle: the neighbour's is a good start
                scores, fitted = score(name, logits, walked and walked.pool[-1].fitted)
            except DataError:
                continue
            candidate = candidate_of(average, members, scores, fitted)
            if walked:
                walked.add([candidate])
            else:
                walks[name] = Walk(candidate, search)
        logits.forget()
    pairs = {}
    for name, walked in walks.items():
        best = walked.pool[choose(walked.pool, search)]
        assert best.weight is not None  # noqa: S101 - the best of a walk keeps its weight
        pairs[name] = Recalibration(best.weight, best.fitted, best.angle, best.ensemble_size)
    return pairs


def chosen(data: StudyData, settings: StudySettings, seed: int, **words: Any) -> Recalibration:
    """Let cross-validation choose, as `calibrate` does."""
    task_settings = settings.calibration(seed, **{"search": "auto", "map": "auto", "objective": "nll", **words})
    strategy = Strategy(
        lambda weight: data.logits(data.calibration, weight),
        data.weight,
        task_settings.resolved_search,
        task_settings.resolved_map,
        task_settings.for_search,
        allowed=("none", *maps_for(len(data.weight))),
        options=task_settings.fit_options,
    )
    outcome = strategy.run(silent)
    assert outcome.weight is not None  # noqa: S101 - there is a head
    best = outcome.chosen
    return Recalibration(outcome.weight, outcome.fitted, best.angle, best.ensemble_size)
