"""Class frequencies: those that the user states (`read_prior`, `restricted`), those estimated from predictions on
samples without labels (`estimate`), and tests that only they have changed.

Stated ones are `uniform`, numbers, or a file: JSON, a list of C numbers in the model's order or an object
{class: number}; or text, with one number a line in that order, or `class,number` a line, where a header line is
skipped. Classes are referred to by name, if the model's names are known, or by index.

`off_centre` checks whether probabilities are right on average for each class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.choices import Limits
from tna_onnx.data.foreign import parse_json, read_text, text_lines
from tna_onnx.data.labels import listed
from tna_onnx.errors import CheckFailed, DataError, UsageError
from tna_onnx.numerics.prior_shift import (
    Draws,
    Observed,
    black_box,
    conditional,
    disagreement,
    fit_em,
    invertible,
    p_of_distance,
    p_of_normal,
    redraw,
    smoothed,
    surprise,
    unexplained,
)
from tna_onnx.results.outcomes import ShiftEvidence
from tna_onnx.shifting.shift_settings import ShiftSettings

FloatArray = NDArray[np.float64]


UNIFORM = "uniform"

# Figures rounded to three digits add up to 1 within this.
_SUM_TOLERANCE = 2e-3

_ADVICE = "give one positive number for each class, which add up to 1"


def read_prior(prior: Any, names: Sequence[str] | None, n_classes: int, option: str, limits: Limits) -> NDArray[Any]:
    """Return (C,) frequencies, float64, which add up to 1.

    Args:
        prior: see `ShiftSettings`.
        names: of the classes, if known.
        n_classes: number of classes C.
        option: what messages call the option.
        limits: how large a file may be.

    Raises:
        UsageError: there is no such file.
        DataError: the file cannot be read; a wrong number of numbers, an unknown class, or a number that is no
            frequency.
    """
    where = option
    if isinstance(prior, str) and prior == UNIFORM:
        return np.full(n_classes, 1 / n_classes)
    if isinstance(prior, (str, Path)):
        where = f"{prior}"
        prior = _from_file(Path(prior), option, limits)
    if isinstance(prior, Mapping):
        prior = _by_class(prior, names, n_classes, where)
    return _checked(prior, n_classes, where)


def restricted(source: NDArray[np.float64], only: Sequence[str], names: Sequence[str] | None) -> NDArray[np.float64]:
    """Return frequencies (C,) that are 0 but for some classes, whose ratios stay.

    Raises:
        DataError: an unknown class.
    """
    class_names = _known_names([*map(str, only)], names, len(source), "--only")
    allowed = np.isin(class_names, [*map(str, only)])
    target: NDArray[np.float64] = np.where(allowed, source, 0.0) / source[allowed].sum()
    return target


def _from_file(path: Path, where: str, limits: Limits) -> Any:
    if not path.is_file():
        raise UsageError(f"{path}: no such file; {where} takes '{UNIFORM}' or a file of class frequencies")
    text = read_text(path, limits)
    if path.suffix.lower() == ".json":
        return parse_json(text, str(path), "write a list of numbers")
    lines = [line.strip() for line in text_lines(text) if line.strip()]
    cells = _below_header([[cell.strip() for cell in line.rsplit(",", 1)] for line in lines])
    if cells and all(len(row) == 2 for row in cells):
        twice = [name for name, _ in cells if sum(name == second for second, _ in cells) > 1]
        if twice:
            raise DataError(f"{path}: class {twice[0]!r} has several lines; {_ADVICE}")
        return {name: _number(value, str(path)) for name, value in cells}
    return [_number(",".join(row), str(path)) for row in cells]


def _below_header(cells: list[list[str]]) -> list[list[str]]:
    """Return the rows without one that names the columns: its last cell is no number, and all others' are."""
    numbers = [_is_number(row[-1]) for row in cells]
    if len(cells) > 1 and not numbers[0] and all(numbers[1:]):
        return cells[1:]
    return cells


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise DataError(f"{where}: expected a number, found {text[:80]!r}; {_ADVICE}") from error


def _by_class(frequencies: Mapping[Any, Any], names: Sequence[str] | None, n_classes: int, where: str) -> list[Any]:
    keys = [str(key) for key in frequencies]
    names_known = _known_names(keys, names, n_classes, where)
    missing = [name for name in names_known if name not in keys]
    if missing:
        raise DataError(f"{where}: no number for the classes {listed(missing)}; {_ADVICE}")
    values = dict(zip(keys, frequencies.values(), strict=True))
    return [values[name] for name in names_known]


def _known_names(keys: Sequence[str], names: Sequence[str] | None, n_classes: int, where: str) -> list[str]:
    """Return what the C classes are called by keys: names or indices.

    Raises:
        DataError: a key is neither.
    """
    indices = [str(k) for k in range(n_classes)]
    names_known = indices
    # names go first: a class may be called "1" and not be the one with that index
    if names is not None and (set(keys) <= set(names) or not set(keys) <= set(indices)):
        names_known = list(names)
    unknown = [key for key in keys if key not in names_known]
    if unknown:
        raise DataError(f"{where}: unknown classes {listed(unknown)}; the model's classes are {listed(names_known)}")
    return names_known


def _checked(raw: Any, n_classes: int, where: str) -> NDArray[Any]:
    values = list(raw) if isinstance(raw, (Sequence, np.ndarray)) else None
    if values is None or any(isinstance(v, bool) or not isinstance(v, (int, float, np.number)) for v in values):
        raise DataError(f"{where}: expected numbers, found {str(raw)[:80]!r}; {_ADVICE}")
    if len(values) != n_classes:
        raise DataError(f"{where}: {len(values)} numbers for a model with {n_classes} classes; {_ADVICE}")
    prior = np.array([float(value) for value in values])
    if not np.all(np.isfinite(prior)) or np.any(prior < 0):
        wrong = int(np.argmin(np.where(np.isfinite(prior), prior, -math.inf)))
        raise DataError(f"{where}: class {wrong} has the frequency {prior[wrong]:g}; {_ADVICE}")
    if np.any(prior == 0):
        raise DataError(
            f"{where}: class {int(np.argmin(prior))} has the frequency 0, which would rule it out whatever the model "
            "sees; give a small number in its place, or say which classes can occur with --only"
        )
    total = float(prior.sum())
    if abs(total - 1) > _SUM_TOLERANCE:
        hint = "; if these are counts, divide them by their sum" if total > 1 + _SUM_TOLERANCE else ""
        raise DataError(f"{where}: the numbers add up to {total:.6g}; expected 1{hint}")
    return prior / total


# Over all classes, a calibrated model gets a note once in a hundred runs; and only where it matters.
_LEVEL_OF_CLASSES = 0.01
_LARGE_SHARE = 0.1


def off_centre(
    probabilities: NDArray[np.floating], labels: NDArray[np.int64], source: NDArray[np.float64], names: Sequence[str]
) -> str:
    """Return a note if the mean probability of a class differs from its frequency, else an empty text.

    Samples are weighted so that classes have their frequencies p: a model that is calibrated under p then passes.

    Args:
        probabilities: (M, C) of labelled samples.
        labels: class indices (M,).
        source: (C,) frequencies p.
        names: of the classes.
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
