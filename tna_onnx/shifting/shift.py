"""The steps of `shift`: probabilities on all samples, class frequencies, a new bias, checks of the file, the effect.

New class frequencies change the logits by one number a class, s' = s + d. Where the head has a float bias for each
class, and nothing else reads its scores, the bias alone changes. Elsewhere one Add node follows the logits; if the
graph has probabilities only, the new nodes are log p + d and a Softmax.

Class frequencies estimated from predictions on unlabelled samples, and tests that only they have changed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Source
from tna_onnx.data.labels import listed
from tna_onnx.data.suspicion import checked_warnings
from tna_onnx.engine.scoring import Runs, probabilities_of, score_model
from tna_onnx.errors import CheckFailed, DataError, UnsupportedModel
from tna_onnx.extraction.head_check import Probed
from tna_onnx.graph.cut import reads
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import PREFIX, PRIOR_BLOCK, provenance
from tna_onnx.graph.outputs import ClassOutput
from tna_onnx.graph.readout import Head
from tna_onnx.graph.rewrite import Rewritten
from tna_onnx.graph.save import file_beside, pending
from tna_onnx.graph.scores import CannotInsert, can_scale
from tna_onnx.graph.tensors import epsilon
from tna_onnx.numerics.checks import check_level
from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.prior_shift import (
    RULED_OUT,
    Draws,
    Observed,
    black_box,
    conditional,
    disagreement,
    fit_em,
    invertible,
    log_ratio,
    p_of_distance,
    p_of_normal,
    redraw,
    smoothed,
    surprise,
    unexplained,
)
from tna_onnx.pipeline.change import write_change
from tna_onnx.pipeline.checking import casts_behind, check_file
from tna_onnx.pipeline.sample_checks import digests_in_file
from tna_onnx.pipeline.steps import Added, Change
from tna_onnx.progress import Progress
from tna_onnx.results.outcomes import ClassFrequency, Shift, ShiftEffect, ShiftEvidence
from tna_onnx.results.report import MovedOutput
from tna_onnx.runtime import Session, open_session
from tna_onnx.shifting.shift_job import ShiftJob, ShiftSamples, off_centre, open_shift, read_prior, restricted
from tna_onnx.shifting.shift_settings import ShiftSettings

FloatArray = NDArray[np.float64]

# Roundings of a probability by the runtime: of the logits, their sum with d, and the softmax. A ratio of frequencies
# multiplies those of the smallest probabilities.
_ROUNDINGS = 256
_NOTHING = 1e-6  # a probability that is 0 but for rounding
_MAX_BOUND = 0.05


def shifted(probabilities: NDArray[np.floating], change: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (N, C) probabilities after logits have changed by (C,) numbers, and what they were divided by, (N, 1).

    A row whose classes are all ruled out has the sum 0, and no probabilities.
    """
    weighted: FloatArray = probabilities * np.exp(change - change.max())
    total: FloatArray = weighted.sum(axis=1, keepdims=True)
    return weighted / np.where(total > 0, total, 1.0), total


def write(model: Model, probed: Probed, change: FloatArray, metadata: dict[str, str]) -> tuple[Rewritten, str]:
    """Return the new model, and where the change is: `bias` or `nodes`.

    Args:
        model: the source.
        probed: where its logits are.
        change: (C,) what is added to them.
        metadata: all of this tool's entries.

    Raises:
        UnsupportedModel: the graph has no place for the change.
    """
    readout = probed.readout
    moved = Added(change)
    if isinstance(readout, Head) and _holds(model, readout, probed):
        return write_change(model, readout, Change(folded=moved), metadata), "bias"
    appended = Change(
        maps=(moved,),
        keeps_order=False,
        shape=probed.logits_shape,
        block=PRIOR_BLOCK if _has_map(model) else PREFIX,
    )
    try:
        written = write_change(model, readout, appended, metadata)
    except UnsupportedModel as error:
        # the advice there is on maps
        reason = error.reason if isinstance(error, CannotInsert) else error
        raise UnsupportedModel(f"{reason}; shift the class frequencies in the program instead") from error
    return written, "nodes"


