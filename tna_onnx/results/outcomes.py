"""Results of `guard` and `shift`: what was added to a model, and what it does on samples."""

from __future__ import annotations

from dataclasses import dataclass

from tna_onnx.numerics.metrics import Interval, Metrics


@dataclass(frozen=True)
class GuardOutput:
    """One new output of the model.

    Attributes:
        name: of the graph output.
        role: what it is: `confidence`, `accept`, `set`, `ood`, `ood_alarm` or `decision`.
        promise: what it promises, and of which samples, in a sentence.
        threshold: what its score is compared with, no unit; one for each class where the promise is by class,
            null for a class that every set holds; none for a score.
    """

    name: str
    role: str
    promise: str
    threshold: tuple[float | None, ...]


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
        ece: expected calibration error of the top label over 15 bins, without what noise adds, a fraction.
        ece_interval: its confidence interval, fractions; null for one sample.
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
    """

    data: str
    n: int
    auroc: float
    detected: float
    detected_interval: tuple[float, float]


@dataclass(frozen=True)
class ClassDecision:
    """How one class, or label, is decided.

    Attributes:
        name: of the class; its number where it has no name.
        samples: number of samples that have it.
        decided: number of samples that are decided to have it.
        recall: share of its samples that are decided so, a fraction; null without samples.
        recall_interval: its exact confidence interval, fractions; null likewise.
        precision: share of those decided so that have it, a fraction; null where none is.
        precision_interval: its exact confidence interval, fractions; null likewise.
        false_positives: share of the samples of other classes that are decided so, a fraction; null without any.
    """

    name: str
    samples: int
    decided: int
    recall: float | None
    recall_interval: tuple[float, float] | None
    precision: float | None
    precision_interval: tuple[float, float] | None
    false_positives: float | None


@dataclass(frozen=True)
class DecisionScores:
    """The output `decision` against the labels.

    Attributes:
        classes: each class or label.
        confusion: samples by true class (row) and decision (column, the last one for none), without unit; null for
            several labels a sample, and above 100 classes.
        undecided: share of samples without a decision, a fraction; 0 for several labels a sample.
        macro_f1: mean F1 of the classes, a fraction.
        balanced_accuracy: mean recall of the classes, a fraction; of several labels, of those with and without each.
        mcc: Matthews correlation coefficient, no unit; of several labels their mean.
        cost: mean of the costs that the file was made for, no unit; null without.
    """

    classes: tuple[ClassDecision, ...]
    confusion: tuple[tuple[int, ...], ...] | None
    undecided: float
    macro_f1: float
    balanced_accuracy: float
    mcc: float
    cost: float | None = None


@dataclass(frozen=True)
class OperatingPoint:
    """The thresholds of the output `decision`, and what they reach on samples that they were not chosen on.

    Attributes:
        goal: as it was asked for, such as `recall>=0.95`.
        value: what is maximised, by cross-fitting, no unit; of `cost` the mean cost; null of a bound.
        interval: its confidence interval, no unit; null likewise.
        by_counting: threshold of the second class that costs least on the samples, a fraction; null but of the costs of
            two classes without a column for no decision.
        by_probability: threshold that costs least if the probabilities are right, a fraction; null likewise.
        counting_cost: mean cost by counting, cross-fitted, no unit; null but of `cost`.
        probability_cost: mean cost by the probabilities, no unit; null likewise.
        lowest_cost: mean cost by counting on the very samples, from which the regret of both counts, no unit; null
            likewise.
        cost_gain: interval of how much less counting costs, no unit; above 0 the probabilities are not good enough for
            this decision; null likewise.
    """

    goal: str
    value: float | None = None
    interval: tuple[float, float] | None = None
    by_counting: float | None = None
    by_probability: float | None = None
    counting_cost: float | None = None
    probability_cost: float | None = None
    lowest_cost: float | None = None
    cost_gain: tuple[float, float] | None = None


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
        decision: the output `decision` against the labels.
    """

    data: str
    fresh: bool | None
    n: int
    accuracy: float
    calibration: ConfidenceCalibration | None = None
    accepted: float | None = None
    risk: float | None = None
    risk_interval: tuple[float, float] | None = None
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
    decision: DecisionScores | None = None


