"""The methods of the harm benchmark: the package's own, and calibrators of other libraries.

`ours` is the one place where the benchmark touches the package: it searches and fits without files, by the code that
the command runs between features and file. `Strategy` chooses and fits, its cross-fitted scores are compared as in a
report, and the gates say whether a file would be written. A library that is not installed is left out.
"""

# ruff: noqa: PLC0415 (each of the other libraries is optional)

from __future__ import annotations

import dataclasses
import functools
import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, cast

import numpy as np
from harm_problems import Part, Problem, probabilities, probabilities_of
from numpy.typing import NDArray

from tna_onnx.api.arguments import gates_of
from tna_onnx.engine.logits import HeadLogits, Logits, StoredLogits
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.maps import MAPS, MapName
from tna_onnx.maps.base import apply_map
from tna_onnx.numerics.averages import kept_part
from tna_onnx.numerics.copies import connected, near_copies
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.residuals import CrossFit
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline.crossfit import folds
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.strategy import Outcome, Strategy
from tna_onnx.results.report import Comparison, compare_scores
from tna_onnx.results.verdict import Standing

DEFAULT = "default"
"""What `tna-onnx calibrate` does without options."""

KEEP, CHANGE = "predictions keep", "predictions change"
"""The same with `--predictions keep`, and `change`."""

OF_CHOICE = (DEFAULT, KEEP, CHANGE)

LIMITS = "`TNA` and `TNA + ts` have the paper's 10 members."
"""What the page says of differences to the command."""