def _holds(model: Model, head: Head, probed: Probed) -> bool:
    """Tell whether a change of the bias changes the logits by as much, and the file has a float for each class."""
    if not head.linear or probed.tail is not None or not head.holds_bias or head.stored_bias is None:
        return False
    return head.stored_bias.quantized is None and can_scale(model, head)


def _has_map(model: Model) -> bool:
    return any(name.startswith(f"{PREFIX}/") for name in model.producers)


def check_result(
    model: Model,
    rewritten: Rewritten,
    path: Path,
    session: Runs,
    output: ClassOutput,
    source: Source,
    batch_size: int,
    old: NDArray[Any],
    change: FloatArray,
) -> float:
    """Compare the written file with the source and the formula; return the largest difference of a probability.

    Args:
        model: the source.
        rewritten: what was meant.
        path: the file.
        session: on the file.
        output: the output that classifies.
        source: samples.
        batch_size: samples per run.
        old: (R, C) probabilities that the source gives the first R of them.
        change: (C,) what its logits change by.

    Raises:
        CheckFailed: the file differs in something else, or a probability is off by more than rounding.
    """
    check_file(model, path)
    rows = np.arange(len(old), dtype=np.int64)
    batches = source.batches(batch_size, rows)
    actual = output.probabilities(np.concatenate([session.run([output.name], batch)[0] for batch in batches]))
    expected, total = shifted(old, change)
    ruled_out = change == RULED_OUT
    # where little is left of the old probabilities, that much is known of their ratios
    known = total if ruled_out.any() else np.ones_like(total)
    largest = float(np.max(np.abs(actual - expected) * known, initial=0))
    left = float(np.max(actual[:, ruled_out], initial=0))
    if left > _NOTHING:
        raise CheckFailed(
            f"verification: a class that cannot occur has a probability of up to {left:.3g} in the written file, as "
            "what follows its scores cannot hold numbers so far apart; take its probability out in the program"
        )
    readout = rewritten.readout
    casts = casts_behind(model, readout)
    coarsest = max([epsilon(readout.logits_type), *(eps for eps, behind in casts if not behind)])
    if isinstance(readout, Head) and readout.stored_bias is not None and readout.stored_bias.quantized is None:
        coarsest = max(coarsest, epsilon(readout.stored_bias.value.dtype.name))
    bound = min(_MAX_BOUND, _ROUNDINGS * coarsest) + readout.output_step + 2 * readout.slack
    # of the old probability, of the sum that it is divided by, and of the new one
    bound += 2 * sum(eps for eps, behind in casts if behind)
    if not largest <= bound:
        raise CheckFailed(
            f"verification: the written file gives a probability that is {largest:.3g} off the formula; expected at "
            f"most {bound:.3g}"
        )
    return largest


_log = logging.getLogger("tna_onnx.shift")

# Samples run through the written file.
_CHECKED = 512

# Of the ECE in the report.
_BINS = 15


@dataclass(frozen=True, eq=False)
class _Estimate:
    """Class frequencies before and after, and how they were obtained.

    Attributes:
        source: (C,) before.
        target: (C,) after.
        old: (M, C) probabilities of the labelled samples.
        estimated: the estimate; None where the user states the frequencies.
        notes: what the user should know, in sentences.
    """

    source: FloatArray
    target: FloatArray
    old: NDArray[np.float32]
    estimated: Estimated | None
    notes: tuple[str, ...]