@dataclass(frozen=True, kw_only=True)
class WrittenCopy:
    """A copy of a model that was written: what `guard` and `shift` have in common.

    Attributes:
        model: path of the model.
        model_sha256: SHA-256 of its file.
        output: path of the new file; empty if none was written.
        files: paths of all files of the written model: `output`, and its external data, which has to stay beside it.
        class_output: graph output that classifies.
        data: what the labelled samples are, in one line.
        samples: their number, at least 1.
        nodes: number of nodes that were added.
        notes: what the user should know, in sentences.
        provider: execution provider of ONNX Runtime that was obtained.
    """

    model: str
    model_sha256: str
    output: str
    files: tuple[str, ...]
    class_output: str
    data: str
    samples: int
    nodes: int
    notes: tuple[str, ...]
    provider: str


@dataclass(frozen=True, kw_only=True)
class Guard(WrittenCopy):
    """What `guard` wrote, with thresholds from the labelled samples.

    Attributes:
        outputs: what was added.
        set_penalty: of `raps`, added for each class behind the free ones, no unit; 0 without.
        set_free_classes: number of likeliest classes without a penalty; 0 without `raps`.
        fitted_on: number of samples that an outlier score, and the penalty of sets were fitted to; their thresholds
            come from others.
        decisions: what the file decides, on held-out data if they were given.
        bytes: number of bytes by which the file is larger.
        max_change: largest change of a value of an output that was there before, no unit.
        omitted: roles of outputs that were asked for and left out, as the samples cannot promise the level.
        lowest_risk: at which `accept` would have a threshold, where it was left out, a fraction; null up to one half.
        operating_point: of the output `decision`; null without it.
    """

    outputs: tuple[GuardOutput, ...]
    set_penalty: float
    set_free_classes: int
    fitted_on: int
    decisions: Decisions
    bytes: int
    max_change: float
    omitted: tuple[str, ...]
    lowest_risk: float | None
    operating_point: OperatingPoint | None = None


@dataclass(frozen=True)
class ClassFrequency:
    """How frequent a class was, and is.

    Attributes:
        name: of the class, or its index.
        source: frequency that the model's probabilities are calibrated under, a fraction.
        target: frequency that is written, a fraction.
        interval: bootstrap interval of the estimate, fractions; null where the frequency was given.
    """

    name: str
    source: float
    target: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class ShiftEvidence:
    """What the samples without labels say for and against a change of class frequencies alone.

    Attributes:
        changed_p: how often noise alone makes as large a change of frequencies, a fraction.
        gain: log-likelihood of the estimate above that of the old frequencies, nats a sample.
        surprise: mean confidence less what the classes explain, from -1 to 1, no unit.
        other_p: p-value of the test that nothing but class frequencies has changed, a fraction: that of `evaluate`
            without labels, or with more than 32 classes, or fewer than 10 labelled samples of one, of the surprise.
        trusted: whether the result was to be written whatever these say.
    """

    changed_p: float
    gain: float
    surprise: float
    other_p: float
    trusted: bool


@dataclass(frozen=True)
class ShiftEffect:
    """What the new frequencies do to labelled samples, which must come from the target.

    Attributes:
        data: what the samples are, in one line.
        before: metrics of the input model.
        after: metrics of the result.
        accuracy: paired difference of the accuracies, fractions.
        nll: paired difference of the NLLs, nats.
        distance: total variation between the frequencies of these labels and those that were written, a fraction.
    """

    data: str
    before: Metrics
    after: Metrics
    accuracy: Interval
    nll: Interval
    distance: float


@dataclass(frozen=True, kw_only=True)
class Shift(WrittenCopy):
    """What `shift` wrote.

    Attributes:
        method: where the new frequencies come from: `em`, `bbse` or `given`.
        classes: frequencies of each class, in the model's order.
        target_data: what the samples without labels are; empty without.
        target_samples: their number.
        evidence: what they say; null without.
        effect: what labelled samples of the target say; null without.
        placed: where the change is: `bias` of the head, or `nodes` behind the scores.
        max_difference: largest difference between a probability of the file and of the formula, a fraction.
    """

    method: str
    classes: tuple[ClassFrequency, ...]
    target_data: str
    target_samples: int
    evidence: ShiftEvidence | None
    effect: ShiftEffect | None
    placed: str
    max_difference: float
