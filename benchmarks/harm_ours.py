"""The one place where the harm benchmark touches the package: `ours`, search and fit without files.

What the command does between features and file is done by the same code here: `Strategy` chooses and fits, its
cross-fitted scores are compared as in a report, and the gates say whether a file would be written.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from harm_problems import Part, Problem, probabilities
from numpy.typing import NDArray

from tna_onnx.api.arguments import gates_of
from tna_onnx.calibration.crossfit import folds
from tna_onnx.calibration.outcome import Outcome
from tna_onnx.calibration.settings import Settings
from tna_onnx.calibration.strategy import Strategy
from tna_onnx.engine.logits import HeadLogits, Logits
from tna_onnx.engine.other_logits import StoredLogits
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.maps import MAPS, MapName, maps_of
from tna_onnx.maps.base import apply_map
from tna_onnx.numerics.averages import kept_part
from tna_onnx.numerics.crossfitted import CrossFit
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.results.report import Comparison, compare_scores
from tna_onnx.results.standing import Standing

__all__ = ["DEFAULT", "LIMITS", "METHODS", "Ours", "applies", "ours"]

DEFAULT = "default"
"""What `tna-onnx calibrate` does without options."""

LIMITS = "`TNA` and `TNA + ts` have the paper's 10 members."
"""What the page says of differences to the command."""

METHODS: dict[str, Settings] = {
    DEFAULT: Settings(),
    "TNA": Settings(search="sparse", map="none", objective="ece", max_ensemble_size=10),
    "TNA + ts": Settings(search="sparse", map="ts", objective="ece", max_ensemble_size=10),
    **{name: Settings(search="none", map=cast("MapName", name)) for name in maps_of(2)},
}
"""Settings by the name that tables show."""


_VERDICTS = {"improved": 1, "no significant change": 0, "worse": -1}


@dataclass(frozen=True, eq=False)
class Ours:
    """What the package made of a problem.

    Attributes:
        probabilities: (N, C) of the test data.
        chosen: map and angle, in words.
        before: cross-fitted metrics of the input.
        after: cross-fitted metrics of the result.
        verdict: 1 improved, 0 no significant change, -1 worse, by the tool's own judgement of the estimate.
        unchanged: whether nothing was chosen or fitted, so that the input is the result.
        refused: whether a gate would have left no file.
        seconds: of CPU, for choosing, fitting and applying.
        estimate_seconds: of CPU, for cross-fitting and intervals.
    """

    probabilities: NDArray[np.float64]
    chosen: str
    before: Metrics
    after: Metrics
    verdict: int
    unchanged: bool
    refused: bool
    seconds: float
    estimate_seconds: float


def applies(name: str, problem: Problem) -> bool:
    """Whether a method is for such a model: without a head there is nothing to tilt, and no features."""
    if name == DEFAULT:
        return True
    if name not in MAPS:
        return problem.weight is not None
    if MAPS[name].binary and problem.calibration.labels.max() > 1:
        return False
    return problem.weight is not None or not MAPS[name].needs_features


def ours(name: str, problem: Problem) -> Ours:
    """Choose and fit on the calibration data, and make the honest estimate from them.

    Raises:
        DataError: the map cannot be fitted on such data.
    """
    settings = dataclasses.replace(METHODS[name], seed=problem.seed)
    # the command refuses to search a model without a head, and names this instead
    if problem.weight is None:
        settings = dataclasses.replace(settings, search="none")
    strategy = Strategy(
        lambda weight: _logits(problem, problem.calibration, weight),
        problem.weight,
        settings.resolved_search,
        settings.resolved_map,
        settings.for_search,
        allowed=("none", *(word for word in maps_of(2) if applies(word, problem))),
        options=settings.fit_options,
    )
    # CPU time: other processes may run beside this one
    start = time.process_time()
    outcome = strategy.run(lambda *_: None)
    tested = _probabilities(problem, outcome)
    middle = time.process_time()
    compared = _compared(strategy, outcome, settings)
    end = time.process_time()
    missed = gates_of({}, settings).changes_missed(compared.differences, settings.objective, compared.after, "")
    return Ours(
        probabilities=tested,
        chosen=outcome.method.label,
        before=compared.before,
        after=compared.after,
        verdict=_VERDICTS[Standing.of(compared.differences, settings.objective).word],
        unchanged=outcome.unchanged,
        refused=bool(missed),
        seconds=middle - start,
        estimate_seconds=end - middle,
    )


def _logits(problem: Problem, part: Part, weight: NDArray[Any] | None) -> Logits:
    table = FeatureTable(part.features, part.labels)
    if weight is None or problem.bias is None:
        return StoredLogits(table)
    kept = 1.0 if weight is problem.weight else kept_part(problem.weight, weight)
    return HeadLogits(table, weight, problem.bias * np.float32(kept))


def _probabilities(problem: Problem, outcome: Outcome) -> NDArray[np.float64]:
    """Return what the written file would give for the test data."""
    chunks = _logits(problem, problem.test, outcome.weight).chunks(features=True)
    return probabilities(np.concatenate([apply_map(outcome.fitted, logits, z) for logits, _, z in chunks]))


def _compared(strategy: Strategy, outcome: Outcome, settings: Settings) -> Comparison:
    before = outcome.before
    # nothing was chosen or fitted: nothing to cross-fit
    if outcome.unchanged:
        return compare_scores("", "unchanged", before, before, settings.bins, settings.seed, settings.level)
    after = strategy.cross_fitted(outcome)
    return compare_scores(
        "",
        "cross-fitted",
        before,
        after,
        settings.bins,
        settings.seed,
        settings.level,
        cross_fit=CrossFit(outcome.logits.mapped_scores(outcome.fitted), folds(len(after), settings.seed)),
        same_predictions=outcome.keeps_predictions and np.array_equal(before.hit, after.hit),
    )
