"""Class frequencies that are estimated from predictions on samples without labels (`estimate`), and tests that only
they have changed; `tna_onnx.data.frequencies.read_prior` reads those that the user states.

`off_centre` checks whether probabilities are right on average for each class.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.labels import listed
from tna_onnx.errors import CheckFailed, DataError
from tna_onnx.numerics.prior_shift import (
    Draws,
    Observed,
    black_box,
    conditional,
    fit_em,
    gains_by_noise,
    invertible,
    p_of_draws,
    p_of_normal,
    redraw,
    smoothed,
    surprise,
)
from tna_onnx.numerics.reference import LEAST, MOST_CLASSES, Reference
from tna_onnx.results.outcomes import ShiftEvidence
from tna_onnx.shifting.shift_settings import ShiftSettings

FloatArray = NDArray[np.float64]

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


@dataclass(frozen=True, eq=False)
class Estimated:
    """Estimated class frequencies of unlabelled samples."""

    prior: FloatArray  # (C,) what is written: the estimate with half a sample more in each class
    interval: FloatArray  # (C, 2) bootstrap interval
    evidence: ShiftEvidence  # what else the samples say
    notes: tuple[str, ...]  # what the user should know, in sentences


def source_counts(labels: NDArray[np.int64], names: Sequence[str], where: str) -> FloatArray:
    """Return the (C,) frequencies of labels, smoothed by half a sample per class."""
    counts = np.bincount(labels, minlength=len(names))
    absent = [names[k] for k in np.flatnonzero(counts == 0).tolist()]
    if absent:
        raise DataError(
            f"{where}: no sample of the classes {listed(absent)}, so their frequency is not known; give samples of "
            "them, or say the frequencies with --source-prior"
        )
    return smoothed(counts / len(labels), len(labels))


def estimate(
    observed: Observed,
    settings: ShiftSettings,
    where: str,
    off: str = "",
    projected: tuple[Sequence[FloatArray], Sequence[FloatArray]] = ((), ()),
) -> Estimated:
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
    against = invertible(observed, settings.seed)
    if against and by_matrix:
        raise DataError(f"{where}: --estimator bbse cannot be used: {against}; use em, or give more --calib")
    fit = fit_em(observed.probabilities, observed.source)
    estimated = fit.priors[0]
    drawn = redraw(observed, estimated, settings.draws, settings.seed, with_black_box=by_matrix)
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
        estimated, spread = black_box(conditional(observed.joint), shares), drawn.black_box
    tail = (1 - settings.confidence_level / 100) / 2
    target = smoothed(estimated, n)
    low, high = np.quantile(spread, [tail, 1 - tail], axis=0)
    # half a sample more puts a frequency near 0 above all draws
    interval = np.stack([np.minimum(low, target), np.maximum(high, target)], axis=1)
    return Estimated(target, interval, evidence, tuple(notes))


def _other_p(observed: Observed, projected: tuple[Sequence[FloatArray], Sequence[FloatArray]]) -> float | None:
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
    observed: Observed, gain: float, em: FloatArray, drawn: Draws, other_p: float | None, settings: ShiftSettings
) -> ShiftEvidence:
    surprise_value = surprise(observed, em)
    if other_p is None:
        other_p = p_of_normal(surprise_value, drawn.surprise)
    return ShiftEvidence(
        changed_p=p_of_draws(gain, gains_by_noise(observed, settings.draws, settings.seed)),
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
                f"(p = {evidence.other_p:.2g}): {text}; {advice}; --trust-shift writes the result all the same"
            )
        notes.append(
            f"more than class frequencies has changed (p = {evidence.other_p:.2g}), which label shift does not "
            f"explain: {text}"
        )
    if evidence.changed_p > 0.05:
        notes.append(f"noise alone could explain the change of frequencies (p = {evidence.changed_p:.2g})")
    return notes