def shift(job: ShiftJob, progress: Progress) -> Shift:
    """Give a model new class frequencies and write it.

    Raises:
        UsageError, UnsupportedModel, DataError, DeviceError, CheckFailed: see `tna_onnx.shift`.
    """
    opened = open_shift(job)
    model = opened.model
    target = file_beside(model, job.output, ".shift.onnx", overwrite=job.overwrite, dry_run=job.dry_run)
    if job.dry_run:
        target = None
    estimated = _frequencies(job, opened, progress)
    change = log_ratio(estimated.source, estimated.target)
    rewritten, placed = write(model, opened.probed, change, _metadata(job, opened, estimated))
    with pending(model, rewritten.proto, target, apart=rewritten.apart) as path:
        session = open_session(path, path.name, opened.device)
        # whole batches: a model may quantise each in its own way
        rows = max(opened.batch_size, _CHECKED // opened.batch_size * opened.batch_size)
        old = estimated.old[:rows]
        size = opened.batch_size
        largest = check_result(model, rewritten, path, session, opened.output, opened.source, size, old, change)
        effect = _effect(job, opened, session, estimated.target, progress)
    evidence = None
    if estimated.estimated is not None:
        evidence = estimated.estimated.evidence
    return Shift(
        model=model.name,
        model_sha256=model.sha256,
        output=str(target or ""),
        class_output=opened.output.name,
        method=_method(job),
        classes=_classes(opened, estimated),
        data=opened.source.describe(),
        samples=len(opened.source),
        target_data="" if opened.unlabelled is None else opened.unlabelled.describe(),
        target_samples=0 if opened.unlabelled is None else len(opened.unlabelled),
        evidence=evidence,
        effect=effect,
        placed=placed,
        nodes=len(rewritten.proto.graph.node) - len(model.proto.graph.node),
        max_difference=largest,
        notes=(*opened.notes, *estimated.notes, *_moved_notes(opened)),
        provider=opened.session.provider,
    )


def _moved_notes(opened: ShiftSamples) -> list[str]:
    """Name the other outputs that are computed from the scores."""
    scores = opened.probed.readout.logits
    others = [name for name in opened.model.outputs if name != opened.output.name]
    return [MovedOutput(name).text for name in others if reads(opened.model, name, scores)]


def _method(job: ShiftJob) -> str:
    if job.target is None:
        return "given"
    return job.settings.estimator


def _frequencies(job: ShiftJob, opened: ShiftSamples, progress: Progress) -> _Estimate:
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
        source = smoothed(np.bincount(labels, minlength=classes) / len(labels), len(labels))
    elif source is None:
        source = source_counts(labels, opened.names, where)
    if settings.only:
        details["target"] = restricted(source, settings.only, opened.classifier.names)
    old = probabilities_of(opened.session, opened.output, opened.source, opened.batch_size, "source", progress)
    suspicion = job.calib.check(old.argmax(axis=1), labels, opened.classifier.names, classes)
    # wrong labels would make a wrong confusion matrix, and wrong frequencies
    warnings = checked_warnings(suspicion, opened.classifier.names, where)
    note = "" if settings.only else off_centre(old, labels, source, opened.names)
    notes = tuple(filter(None, (*warnings, note)))
    if opened.unlabelled is None:
        return _Estimate(source, details["target"], old, None, notes)
    new = probabilities_of(opened.session, opened.output, opened.unlabelled, opened.batch_size, "target", progress)
    sure = old.max(axis=1).astype(np.float64)
    observed = Observed(labels, old.argmax(axis=1), sure, new, source, counted="source" not in details)
    estimated = estimate(observed, settings, opened.unlabelled.describe(), note)
    _log.info("target: %s samples", f"{len(new):,}")
    return _Estimate(source, estimated.prior, old, estimated, (*notes, *estimated.notes))


def _classes(opened: ShiftSamples, estimated: _Estimate) -> tuple[ClassFrequency, ...]:
    ends: list[tuple[float, float] | None] = [None] * len(opened.names)
    if estimated.estimated is not None:
        ends = [(low, high) for low, high in estimated.estimated.interval.tolist()]
    rows = zip(opened.names, estimated.source.tolist(), estimated.target.tolist(), ends, strict=True)
    return tuple(ClassFrequency(name, before, after, interval) for name, before, after, interval in rows)


def _effect(
    job: ShiftJob, opened: ShiftSamples, session: Session, target: FloatArray, progress: Progress
) -> ShiftEffect | None:
    """Compare the written file with its source on labelled samples of the target.

    Raises:
        CheckFailed: the NLL is worse, by more than noise.
    """
    data = opened.held_out
    if data is None:
        return None
    before, _ = score_model(opened.session, opened.output, data, opened.batch_size, progress)
    after, _ = score_model(session, opened.output, data, opened.batch_size, progress)
    level = check_level(job.settings.confidence_level)
    differences = paired_differences(before, after, _BINS, level=level, seed=job.settings.seed)
    counts = np.bincount(data.labels, minlength=len(target)) / len(data)
    distance = disagreement(counts, target)
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


def _metadata(job: ShiftJob, opened: ShiftSamples, estimated: _Estimate) -> dict[str, str]:
    """Return all of this tool's entries; no time, no path: the same run writes the same bytes."""
    entries = {
        "method": _method(job),
        "source": estimated.source.tolist(),
        "target": estimated.target.tolist(),
        "samples": len(opened.source),
        "calib_sha256": opened.source.digest(),
        **digests_in_file(opened.source, "calib"),
        "source_sha256": opened.model.sha256,
    }
    if estimated.estimated is not None and opened.unlabelled is not None:
        entries["interval"] = estimated.estimated.interval.tolist()
        entries["target_samples"] = len(opened.unlabelled)
        entries["target_sha256"] = opened.unlabelled.digest()
        entries |= digests_in_file(opened.unlabelled, "target")
    output = {**opened.output.provenance, "output_kind": opened.output.kind}
    return {**provenance(opened.model), **output, "shift": json.dumps(entries)}


# Below this, frequencies are mostly noise: a class of average frequency is known to a third of itself.
_MIN_A_CLASS = 10

# A difference counts if noise alone makes it once in a hundred times, and if it is large enough to matter:
# frequencies that differ by 5 points in all, confidence by 2.
_LEVEL = 0.01
_LARGE_DISAGREEMENT = 0.05
_LARGE_SURPRISE = 0.02


@dataclass(frozen=True, eq=False)
class Estimated:
    """Estimated class frequencies of unlabelled samples.

    Attributes:
        prior: (C,) what is written: the estimate with half a sample more in each class.
        interval: (C, 2) bootstrap interval.
        evidence: what else the samples say.
        notes: what the user should know, in sentences.
    """

    prior: FloatArray
    interval: FloatArray
    evidence: ShiftEvidence
    notes: tuple[str, ...]


def source_counts(labels: NDArray[np.int64], names: Sequence[str], where: str) -> FloatArray:
    """Return the (C,) frequencies of labels, smoothed by half a sample per class.

    Raises:
        DataError: a class without a sample.
    """
    counts = np.bincount(labels, minlength=len(names))
    absent = [names[k] for k in np.flatnonzero(counts == 0).tolist()]
    if absent:
        raise DataError(
            f"{where}: no sample of the classes {listed(absent)}, so their frequency is not known; give samples of "
            "them, or say the frequencies with --source-prior"
        )
    return smoothed(counts / len(labels), len(labels))


def estimate(observed: Observed, settings: ShiftSettings, where: str, off: str = "") -> Estimated:
    """Estimate the frequencies, and test what the estimate assumes.

    Args:
        observed: what the model says of both sets of samples.
        settings: how.
        where: what the samples without labels are, for messages.
        off: what speaks against the calibration of the model, in a sentence; empty for nothing.

    Raises:
        DataError: too few samples, or a confusion matrix that cannot be inverted where it must be.
        CheckFailed: more than the frequencies has changed, and that is not to be ignored.
    """
    n, classes = observed.probabilities.shape
    if n < _MIN_A_CLASS * classes:
        raise DataError(
            f"{where}: {n:,} samples for {classes:,} classes; expected at least {_MIN_A_CLASS * classes:,}, as "
            "frequencies of fewer are mostly noise; give more, or say the frequencies with --target-prior"
        )
    against = invertible(observed, settings.seed)
    if against and settings.estimator == "bbse":
        raise DataError(f"{where}: --estimator bbse cannot be used: {against}; use em, or give more --calib")
    fit = fit_em(observed.probabilities, observed.source)
    em = fit.priors[0]
    drawn = redraw(observed, em, settings.draws, settings.seed, with_black_box=not against)
    if drawn.black_box is None and not against:
        against = "the confusion matrix is singular in some of the bootstrap samples; give more --calib"
    if against and settings.estimator == "bbse":
        raise DataError(f"{where}: --estimator bbse cannot be used: {against}")
    box = None if against else _black_box(observed)
    evidence = _evidence(observed, float(fit.gain[0]), em, box, drawn, settings)
    notes = [f"whether EM and the black box agree is not known: {against}"] if against else []
    notes += _judged(evidence, where, off)
    estimate_q = em
    spread = drawn.em
    if settings.estimator == "bbse" and box is not None and drawn.black_box is not None:
        estimate_q = box
        spread = drawn.black_box
    tail = (1 - settings.confidence_level / 100) / 2
    interval = np.quantile(spread, [tail, 1 - tail], axis=0).T
    return Estimated(smoothed(estimate_q, n), interval, evidence, tuple(notes))


def _black_box(observed: Observed) -> FloatArray:
    predicted = observed.probabilities.argmax(axis=1)
    shares = np.bincount(predicted, minlength=observed.n_classes) / len(predicted)
    return black_box(conditional(observed.joint), shares)


def _evidence(
    observed: Observed, gain: float, em: FloatArray, box: FloatArray | None, drawn: Draws, settings: ShiftSettings
) -> ShiftEvidence:
    from scipy.special import chdtrc  # noqa: PLC0415 - heavy

    n, classes = observed.probabilities.shape
    alternative = box if settings.estimator == "em" else em
    distance = None
    apart_p = None
    if box is not None and drawn.unexplained is not None:
        distance = disagreement(em, box)
        apart_p = p_of_distance(unexplained(observed, em), drawn.unexplained)
    surprise_value = surprise(observed, em)
    return ShiftEvidence(
        # twice the log-likelihood ratio has a chi-squared distribution
        changed_p=float(chdtrc(classes - 1, 2 * n * max(gain, 0.0))),
        gain=max(gain, 0.0),
        other=None if alternative is None else tuple(alternative.tolist()),
        disagreement=distance,
        disagreement_p=apart_p,
        surprise=surprise_value,
        surprise_p=p_of_normal(surprise_value, drawn.surprise),
        trusted=settings.trust_shift,
    )


def _judged(evidence: ShiftEvidence, where: str, off: str) -> list[str]:
    """Return the evidence against a change of frequencies alone, as notes.

    Raises:
        CheckFailed: something does, it is large, and it is not to be ignored.
    """
    small: list[str] = []
    large: list[str] = []
    distance = evidence.disagreement
    if distance is not None and evidence.disagreement_p is not None and evidence.disagreement_p < _LEVEL:
        text = f"EM and the black box differ by {100 * distance:.1f} points in all"
        (large if distance > _LARGE_DISAGREEMENT else small).append(text)
    if evidence.surprise_p < _LEVEL:
        text = f"the mean confidence is {100 * evidence.surprise:+.1f} points off what the classes explain"
        (large if abs(evidence.surprise) > _LARGE_SURPRISE else small).append(text)
    if large and not evidence.trusted:
        # a model that is off before any shift is the likelier reason
        advice = off or "calibrate with --map bias, or on labelled samples of the target"
        raise CheckFailed(
            f"{where}: more than class frequencies has changed since --calib, or the model is not calibrated: "
            f"{'; '.join([*large, *small])}; {advice}; --trust-shift writes the result all the same"
        )
    notes = [f"{text}, which label shift does not explain" for text in [*large, *small]]
    if evidence.changed_p > 0.05:
        notes.append(f"noise alone explains the change of frequencies (p = {evidence.changed_p:.2g})")
    return notes
