"""How often intervals of paired differences hold the truth, where the truth is known.

Logits are drawn at random, and labels from their softmax, so that a model that states these logits is calibrated.
Models state them times a factor: above 1 overconfident, below 1 underconfident.

- held-out: two factors, compared on N samples. The truth is the difference between the two models.
- cross-fitted: a map is fitted in five folds on N samples, which are scored without their fold. The truth is what the
  map that is fitted on all N does, which is what a file would hold; it differs from run to run.

Truths come from other samples (`--population`) with the expectation over labels in the place of labels: calibration
errors are those of the same bins, without what label noise adds.

    python benchmarks/interval_coverage.py held-out     [--runs 400] [--sizes 200 400 1000 5000] [--classes 2 10 100]
    python benchmarks/interval_coverage.py cross-fitted [--runs 200] [--maps ts bias isotonic]
    python benchmarks/interval_coverage.py groups       [--runs 500] [--groups 20 50 200] [--correlations 0 0.1 0.3 0.6]

In groups of 5 to 15 samples, logits and the normal numbers that decide labels have a correlation; the share of covered
truths is that of intervals that know the groups, and in brackets that of intervals (and folds) that do not.

A row is one metric; accuracy, ECE, AdaECE and widths in percentage points. `above` and `below` are shares of intervals
wholly on that side of the truth, `improved` of those wholly on the better side of zero though the truth is not. Biases
are mean errors against the truth, of the difference of the plug-in values and of the middle of the interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from common import arguments, markdown
from numpy.typing import NDArray
from scipy.special import ndtr

from tna_onnx.errors import DataError
from tna_onnx.maps import MAPS
from tna_onnx.maps.base import apply_map
from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Interval, Metrics
from tna_onnx.numerics.residuals import CrossFit
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline.crossfit import FOLDS, folds

HEAD = [
    "case", "metric", "N", "truth", "coverage %", "±", "below %", "above %", "improved %", "bias, plug-in",
    "bias, middle", "width", "of width zero",
]  # fmt: skip
PAIRS = ((2.5, 1.0), (2.0, 1.4), (1.05, 1.0), (1.0, 1.3), (0.5, 1.0), (1.0, 0.8))
FACTORS = (1.0, 1.5)
BINS = 15

Array = NDArray[Any]
Apply = Callable[[Array], Array]
"""A map: (N, C) logits to (N, C) logits."""


class Run(NamedTuple):
    """Intervals of one data set, and the true difference, per metric."""

    intervals: dict[str, Interval]
    truth: dict[str, float]


def logits_of(rng: np.random.Generator, n: int, classes: int) -> Array:
    """Draw (n, C) logits; models with two or a hundred classes are right more often."""
    spread = 1.5 if classes == 10 else 3.0
    return spread * rng.standard_normal((n, classes), np.float32)


def drawn(rng: np.random.Generator, logits: Array) -> Array:
    """Draw labels from the softmax of logits."""
    return np.asarray((logits + rng.gumbel(size=logits.shape).astype(np.float32)).argmax(axis=1))


def expected(p: Array, stated: Array) -> SampleScores:
    """Scores of logits in expectation over labels that are drawn from p; `hit` holds probabilities."""
    q = _softmax(stated)
    rows = np.arange(len(q))
    chosen = q.argmax(axis=1)
    hit: Any = p[rows, chosen].astype(np.float64)
    nll = -np.vecdot(p, np.log(np.maximum(q, np.finfo(np.float32).tiny)))
    return SampleScores(q[rows, chosen], hit, nll, np.vecdot(q, q - 2 * p) + 1)


def _softmax(logits: Array) -> Array:
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))


def truth_of(p: Array, before: Metrics, after: Array) -> dict[str, float]:
    """Differences of all metrics on the population, whose probabilities are p."""
    second = Metrics.of(expected(p, after))
    return {name: getattr(second, name) - getattr(before, name) for name in METRICS}


def held_out(runs: int, n: int, classes: int, pair: tuple[float, float], population: int) -> Iterator[Run]:
    """Compare two models on fresh samples, again and again."""
    large = logits_of(np.random.default_rng(classes), population, classes)
    p = _softmax(large)
    truth = truth_of(p, Metrics.of(expected(p, pair[0] * large)), pair[1] * large)
    for run in range(runs):
        rng = np.random.default_rng([1, run])
        logits = logits_of(rng, n, classes)
        labels = drawn(rng, logits)
        before, after = (SampleScores.of_logits(factor * logits, labels) for factor in pair)
        yield Run(paired_differences(before, after, same_predictions=True), truth)


def cross_fitted(runs: int, n: int, classes: int, factor: float, name: str, population: int) -> Iterator[Run]:
    """Fit a map on fresh samples, again and again."""
    large = logits_of(np.random.default_rng(classes), population, classes)
    p = _softmax(large)
    first = Metrics.of(expected(p, factor * large))
    keeps = name in MAPS and MAPS[name].keeps_order
    for run in range(runs):
        rng = np.random.default_rng([2, run])
        logits = logits_of(rng, n, classes)
        labels = drawn(rng, logits)
        stated = factor * logits
        fold = folds(n, run)
        after = np.empty_like(stated)
        try:
            for k in range(FOLDS):
                after[fold == k] = fitted(name, stated[fold != k], labels[fold != k])(stated[fold == k])
            final = fitted(name, stated, labels)
        except DataError:  # no such map on these samples
            continue
        scores = SampleScores.of_logits(stated, labels)
        crossed = SampleScores.of_logits(after, labels)
        cross_fit = CrossFit(SampleScores.of_logits(final(stated), labels), fold)
        intervals = paired_differences(scores, crossed, cross_fit=cross_fit, same_predictions=keeps)
        yield Run(intervals, truth_of(p, first, final(factor * large)))


def fitted(name: str, logits: Array, labels: Array) -> Apply:
    """Fit a map by its name; `bias` is a vector of biases without a temperature."""
    if name == "bias":
        shift = _bias(logits, labels)
        return lambda values: values + shift
    fit = MAPS[name].fit(lambda of, *aligned: of(logits, labels, None, *aligned))
    return partial(apply_map, fit)


def _bias(logits: Array, labels: Array) -> Array:
    """One bias a class by Newton's method on the NLL, with a ridge of one sample a class."""
    classes = logits.shape[1]
    counts = np.bincount(labels, minlength=classes)
    shift = np.zeros(classes)
    for _ in range(30):
        p = _softmax(logits + shift)
        slope = p.sum(axis=0) - counts + shift
        shift -= np.linalg.solve(np.diag(p.sum(axis=0)) - p.T @ p + np.eye(classes), slope)
    return np.asarray(shift, np.float32)


