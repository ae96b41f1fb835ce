"""The result of `compare` as frozen values: several models on the same samples, each against a baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tna_onnx.numerics.checks import MAX_LEVEL
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Interval, Metrics
from tna_onnx.numerics.reliability import Bins
from tna_onnx.results.as_json import Record, Shown, difference_record, metric_record
from tna_onnx.results.details import BinFree
from tna_onnx.results.guarding import Decisions
from tna_onnx.results.subgroups import Subgroup
from tna_onnx.results.verdict import Standing, Word, changed


@dataclass(frozen=True)
class ComparedModel:
    """One of the compared models.

    Attributes:
        name: what reports call it: the file's name, with folders where two would be the same.
        model: path of the file.
        model_sha256: SHA-256 of the file.
        output: graph output that was read.
        output_kind: what that output holds.
        metrics: metrics on the samples.
        reliability: top-label reliability diagram, with the bins of the ECE.
        bin_free: calibration of the top label without bins.
        agreement: share of samples for which it predicts the class that the baseline predicts, or each of the labels, a
            fraction.
        differences: this model minus the baseline for each metric, paired, with an interval; empty for the baseline.
        verdict: the differences in words; empty for the baseline.
        preprocessing: what was done to its images; None where values are used as they are.
        provider: execution provider of ONNX Runtime that was obtained.
        decisions: what a guarded model decides; None where it decides nothing.
        subgroups: parts of the samples with enough of them, the worst first; empty where none are asked for.
    """

    name: str
    model: str
    model_sha256: str
    output: str
    output_kind: str
    metrics: Metrics
    reliability: Bins
    bin_free: BinFree
    agreement: float
    differences: dict[str, Interval]
    verdict: str
    preprocessing: dict[str, object] | None
    provider: str
    decisions: Decisions | None = None
    subgroups: tuple[Subgroup, ...] = ()

    @property
    def word(self) -> Word:
        """What accuracy, NLL and ECE come to against the baseline."""
        return Standing.of(self.differences).word


@dataclass(frozen=True)
class ModelComparison(Shown):
    """What `compare` measured: several models on the same samples.

    Attributes:
        data: what the samples are, in one line.
        baseline: name of the model that the others are compared with.
        confidence_level: level of each interval on its own, per cent.
        models: the models, in the order given.
        versions: versions of what computed the numbers, by package.
        notes: what the user should know, in sentences.
    """

    data: str
    baseline: str
    confidence_level: float
    models: tuple[ComparedModel, ...]
    versions: dict[str, str]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Say in one line what was compared."""
        words = "; ".join(f"{model.name}: {model.word}" for model in self.others)
        return f"<ModelComparison with {self.baseline}: {words}; {self.models[0].metrics.n:,} samples>"

    def records(self) -> list[Record]:
        """Return a row for each model and metric, with its unit; the baseline has no differences."""
        return [
            {
                "model": model.name,
                **metric_record(name, value=getattr(model.metrics, name)),
                **difference_record(name, model.differences),
            }
            for model in self.models
            for name in METRICS
        ]

    @property
    def others(self) -> tuple[ComparedModel, ...]:
        """All models but the baseline."""
        return tuple(model for model in self.models if model.name != self.baseline)


def verdict_text(baseline: str, differences: Mapping[str, Interval], agreement: float, same: str = "class") -> str:
    """Say in words how a model differs from the baseline: by what counts, what it comes to first.

    `same` is what samples have to have the same of, to agree.

    >>> worse = {name: Interval(0.1, 0.05, 0.2, 0.95) for name in ("ece", "nll")}
    >>> verdict_text("a.onnx", worse | {"accuracy": Interval(0.0, -0.1, 0.1, 0.95)}, 0.987)
    'worse than a.onnx in ECE, NLL; no significant difference in accuracy; the same class for 98.70 % of samples'
    """
    names: dict[int, list[str]] = {1: [], -1: [], 0: []}
    for name, metric in METRICS.items():
        if name in differences:
            names[changed(name, differences[name])].append(metric.label)
    agreed = f"the same {same} for {100 * agreement:.2f} % of samples"
    # nothing is significant: a list of every metric would say no more
    if not names[1] and not names[-1]:
        return f"no significant difference from {baseline}; {agreed}"
    sides = [(1, "better"), (-1, "worse")]
    if Standing.of(differences).word == "worse":
        sides.reverse()
    parts = [f"{word} than {baseline} in {', '.join(names[side])}" for side, word in sides if names[side]]
    if names[0]:
        parts.append(f"no significant difference in {', '.join(names[0])}")
    return "; ".join([*parts, agreed])


def multiplicity_note(n_comparisons: int, level: float) -> str:
    """Say that intervals are not corrected, and which level corrects them (Bonferroni).

    Args:
        n_comparisons: comparisons, at least 2.
        level: of the intervals, in per cent.
    """
    text = f"each {level:g}% interval stands for itself; they are not corrected for {n_comparisons} comparisons"
    together = 100 - (100 - level) / n_comparisons
    # no advice that is refused
    if together > MAX_LEVEL:
        return text
    return (
        f"{text}: with --confidence-level {together:.4g} those of one metric hold together at {level:g}% (Bonferroni)"
    )
