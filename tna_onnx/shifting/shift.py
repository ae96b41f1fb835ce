"""`shift`: open a model and samples, find the class frequencies, move the logits by them, check the file, measure it.

s' = s + d: where nothing else reads the scores of a head with a float bias, the bias alone changes; else an Add follows
the logits, or log p + d and a Softmax the probabilities. Frequencies that are not stated are estimated from predictions
on samples without labels, with tests that only they have changed (`numerics.prior_shift`).
"""

import contextlib
import json
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
from tna_onnx.engine.scoring import BatchRunner, score_model, with_projections
from tna_onnx.errors import CheckFailed, DataError, UnsupportedModel, UsageError, listed
from tna_onnx.extraction.classifier import OpenModel, read_classifier
from tna_onnx.extraction.head_check import CheckedHead, check_readout
from tna_onnx.extraction.opened_samples import open_inputs
from tna_onnx.graph.load import PREFIX, Model
from tna_onnx.graph.nodes import PRIOR_BLOCK
from tna_onnx.graph.readers import CannotInsert, OutputChange, can_scale, outputs_of_scores
from tna_onnx.graph.readout import ClassOutput, Head, Readout, require_one_prediction
from tna_onnx.graph.rewrite import Rewritten
from tna_onnx.graph.save import written_files
from tna_onnx.graph.scores import find_readout
from tna_onnx.graph.tensors import epsilon
from tna_onnx.numerics import prior_shift
from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.reference import LEAST, MOST_CLASSES, Reference
from tna_onnx.pipeline.checking import casts_behind, checked_file, first_rows
from tna_onnx.pipeline.job import ModelJob, target_of
from tna_onnx.pipeline.opening import Opened
from tna_onnx.pipeline.other_outputs import find_others
from tna_onnx.pipeline.record import Added, Change, write_change
from tna_onnx.pipeline.sample_checks import DigestedSamples, check_target, digests_in_file
from tna_onnx.progress import Progress
from tna_onnx.results.outcomes import ClassFrequency, Shift, ShiftEffect, ShiftEvidence
from tna_onnx.results.report import MovedOutput
from tna_onnx.runtime import Session, parse_device
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


def shift(job: ShiftJob, progress: Progress) -> Shift:
    """Give a model new class frequencies and write it."""
    opened = _open(job)
    model = opened.model
    target = target_of(job, model, ".shift.onnx")
    if job.dry_run:
        target = None
    frequencies = _find_frequencies(job, opened, progress)
    change = prior_shift.log_ratio(frequencies.source, frequencies.target)
    rewritten, placed = _write(opened, change, _metadata(job, opened, frequencies))
    with checked_file(model, rewritten.proto, target, opened.device, rewritten.large_values) as (path, session):
        largest = _check_result(opened, rewritten, session, frequencies.old, change)
        effect = _effect(job, opened, session, frequencies.target, progress)
        files = written_files(path, target)
    # other outputs that are computed from the scores
    unmoved = {opened.output.name, *opened.unmoved}
    moved = [MovedOutput(name) for name in outputs_of_scores(model, opened.probed.readout) if name not in unmoved]
    ends = [None] * len(opened.names) if frequencies.interval is None else map(tuple, frequencies.interval.tolist())
    rows = zip(opened.names, frequencies.source.tolist(), frequencies.target.tolist(), ends, strict=True)
    return Shift(
        model=model.name,
        model_sha256=model.sha256,
        output=str(target or ""),
        files=files,
        class_output=opened.output.name,
        method=job.method,
        classes=tuple(ClassFrequency(*row) for row in rows),
        data=opened.source.describe(),
        samples=len(opened.source),
        target_data="" if opened.unlabelled is None else opened.unlabelled.describe(),
        target_samples=0 if opened.unlabelled is None else len(opened.unlabelled),
        evidence=frequencies.evidence,
        effect=effect,
        placed=placed,
        nodes=len(rewritten.proto.graph.node) - len(model.proto.graph.node),
        max_difference=largest,
        notes=(*opened.notes, *frequencies.notes, *(output.text for output in moved)),
        provider=opened.session.provider,
    )