def rows(case: str, n: int, runs: list[Run]) -> Iterator[list[str]]:
    """Write what runs of one case come to, a row for each metric."""
    for name, metric in METRICS.items():
        truth = np.array([run.truth[name] for run in runs])
        found = [run.intervals[name] for run in runs]
        low, high, plain = (np.array([getattr(i, end) for i in found]) for end in ("low", "high", "difference"))
        below = np.mean(high < truth)
        above = np.mean(low > truth)
        better = (low > 0) & (truth <= 0) if metric.better > 0 else (high < 0) & (truth >= 0)
        covered = 1 - below - above
        # Agresti and Coull: a share of 1 has an error too
        smooth = (covered * len(runs) + 2) / (len(runs) + 4)
        error = 1.96 * math.sqrt(smooth * (1 - smooth) / (len(runs) + 4))
        numbers = [metric.factor * v for v in (np.mean(plain - truth), np.mean((low + high) / 2 - truth))]
        yield [
            case, metric.label, f"{n:,}", f"{metric.factor * truth.mean():.4g}", f"{100 * covered:.1f}",
            f"{100 * error:.1f}", f"{100 * below:.1f}", f"{100 * above:.1f}", f"{100 * np.mean(better):.1f}",
            *(f"{v:+.4f}" for v in numbers), f"{metric.factor * np.mean(high - low):.4f}", str(np.sum(high == low)),
        ]  # fmt: skip


def in_groups(
    rng: np.random.Generator, groups: int, classes: int, correlation: float
) -> tuple[Array, Array, NDArray[np.int64]]:
    """Draw (N, C) logits, labels (N,) and the group of each sample; each sample alone is as if there were no groups."""
    number = np.repeat(np.arange(groups), rng.integers(5, 16, groups))
    parts = rng.standard_normal((groups, classes + 1))[number], rng.standard_normal((len(number), classes + 1))
    normal = math.sqrt(correlation) * parts[0] + math.sqrt(1 - correlation) * parts[1]
    logits = (1.5 if classes == 10 else 3.0) * normal[:, 1:].astype(np.float32)
    drawn = ndtr(normal[:, 0])[:, None] > _softmax(logits.astype(np.float64)).cumsum(axis=1)
    return logits, np.minimum(drawn.sum(axis=1), classes - 1), number