METHODS: dict[str, Settings] = {
    DEFAULT: Settings(),
    KEEP: Settings(predictions="keep"),
    CHANGE: Settings(predictions="change"),
    "TNA": Settings(search="sparse", map="none", objective="ece", max_ensemble_size=10),
    "TNA + ts": Settings(search="sparse", map="ts", objective="ece", max_ensemble_size=10),
    **{name: Settings(search="none", map=cast("MapName", name)) for name in MAPS},
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
    if name in OF_CHOICE:
        return True
    if name not in MAPS:
        return problem.weight is not None and not problem.several
    if problem.several:
        return MAPS[name].for_labels
    if not MAPS[name].for_classes:
        return False
    if MAPS[name].binary and problem.calibration.labels.max() > 1:
        return False
    return problem.weight is not None or not MAPS[name].needs_features


def _clamps(problem: Problem, settings: Settings) -> tuple[str, ...]:
    """Return the maps that the command looks at with predictions kept."""
    by_argmax = problem.test.logits.shape[1] > 2 and not problem.several
    if settings.predictions == "change" or not (by_argmax or settings.predictions == "keep"):
        return ()
    able = (name for name in MAPS if applies(name, problem) and name not in _NOT_OF_AUTO)
    return tuple(name for name in able if not (MAPS[name].keeps_order or MAPS[name].needs_features))


# A choice does not look at them.
_NOT_OF_AUTO = tuple(name for name in MAPS if MAPS[name].max_classes_of_auto == 0)


def _settings(name: str, problem: Problem) -> Settings:
    settings = dataclasses.replace(METHODS[name], seed=problem.seed)
    # the command refuses to search a model without a head, and names this instead
    if problem.weight is None or (problem.several and name in OF_CHOICE):
        settings = dataclasses.replace(settings, search="none")
    return settings


def strategy_of(name: str, problem: Problem) -> Strategy:
    """Return what the command would search and fit on the calibration data."""
    settings = _settings(name, problem)
    return Strategy(
        lambda weight: _logits(problem, problem.calibration, weight),
        problem.weight,
        settings.resolved_search,
        settings.resolved_map,
        settings.for_search,
        allowed=("none", *(word for word in MAPS if applies(word, problem) and word not in _NOT_OF_AUTO)),
        options=settings.fit_options,
        predictions=settings.predictions,
        clamps=_clamps(problem, settings),
        free=problem.several and settings.predictions == "auto",
        two_classes=problem.test.logits.shape[1] == 2 and not problem.several,
    )


def ours(name: str, problem: Problem) -> Ours:
    """Choose and fit on the calibration data, and make the honest estimate from them.

    Raises:
        DataError: the map cannot be fitted on such data.
    """
    settings = _settings(name, problem)
    strategy = strategy_of(name, problem)
    # CPU time: other processes may run beside this one
    start = time.process_time()
    outcome = strategy.run(lambda *_: None)
    tested = probabilities_after(problem, outcome)
    middle = time.process_time()
    compared = _compared(strategy, outcome, settings)
    end = time.process_time()
    missed = gates_of(None, settings).changes_missed(compared.differences, settings.objective, compared.after, "")
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
    table = FeatureTable(
        part.features, part.labels, clusters=_clusters(problem) if part is problem.calibration else None
    )
    if weight is None or problem.bias is None:
        return StoredLogits(table)
    kept = 1.0 if weight is problem.weight else kept_part(problem.weight, weight)
    return HeadLogits(table, weight, problem.bias * np.float32(kept))


@functools.cache
def _clusters(problem: Problem) -> NDArray[np.int64] | None:
    """Return which calibration samples the command takes for copies of one another, if more than one in a hundred."""
    part = problem.calibration
    if problem.weight is None:
        return None
    clusters = connected(len(part.labels), near_copies(part.features))
    return clusters if len(np.unique(clusters)) < 0.99 * len(clusters) else None


def probabilities_after(problem: Problem, outcome: Outcome) -> NDArray[np.float64]:
    """Return what the written file would give for the test data."""
    chunks = _logits(problem, problem.test, outcome.weight).chunks(features=True)
    return probabilities_of(problem, np.concatenate([apply_map(outcome.fitted, logits, z) for logits, _, z in chunks]))


def _compared(strategy: Strategy, outcome: Outcome, settings: Settings) -> Comparison:
    before = outcome.before
    # nothing was chosen or fitted: nothing to cross-fit
    if outcome.unchanged:
        return compare_scores("", "unchanged", before, before, settings.bins, settings.seed, settings.level)
    chosen = strategy.chosen_in_folds(outcome)
    fold = folds(len(before), settings.seed, before.clusters)
    cross_fit = CrossFit(outcome.logits.mapped_scores(outcome.fitted), fold)

    def compared(after: SampleScores) -> Comparison:
        same = outcome.keeps_predictions and np.array_equal(before.hit, after.hit)
        return compare_scores(
            "", "cross-fitted", before, after, settings.bins, settings.seed, settings.level,
            cross_fit=cross_fit, same_predictions=same,
        )  # fmt: skip

    comparison = compared(strategy.cross_fitted(outcome, methods=chosen))
    if any(method != outcome.method for method in chosen) and outcome.method in outcome.scores:
        comparison = comparison.holding(compared(outcome.scores[outcome.method]))
    return comparison


Fit = Callable[[Problem], NDArray[np.float64]]
"""Fits on the calibration data and returns probabilities of the test data, (N, C)."""


@dataclass(frozen=True)
class Peer:
    """A calibrator of another library.

    Attributes:
        package: distribution that it comes from.
        module: what has to be importable.
        run: fits and applies it.
        classes: most classes that it is given, for the sake of time.
        sees: what it is fitted on, besides labels: `logits`, or `features` of the last layer.
    """

    package: str
    module: str
    run: Fit
    classes: int = 10_000
    sees: str = "logits"


def installed() -> tuple[dict[str, Peer], dict[str, str]]:
    """Return peers that can run, and the reason for each library that cannot."""
    missing = {peer.package: reason for peer in PEERS.values() if (reason := _missing(peer.module))}
    return {name: peer for name, peer in PEERS.items() if peer.package not in missing}, missing


def _missing(module: str) -> str:
    """Return why a module cannot be imported; empty if it can."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        return str(error)
    return ""


def versions_of(peers: dict[str, Peer]) -> dict[str, str]:
    """Return the versions of the libraries of some peers."""
    return {package: version(package) for package in sorted({peer.package for peer in peers.values()})}


def _sklearn(method: str) -> Fit:
    def run(problem: Problem) -> NDArray[np.float64]:
        from sklearn.base import BaseEstimator, ClassifierMixin
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.frozen import FrozenEstimator

        class Given(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # sklearn has no types
            """A model whose scores are its inputs."""

            def fit(self, x: Any, _y: Any) -> Any:
                self.classes_ = np.arange(x.shape[1])
                return self

            def decision_function(self, x: Any) -> Any:
                return x[:, 1] - x[:, 0] if x.shape[1] == 2 else x

            def predict(self, x: Any) -> Any:
                return x.argmax(1)

        part = problem.calibration
        model = FrozenEstimator(Given().fit(part.logits, part.labels))
        everything = np.arange(len(part.labels))
        # a frozen model is never fitted: all samples are in the one fold that it scores
        calibrated = CalibratedClassifierCV(model, method=method, cv=[(everything, everything)])
        calibrated.fit(part.logits.astype(np.float64), part.labels)
        return np.asarray(calibrated.predict_proba(problem.test.logits.astype(np.float64)), np.float64)

    return run


def _probmetrics(name: str) -> Fit:
    def run(problem: Problem) -> NDArray[np.float64]:
        from probmetrics import calibrators

        fitted = getattr(calibrators, name)().fit(probabilities(problem.calibration.logits), problem.calibration.labels)
        return np.asarray(fitted.predict_proba(probabilities(problem.test.logits)), np.float64)

    return run


def _netcal(module: str, name: str) -> Fit:
    def run(problem: Problem) -> NDArray[np.float64]:
        calibrator = getattr(importlib.import_module(module), name)()
        given = [probabilities(part.logits) for part in (problem.calibration, problem.test)]
        binary = given[0].shape[1] == 2
        if binary:  # it takes the probability of the second class alone
            given = [p[:, 1] for p in given]
        calibrator.fit(given[0], problem.calibration.labels)
        p = np.asarray(calibrator.transform(given[1]), np.float64)
        return np.stack([1 - p, p], axis=1) if binary else p

    return run


_STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)


def _retrained(problem: Problem) -> NDArray[np.float64]:
    """Train a new last layer on standardised features, with the strength that five folds choose by log loss."""
    from sklearn.linear_model import LogisticRegression

    z, tested, classes = _standardised(problem)
    labels = problem.calibration.labels
    fold = np.random.default_rng(problem.seed).permutation(len(labels)) % 5

    def fitted(c: float, rows: NDArray[np.bool_], on: NDArray[Any]) -> NDArray[np.float64]:
        model = LogisticRegression(C=c, max_iter=300).fit(z[rows], labels[rows])
        p = np.full((len(on), classes), 1e-6)
        p[:, model.classes_] = np.maximum(model.predict_proba(on), 1e-6)
        normalised: NDArray[np.float64] = p / p.sum(1, keepdims=True)
        return normalised

    def loss(c: float) -> float:
        held = [(fold != k, fold == k) for k in range(5)]
        losses = (-np.log(fitted(c, fit, z[rest])[np.arange(rest.sum()), labels[rest]]) for fit, rest in held)
        return sum(float(values.sum()) for values in losses)

    return fitted(min(_STRENGTHS, key=loss), np.ones(len(labels), bool), tested)


def _reweighted(problem: Problem) -> NDArray[np.float64]:
    """Deep feature reweighting: the mean of ten sparse last layers, each fitted to as many samples of every class.

    Source: Kirichenko, Izmailov & Wilson (2023), "Last layer re-training is sufficient for robustness to spurious
    correlations"; groups are classes here, and half of the samples choose the strength by the lowest recall.
    """
    from sklearn.linear_model import LogisticRegression

    z, tested, classes = _standardised(problem)
    labels = problem.calibration.labels
    rng = np.random.default_rng(problem.seed)
    half = rng.permutation(len(labels)) < len(labels) // 2

    def fitted(c: float, among: NDArray[np.bool_]) -> Any:
        own = [np.flatnonzero(among & (labels == k)) for k in range(classes)]
        rows = np.concatenate([rng.permutation(each)[: min(map(len, own))] for each in own])
        return LogisticRegression(l1_ratio=1, C=c, solver="saga", max_iter=100).fit(z[rows], labels[rows])

    def lowest(c: float) -> float:
        right = fitted(c, half).predict(z[~half]) == labels[~half]
        return min(float(right[labels[~half] == k].mean()) for k in range(classes))

    c = max((1.0, 0.3, 0.1, 0.03), key=lowest)
    models = [fitted(c, np.ones(len(labels), bool)) for _ in range(10)]
    last = models[0]
    last.coef_, last.intercept_ = (np.mean([getattr(m, name) for m in models], 0) for name in ("coef_", "intercept_"))
    return np.asarray(last.predict_proba(tested), np.float64)


def _standardised(problem: Problem) -> tuple[NDArray[Any], NDArray[Any], int]:
    """Return the features of both parts in units of the calibration data, and the number of classes."""
    z, tested = problem.calibration.features, problem.test.features
    deviation = z.std(0)
    deviation[deviation == 0] = 1
    return (z - z.mean(0)) / deviation, (tested - z.mean(0)) / deviation, problem.test.logits.shape[1]


PEERS: dict[str, Peer] = {
    "scikit-learn sigmoid": Peer("scikit-learn", "sklearn.frozen", _sklearn("sigmoid")),
    "scikit-learn isotonic": Peer("scikit-learn", "sklearn.frozen", _sklearn("isotonic")),
    "scikit-learn temperature": Peer("scikit-learn", "sklearn.frozen", _sklearn("temperature")),
    "probmetrics SVS": Peer("probmetrics", "probmetrics.calibrators", _probmetrics("SVSCalibrator")),
    "probmetrics SMS": Peer("probmetrics", "probmetrics.calibrators", _probmetrics("SMSCalibrator")),
    # half a minute a fit at 100 classes
    "netcal logistic": Peer("netcal", "netcal.scaling", _netcal("netcal.scaling", "LogisticCalibration"), classes=10),
    "last-layer retraining": Peer("scikit-learn", "sklearn.frozen", _retrained, classes=20, sees="features"),
    "deep feature reweighting": Peer("scikit-learn", "sklearn.frozen", _reweighted, classes=10, sees="features"),
}
