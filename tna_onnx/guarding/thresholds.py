"""From scores to thresholds, each with the guarantee that it has; a level that cannot be reached is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.graph.dials import Dials
from tna_onnx.guarding.dials import default_thresholds, prior_dial, risk_dial, set_dial
from tna_onnx.guarding.samples import Values
from tna_onnx.guarding.settings import GuardSettings
from tna_onnx.numerics.conformal import quantile, samples_needed
from tna_onnx.numerics.selective import accept_above, errorless_needed

__all__ = ["Thresholds", "choose_thresholds", "require_enough"]

_TIED = 0.02  # this much more than the level asks for is told
_ROUNDING = 1e-5
_MAX_NAMES = 8  # in a note: enough to see which classes they are


@dataclass(frozen=True, eq=False)
class Thresholds:
    """What scores are compared with.

    Attributes:
        values: `accept` of the confidence, `set` of the set score, [] or [C], `ood` of the outlier score; float32.
        dials: levels that callers may choose in place of `accept` and `set`, and class frequencies.
        vacuous: classes that every set holds, because they have too few samples.
        notes: what the user should know, in sentences.
    """

    values: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    dials: Dials = field(default_factory=Dials)
    vacuous: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def choose_thresholds(
    values: Values, fresh: NDArray[np.bool_], settings: GuardSettings, n_classes: int, where: str
) -> Thresholds:
    """Choose all thresholds that are asked for.

    Args:
        values: scores of the samples that decide.
        fresh: those of them that no score was fitted to, (N,).
        settings: the levels.
        n_classes: number of classes C.
        where: what the samples are, for messages.

    Raises:
        DataError: too few samples for a level, or none of the thresholds reaches it.
    """
    found: dict[str, NDArray[np.float32]] = {}
    dials = Dials()
    vacuous: tuple[int, ...] = ()
    notes: list[str] = []
    if "accept" in settings.add:
        found["accept"] = _accept(values, settings, n_classes, where)
        if settings.dials:
            dials = replace(dials, accept=risk_dial(values, settings, n_classes))
    if "set" in settings.add:
        # a temperature that was chosen on samples says nothing of sets of others
        kept = fresh if settings.set_temperature == "auto" else np.ones_like(fresh)
        own = values.values["set"][kept]
        found["set"], vacuous = _of_sets(own, values.labels[kept], settings, n_classes, where)
        notes = _set_notes(own, found["set"], vacuous, settings, n_classes)
        if settings.dials:
            dials = replace(dials, set=set_dial(own, values.labels[kept], settings, n_classes))
    if "ood" in settings.add:
        known = _varied(values.values["ood"][fresh], settings, where)
        found["ood"] = _rate(known, 1 - settings.false_alarm / 100, _alarm_words(settings), where)
    # what the file compares with where nobody turns a dial
    found |= default_thresholds(dials)
    if "class_prior" in settings.inputs:
        dials = replace(dials, prior=prior_dial(values.labels, settings, n_classes))
    return Thresholds(found, dials, vacuous, tuple(notes))


def require_enough(settings: GuardSettings, n: int, fresh: int, where: str) -> None:
    """Refuse too few samples for a level, before a model has run.

    Args:
        settings: the levels.
        n: samples that decide.
        fresh: those of them that no score is fitted to.
        where: what the samples are, for messages.

    Raises:
        DataError: fewer than a level needs.
    """
    if "set" in settings.add and not settings.per_class:
        of_sets = fresh if settings.set_temperature == "auto" else n
        _require(_set_words(settings), settings.coverage / 100, of_sets, where)
    if "ood" in settings.add:
        _require(_alarm_words(settings), 1 - settings.false_alarm / 100, fresh, where)


def _require(what: str, level: float, n: int, where: str) -> None:
    needed = samples_needed(level)
    if n < needed:
        raise DataError(f"{where}: {what} need {needed:,} samples, and there are {n:,}; give more")


def _set_words(settings: GuardSettings) -> str:
    return f"sets with a coverage of {settings.coverage:g} %"


def _alarm_words(settings: GuardSettings) -> str:
    return f"false alarms below {settings.false_alarm:g} %"


def _set_notes(
    own: NDArray[np.float32],
    threshold: NDArray[np.float32],
    vacuous: tuple[int, ...],
    settings: GuardSettings,
    n_classes: int,
) -> list[str]:
    notes = [_vacuous_note(vacuous, settings)] if vacuous else []
    if not settings.per_class:
        notes += _tie_notes(own, threshold, settings, n_classes)
    return notes


def _tie_notes(
    scores: NDArray[np.float32], threshold: NDArray[np.float32], settings: GuardSettings, n_classes: int
) -> list[str]:
    """Say that many scores are equal to the threshold, so that sets hold more than they need to, and why."""
    share = float(np.mean(scores <= threshold))
    if share < settings.coverage / 100 + _TIED:
        return []
    sums = settings.set_score != "lac"
    at_end = min(abs(float(threshold)), abs(1 - float(threshold))) <= _ROUNDING
    why, advice = "the model gives few different probabilities", "leave it, or use a model that gives more"
    if sums and n_classes == 2:
        why, advice = "the less likely of two classes always has the sum 1", "use --set-score lac"
    elif sums and at_end:
        why = "probabilities round to 0 and 1, and the least likely class always has the sum 1"
        advice = "recalibrate the model first, or use --set-score lac"
    elif at_end:
        why, advice = "probabilities round to 0 and 1", "recalibrate the model first"
    return [
        f"{share:.1%} of the samples are within the threshold, as many share one score: {why}, and sets are larger "
        f"than they need to be; {advice}"
    ]


def _varied(scores: NDArray[np.float32], settings: GuardSettings, where: str) -> NDArray[np.float32]:
    """Return outlier scores that differ by more than rounding.

    Raises:
        DataError: they do not, as energies of log-probabilities do not.
    """
    spread = float(np.ptp(scores)) if len(scores) else 1.0
    if spread <= _ROUNDING * max(1.0, float(np.max(np.abs(scores), initial=0.0))):
        raise DataError(
            f"{where}: the {settings.ood_score} score is the same for all samples, up to rounding ({spread:.1g}), so "
            "it tells nothing; log-probabilities have no energy; use another --ood-score"
        )
    return scores


def _rate(scores: NDArray[np.float32], level: float, what: str, where: str) -> NDArray[np.float32]:
    _require(what, level, len(scores), where)
    return np.asarray(quantile(scores, level), np.float32)


def _of_sets(
    own: NDArray[np.float32], labels: NDArray[np.int64], settings: GuardSettings, n_classes: int, where: str
) -> tuple[NDArray[np.float32], tuple[int, ...]]:
    """Return the threshold, [] or [C], and the classes that have too few samples for one of their own."""
    level = settings.coverage / 100
    if not settings.per_class:
        return _rate(own, level, _set_words(settings), where), ()
    found = [quantile(own[labels == c], level) for c in range(n_classes)]
    vacuous = tuple(c for c, threshold in enumerate(found) if math.isinf(threshold))
    if len(vacuous) == n_classes:
        raise DataError(
            f"{where}: sets with a coverage of {settings.coverage:g} % in each class need {samples_needed(level):,} "
            "samples of a class, and no class has so many; give more, or leave --per-class out"
        )
    return np.array(found, np.float32), vacuous


def _vacuous_note(vacuous: tuple[int, ...], settings: GuardSettings) -> str:
    first = ", ".join(map(str, vacuous[:_MAX_NAMES]))
    if len(vacuous) > _MAX_NAMES:
        first += f", {len(vacuous) - _MAX_NAMES:,} more"
    needed = samples_needed(settings.coverage / 100)
    return f"every set holds the classes {first}: they have fewer than the {needed:,} samples that the coverage needs"


def _accept(values: Values, settings: GuardSettings, n_classes: int, where: str) -> NDArray[np.float32]:
    risk = settings.risk / 100
    delta = settings.delta / 100
    confidence = values.values["confidence"]
    found = accept_above(confidence, values.hit, risk, delta, n_classes)
    if found is not None:
        return np.asarray(found.threshold, np.float32)
    needed = errorless_needed(risk, delta)
    surest = np.argsort(-confidence, kind="stable")[:needed]
    wrong = int(np.count_nonzero(~values.hit[surest]))
    raise DataError(
        f"{where}: no threshold on the confidence keeps the error among accepted samples below {settings.risk:g} % "
        f"with {100 - settings.delta:g} % certainty; it takes {needed:,} accepted samples without an error, or more "
        f"with few, and of the {len(surest):,} surest of these {len(values):,} samples {wrong:,} are wrong; give more "
        "samples, or a higher --risk"
    )
