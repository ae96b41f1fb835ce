"""How far cross-fitted estimates are from new samples, on average, for a map and for the default command.

Labels are drawn from the softmax of random logits, and models state these logits times a factor. A map is fitted on N
samples and cross-fitted; the truth is the mean of what it does on `--fresh` portions of N new samples.

    python benchmarks/crossfitted_bias.py maps    [--runs 300] [--sizes 400 1000] [--maps ts bias irova]
    python benchmarks/crossfitted_bias.py default [--runs 100] [--sizes 1000]

`maps` looks at ECE and AdaECE, plain and corrected; what a calibrated model shows on the same samples is regressed out.
`default` chooses search and map as the command does, for a linear head on 16 features: calibrated, with logits 1.5
times too large, and with class biases missing as well. It also shows the differences of accuracy and NLL. All values
are percentage points (NLL: 0.01 nats), mean error +- its standard error; runs that change nothing have none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from common import arguments, markdown
from interval_coverage import drawn, fitted, logits_of
from numpy.typing import NDArray

from tna_onnx.calibration.crossfit import FOLDS, folds
from tna_onnx.calibration.settings import Settings
from tna_onnx.calibration.strategy import Strategy
from tna_onnx.engine.logits import HeadLogits
from tna_onnx.errors import DataError
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.numerics.averages import kept_part
from tna_onnx.numerics.crossfitted import CrossFit, corrected_errors
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.stats import SampleScores

ERRORS = ("ece", "adaece")
SCALAR = ("accuracy", "nll")
CASES = (("calibrated", 1.0, 0.0), ("1.5 times", 1.5, 0.0), ("1.5 times, shifted", 1.5, 1.0))
CLASSES = 10
FEATURES = 16

Array = NDArray[Any]


def of_map(name: str, factor: float, n: int, run: int, fresh: int) -> list[float] | None:
    """Errors of one data set: of each calibration error plain, corrected, and of the control."""
    rng = np.random.default_rng([3, run])
    logits = logits_of(rng, n, CLASSES)
    labels = drawn(rng, logits)
    fold = folds(n, run)
    after = np.empty_like(logits)
    try:
        for k in range(FOLDS):
            rest = fold != k
            after[~rest] = fitted(name, factor * logits[rest], labels[rest])(factor * logits[~rest])
        final = fitted(name, factor * logits, labels)
    except DataError:  # no such map on these samples
        return None
    crossed = SampleScores.of_logits(after, labels)
    cross_fit = CrossFit(SampleScores.of_logits(final(factor * logits), labels), fold)
    control = Metrics.of(SampleScores.of_logits(logits, labels))
    new = []
    new_control = []
    for _ in range(fresh):
        other = logits_of(rng, n, CLASSES)
        of_other = drawn(rng, other)
        new.append(Metrics.of(SampleScores.of_logits(final(factor * other), of_other)))
        new_control.append(Metrics.of(SampleScores.of_logits(other, of_other)))
    corrected = corrected_errors(crossed, cross_fit)
    row = []
    for kind in ERRORS:
        truth = _mean(new, kind)
        row += [getattr(Metrics.of(crossed), kind) - truth, corrected[kind] - truth]
        row.append(getattr(control, kind) - _mean(new_control, kind))
    return row


def of_default(factor: float, shifted: float, n: int, run: int, fresh: int) -> list[float] | None:
    """Errors of one data set: of accuracy and NLL, and of each calibration error plain and corrected."""
    rng = np.random.default_rng([9, run, round(10 * (factor + 10 * shifted))])
    true = np.asarray(2.1 * rng.standard_normal((CLASSES, FEATURES)) / 4, np.float32)
    shift = np.asarray(shifted * rng.standard_normal(CLASSES), np.float32)
    weight = np.float32(factor) * true
    bias = np.zeros(CLASSES, np.float32)

    def sampled(size: int) -> FeatureTable:
        features = rng.standard_normal((size, FEATURES), np.float32)
        return FeatureTable(features, drawn(rng, features @ true.T + shift))

    def logits(table: FeatureTable, of: Array) -> HeadLogits:
        return HeadLogits(table, of, bias if of is weight else bias * np.float32(kept_part(weight, of)))

    table = sampled(n)
    settings = Settings(seed=run)
    search, map_ = settings.resolved_search, settings.resolved_map
    strategy = Strategy(
        lambda of: logits(table, of), weight, search, map_, settings.for_search, options=settings.fit_options
    )
    outcome = strategy.run(lambda *_: None)
    if outcome.unchanged:
        return None
    crossed = strategy.cross_fitted(outcome)
    cross_fit = CrossFit(outcome.logits.mapped_scores(outcome.fitted), folds(n, run))
    large = sampled(fresh * n)
    chosen: Array = np.asarray(outcome.weight) if outcome.weight is not weight else weight
    sides = (logits(large, weight).scores(), logits(large, chosen).mapped_scores(outcome.fitted))
    before, after = ([Metrics.of(side.take(rows)) for rows in np.arange(fresh * n).reshape(fresh, n)] for side in sides)
    first = Metrics.of(outcome.before)
    second = Metrics.of(crossed)
    row = [getattr(second, k) - getattr(first, k) - _mean(after, k) + _mean(before, k) for k in SCALAR]
    corrected = corrected_errors(crossed, cross_fit)
    for kind in ERRORS:
        row += [getattr(second, kind) - _mean(after, kind), corrected[kind] - _mean(after, kind)]
    return row


def _mean(metrics: list[Metrics], name: str) -> float:
    return float(np.mean([getattr(each, name) for each in metrics]))


def _row(case: str, n: int, values: Array) -> list[str]:
    """Mean and standard error of (R, M) errors."""
    error = values.std(axis=0) / np.sqrt(len(values))
    cells = (f"{100 * m:+.3f} ± {100 * e:.3f}" for m, e in zip(values.mean(axis=0), error, strict=True))
    return [case, f"{n:,}", str(len(values)), *cells]


def _without_control(values: Array) -> Array:
    """(R, 6) errors to (R, 4): the third and sixth are known to be 0 on average."""
    columns = []
    for start in (0, 3):
        control = values[:, start + 2]
        pair = values[:, start : start + 2]
        slopes = [np.cov(column, control)[0, 1] / control.var(ddof=1) for column in pair.T]
        columns.append(pair - np.outer(control, slopes))
    return np.hstack(columns)


def main() -> None:
    """Print the table."""
    parser = arguments(__doc__)
    parser.add_argument("kind", choices=["maps", "default"])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--sizes", type=int, nargs="+", default=[400, 1000])
    parser.add_argument("--maps", nargs="+", default=["ts", "bias", "irova"])
    parser.add_argument("--fresh", type=int, default=20)
    a = parser.parse_args()
    head = ["ECE", "ECE corrected", "AdaECE", "AdaECE corrected"]
    table = []
    for n in a.sizes:
        if a.kind == "default":
            for case, factor, shifted in CASES:
                found = [of_default(factor, shifted, n, run, a.fresh) for run in range(a.runs)]
                kept = [row for row in found if row is not None]
                if len(kept) > 1:
                    table.append(_row(case, n, np.array(kept)))
            continue
        for name in a.maps:
            for factor in (1.0, 1.5):
                errors = [of_map(name, factor, n, run, a.fresh) for run in range(a.runs)]
                values = _without_control(np.array([row for row in errors if row is not None]))
                table.append(_row(f"{factor:g}, {name}", n, values))
    if a.kind == "default":
        head = ["difference of accuracy", "difference of NLL", *head]
    print(markdown(["case", "N", "runs", *head], table, 1))


if __name__ == "__main__":
    main()