# What is opened


@dataclass(frozen=True, eq=False)
class _Opened(Opened):
    """The model, and labelled samples of the data that it was made for, as `source`."""

    probed: CheckedHead  # where its scores are
    unlabelled: Source | None  # samples of the target without labels; None where its frequencies are given
    unmoved: tuple[str, ...]  # other outputs that stay: those with the class of each sample among them


def _open(job: ShiftJob) -> _Opened:
    """Open model and data, cheapest first."""
    model, output = read_classifier(job.model, job.options)
    if "guard" in model.provenance:
        raise UnsupportedModel(
            f"{model.name}: has been guarded already, with thresholds for its probabilities as they are; shift the "
            "model without these outputs, and guard the result with samples of the target"
        )
    if "shift" in model.provenance:
        raise UnsupportedModel(f"{model.name}: has been shifted already; start from the model before that shift")
    require_one_prediction(model, output, "class frequencies are estimated on samples of one prediction each")
    readout = _readout(model, job, output)
    opened = OpenModel(model, readout, parse_device(job.device), job.calib, output)
    data, source = open_inputs(opened, job.calib)
    unlabelled: Source | None = None
    held_out: Source | None = None
    notes = source.notes
    if job.target is not None:
        # labels that the samples of the target bring are not read: an estimate must not know them
        unlabelled = open_inputs(opened, job.target, labels=False)[1]
        if not len(unlabelled):
            raise DataError(f"--target-data: {unlabelled.describe()}: expected samples, found none")
        notes = (*notes, *unlabelled.notes)
    if job.held_out is not None:
        held_out = open_inputs(opened, job.held_out)[1]
    target, evaluated = (None if samples is None else DigestedSamples.of(samples) for samples in (unlabelled, held_out))
    notes = (*check_target(model, DigestedSamples.of(source), target, evaluated, job.calib.limits), *notes)
    size = job.batch_size
    probed = check_readout(opened, readout, opened.session, source, size)
    other_outputs = find_others(model, probed.readout, output, opened.device, source, size)
    labels = [label.name for label in other_outputs.labels]
    decisions = [
        f"output '{name}' is the model's own decision and is unchanged, so another class may be likelier: take the "
        "class from the probabilities to have it follow the new class frequencies"
        for name in labels
    ]
    notes = (*notes, *probed.notes, *decisions)
    return _Opened(opened, data, source, held_out, size, notes, probed, unlabelled, (*other_outputs.rest, *labels))


# What the graph does not show behind an appended map; provenance tells.
_KINDS = {"logits": "logits", "positive_logit": "logit"}


def _readout(model: Model, job: ShiftJob, output: ClassOutput) -> Readout:
    """Return where the scores are, also behind a map that this package added."""
    options = job.options
    kind = options.output_kind
    name = options.output_name
    if any(tensor.startswith(f"{PREFIX}/") for tensor in model.producers):
        kind = kind or _KINDS.get(output.kind)  # type: ignore[assignment]  # words of the same choice
        name = name or output.name
    # the word names a head by its output, which leads to the scores behind a map too
    head = None if options.head == output.name else options.head
    return find_readout(model, head, name, kind)


# Class frequencies


@dataclass(frozen=True, eq=False)
class _Frequencies:
    """Class frequencies before and after, and how they were obtained."""

    source: FloatArray  # (C,) before
    target: FloatArray  # (C,) after; of estimates with half a sample more in each class
    old: NDArray[np.float32]  # (M, C) probabilities of the labelled samples
    notes: tuple[str, ...]  # what the user should know, in sentences
    interval: FloatArray | None = None  # (C, 2) bootstrap interval of an estimate
    evidence: ShiftEvidence | None = None  # what else the samples of the target say


