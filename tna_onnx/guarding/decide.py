"""What a written file decides on samples, and whether that is what was meant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tna_onnx.data import Source
from tna_onnx.engine.outputs import Runs
from tna_onnx.errors import CheckFailed
from tna_onnx.graph.outputs import ClassOutput
from tna_onnx.guarding.scores import SampleValues, labelled_outputs
from tna_onnx.guarding.thresholds import Thresholds
from tna_onnx.numerics.checks import check_level
from tna_onnx.progress import Progress
from tna_onnx.results.guarding import Decisions

__all__ = ["Decided", "check_decisions", "decide", "largest_change", "measure"]

_MAX_CHANGE = 1e-5
"""Further readers of a tensor may keep ONNX Runtime from fusing nodes, which rounds in another way."""


@dataclass(frozen=True, eq=False)
class Decided:
    """What the file says of N samples.

    Attributes:
        labels: class indices (N,).
        hit: whether the sample is classified right, (N,).
        values: role -> (N,) of a new output; of sets whether they hold the true class.
        sizes: classes in the set of each sample, (N,).
    """

    labels: NDArray[np.int64]
    hit: NDArray[np.bool_]
    values: dict[str, NDArray[Any]]
    sizes: NDArray[np.int64]


def decide(
    session: Runs,
    output: ClassOutput,
    names: Mapping[str, str],
    source: Source,
    rows: NDArray[np.int64],
    batch_size: int,
    progress: Progress,
) -> Decided:
    """Run a written file over samples.

    Args:
        session: on the file.
        output: the output that classifies.
        names: role -> new output.
        source: the samples.
        rows: those of them to run.
        batch_size: samples per run.
        progress: called with (stage, done, total).
    """
    hits = []
    sizes = []
    kept: dict[str, list[NDArray[Any]]] = {role: [] for role in names}
    asked = [output.name, *names.values()]
    for own, (values, *decisions) in labelled_outputs(session, asked, source, rows, batch_size, "decide", progress):
        hits.append(output.probabilities(values).argmax(axis=1) == own)
        for role, decision in zip(names, decisions, strict=True):
            if role == "set":
                sizes.append(decision.sum(axis=1))
                kept[role].append(decision[np.arange(len(own)), own])
            else:
                kept[role].append(decision)
    empty = np.zeros(0, np.int64)
    return Decided(
        source.labels[rows],
        np.concatenate(hits),
        {role: np.concatenate(parts) for role, parts in kept.items()},
        np.concatenate([empty, *sizes]),
    )


def check_decisions(decided: Decided, values: SampleValues, thresholds: Thresholds, where: str) -> None:
    """Compare the file's decisions with the scores that the thresholds were chosen on.

    Args:
        decided: by the file, on some samples.
        values: scores of the same samples, in the same batches.
        thresholds: that were written.
        where: what the samples are, for messages.

    Raises:
        CheckFailed: a decision is another one.
    """
    level = thresholds.values
    expected: dict[str, NDArray[Any]] = {"confidence": values.confidence, "ood": values.ood}
    if "accept" in level:
        expected["accept"] = values.confidence >= level["accept"]
    if "set" in level:
        limit = np.broadcast_to(level["set"], np.shape(level["set"]) or (1,))
        expected["set"] = values.own <= limit[values.labels if limit.size > 1 else np.zeros_like(values.labels)]
    if "ood" in level:
        expected["ood_alarm"] = values.ood > level["ood"]
    for role, given in decided.values.items():
        different = np.flatnonzero(given != expected[role])
        if len(different):
            raise CheckFailed(
                f"verification: output {role} of the written file is not what its scores say for {len(different):,} of "
                f"{len(given):,} samples of {where}"
            )


def largest_change(
    before: Runs, after: Runs, outputs: list[str], source: Source, rows: NDArray[np.int64], batch_size: int
) -> float:
    """Return the largest change of a value of the outputs that were there before.

    Raises:
        CheckFailed: it is more than rounding.
    """
    largest = 0.0
    for batch in source.batches(batch_size, rows):
        pairs = zip(outputs, before.run(outputs, batch), after.run(outputs, batch), strict=True)
        for name, old, new in pairs:
            if np.array_equal(old, new):
                continue
            change = float("inf")
            if old.dtype.kind == "f" and old.shape == new.shape:
                change = float(np.max(np.abs(old.astype(np.float64) - new.astype(np.float64))))
            if not change <= _MAX_CHANGE * max(1.0, float(np.max(np.abs(old)))):
                raise CheckFailed(f"verification: output '{name}' changed by {change:.3g}; expected no change")
            largest = max(largest, change)
    return largest


def measure(decided: Decided, n_classes: int, confidence_level: float, data: str, *, fresh: bool) -> Decisions:
    """Reduce decisions to the figures of the report.

    Args:
        decided: what the file says.
        n_classes: number of classes C.
        confidence_level: of intervals, in per cent.
        data: what the samples are.
        fresh: whether no threshold was chosen on them.
    """
    level = check_level(confidence_level)
    n = len(decided.labels)
    figures: dict[str, Any] = {}
    if "accept" in decided.values:
        accepted = decided.values["accept"]
        count = int(accepted.sum())
        figures["accepted"] = count / n
        if count:
            wrong = int(np.count_nonzero(accepted & ~decided.hit))
            figures["risk"] = wrong / count
            figures["risk_interval"] = exact_interval(wrong, count, level)
    if "set" in decided.values:
        held = decided.values["set"]
        figures["coverage"] = float(held.mean())
        figures["coverage_interval"] = exact_interval(int(held.sum()), n, level)
        figures["class_coverage"] = _by_class(held, decided.labels, n_classes)
        figures["mean_set_size"] = float(decided.sizes.mean())
        figures["empty_sets"] = float(np.mean(decided.sizes == 0))
        figures["single_sets"] = float(np.mean(decided.sizes == 1))
    if "ood_alarm" in decided.values:
        figures["alarms"] = float(decided.values["ood_alarm"].mean())
    return Decisions(data=data, fresh=fresh, n=n, accuracy=float(decided.hit.mean()), **figures)


def exact_interval(count: int, n: int, level: float) -> tuple[float, float]:
    """Return the Clopper-Pearson interval of a share.

    >>> exact_interval(0, 100, 0.95)[1].__round__(4)
    0.0362
    """
    interval = stats.binomtest(count, n).proportion_ci(level, "exact")
    return float(interval.low), float(interval.high)


def _by_class(held: NDArray[np.bool_], labels: NDArray[np.int64], n_classes: int) -> tuple[float | None, ...]:
    counts = np.bincount(labels, minlength=n_classes).tolist()
    covered = np.bincount(labels, held, minlength=n_classes).tolist()
    return tuple(c / n if n else None for c, n in zip(covered, counts, strict=True))
