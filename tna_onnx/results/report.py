"""The result of a recalibration as frozen values: what was done, how it was checked, and what it changed."""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

from tna_onnx.numerics.crossfitted import CrossFit, corrected_errors
from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Interval, Metrics
from tna_onnx.numerics.reliability import Reliability
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.results.bin_free import BinFree
from tna_onnx.results.details import Details
from tna_onnx.results.guarding import Guard
from tna_onnx.results.label_metrics import LabelMetrics
from tna_onnx.results.shown import Record, Shown, difference_record, metric_record, values_text
from tna_onnx.results.standing import Standing
from tna_onnx.results.summary import copied_sentence, result_sentence
from tna_onnx.results.verification import Verification

__all__ = ["Changes", "Comparison", "CurvePoint", "MethodScores", "Report", "compare_scores"]

How = Literal["held-out", "cross-fitted", "fitted", "unchanged"]


@dataclass(frozen=True)
class Comparison:
    """Metrics before and after on the same samples, with paired differences.

    Attributes:
        data: what the samples are, in one line.
        how: `held-out` (not seen by the fit), `cross-fitted` (each sample scored by a fit without it), `fitted`, or
            `unchanged` (nothing was chosen or fitted, so that any data will do).
        before: metrics of the input model.
        after: metrics of the recalibrated model. Cross-fitted, ECE and AdaECE are corrected: as the map that is fitted
            on all samples has them on as many new ones.
        differences: after - before for each metric, with intervals.
    """

    data: str
    how: How
    before: Metrics
    after: Metrics
    differences: dict[str, Interval]

    @property
    def samples(self) -> str:
        """What kind of samples these are, in a word."""
        # nothing was fitted: the samples are what they are called
        return "calibration" if self.how == "unchanged" else self.how


def compare_scores(
    data: str,
    how: How,
    before: SampleScores,
    after: SampleScores,
    bins: int,
    seed: int,
    level: float = 0.95,
    *,
    cross_fit: CrossFit | None = None,
    same_predictions: bool = False,
) -> Comparison:
    """Reduce paired scores to a comparison; the other arguments are those of `paired_differences`."""
    differences = paired_differences(
        before, after, bins, level=level, seed=seed, cross_fit=cross_fit, same_predictions=same_predictions
    )
    metrics = Metrics.of(after, bins)
    if cross_fit is not None:
        errors: dict[str, Any] = {**corrected_errors(after, cross_fit, bins)}
        metrics = dataclasses.replace(metrics, **errors)
    return Comparison(data, how, Metrics.of(before, bins), metrics, differences)


@dataclass(frozen=True)
class MethodScores:
    """A method that was a choice.

    Attributes:
        method: weight and map in a word.
        metrics: of the calibration samples, each scored by a fit without it.
    """

    method: str
    metrics: Metrics


@dataclass(frozen=True)
class CurvePoint:
    """One candidate of the search, scored on the calibration data: of very many samples, on those that it sees.

    Attributes:
        angle: target of the mean rotation of the class vectors (mRC), degrees; 0 is the weight before any tilt.
        ensemble_size: members averaged; 0 is the limit of many.
        rotations: mean number of rotations of a member.
        objective: value of the objective: a fraction for ECE and AdaECE, nats for NLL; Brier has no unit.
        accuracy: accuracy as a fraction.
        parameters: parameters of the map that was fitted for this candidate in a complete search; empty otherwise.
        reached: mean mRC that the members reached, degrees.
    """

    angle: float
    ensemble_size: int
    rotations: float
    objective: float
    accuracy: float
    parameters: dict[str, Any] = field(default_factory=dict)
    reached: float = 0.0


