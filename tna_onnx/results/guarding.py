"""The result of `guard`: outputs that were added to a model, and what they decide on samples."""

from __future__ import annotations

from dataclasses import dataclass

from tna_onnx.results.details import RiskCoverage

__all__ = ["ConfidenceCalibration", "ConfidenceGroup", "Decisions", "Detection", "Guard", "GuardInput", "GuardOutput"]


@dataclass(frozen=True)
class GuardOutput:
    """One new output of the model.

    Attributes:
        name: of the graph output.
        role: what it is: `confidence`, `accept`, `set`, `posterior`, `ood` or `ood_alarm`.
        promise: what it promises, and of which samples, in a sentence.
        threshold: what its score is compared with, no unit; one for each class where the promise is by class, null for
            a class that every set holds; none for a score.
    """

    name: str
    role: str
    promise: str
    threshold: tuple[float | None, ...]


@dataclass(frozen=True)
class GuardInput:
    """What whoever runs the file may choose: a graph input that callers may leave out.

    Attributes:
        name: of the graph input: a float32 scalar, or (C,) of `class_prior`.
        role: `coverage`, `risk` or `class_prior`.
        default: its value where the caller gives none, fractions; one for each class of `class_prior`.
        lowest: smallest level that it tells apart, a fraction; null of `class_prior`.
        highest: largest of them, a fraction; above, every set holds all classes; null of `class_prior`.
    """

    name: str
    role: str
    default: float | tuple[float, ...]
    lowest: float | None
    highest: float | None


@dataclass(frozen=True)
class ConfidenceGroup:
    """Sets of samples of about the same confidence.

    Attributes:
        low: lowest confidence among them, a fraction.
        high: highest confidence among them, a fraction.
        n: number of samples, at least 1.
        coverage: sets that hold the true class, as a fraction.
        mean_set_size: classes in a set on average, in units of classes.
    """

    low: float
    high: float
    n: int
    coverage: float
    mean_set_size: float


@dataclass(frozen=True)
class ConfidenceCalibration:
    """How far the confidence is off, on samples that it was not fitted on.

    Attributes:
        ece: expected calibration error of the top label over 15 bins, a fraction; noise makes it larger than it is.
        ece_interval: confidence interval of the error without that noise, fractions; null for one sample.
        nll: negative log-likelihood of whether samples are classified right, nats.
        nll_interval: its confidence interval, nats; null below 10 samples that are right, or 10 that are wrong.
        level: of the intervals, a fraction.
    """

    ece: float
    ece_interval: tuple[float, float] | None
    nll: float
    nll_interval: tuple[float, float] | None
    level: float


@dataclass(frozen=True)
class Detection:
    """How well the outlier score tells unknown samples from the known ones.

    Attributes:
        data: what the unknown samples are, in one line.
        n: number of unknown samples, at least 1.
        auroc: probability that an unknown sample has a larger score than a known one, a fraction.
        detected: unknown samples that raise the alarm, as a fraction.
        detected_interval: its exact confidence interval, fractions.
        roc_false_alarms: known samples above each of some thresholds, from the highest down, fractions.
        roc_detected: unknown samples above them, fractions.
    """

    data: str
    n: int
    auroc: float
    detected: float
    detected_interval: tuple[float, float]
    roc_false_alarms: tuple[float, ...]
    roc_detected: tuple[float, ...]


@dataclass(frozen=True)
class Decisions:
    """What the written file decides on samples. Of an output that was not added, None.

    Attributes:
        data: what the samples are, in one line.
        fresh: whether no threshold was chosen on them; null where this is not known.
        n: number of samples, at least 1.
        accuracy: as a fraction.
        calibration: how far the confidence is off.
        accepted: samples that are accepted, as a fraction.
        risk: accepted samples that are classified wrong, as a fraction of the accepted; None without any.
        risk_interval: its exact confidence interval, fractions.
        risk_coverage: errors among the samples with the highest confidence, for all other thresholds.
        coverage: sets that hold the true class, as a fraction.
        coverage_interval: its exact confidence interval, fractions.
        class_coverage: the same for the samples of each class, fractions; null for classes without samples.
        class_set_size: classes in a set on average for the samples of each class, in units of classes; null likewise.
        by_confidence: coverage and set size of samples of low to high confidence, in groups of the same size.
        mean_set_size: classes in a set on average, in units of classes.
        empty_sets: sets without a class, as a fraction.
        single_sets: sets with one class, as a fraction.
        full_sets: sets with all classes, which say nothing, as a fraction.
        alarms: samples that raise the outlier alarm, as a fraction.
        detection: of unknown samples, if they were given.
    """

    data: str
    fresh: bool | None
    n: int
    accuracy: float
    calibration: ConfidenceCalibration | None = None
    accepted: float | None = None
    risk: float | None = None
    risk_interval: tuple[float, float] | None = None
    risk_coverage: RiskCoverage | None = None
    coverage: float | None = None
    coverage_interval: tuple[float, float] | None = None
    class_coverage: tuple[float | None, ...] | None = None
    class_set_size: tuple[float | None, ...] | None = None
    by_confidence: tuple[ConfidenceGroup, ...] | None = None
    mean_set_size: float | None = None
    empty_sets: float | None = None
    single_sets: float | None = None
    full_sets: float | None = None
    alarms: float | None = None
    detection: Detection | None = None


@dataclass(frozen=True)
class Guard:
    """What `guard` wrote.

    Attributes:
        model: path of the model.
        model_sha256: SHA-256 of its file.
        output: path of the new file; empty if none was written.
        class_output: graph output that classifies.
        outputs: what was added.
        inputs: levels that whoever runs the file may choose; none by default.
        set_temperature: at which sets are made, no unit; 1 for the probabilities of the output.
        set_penalty: of `raps`, added for each class behind the free ones, no unit; 0 without.
        set_free_classes: number of likeliest classes without a penalty; 0 without `raps`.
        data: what the samples are that the thresholds come from, in one line.
        samples: their number, at least 1.
        fitted_on: number of samples that an outlier score, and temperature and penalty of sets were fitted to; their
            thresholds come from others.
        decisions: what the file decides, on held-out data if they were given.
        nodes: number of nodes that were added, at least 1.
        bytes: number of bytes by which the file is larger.
        max_change: largest change of a value of an output that was there before, no unit.
        omitted: roles of outputs that were asked for and left out, as the samples cannot promise the level.
        lowest_risk: at which `accept` would have a threshold, where it was left out, a fraction; null up to one half.
        notes: what the user should know, in sentences.
        provider: execution provider of ONNX Runtime that was obtained.
    """

    model: str
    model_sha256: str
    output: str
    class_output: str
    outputs: tuple[GuardOutput, ...]
    inputs: tuple[GuardInput, ...]
    set_temperature: float
    set_penalty: float
    set_free_classes: int
    data: str
    samples: int
    fitted_on: int
    decisions: Decisions
    nodes: int
    bytes: int
    max_change: float
    omitted: tuple[str, ...]
    lowest_risk: float | None
    notes: tuple[str, ...]
    provider: str
