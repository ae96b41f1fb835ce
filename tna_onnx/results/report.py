"""The result of `calibrate`: what was done, how the file was checked, and what it changed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Literal

from tna_onnx.data.images.known_recipes import RecipeSearch
from tna_onnx.errors import listed
from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.metric import JUDGED, METRICS, POSITIVE_ECE
from tna_onnx.numerics.metrics import Interval, Metrics, Positive
from tna_onnx.numerics.positive import NO_CLASSES, Classes, PositiveSide, positive_difference
from tna_onnx.numerics.reliability import Reliability
from tna_onnx.numerics.residuals import CrossFit, corrected_errors
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.results.as_json import Displayed, Record, difference_record, metric_record, values_text
from tna_onnx.results.details import BinFree, Details, LabelMetrics
from tna_onnx.results.gates import samples_text
from tna_onnx.results.measured import Subgroup
from tna_onnx.results.outcomes import Guard
from tna_onnx.results.verdict import (
    ENOUGH_SAMPLES,
    Recall,
    Standing,
    Word,
    apart_text,
    both_held,
    calibration_of,
    pair_text,
    result_sentence,
    undecided_sentence,
)


@dataclass(frozen=True)
class MovedOutput:
    """An output beside the one that classifies, whose values change with it.

    Attributes:
        name: of the graph output.
        samples: on which it was compared; 0 where it was not, as what enters is no data for the model's inputs, or it
            has no row for each sample.
        moved: those of them on which it changes.
        largest: largest |new - old| (no unit, or that of the output); None for texts, and where it was not compared.
    """

    name: str
    samples: int = 0
    moved: int = 0
    largest: float | None = None

    @property
    def text(self) -> str:
        """One sentence."""
        if not self.samples:
            return f"output '{self.name}' was not compared, although it is computed from what changes"
        text = f"output '{self.name}' changes too, on {self.moved:,} of {self.samples:,} samples"
        if self.largest is None:
            return text
        return f"{text}, by up to {self.largest:.3g}"


@dataclass(frozen=True)
class KeptLabel:
    """An output with the class of each sample that stays the model's own decision beside new probabilities.

    Attributes:
        output: name of the graph output.
        samples: of the comparison, at least 1.
        differing: share of them of which another class is the likeliest, a fraction.
        changing: share of them whose likeliest class is another one than before, a fraction.
        smallest: smallest new probability of a label, a fraction.
    """

    output: str
    samples: int
    differing: float
    changing: float
    smallest: float

    @property
    def text(self) -> str:
        """What a user has to know."""
        text = f"Output '{self.output}' is the model's own decision and is unchanged."
        if not self.differing:
            return text
        text += (
            f" In {100 * self.differing:.1f} % of samples another class is likelier, so the probability of the label "
            f"can be below 50 % (smallest here: {100 * self.smallest:.2g} %)."
        )
        if not self.changing:
            return f"{text} The likeliest class is that of the input model in all samples."
        return (
            f"{text} If your program takes the class from the probabilities, its answers change in "
            f"{100 * self.changing:.1f} % of samples: read '{self.output}', or use --predictions keep. --predictions "
            f"change makes '{self.output}' the likeliest class."
        )


@dataclass(frozen=True)
class Verification:
    """The written file against the numerics.

    Attributes:
        samples: samples run through the file, at least 1.
        max_difference: largest |p - p'| over samples and classes, a probability as a fraction.
        bound: what rounding may make of it at that sample, a probability as a fraction.
        checker: whether the ONNX checker accepts the file; false only where it refuses the input model too.
        other_class: samples to which the file gives another first class than the numerics: ties, to the bound.
        moved: other outputs whose values change.
        batch: the most samples that were run together; nothing is known of larger batches.
    """

    samples: int
    max_difference: float
    bound: float
    checker: bool = True
    other_class: int = 0
    moved: tuple[MovedOutput, ...] = ()
    batch: int = 0


def _share(share: float | None) -> str:
    """Write a share in per cent without the sign; a dash where there is none."""
    if share is None:
        return "-"
    return f"{100 * share:.0f}"


# Standard errors of a paired difference: 97.5 % on one side.
_SIGNIFICANT = 1.96

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

    def holding(self, second: Comparison) -> Comparison:
        """Return the same values with intervals that hold those of another comparison of these samples, too."""
        return replace(self, differences=both_held(self.differences, second.differences))

    @property
    def samples(self) -> str:
        """What kind of samples these are, in a word."""
        # nothing was fitted: the samples are what they are called
        if self.how == "unchanged":
            return "calibration"
        return self.how


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
    classes: Classes = NO_CLASSES,
) -> Comparison:
    """Reduce paired scores to a comparison; the other arguments are those of `paired_differences`.

    `classes`: for P(positive); of two classes `before` and `after` have the labels.
    """
    differences = paired_differences(
        before, after, bins, level=level, seed=seed, cross_fit=cross_fit, same_predictions=same_predictions
    )
    errors: dict[str, Any] = {}
    if cross_fit is not None:
        errors |= corrected_errors(after, cross_fit, bins)
    first = PositiveSide.of(before, classes, bins)
    second = PositiveSide.of(after, classes, bins, cross_fit)
    if first.positives:
        differences[POSITIVE_ECE] = positive_difference(first, second, bins, level, seed=seed)
    old = replace(Metrics.of(before, bins), positive=first.worst(bins, level))
    new = replace(Metrics.of(after, bins), positive=second.worst(bins, level), **errors)
    return Comparison(data, how, old, new, differences)


@dataclass(frozen=True)
class MethodScores:
    """A method that was a choice.

    Attributes:
        method: weight and map in a word.
        metrics: of the calibration samples, each scored by a fit without it.
        words: what it does, for readers who do not know its name.
        error: standard error of its NLL minus the lowest one's, paired by sample, nats; 0 for the lowest.
        keeps_predictions: whether it never changes a predicted class.
        folds: whether it goes into weight and bias; nodes are appended for the others.
        left_out: why a rule of the choice left it out: `accuracy`, `predictions`, `error`; empty if none did.
    """

    method: str
    metrics: Metrics
    words: str = ""
    error: float = 0.0
    keeps_predictions: bool = False
    folds: bool = False
    left_out: str = ""


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
class Taught:
    """How a model follows its teacher, on samples that no fit has seen.

    Attributes:
        model: path of the teacher.
        model_sha256: SHA-256 of its file.
        samples: number of samples.
        kl_before: mean of KL(teacher || model) over the samples, of the input model, in nats.
        kl_after: mean of KL(teacher || model), of the recalibrated model, in nats.
        kl_change: ends of the interval of the change, in nats.
        agreement_before: samples whose predicted class is the teacher's, of the input model, a fraction.
        agreement_after: samples whose predicted class is the teacher's, of the recalibrated model, a fraction.
        agreement_change: ends of the interval of the change, a fraction.
        top5_before: the teacher's first five classes among the input model's, a fraction; None up to 5 classes.
        top5_after: the same five among the recalibrated model's, a fraction; None up to 5 classes.
        metrics: of the teacher against the labels; None where there are none.
    """

    model: str
    model_sha256: str
    samples: int
    kl_before: float
    kl_after: float
    kl_change: tuple[float, float]
    agreement_before: float
    agreement_after: float
    agreement_change: tuple[float, float]
    top5_before: float | None
    top5_after: float | None
    metrics: Metrics | None

    @property
    def sentence(self) -> str:
        """Whether the model follows its teacher more closely than before."""
        low, high = self.kl_change
        how = "as closely as before"
        if high < 0:
            how = "more closely"
        if low > 0:
            how = "less closely"
        return (
            f"On {self.samples:,} samples the model follows its teacher {how}: KL divergence "
            f"{self.kl_before:.4f} -> {self.kl_after:.4f} nats, the same class for {100 * self.agreement_before:.1f} % "
            f"-> {100 * self.agreement_after:.1f} % of them"
        )


# Labels whose thresholds fit into a sentence.
_NAMED_LABELS = 8


@dataclass(frozen=True)
class KeptDecision:
    """The threshold that keeps today's decisions on a class or label, and what happens at one half.

    Attributes:
        name: of the class, or of the label.
        before: threshold of the input model, 0.5, a fraction; of an output that holds logits 0, no unit.
        threshold: the output of the new file is above it where that of the input is above `before`, for every sample;
            null where no threshold keeps these decisions.
        recall_before: samples with it that are above `before` in the input model, a fraction; null without any.
        precision_before: samples above `before` in the input model that have it, a fraction; null without any.
        recall_after: samples with it that are above `before` in the new file, a fraction; null without any.
        precision_after: samples above `before` in the new file that have it, a fraction; null without any.
    """

    name: str
    before: float
    threshold: float | None
    recall_before: float | None
    precision_before: float | None
    recall_after: float | None
    precision_after: float | None


@dataclass(frozen=True)
class Alternative:
    """What `--predictions change` would take, cross-fitted on the calibration samples.

    Attributes:
        method: weight and map in a word.
        threshold: probability of the positive class to which it takes 0.5, a fraction; null where there is none.
        recall_before: recall of the positive class at 0.5 in the file that was written, a fraction.
        recall_after: recall of the positive class at 0.5 with the other method, a fraction.
    """

    method: str
    threshold: float | None
    recall_before: float | None
    recall_after: float | None


@dataclass(frozen=True)
class Report(Displayed):
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
        recall: recall by class and balanced accuracy on the same samples.
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
        teacher: how the model follows its teacher, before and after; None without one.
        kept_decisions: threshold of each label, or of the positive class of one sigmoid, that keeps the decisions of
            the input model; empty where predictions are kept.
        alternative: what would make P(positive) right, where predictions are kept and it is off; null elsewhere.
        subgroups: parts of the samples of `comparison` under the recalibrated model, the worst first; empty where none
            are asked for.
        protected: whether predictions were kept, or might change only where each class gains.
        resolution: d of (p + d) / (1 + C d), which stands for p in the map and in the NLL before, for a model whose
            probabilities come in steps; 0 for others.
        details: the numbers behind the figures; there if figures or an HTML report were asked for.
        changes: what the new file changes, written or not.
        changed_predictions: share of the samples of `comparison` whose predicted class is another one, a fraction.
        kept_label: the label output that stays the model's own decision where the likeliest class may be another; None
            where there is none.
        dry_run: whether no file was written because of `dry_run`.
        classes_unseen: classes without a calibration sample.
        classes_scarce: classes with fewer than five, but with one at least.
        changing: method that would be chosen if predicted classes might change; empty where that is no other.
        missed: gates that the result missed, a line each; no file was written then.
        guard: the decisions that were added to the file, if any.
        labels: each label of a model with several a sample, on the samples of `comparison`; empty for others.
        output_sha256: SHA-256 of the written file, its external data apart; empty if none was written.
        files: paths of all files of the written model: `output`, and its external data, which has to stay beside it.
        recipe_search: how the preprocessing of images was found by their labels; None where something says what it is.
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
    recall: Recall
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
    kept_label: KeptLabel | None = None
    dry_run: bool = False
    classes_unseen: tuple[int, ...] = ()
    classes_scarce: tuple[int, ...] = ()
    changing: str = ""
    missed: tuple[str, ...] = ()
    guard: Guard | None = None
    labels: tuple[LabelMetrics, ...] = ()
    output_sha256: str = ""
    files: tuple[str, ...] = ()
    recipe_search: RecipeSearch | None = None
    teacher: Taught | None = None
    subgroups: tuple[Subgroup, ...] = ()
    kept_decisions: tuple[KeptDecision, ...] = ()
    alternative: Alternative | None = None
    protected: bool = False
    resolution: float = 0.0

    def __repr__(self) -> str:
        """Say in one line what was done, and what it changed."""
        c = self.comparison
        values = values_text(c.before, c.after)
        name = PurePath(self.model).name
        return f"<Report on {name}: {self.method}, {self.word}; {values}; {samples_text(c.before, c.samples)}>"

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
    def gates_met(self) -> list[str]:
        """Flags of the gates that were asked for; empty where one was missed. Those that every run has are none."""
        gates = self.settings.get("gates")
        if self.missed or not isinstance(gates, dict):
            return []
        limits = [name for name, limit in gates.items() if limit is not None]
        flags = [f"--{name.replace('_', '-')}" for name in limits if name not in ("max_accuracy_drop", "require")]
        if gates.get("require") == "improvement":
            flags.append("--require improvement")
        return flags

    @property
    def kind(self) -> Literal["class", "label"]:
        """What a sample has: one class, or several labels."""
        if self.labels:
            return "label"
        return "class"

    @property
    def is_copy(self) -> bool:
        """Whether weight and scores are those of the input."""
        return self.angle == 0 and self.map == "none"

    @property
    def already_calibrated(self) -> bool:
        """Whether the input was chosen among several methods: the output is the input."""
        return bool(self.methods) and self.method == "none"

    @property
    def off_before(self) -> bool:
        """Whether the input's probabilities are off by more than chance explains."""
        positive = self.comparison.before.positive
        return (positive or self.bin_free_before).off

    @property
    def refused(self) -> str:
        """The method of the lowest NLL, where that is significantly below the input's and raises the ECE."""
        lowest = min(self.methods, key=lambda method: method.metrics.nll)
        original = next((method for method in self.methods if method.method == "none"), lowest)
        gains = original.metrics.nll - lowest.metrics.nll > _SIGNIFICANT * original.error
        if gains and lowest.left_out == "error":
            return lowest.method
        return ""

    @property
    def standing(self) -> Standing:
        """Accuracy, NLL, ECE and the objective judged together."""
        return Standing.of(self.comparison.differences, self.objective)

    @property
    def undecided(self) -> bool:
        """Whether samples are too few to tell: nothing is significant, in fewer than 200 samples or ten errors."""
        if self.word != "no significant change":
            return False
        if self.standing.few_errors is not None:
            return True
        before = self.comparison.before
        if min(before.n, before.groups or before.n, before.effective_n or before.n) >= ENOUGH_SAMPLES:
            return False
        return not (self.already_calibrated and (self.off_before or self.changing or self.refused))

    @property
    def still_off(self) -> bool:
        """Whether predictions were protected, and P(positive) is off by more than chance explains."""
        positive = self.comparison.after.positive
        return self.protected and positive is not None and positive.off

    @property
    def word(self) -> Word:
        """What the result comes to: never `improved` where P(positive) is still off."""
        word = self.standing.word
        if word != "worse" and self.still_off:
            return "still off"
        return word

    @property
    def _threshold_sentence(self) -> str:
        """Say what happens at one half, and which threshold keeps today's decisions; empty where they stay."""
        if not self.kept_decisions or self.already_calibrated:
            return ""
        where = f"on all {samples_text(self.comparison.before, self.comparison.samples)}"
        first = self.kept_decisions[0]
        ending = f"; --predictions keep keeps them at {first.before:g}"
        if len(self.kept_decisions) > 1:
            return f". Decisions at {first.before:g} change: {self._thresholds(where)}{ending}"
        text = (
            f". At {first.before:g} the recall of {first.name} goes from {_share(first.recall_before)} to "
            f"{_share(first.recall_after)} %, its precision from {_share(first.precision_before)} to "
            f"{_share(first.precision_after)} %. "
        )
        if first.threshold is None:
            return f"{text}No threshold of the new output keeps today's decisions {where}{ending}"
        return f"{text}The threshold {first.threshold!r} keeps today's decisions {where}{ending}"

    def _thresholds(self, where: str) -> str:
        """Name the threshold of each label, or say where they stand if they are many."""
        lost = [label.name for label in self.kept_decisions if label.threshold is None]
        values = {label.name: label.threshold for label in self.kept_decisions if label.threshold is not None}
        text = f"for {listed(lost)} no threshold keeps today's {where}"
        if not values:
            return text
        named = ", ".join(f"{name}: {value!r}" for name, value in values.items())
        if len(values) > _NAMED_LABELS:
            named = f"from {min(values.values()):.3g} to {max(values.values()):.3g} (page and --json list them)"
        thresholds = f"a threshold for each label, {named}, keeps today's {where}"
        if lost:
            return f"{thresholds}; {text}"
        return thresholds

    def _still_off_sentence(self, positive: Positive) -> str:
        """Say that P(positive) is off, and what to type."""
        subject = f"P({positive.name})"
        have_it = f"are {positive.name}"
        if positive.labels > 1:
            subject = f"The probability of label {positive.name}"
            have_it = "have it"
        answers = "keeps the answer"
        if self.changed_predictions:
            answers = f"changes {100 * self.changed_predictions:.1f} % of the answers"
        text = (
            f"{subject} is {100 * positive.mean:.1f} % on average and {100 * positive.frequency:.1f} % of samples "
            f"{have_it}: it is off by {100 * positive.ece:.1f} points on average (by chance alone "
            f"{100 * positive.ece_expected:.1f}). The file written {answers} at 0.5"
        )
        change = self.alternative
        if change is None:
            return f"{text}. Calibrated probabilities may need other answers: --predictions change"
        text += ". --predictions change gives calibrated probabilities; the recall at 0.5 is then "
        text += f"{_share(change.recall_after)} %"
        if not self.changed_predictions:
            text += f", now {_share(change.recall_before)} %"
        if change.threshold is not None:
            text += f", and the threshold {change.threshold!r} keeps the decisions"
        return f"{text}. --decide f1 adds an output 'decision' with a threshold of its own"

    @property
    def summary(self) -> str:
        """One sentence for readers who know no metric; it says the same as the verdict."""
        c = self.comparison
        # without labels the metrics are against the teacher, and a model may follow it closely and be no better
        if self.teacher is not None and (self.teacher.metrics is None or self.already_calibrated):
            return self.teacher.sentence
        positive = c.after.positive
        if positive is not None and self.word == "still off":
            return self._still_off_sentence(positive)
        if self.undecided:
            sentence = undecided_sentence(c.before, c.differences["nll"], copied=self.already_calibrated)
            return sentence + self._threshold_sentence
        if self.already_calibrated:
            return self._why_copied[0]
        sentence = result_sentence(
            self.standing.word,
            c.before,
            c.after,
            c.differences,
            self.recall.worst,
            self.kind,
            chance=self.bin_free_after.ece_expected,
        )
        return sentence + self._threshold_sentence

    @property
    def verdict(self) -> str:
        """One sentence on accuracy, NLL, ECE and the objective, with their intervals, and N."""
        c = self.comparison
        samples = samples_text(c.before, c.samples)
        positive = c.after.positive
        if positive is not None and self.word == "still off":
            values = ", ".join(JUDGED[name].value(c.after.value(name)) for name in ("nll", POSITIVE_ECE, "accuracy"))
            return f"still off by more than chance (p {positive.p:.2g}), with predictions kept: {values}; {samples}"
        if self.already_calibrated:
            return self._why_copied[1]
        judged = self.standing.sentence(c.before, c.after, c.differences)
        worst = self.recall.worst
        if worst is not None:
            judged += f"; {self.kind} {worst.text()}"
        level = c.differences[self.objective].level
        if c.before.groups is not None:
            samples += f" in {c.before.groups:,} groups"
        return f"{judged}; {samples}, {100 * level:g} % intervals of the differences"

    @property
    def _why_copied(self) -> tuple[str, str]:
        """Why the file is a copy of the input: for readers who know no metric, and with its numbers."""
        before = self.comparison.before
        samples = samples_text(before, self.comparison.samples)
        names = ("nll", calibration_of(self.comparison.differences), "accuracy")
        values = ", ".join(JUDGED[name].value(before.value(name)) for name in names)
        best = f"no method is significantly better than the input model ({values})"
        if self.undecided:
            return "", f"too few samples to tell, and left as it is: {best}; {samples}"
        if self.changing:
            return (
                "The model stays as it is: on these samples no recalibration that keeps its predictions is "
                f"significantly better; {self.changing} would be, but it changes them",
                f"left as it is: on {samples} no method that keeps predicted classes does significantly better than "
                f"the input model ({values}); --predictions change would take {self.changing}",
            )
        if self.refused:
            return (
                f"The model stays as it is: on these samples {self.refused} lowers the log loss but moves "
                f"{pair_text(before)} further apart, and nothing else is better",
                f"left as it is: {self.refused} has a significantly lower NLL on {samples} and a higher ECE, and no "
                f"other method does better than the input model ({values})",
            )
        distance = apart_text(before, self.bin_free_before.ece_expected)
        if self.off_before:
            return (
                f"The model is not calibrated, but nothing that was tried is better, so it stays as it is: {distance}",
                f"not calibrated, and left as it is: on {samples} {best}",
            )
        return (
            f"On these samples the model needs no recalibration: {distance}",
            f"already calibrated: on {samples} {best}",
        )


@dataclass(frozen=True)
class Card:
    """The result of `card`: what describes a recalibrated model to others.

    Attributes:
        text: the model card: Markdown behind a header of YAML, as the Hugging Face Hub reads it.
    """

    text: str