@dataclass(frozen=True)
class Changes:
    """What the new file holds that the model does not.

    Attributes:
        target: path that was asked for; empty for a model that stays in memory.
        tensors: names of the initializers and Constant outputs with new values.
        added: names of the new initializers.
        nodes: names of the new nodes.
    """

    target: str
    tensors: tuple[str, ...]
    added: tuple[str, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Report(Shown):
    """What `calibrate` did.

    Attributes:
        model: path of the input.
        model_sha256: SHA-256 of the input file.
        output: path of the written file; empty if none was written.
        head: node of the head; empty for a model without one.
        classes: number of classes C, at least 1.
        features: length n of the features; 0 without a head.
        search: how weights were searched.
        map: the calibration map that was fitted.
        folded: whether the map went into weight and bias.
        parameters: fitted parameters of the map by name: `temperature` and mixture `weights` have no unit, `bias` is in
            nats, `knots` are counts.
        method: weight and map in a word: `none`, `ts`, `tna`, `tna + ets`, `refit 0.01`.
        methods: cross-fitted metrics of the methods that were compared; empty where nothing was chosen.
        angle: chosen target of the mean rotation of the class vectors (mRC), degrees; 0 is the weight before any tilt.
        reached: mean mRC of the members, degrees.
        ensemble_size: members averaged; 0 is the limit of many.
        rotations: mean number of rotations of a member.
        objective: metric that the search minimised.
        curve: all candidates, in the order in which they were scored.
        settings: settings of the run, by name.
        calibration: metrics on the calibration data, which were fitted.
        comparison: the honest numbers: on held-out samples, or cross-fitted.
        reliability: top-label diagrams of the samples of `comparison`.
        bin_free_before: calibration of the input model without bins, on the same samples.
        bin_free_after: calibration of the recalibrated model without bins, on the same samples.
        verification: how the written file was checked.
        preprocessing: what was done to the images; None where values are used as they are.
        provider: execution provider of ONNX Runtime that was obtained.
        versions: versions of what took part, by package.
        notes: what the user should know, in sentences.
        quantization_drift: largest change of a probability, a fraction, that quantising the new weight made; None if it
            is in float.
        recalibrated: the new model as an onnx.ModelProto, where no file was written.
        details: the numbers behind the figures; there if figures or an HTML report were asked for.
        changes: what the new file changes, written or not.
        changed_predictions: share of the samples of `comparison` whose predicted class is another one, a fraction.
        dry_run: whether no file was written because of `dry_run`.
        classes_unseen: classes without a calibration sample.
        classes_scarce: classes with fewer than five, but with one at least.
        missed: gates that the result missed, a line each; no file was written then.
        guard: the decisions that were added to the file, if any.
        labels: each label of a model with several a sample, on the samples of `comparison`; empty for others.
        output_sha256: SHA-256 of the written file, its external data apart; empty if none was written.
    """

    model: str
    model_sha256: str
    output: str
    head: str
    classes: int
    features: int
    search: str
    map: str
    folded: bool
    parameters: dict[str, Any]
    method: str
    methods: tuple[MethodScores, ...]
    angle: float
    reached: float
    ensemble_size: int
    rotations: float
    objective: str
    curve: tuple[CurvePoint, ...]
    settings: dict[str, object]
    calibration: Comparison
    comparison: Comparison
    reliability: Reliability
    bin_free_before: BinFree
    bin_free_after: BinFree
    verification: Verification
    preprocessing: dict[str, object] | None
    provider: str
    versions: dict[str, str]
    notes: tuple[str, ...]
    quantization_drift: float | None = None
    recalibrated: Any = field(default=None, repr=False, compare=False)
    details: Details | None = field(default=None, repr=False, compare=False)
    changes: Changes | None = None
    changed_predictions: float = 0.0
    dry_run: bool = False
    classes_unseen: tuple[int, ...] = ()
    classes_scarce: tuple[int, ...] = ()
    missed: tuple[str, ...] = ()
    guard: Guard | None = None
    labels: tuple[LabelMetrics, ...] = ()
    output_sha256: str = ""

    def __repr__(self) -> str:
        """Say in one line what was done, and what it changed."""
        c = self.comparison
        values = values_text(c.before, c.after)
        name = PurePath(self.model).name
        return f"<Report on {name}: {self.method}, {self.standing.word}; {values}; {c.before.n:,} {c.samples} samples>"

    def records(self) -> list[Record]:
        """Return a row for each metric of `comparison`, before and after, with its unit."""
        c = self.comparison
        return [
            {
                **metric_record(name, before=getattr(c.before, name), after=getattr(c.after, name)),
                **difference_record(name, c.differences),
            }
            for name in METRICS
        ]

    @property
    def already_calibrated(self) -> bool:
        """Whether the input was chosen among several methods: the output is the input."""
        return bool(self.methods) and self.method == "none"

    @property
    def untilted(self) -> str:
        """What the weight at angle 0 is: `original` or `refitted`."""
        return "refitted" if self.settings.get("anchor") == "refit" else "original"

    @property
    def standing(self) -> Standing:
        """Accuracy, NLL, ECE and the objective judged together."""
        return Standing.of(self.comparison.differences, self.objective)

    def _repr_html_(self) -> str:
        """Return HTML for notebooks."""
        # drawing lies above the results: loaded by name, and only when it is asked for
        text: str = importlib.import_module("tna_onnx.render.notebook").fragment(self)
        return text

    @property
    def summary(self) -> str:
        """One sentence for readers who know no metric; it says the same as the verdict."""
        c = self.comparison
        if self.already_calibrated:
            return copied_sentence(c.before, labels=bool(self.labels))
        return result_sentence(self.standing.word, c.before, c.after, c.differences, labels=bool(self.labels))

    @property
    def verdict(self) -> str:
        """One sentence on accuracy, NLL, ECE and the objective, with their intervals, and N."""
        c = self.comparison
        if self.already_calibrated:
            values = ", ".join(METRICS[name].value(getattr(c.before, name)) for name in ("nll", "ece", "accuracy"))
            others = sum(each.method != "none" for each in self.methods)
            return (
                f"already calibrated, as far as {c.before.n:,} {c.samples} samples can tell: none of {others} methods "
                f"does better than the input model, which is left as it is ({values})"
            )
        judged = self.standing.sentence(c.before, c.after, c.differences)
        level = c.differences[self.objective].level
        return f"{judged}; {c.before.n:,} {c.samples} samples, {100 * level:g}% intervals of the differences"
