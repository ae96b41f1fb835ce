"""What `shift` was asked for, all that it opens, and the class frequencies before and after (`find_frequencies`).

They are estimated from predictions on samples without labels (`estimate`), with tests that only they have changed;
`tna_onnx.data.sample_info.read_prior` reads those that the user states.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.options import Data
from tna_onnx.data.sample_info import read_prior, restricted
from tna_onnx.data.source import Source
from tna_onnx.data.suspicion import checked_warnings
from tna_onnx.engine.scoring import with_projections
from tna_onnx.errors import CheckFailed, DataError, UnsupportedModel, UsageError, listed
from tna_onnx.extraction.classifier import OpenModel, read_classifier
from tna_onnx.extraction.head_check import CheckedHead, check_readout
from tna_onnx.extraction.opened_samples import open_inputs
from tna_onnx.graph.load import PREFIX, Model
from tna_onnx.graph.readout import ClassOutput, Head, Readout, require_one_prediction
from tna_onnx.graph.scores import find_readout
from tna_onnx.numerics import prior_shift
from tna_onnx.numerics.reference import LEAST, MOST_CLASSES, Reference
from tna_onnx.pipeline.job import ModelJob
from tna_onnx.pipeline.opening import Opened
from tna_onnx.pipeline.other_outputs import find_others
from tna_onnx.pipeline.sample_checks import DigestedSamples, check_target
from tna_onnx.progress import Progress
from tna_onnx.results.outcomes import ShiftEvidence
from tna_onnx.runtime import parse_device
from tna_onnx.shifting.shift_settings import ShiftSettings

FloatArray = NDArray[np.float64]

_log = logging.getLogger("tna_onnx.shift")


@dataclass(frozen=True, eq=False)
class ShiftJob(ModelJob):
    """The request for new class frequencies: `calib` is like the training data, `held_out` like the data to come.

    Raises:
        UsageError: frequencies that are both given and to be estimated, or neither.
    """

    target: Data | None = None  # samples without labels of the data to come; None where their frequencies are given
    settings: ShiftSettings = field(default_factory=ShiftSettings)  # where the frequencies come from

    @property
    def method(self) -> str:
        """How the frequencies to come are known."""
        return "given" if self.target is None else self.settings.estimator

    def __post_init__(self) -> None:
        stated = (self.target is not None, self.settings.target_prior is not None, bool(self.settings.only))
        if sum(stated) != 1:
            raise UsageError(
                "expected either class frequencies (--target-prior FILE or uniform), samples without labels to "
                "estimate them on (--target-data), or the classes that can occur (--only CLASS,...)"
            )


# What the graph does not show behind an appended map; provenance tells.
_KINDS = {"logits": "logits", "positive_logit": "logit"}


@dataclass(frozen=True, eq=False)
class ShiftSamples(Opened):
    """The model, and labelled samples of the data that it was made for, as `source`."""

    probed: CheckedHead  # where its scores are
    unlabelled: Source | None  # samples of the target without labels; None where its frequencies are given
    unmoved: tuple[str, ...]  # other outputs that stay: those with the class of each sample among them


def open_shift(job: ShiftJob) -> ShiftSamples:
    """Open model and data, cheapest first."""
    model, output = read_classifier(job.model, job.options)
    _refuse_earlier_work(model)
    require_one_prediction(model, output, "class frequencies are estimated on samples of one prediction each")
    readout = _readout(model, job, output)
    opened = OpenModel(model, readout, parse_device(job.device), job.calib, output)
    data, source = open_inputs(opened, job.calib)
    # labels that the samples of the target bring are not read: an estimate must not know them
    unlabelled: Source | None = None
    target: DigestedSamples | None = None
    notes = source.notes
    if job.target is not None:
        unlabelled = open_inputs(opened, job.target, labels=False)[1]
        if not len(unlabelled):
            raise DataError(f"--target-data: {unlabelled.describe()}: expected samples, found none")
        target = DigestedSamples.of(unlabelled)
        notes = (*notes, *unlabelled.notes)
    held_out: Source | None = None
    evaluated: DigestedSamples | None = None
    if job.held_out is not None:
        held_out = open_inputs(opened, job.held_out)[1]
        evaluated = DigestedSamples.of(held_out)
    notes = (*check_target(model, DigestedSamples.of(source), target, evaluated, job.calib.limits), *notes)
    size = job.batch_size
    probed = check_readout(opened, readout, opened.session, source, size)
    notes += probed.notes
    other_outputs = find_others(model, probed.readout, output, opened.device, source, size)
    notes += tuple(
        f"output '{label.name}' is the model's own decision and is unchanged, so another class may be likelier: take "
        "the class from the probabilities to have it follow the new class frequencies"
        for label in other_outputs.labels
    )
    unmoved = (*other_outputs.rest, *(label.name for label in other_outputs.labels))
    return ShiftSamples(opened, data, source, held_out, size, notes, probed, unlabelled, unmoved)


def _refuse_earlier_work(model: Model) -> None:
    entries = model.provenance
    if "guard" in entries:
        raise UnsupportedModel(
            f"{model.name}: has been guarded already, with thresholds for its probabilities as they are; shift the "
            "model without these outputs, and guard the result with samples of the target"
        )
    if "shift" in entries:
        raise UnsupportedModel(f"{model.name}: has been shifted already; start from the model before that shift")


def _readout(model: Model, job: ShiftJob, output: ClassOutput) -> Readout:
    """Return where the scores are, also behind a map that this package added."""
    options = job.options
    kind = options.output_kind
    name = options.output_name
    if any(tensor.startswith(f"{PREFIX}/") for tensor in model.producers):
        kind = kind or _KINDS.get(output.kind)  # type: ignore[assignment]  # words of the same choice
        name = name or output.name
    # the word names a head by its output, which leads to the scores behind a map too
    if options.head == output.name:
        options = replace(options, head=None)
    return find_readout(model, options.head, name, kind)


@dataclass(frozen=True, eq=False)
class FoundFrequencies:
    """Class frequencies before and after, and how they were obtained."""

    source: FloatArray  # (C,) before
    target: FloatArray  # (C,) after; of estimates with half a sample more in each class
    old: NDArray[np.float32]  # (M, C) probabilities of the labelled samples
    notes: tuple[str, ...]  # what the user should know, in sentences
    interval: FloatArray | None = None  # (C, 2) bootstrap interval of an estimate
    evidence: ShiftEvidence | None = None  # what else the samples of the target say


def find_frequencies(job: ShiftJob, opened: ShiftSamples, progress: Progress) -> FoundFrequencies:
    """Read or estimate the class frequencies, and refuse labels that would make wrong ones."""
    settings = job.settings
    limits = job.calib.limits
    classes = opened.output.n_classes
    details = {
        name: read_prior(value, opened.classifier.names, classes, f"--{name}-prior", limits)
        for name, value in (("source", settings.source_prior), ("target", settings.target_prior))
        if value is not None
    }
    where = opened.source.describe()
    labels = opened.source.labels
    source = details.get("source")
    if source is None and settings.only:
        # these frequencies cancel
        source = prior_shift.smoothed(np.bincount(labels, minlength=classes) / len(labels), len(labels))
    elif source is None:
        source = source_counts(labels, opened.names, where)
    if settings.only:
        details["target"] = restricted(source, settings.only, opened.classifier.names)
    features = _features(opened)

    def scored(samples: Source, stage: str) -> list[NDArray[Any]]:
        return with_projections(opened.session, opened.output, features, samples, opened.batch_size, stage, progress)

    old, *projected = scored(opened.source, "source")
    # wrong labels would make a wrong confusion matrix, and wrong frequencies
    suspicion = opened.suspicion(old.argmax(axis=1), lambda: old.max(axis=1))
    warnings = checked_warnings(suspicion, opened.classifier.names, where, trusted=settings.trust_labels)
    note = "" if settings.only else off_centre(old, labels, source, opened.names)
    notes = tuple(filter(None, (*warnings, note)))
    if opened.unlabelled is None:
        return FoundFrequencies(source, details["target"], old, notes)
    new, *new_projected = scored(opened.unlabelled, "target")
    observed = prior_shift.Observed(labels, old, new, source, counted="source" not in details)
    estimated = estimate(observed, settings, opened.unlabelled.describe(), note, (projected, new_projected))
    _log.info("target: %s samples", f"{len(new):,}")
    return replace(estimated, notes=(*notes, *estimated.notes))


def _features(opened: ShiftSamples) -> list[str]:
    """Return the tensor of the features, which the test looks at too; none where it is an input or of integers."""
    head = opened.probed.readout
    if not isinstance(head, Head) or head.features_transposed or not head.features_type.startswith("float"):
        return []
    return [name for name in opened.session.outputs if name == head.features]


# Over all classes, a calibrated model gets a note once in a hundred runs; and only where it matters.
_LEVEL_OF_CLASSES = 0.01
_LARGE_SHARE = 0.1


def off_centre(
    probabilities: NDArray[np.floating], labels: NDArray[np.int64], source: NDArray[np.float64], names: Sequence[str]
) -> str:
    """Return a note if the mean probability of a class differs from its frequency, else an empty text.

    Samples are weighted so that classes have their frequencies p: a model that is calibrated under p then passes.

    `probabilities`: (M, C) of labelled samples; `labels`: class indices (M,); `source`: (C,) frequencies p.
    """
    m, classes = probabilities.shape
    counts = np.bincount(labels, minlength=classes)
    weights = (source * m / np.maximum(counts, 1))[labels]
    residuals = -np.asarray(probabilities, np.float64)
    residuals[np.arange(m), labels] += 1
    residuals *= weights[:, None]
    mean = residuals.mean(axis=0)
    error = residuals.std(axis=0) / np.sqrt(m)
    limit = NormalDist().inv_cdf(1 - _LEVEL_OF_CLASSES / (2 * classes))
    share = np.abs(mean) / source
    off = (np.abs(mean) > limit * error) & (share > _LARGE_SHARE)
    if not off.any():
        return ""
    worst = int(np.argmax(np.where(off, share, 0)))
    return (
        f"the model gives class '{names[worst]}' a mean probability of {source[worst] - mean[worst]:.4f}, and its "
        f"frequency is {source[worst]:.4f}: {int(off.sum())} classes are off, and EM carries that over; calibrate with "
        "--map bias first, or say the frequencies of the calibration data with --source-prior"
    )


# Below this, frequencies are mostly noise: a class of average frequency is known to a third of itself.
_MIN_A_CLASS = 10
# What else has changed counts if noise alone makes it once in a hundred times, and if it is large enough to matter: if
# the mean confidence is off by a point.
_LEVEL = 0.01
_LARGE_SURPRISE = 0.01


def source_counts(labels: NDArray[np.int64], names: Sequence[str], where: str) -> FloatArray:
    """Return the (C,) frequencies of labels, smoothed by half a sample per class."""
    counts = np.bincount(labels, minlength=len(names))
    absent = [names[k] for k in np.flatnonzero(counts == 0).tolist()]
    if absent:
        raise DataError(
            f"{where}: no sample of the classes {listed(absent)}, so their frequency is not known; give samples of "
            "them, or say the frequencies with --source-prior"
        )
    return prior_shift.smoothed(counts / len(labels), len(labels))


def estimate(
    observed: prior_shift.Observed,
    settings: ShiftSettings,
    where: str,
    off: str = "",
    projected: tuple[Sequence[FloatArray], Sequence[FloatArray]] = ((), ()),
) -> FoundFrequencies:
    """Estimate the frequencies, and test what the estimate assumes.

    `off`: what speaks against the calibration of the model, in a sentence; empty for nothing. `projected`: projections
    of the features of the labelled samples and of the others, if there are any.
    """
    n, classes = observed.probabilities.shape
    if n < _MIN_A_CLASS * classes:
        raise DataError(
            f"{where}: {n:,} samples for {classes:,} classes; expected at least {_MIN_A_CLASS * classes:,}, "
            "because frequencies of fewer are mostly noise; give more samples, or --target-prior"
        )
    by_matrix = settings.estimator == "bbse"
    against = prior_shift.invertible(observed, settings.seed)
    if against and by_matrix:
        raise DataError(f"{where}: --estimator bbse cannot be used: {against}; use em, or give more --calib")
    fit = prior_shift.fit_em(observed.probabilities, observed.source)
    estimated = fit.priors[0]
    drawn = prior_shift.redraw(observed, estimated, settings.draws, settings.seed, with_black_box=by_matrix)
    other_p = None if against else _other_p(observed, projected)
    evidence = _evidence(observed, float(fit.gain[0]), estimated, drawn, other_p, settings)
    notes = _judged(evidence, where, off)
    spread = drawn.em
    if by_matrix:
        if drawn.black_box is None:
            raise DataError(
                f"{where}: --estimator bbse cannot be used: the confusion matrix is singular in some of the bootstrap "
                "samples; use em, or give more --calib"
            )
        shares = np.bincount(observed.probabilities.argmax(axis=1), minlength=classes) / n
        estimated = prior_shift.black_box(prior_shift.conditional(observed.joint), shares)
        spread = drawn.black_box
    tail = (1 - settings.confidence_level / 100) / 2
    target = prior_shift.smoothed(estimated, n)
    low, high = np.quantile(spread, [tail, 1 - tail], axis=0)
    # half a sample more puts a frequency near 0 above all draws
    interval = np.stack([np.minimum(low, target), np.maximum(high, target)], axis=1)
    return FoundFrequencies(observed.source, target, observed.old, tuple(notes), interval, evidence)


def _other_p(
    observed: prior_shift.Observed, projected: tuple[Sequence[FloatArray], Sequence[FloatArray]]
) -> float | None:
    """Return the p-value of `numerics.reference`; None where there are too many classes for it, or too few samples."""
    counts = np.bincount(observed.labels, minlength=observed.n_classes)
    if observed.n_classes > MOST_CLASSES or counts.min() < LEAST:
        return None
    old, new = projected
    try:
        reference = Reference.fit(observed.old, observed.labels, *old)
        return reference.expected(observed.probabilities, *new)[2]
    except (DataError, np.linalg.LinAlgError):
        return None


def _evidence(
    observed: prior_shift.Observed,
    gain: float,
    em: FloatArray,
    drawn: prior_shift.Draws,
    other_p: float | None,
    settings: ShiftSettings,
) -> ShiftEvidence:
    surprise_value = prior_shift.surprise(observed, em)
    if other_p is None:
        other_p = prior_shift.p_of_normal(surprise_value, drawn.surprise)
    return ShiftEvidence(
        changed_p=prior_shift.p_of_draws(gain, prior_shift.gains_by_noise(observed, settings.draws, settings.seed)),
        gain=max(gain, 0.0),
        surprise=surprise_value,
        other_p=other_p,
        trusted=settings.trust_shift,
    )


def _judged(evidence: ShiftEvidence, where: str, off: str) -> list[str]:
    """Return the evidence against a change of frequencies alone, as notes."""
    notes: list[str] = []
    if evidence.other_p < _LEVEL:
        text = f"the mean confidence is {100 * evidence.surprise:+.1f} points off what the classes explain"
        if abs(evidence.surprise) > _LARGE_SURPRISE and not evidence.trusted:
            # a model that is off before any shift is the likelier reason
            advice = off or "calibrate with --map bias, or on labelled samples of the target"
            raise CheckFailed(
                f"{where}: more than class frequencies has changed since --calib, or the model is not calibrated "
                f"(p = {evidence.other_p:.2g}): {text}; {advice}; --trust-shift writes the result regardless"
            )
        notes.append(
            f"more than class frequencies has changed (p = {evidence.other_p:.2g}), which label shift does not "
            f"explain: {text}"
        )
    if evidence.changed_p > 0.05:
        notes.append(f"noise alone could explain the change of frequencies (p = {evidence.changed_p:.2g})")
    return notes