def _find_frequencies(job: ShiftJob, opened: _Opened, progress: Progress) -> _Frequencies:
    """Read or estimate the class frequencies, and refuse labels that would make wrong ones."""
    settings = job.settings
    names = opened.classifier.names
    labels = opened.source.labels

    def stated(name: str, value: Any) -> FloatArray | None:
        if value is None:
            return None
        return read_prior(value, names, opened.output.n_classes, f"--{name}-prior", job.calib.limits)

    source = stated("source", settings.source_prior)
    target = stated("target", settings.target_prior)
    if source is None:
        source = _counted(opened, needed=not settings.only)
    if settings.only:
        target = restricted(source, settings.only, names)
    features = _features(opened)

    def scored(samples: Source, stage: str) -> list[NDArray[Any]]:
        return with_projections(opened.session, opened.output, features, samples, opened.batch_size, stage, progress)

    old, *projected = scored(opened.source, "source")
    # wrong labels would make a wrong confusion matrix, and wrong frequencies
    suspicion = opened.suspicion(old.argmax(axis=1), lambda: old.max(axis=1))
    warnings = checked_warnings(suspicion, names, opened.source.describe(), trusted=settings.trust_labels)
    off = ""
    if not settings.only:
        off = _off_centre(old, labels, source, opened.names)
    notes = tuple(filter(None, (*warnings, off)))
    if target is not None:
        return _Frequencies(source, target, old, notes)
    assert opened.unlabelled is not None  # noqa: S101 - `ShiftJob` has them where no frequencies are stated
    new, *new_projected = scored(opened.unlabelled, "target")
    observed = prior_shift.Observed(labels, old, new, source, counted=settings.source_prior is None)
    estimated = _estimate(observed, settings, opened.unlabelled.describe(), off, (projected, new_projected))
    _log.info("target: %s samples", f"{len(new):,}")
    return replace(estimated, notes=(*notes, *estimated.notes))


def _counted(opened: _Opened, *, needed: bool) -> FloatArray:
    """Return the (C,) frequencies of the labels, smoothed by half a sample per class.

    `needed`: whether each must be known; they cancel where some classes are ruled out.
    """
    labels = opened.source.labels
    counts = np.bincount(labels, minlength=len(opened.names))
    absent = [opened.names[k] for k in np.flatnonzero(counts == 0).tolist()]
    if absent and needed:
        raise DataError(
            f"{opened.source.describe()}: no sample of the classes {listed(absent)}, so their frequency is not known; "
            "give samples of them, or say the frequencies with --source-prior"
        )
    return prior_shift.smoothed(counts / len(labels), len(labels))


def _features(opened: _Opened) -> list[str]:
    """Return the tensor of the features, which the test looks at too; none where it is an input or of integers."""
    head = opened.probed.readout
    if not isinstance(head, Head) or head.features_transposed or not head.features_type.startswith("float"):
        return []
    return [name for name in opened.session.outputs if name == head.features]


# Over all classes, a calibrated model gets a note once in a hundred runs; and only where it matters.
_LEVEL_OF_CLASSES = 0.01
_LARGE_SHARE = 0.1


