"""The numbers behind the figures of a report, as plain tuples that go into JSON too.

Bin j holds j/B < p <= (j+1)/B; bin 0 holds 0 as well. "Shown data" are the held-out samples, else the calibration
samples, which were fitted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tna_onnx.graph.options import Difference
from tna_onnx.numerics.isotonic import Corp, Curve, Decomposition
from tna_onnx.numerics.metrics import BEYOND_CHANCE, ChanceEce, Metrics, debiased_ece, metric_value
from tna_onnx.numerics.positive import Classes, PositiveSide, with_slope
from tna_onnx.numerics.reliability import Bins, CumulativeTest, ties_of
from tna_onnx.numerics.scores import SampleScores

# Points of a curve.
_POINTS = 200


@dataclass(frozen=True)
class RiskCoverage:
    """Error rate among the samples with the highest confidence.

    Attributes:
        coverage: shares of the samples, fractions.
        risk: error rate among each share, fractions.
        area: area under the curve: the mean error rate over all coverages, a fraction.
    """

    coverage: tuple[float, ...]
    risk: tuple[float, ...]
    area: float

    @classmethod
    def of(cls, scores: SampleScores) -> RiskCoverage:
        """Take every distinct confidence as a threshold; up to 200 points of the curve are kept."""
        tie = ties_of(scores.confidence)
        order = np.argsort(-tie, kind="stable")
        wrong = ~scores.hit[order]
        weights = scores.weights
        # samples of one confidence, to rounding, are taken together: their order is arbitrary
        ends = np.flatnonzero(np.r_[np.diff(tie[order]) < 0, True]) + 1
        mass = np.arange(1, len(order) + 1)
        wrong_mass = np.cumsum(wrong)
        if weights is not None:
            mass = np.cumsum(weights[order])
            wrong_mass = np.cumsum(wrong * weights[order])
        coverage = mass[ends - 1] / mass[-1]
        risk = wrong_mass[ends - 1] / np.where(mass[ends - 1] > 0, mass[ends - 1], 1)
        # a step function: each threshold's risk times the coverage that it adds
        area = float(np.sum(np.diff(coverage, prepend=0.0) * risk))
        # the area is of the whole curve; only what is drawn is thinned
        picked = np.unique(np.linspace(0, len(ends) - 1, min(_POINTS, len(ends))).astype(int))
        return cls(tuple(coverage[picked].tolist()), tuple(risk[picked].tolist()), area)


@dataclass(frozen=True)
class Scored:
    """A candidate on some data.

    Attributes:
        objective: value of the objective: a fraction for ECE and AdaECE, nats for NLL; Brier has no unit.
        accuracy: accuracy as a fraction.
    """

    objective: float
    accuracy: float


@dataclass(frozen=True)
class Step:
    """A candidate of the search, on both kinds of data.

    Attributes:
        angle: target of mRC, degrees.
        reached: mean mRC that the members reached, degrees.
        members: members averaged; 0 is the limit of many.
        calibration: scores on the calibration data.
        held_out: scores on the held-out data; None without such data.
    """

    angle: float
    reached: float
    members: int
    calibration: Scored
    held_out: Scored | None

    @property
    def shown(self) -> Scored:
        """On the shown data."""
        return self.held_out or self.calibration


@dataclass(frozen=True)
class Confusion:
    """A class that samples of another class are mistaken for.

    Attributes:
        predicted: name of the predicted class.
        samples: samples for which it is predicted.
    """

    predicted: str
    samples: int


@dataclass(frozen=True)
class ClassResult:
    """How a model predicts one class.

    Attributes:
        predicted: samples for which it predicts the class.
        right: samples among these whose label it is.
        confused: what samples of the class are most often taken for, most samples first; at most three.
    """

    predicted: int
    right: int
    confused: tuple[Confusion, ...]


@dataclass(frozen=True)
class ClassBins:
    """One class: the probability that all samples give it, against how often it is their label.

    Attributes:
        name: name of the class.
        samples: samples whose label it is.
        before: diagram of the input model.
        after: diagram of the recalibrated model.
        result_before: predictions of the input model.
        result_after: predictions of the recalibrated model.
    """

    name: str
    samples: int
    before: Bins
    after: Bins
    result_before: ClassResult
    result_after: ClassResult


@dataclass(frozen=True)
class Sample:
    """One sample.

    Attributes:
        row: row in the data, from 0.
        file: end of the path of its file; empty if it has none.
        label: name of its class.
        predicted: name of the predicted class.
        before: confidence of the input model, a fraction.
        after: confidence of the recalibrated model, a fraction.
    """

    row: int
    file: str
    label: str
    predicted: str
    before: float
    after: float


@dataclass(frozen=True)
class Port:
    """An input of the model.

    Attributes:
        name: of the input.
        shape: lengths of its axes, the batch axis first; null for any length.
        dtype: as NumPy calls it.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str


