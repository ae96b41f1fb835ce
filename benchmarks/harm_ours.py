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
from tna_onnx.calibration.settings import Settings
from tna_onnx.calibration.strategy import Outcome, Strategy
from tna_onnx.engine.logits import HeadLogits, Logits, StoredLogits
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.maps import MAPS, MapName
from tna_onnx.maps.base import apply_map
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.results.report import Comparison, compare_scores

__all__ = ["DEFAULT", "LIMITS", "METHODS", "Ours", "applies", "ours"]

DEFAULT = "default"
"""What `tna-onnx calibrate` does without options."""

# Members of the default are limited here: its growth to 2,560 takes up to half a minute where 80 take a second.
_MEMBERS = 80

LIMITS = f"To save time it has at most {_MEMBERS} members here; `TNA` and `TNA + ts` have the paper's 10."
"""What the page says of differences to the command."""

METHODS: dict[str, Settings] = {
    DEFAULT: Settings(max_ensemble_size=_MEMBERS),
    "TNA": Settings(search="sparse", map="none", max_ensemble_size=10),
    "TNA + ts": Settings(search="sparse", map="ts", max_ensemble_size=10),
    **{name: Settings(search="none", map=cast("MapName", name)) for name in MAPS},
}
"""Settings by the name that tables show."""


@dataclass(frozen=True, eq=False)
class Ours:
    """What the package made of a problem.

    Attributes:
        probabilities: (N, C) of the test data.
        chosen: map and angle, in words.
        before: cross-fitted metrics of the input.
        after: cross-fitted metrics of the result.
        verdict: 1 improved, 0 no significant change, -1 worse, by the tool's own interval of its objective.
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
    if problem.weight is not None or name == DEFAULT:
        return True
    return name in MAPS and not MAPS[name].needs_features


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
        settings.search,
        settings.map,
        settings.for_search,
        allowed=("none", *(word for word in MAPS if applies(word, problem))),
    )
    # CPU time: other processes may run beside this one
    start = time.process_time()
    outcome = strategy.run(lambda *_: None)
    tested = _probabilities(problem, outcome)
    middle = time.process_time()
    compared = _compared(strategy, outcome, settings)
    end = time.process_time()
    d = compared.differences[settings.objective]
    missed = gates_of({}, settings).changes_missed(compared.differences, settings.objective, compared.after, "")
    return Ours(
        probabilities=tested,
        chosen=f"{outcome.map}, {outcome.chosen.angle:g} degrees",
        before=compared.before,
        after=compared.after,
        verdict=METRICS[settings.objective].standing(d.low, d.high),
        unchanged=_unchanged(outcome),
        refused=bool(missed),
        seconds=middle - start,
        estimate_seconds=end - middle,
    )


def _logits(problem: Problem, part: Part, weight: NDArray[Any] | None) -> Logits:
    table = FeatureTable(part.features, part.labels)
    if weight is None or problem.bias is None:
        return StoredLogits(table)
    return HeadLogits(table, weight, problem.bias)


def _probabilities(problem: Problem, outcome: Outcome) -> NDArray[np.float64]:
    """Return what the written file would give for the test data."""
    chunks = _logits(problem, problem.test, outcome.weight).chunks(features=True)
    return probabilities(np.concatenate([apply_map(outcome.fitted, logits, z) for logits, _, z in chunks]))


def _unchanged(outcome: Outcome) -> bool:
    return outcome.chosen.angle == 0 and outcome.fitted is None


def _compared(strategy: Strategy, outcome: Outcome, settings: Settings) -> Comparison:
    before = after = outcome.before
    # nothing was chosen or fitted: nothing to cross-fit
    if not _unchanged(outcome):
        before, after = strategy.cross_fitted(outcome)
    return compare_scores("", "cross-fitted", before, after, settings.bins, settings.seed, settings.level)