def _off_centre(
    probabilities: NDArray[np.floating], labels: NDArray[np.int64], source: FloatArray, names: Sequence[str]
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

_Projections = tuple[Sequence[FloatArray], Sequence[FloatArray]]
"""Those of the features of the labelled samples and of the others, if there are any (`numerics.reference`)."""


def _estimate(
    observed: prior_shift.Observed, settings: ShiftSettings, where: str, off: str, projected: _Projections
) -> _Frequencies:
    """Estimate the frequencies, and test what the estimate assumes.

    `off`: what speaks against the calibration of the model, in a sentence; empty for nothing.
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
    evidence = _evidence(observed, fit, drawn, None if against else projected, settings)
    notes = _notes_of(evidence, where, off)
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
    return _Frequencies(observed.source, target, observed.old, notes, interval, evidence)


def _evidence(
    observed: prior_shift.Observed,
    fit: prior_shift.EmFit,
    drawn: prior_shift.Draws,
    projected: _Projections | None,
    settings: ShiftSettings,
) -> ShiftEvidence:
    """Return what the samples say; `projected` is None where the confusion matrix cannot be inverted."""
    gain = float(fit.gain[0])
    surprise = prior_shift.surprise(observed, fit.priors[0])
    other_p = prior_shift.p_of_normal(surprise, drawn.surprise)
    counts = np.bincount(observed.labels, minlength=observed.n_classes)
    if projected is not None and observed.n_classes <= MOST_CLASSES and counts.min() >= LEAST:
        old, new = projected
        with contextlib.suppress(DataError, np.linalg.LinAlgError):
            reference = Reference.fit(observed.old, observed.labels, *old)
            other_p = reference.expected(observed.probabilities, *new)[2]
    return ShiftEvidence(
        changed_p=prior_shift.p_of_draws(gain, prior_shift.gains_by_noise(observed, settings.draws, settings.seed)),
        gain=max(gain, 0.0),
        surprise=surprise,
        other_p=other_p,
        trusted=settings.trust_shift,
    )


# What else has changed counts if noise alone makes it once in a hundred times, and if it is large enough to matter: if
# the mean confidence is off by a point.
_LEVEL = 0.01
_LARGE_SURPRISE = 0.01


def _notes_of(evidence: ShiftEvidence, where: str, off: str) -> tuple[str, ...]:
    """Return the evidence against a change of frequencies alone, as notes; refuse the estimate where it is strong."""
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
    return tuple(notes)


# The new file


def _write(opened: _Opened, change: FloatArray, metadata: dict[str, str]) -> tuple[Rewritten, str]:
    """Return the new model, and where the change is: `bias` or `nodes`. `change`: (C,) what is added to the logits."""
    model, probed = opened.model, opened.probed
    readout = replace(probed.readout, quantum=0.0)  # a probability of 0 stays 0
    moved = Added(change)
    # a new bias would move the outputs that stay
    if not opened.unmoved and isinstance(readout, Head) and _holds(model, readout, probed):
        return write_change(model, readout, Change(folded=moved), metadata), "bias"
    is_taken = any(name.startswith(f"{PREFIX}/") for name in model.producers)
    appended = Change(
        maps=(moved,),
        shape=probed.logits_shape,
        block=PRIOR_BLOCK if is_taken else PREFIX,
        other_outputs=OutputChange(opened.unmoved),
    )
    try:
        return write_change(model, readout, appended, metadata), "nodes"
    except UnsupportedModel as error:
        # the advice there is on maps
        reason = error.reason if isinstance(error, CannotInsert) else error
        raise UnsupportedModel(f"{reason}; shift the class frequencies in your program instead") from error


def _holds(model: Model, head: Head, probed: CheckedHead) -> bool:
    """Tell whether a change of the bias changes the logits by as much, and the file has a float for each class."""
    if not head.linear or probed.tail is not None or not head.holds_bias or head.stored_bias is None:
        return False
    return head.stored_bias.quantized is None and can_scale(model, head)


def _metadata(job: ShiftJob, opened: _Opened, frequencies: _Frequencies) -> dict[str, str]:
    """Return all of this tool's entries; no time, no path: the same run writes the same bytes."""
    entries = {
        "method": job.method,
        "source": frequencies.source.tolist(),
        "target": frequencies.target.tolist(),
        "samples": len(opened.source),
        "calib_sha256": opened.source.digest(),
        **digests_in_file(opened.source, "calib"),
        "source_sha256": opened.model.sha256,
    }
    if frequencies.interval is not None and opened.unlabelled is not None:
        entries["interval"] = frequencies.interval.tolist()
        entries["target_samples"] = len(opened.unlabelled)
        entries["target_sha256"] = opened.unlabelled.digest()
        entries |= digests_in_file(opened.unlabelled, "target")
    output = {**opened.output.provenance, "output_kind": opened.output.kind}
    return {**opened.model.provenance, **output, "shift": json.dumps(entries)}


# Roundings of a probability by the runtime: of the logits, their sum with d, and the softmax. A ratio of frequencies
# multiplies those of the smallest probabilities.
_ROUNDINGS = 256
_NOTHING = 1e-6  # a probability that is 0 but for rounding
_MAX_BOUND = 0.05


def _check_result(
    opened: _Opened, rewritten: Rewritten, session: BatchRunner, old: NDArray[Any], change: FloatArray
) -> float:
    """Compare the written file with the formula; return the largest difference of a probability.

    `old`: (M, C) probabilities that the source gives the samples, of which the first batches are run again; `change`:
    (C,) what its logits change by.
    """
    output = opened.output
    rows = first_rows(opened.source, opened.batch_size)
    batches = opened.source.batches(opened.batch_size, rows)
    actual = output.probabilities(np.concatenate([session.run([output.name], batch)[0] for batch in batches]))
    expected = old[rows] * np.exp(change - change.max())
    total = expected.sum(axis=1, keepdims=True)
    # a row whose classes are all ruled out has no probabilities
    expected /= np.where(total > 0, total, 1.0)
    ruled_out = change == prior_shift.RULED_OUT
    # where little is left of the old probabilities, that much is known of their ratios
    certainty = total if ruled_out.any() else np.ones_like(total)
    largest = float(np.max(np.abs(actual - expected) * certainty, initial=0))
    remaining = float(np.max(actual[:, ruled_out], initial=0))
    if remaining > _NOTHING:
        raise CheckFailed(
            f"verification: a class that cannot occur has a probability of up to {remaining:.3g} in the written "
            "file, because the nodes behind its scores cannot represent numbers so far apart; remove its "
            "probability in your program"
        )
    bound = _bound(opened.model, rewritten.readout)
    if not largest <= bound:
        raise CheckFailed(
            f"verification: the written file gives a probability that is {largest:.3g} off the formula; expected at "
            f"most {bound:.3g}"
        )
    return largest


def _bound(model: Model, readout: Readout) -> float:
    """Return how far a probability may be off by rounding."""
    casts = casts_behind(model, readout)
    coarsest = max([epsilon(readout.logits_type), *(eps for eps, behind in casts if not behind)])
    if isinstance(readout, Head) and readout.stored_bias is not None and readout.stored_bias.quantized is None:
        coarsest = max(coarsest, epsilon(readout.stored_bias.value.dtype.name))
    # casts behind: of the old probability, of the sum that it is divided by, and of the new one
    behind_it = 2 * sum(eps for eps, behind in casts if behind)
    return min(_MAX_BOUND, _ROUNDINGS * coarsest) + readout.output_step + 2 * readout.slack + behind_it


_BINS = 15
"""Of the ECE in the report."""


def _effect(
    job: ShiftJob, opened: _Opened, session: Session, target: FloatArray, progress: Progress
) -> ShiftEffect | None:
    """Compare the written file with its source on labelled samples of the target."""
    data = opened.held_out
    if data is None:
        return None
    output = opened.output
    sides = (score_model(side, output, data, opened.batch_size, progress)[0] for side in (opened.session, session))
    before, after = (scores.resolved(output.resolution, output.n_classes) for scores in sides)
    level = job.settings.confidence_level / 100
    differences = paired_differences(before, after, _BINS, level=level, seed=job.settings.seed)
    counts = np.bincount(data.labels, minlength=len(target)) / len(data)
    distance = prior_shift.disagreement(counts, target)
    if differences["nll"].low > 0:
        raise CheckFailed(
            f"{data.describe()}: the NLL rises by {differences['nll'].difference:.4f}, which is more than noise; these "
            f"labels have other class frequencies by {100 * distance:.1f} points in all; give --eval samples of the "
            "target, or other frequencies"
        )
    return ShiftEffect(
        data.describe(),
        Metrics.of(before, _BINS),
        Metrics.of(after, _BINS),
        differences["accuracy"],
        differences["nll"],
        distance,
    )