@dataclass(frozen=True)
class RunInfo:
    """When and from what a result was computed, and the names in its file.

    Attributes:
        date: when it began, in UTC, as ISO 8601 has it.
        seconds: how long it took up to the figures, in seconds.
        calibration_sha256: SHA-256 of the calibration samples and their labels.
        held_out_sha256: SHA-256 of the held-out samples and their labels; empty without any.
        inputs: inputs of the model.
        output: graph output that classifies.
        output_kind: what that output holds.
        mapped: whether the output is a dictionary from class to probability for each sample (ZipMap).
        several: axis of the classes where a sample has several predictions, `first` behind the samples or `last`; empty
            for one prediction a sample.
    """

    date: str
    seconds: float
    calibration_sha256: str
    held_out_sha256: str
    inputs: tuple[Port, ...]
    output: str
    output_kind: str
    mapped: bool
    several: Literal["", "first", "last"] = ""


@dataclass(frozen=True)
class Details:
    """The numbers behind the figures of a report.

    Attributes:
        data: the shown data, in one line: held-out samples if there are any, else the calibration samples.
        held_out: whether they are held-out samples.
        preprocessing: what was done to their images; None where values are used as they are.
        device: device that was asked for.
        before: top-label diagram of the input model, on the samples of `Report.comparison`.
        after: top-label diagram of the recalibrated model, on the same samples.
        risk_before: risk and coverage of the input model, on the same samples.
        risk_after: risk and coverage of the recalibrated model, on the same samples.
        steps: candidates in the order of the search.
        chosen: index of the chosen one, from 0.
        with_map: whether candidates were scored after a map of their own (complete search).
        classes: diagrams of each class, on the shown data.
        overconfident: wrong predictions with the highest confidence after, on the shown data.
        underconfident: right predictions with the lowest confidence after, on the shown data.
        changes: what differs between the two files.
        made: when and from what the result was made.
    """

    data: str
    held_out: bool
    preprocessing: dict[str, object] | None
    device: str
    before: Bins
    after: Bins
    risk_before: RiskCoverage
    risk_after: RiskCoverage
    steps: tuple[Step, ...]
    chosen: int
    with_map: bool
    classes: tuple[ClassBins, ...]
    overconfident: tuple[Sample, ...]
    underconfident: tuple[Sample, ...]
    changes: tuple[Difference, ...]
    made: RunInfo