def of_groups(a: Any, groups: int, correlation: float, classes: int, *, crossed: bool) -> list[str]:
    """Write the share of covered truths per metric, with the groups and without them."""
    pair = (1.5, 1.0)
    large = logits_of(np.random.default_rng(classes), a.population, classes)
    p = _softmax(large)
    first = Metrics.of(expected(p, pair[0] * large))
    truth = truth_of(p, first, pair[1] * large)
    covered: dict[str, list[tuple[bool, bool]]] = {name: [] for name in METRICS}
    for run in range(a.runs):
        logits, labels, number = in_groups(np.random.default_rng([3, run]), groups, classes, correlation)
        stated = pair[0] * logits
        both = []
        for clusters in (number, None):
            before = SampleScores.of_logits(stated, labels).clustered(clusters)
            if not crossed:
                after = SampleScores.of_logits(pair[1] * logits, labels).clustered(clusters)
                both.append(paired_differences(before, after, same_predictions=True))
                continue
            fold = folds(len(labels), run, clusters)
            values = np.empty_like(stated)
            for k in range(FOLDS):
                values[fold == k] = fitted("ts", stated[fold != k], labels[fold != k])(stated[fold == k])
            final = fitted("ts", stated, labels)
            truth = truth_of(p, first, final(pair[0] * large))
            after = SampleScores.of_logits(values, labels).clustered(clusters)
            cross_fit = CrossFit(SampleScores.of_logits(final(stated), labels).clustered(clusters), fold)
            both.append(paired_differences(before, after, cross_fit=cross_fit, same_predictions=True))
        for name in METRICS:
            known, plain = (each[name] for each in both)
            covered[name].append((known.low <= truth[name] <= known.high, plain.low <= truth[name] <= plain.high))
    shares = {name: 100 * np.mean(values, axis=0) for name, values in covered.items()}
    cells = [f"{shares[name][0]:.1f} ({shares[name][1]:.1f})" for name in METRICS if name != "accuracy"]
    return ["cross-fitted" if crossed else "held-out", f"{groups}", f"{correlation:g}", *cells]


def main() -> None:
    """Print the table."""
    parser = arguments(__doc__)
    parser.add_argument("kind", choices=["held-out", "cross-fitted", "groups"])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--sizes", type=int, nargs="+", default=[200, 400, 1000, 5000])
    parser.add_argument("--classes", type=int, nargs="+", default=[2, 10, 100])
    parser.add_argument("--maps", nargs="+", default=["ts", "bias", "isotonic"])
    parser.add_argument("--population", type=int, default=50_000)
    parser.add_argument("--cases", type=int, nargs="+", help="numbers of the cases, from 0; all of them by default")
    parser.add_argument("--groups", type=int, nargs="+", default=[20, 50, 200])
    parser.add_argument("--correlations", type=float, nargs="+", default=[0, 0.1, 0.3, 0.6])
    a = parser.parse_args()
    if a.kind == "groups":
        head = ["", "groups", "correlation", *(METRICS[name].label for name in METRICS if name != "accuracy")]
        cases = [(crossed, k, r) for crossed in (False, True) for k in a.groups for r in a.correlations]
        print(markdown(head, [of_groups(a, k, r, 10, crossed=crossed) for crossed, k, r in cases], 3))
        return
    table: list[list[str]] = []
    for classes in a.classes:
        for n in a.sizes:
            for case, runs in _cases(a, n, classes):
                table += rows(f"C = {classes}, {case}", n, list(runs))
    print(markdown(HEAD, table, 2))


def _cases(a: Any, n: int, classes: int) -> Iterator[tuple[str, Iterator[Run]]]:
    if a.kind == "held-out":
        for k, pair in enumerate(PAIRS):
            if a.cases is None or k in a.cases:
                yield f"{pair[0]:g} to {pair[1]:g}", held_out(a.runs, n, classes, pair, a.population)
        return
    for name in a.maps:
        for factor in FACTORS:
            yield f"{factor:g}, {name}", cross_fitted(a.runs, n, classes, factor, name, a.population)


if __name__ == "__main__":
    main()
