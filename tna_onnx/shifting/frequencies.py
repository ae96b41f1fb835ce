"""Class frequencies before and after a shift: as stated, or estimated from predictions on samples without labels.

Tests say whether only the frequencies have changed (`numerics.prior_shift`).
"""

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.sample_info import read_prior, restricted
from tna_onnx.data.source import Source
from tna_onnx.data.suspicion import checked_warnings
from tna_onnx.engine.scoring import with_projections
from tna_onnx.errors import CheckFailed, DataError, listed
from tna_onnx.graph.readout import Head
from tna_onnx.numerics import prior_shift
from tna_onnx.numerics.reference import LEAST, MOST_CLASSES, Reference
from tna_onnx.progress import Progress
from tna_onnx.results.outcomes import ShiftEvidence
from tna_onnx.shifting.shift_job import ShiftJob, ShiftSamples
from tna_onnx.shifting.shift_settings import ShiftSettings

FloatArray = NDArray[np.float64]

_log = logging.getLogger("tna_onnx.shift")


@dataclass(frozen=True, eq=False)
class Frequencies:
    """Class frequencies before and after, and how they were obtained."""

    source: FloatArray  # (C,) before
    target: FloatArray  # (C,) after; of estimates with half a sample more in each class
    old: NDArray[np.float32]  # (M, C) probabilities of the labelled samples
    notes: tuple[str, ...]  # what the user should know, in sentences
    interval: FloatArray | None = None  # (C, 2) bootstrap interval of an estimate
    evidence: ShiftEvidence | None = None  # what else the samples of the target say


def find_frequencies(job: ShiftJob, opened: ShiftSamples, progress: Progress) -> Frequencies:
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
        return Frequencies(source, target, old, notes)
    assert opened.unlabelled is not None  # noqa: S101 - `ShiftJob` has them where no frequencies are stated
    new, *new_projected = scored(opened.unlabelled, "target")
    observed = prior_shift.Observed(labels, old, new, source, counted=settings.source_prior is None)
    estimated = _estimate(observed, settings, opened.unlabelled.describe(), off, (projected, new_projected))
    _log.info("target: %s samples", f"{len(new):,}")
    return replace(estimated, notes=(*notes, *estimated.notes))


def _counted(opened: ShiftSamples, *, needed: bool) -> FloatArray:
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


def _features(opened: ShiftSamples) -> list[str]:
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
        f"frequency is {source[worst]:.4f} (classes that are off: {int(off.sum())}), and EM carries that over; "
        "calibrate with --map bias first, or say the frequencies of the calibration data with --source-prior"
    )


# Below this, frequencies are mostly noise: a class of average frequency is known to a third of itself.
_MIN_A_CLASS = 10

_Projections = tuple[Sequence[FloatArray], Sequence[FloatArray]]
"""Those of the features of the labelled samples and of the others, if there are any (`numerics.reference`)."""


def _estimate(
    observed: prior_shift.Observed, settings: ShiftSettings, where: str, off: str, projected: _Projections
) -> Frequencies:
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
    return Frequencies(observed.source, target, observed.old, notes, interval, evidence)


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