@dataclass(frozen=True)
class BinFree:
    """Calibration of the top label on N samples, beside the binned errors of `Metrics`.

    Of several labels a sample: of each label's probability, all labels together; the two errors are means over labels.

    Attributes:
        ece_debiased: ECE less the bias that noise adds, over the same bins, a fraction.
        ece_expected: ECE that a calibrated model with these confidences has by chance, on average, a fraction.
        ece_p: how often chance alone gives such a model as large an ECE, a fraction; of several labels of the worst,
            adjusted for their number.
        cumulative: test on the cumulative differences of hits and confidences.
        corp: isotonic recalibration of the top label: parts of NLL and Brier score, and the reliability curve.
    """

    ece_debiased: float
    ece_expected: float
    ece_p: float
    cumulative: CumulativeTest
    corp: Corp

    @property
    def off(self) -> bool:
        """Whether the ECE is larger than chance explains."""
        return self.ece_p < BEYOND_CHANCE

    @classmethod
    def of(cls, scores: SampleScores, bins: int = 15, seed: int = 0, *, cross_fitted: bool = False) -> BinFree:
        """Reduce scores.

        `cross_fitted`: whether fits of other folds gave the scores. Their errors cancel where folds are pooled
        (`numerics.residuals`), so that p-values would be too large: there are none. Of clusters of samples they would
        be too small: there are none either.
        """
        if scores.predicted is not None:
            return cls._of_labels(scores, bins, seed, cross_fitted=cross_fitted)
        test = CumulativeTest.of(scores)
        if cross_fitted or scores.clusters is not None:
            test = replace(test, kolmogorov_smirnov_p=None, kuiper_p=None)
        return cls(*_ece_by_chance(scores, bins), test, Corp.of(scores, seed))

    @classmethod
    def unknown(cls) -> BinFree:
        """Return what is known without labels: no number."""
        parts = Decomposition(math.nan, math.nan, math.nan, math.nan)
        corp = Corp(parts, parts, math.nan, Curve((), (), (), ()))
        return cls(math.nan, math.nan, math.nan, CumulativeTest(math.nan, math.nan, None, None), corp)

    @classmethod
    def _of_labels(cls, scores: SampleScores, bins: int, seed: int, *, cross_fitted: bool) -> BinFree:
        """Reduce scores of several labels a sample: the means of the first two, the rest of all labels together."""
        together = cls.of(scores.pooled(), bins, seed, cross_fitted=cross_fitted)
        debiased, expected, p = zip(*(_ece_by_chance(label, bins) for label in scores.by_label()), strict=True)
        return replace(
            together,
            ece_debiased=float(np.mean(debiased)),
            ece_expected=float(np.mean(expected)),
            ece_p=min(1.0, len(p) * min(p)),
        )


def _ece_by_chance(scores: SampleScores, bins: int) -> tuple[float, float, float]:
    """Return the debiased ECE, the one to expect by chance, and how often chance gives as large an ECE."""
    chance = ChanceEce.of(scores, bins)
    return debiased_ece(scores, bins), chance.mean, chance.p(metric_value(scores, "ece", bins))


@dataclass(frozen=True)
class LabelMetrics:
    """Metrics of one label on N samples; its ECE is that of its probability.

    Attributes:
        label: its name; its number where names are not known.
        positives: samples for which it holds.
        before: metrics of the model.
        after: metrics of the recalibrated model; None where there is one model only. Cross-fitted, its ECE is not
            corrected, unlike that of all labels.
        shared: whether a map by label has the numbers that all labels share for it, for lack of samples of its own.
    """

    label: str
    positives: int
    before: Metrics
    after: Metrics | None = None
    shared: bool = False

    @classmethod
    def of(
        cls,
        before: SampleScores,
        after: SampleScores | None,
        bins: int,
        names: Sequence[str] | None,
        shared: Sequence[int] = (),
    ) -> tuple[LabelMetrics, ...]:
        """Reduce scores, label by label; nothing for one class a sample."""
        if before.predicted is None:
            return ()
        positives = np.sum(before.hit == before.predicted, axis=0).tolist()
        called = names or [*map(str, range(len(positives)))]
        first = _metrics(before, bins, called)
        second: Sequence[Metrics | None] = [None] * len(first)
        if after is not None:
            second = _metrics(after, bins, called)
        return tuple(cls(called[c], positives[c], first[c], second[c], c in shared) for c in range(len(first)))


def _metrics(scores: SampleScores, bins: int, names: Sequence[str]) -> list[Metrics]:
    # the scores of a label say whether it holds, not whether it was predicted
    right = (np.sum(scores.weigh(scores.hit), axis=0) / scores.total).tolist()
    side = PositiveSide.of(scores, Classes(names), bins)
    return [
        replace(Metrics.of(label, bins), accuracy=accuracy, positive=with_slope(positive, label))
        for label, accuracy, positive in zip(side.alone, right, side.positives, strict=True)
    ]
