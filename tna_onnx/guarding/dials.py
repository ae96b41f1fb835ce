"""Dials of a file: tables from which the graph takes a threshold by a level that its caller chooses.

Every level has its own promise, which holds if the level is chosen without a look at the samples that it is used on.
Levels between two rows get the threshold of the safer one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tna_onnx.graph.dials import ClassSetDial, Dials, PriorDial, RiskDial, SetDial
from tna_onnx.guarding.samples import Values
from tna_onnx.guarding.settings import GuardSettings
from tna_onnx.numerics.conformal import ranked_levels
from tna_onnx.numerics.prior_shift import smoothed
from tna_onnx.numerics.selective import accept_at
from tna_onnx.results.guarding import GuardInput

__all__ = ["default_thresholds", "dial_inputs", "prior_dial", "risk_dial", "set_dial"]

Floats = NDArray[np.float32]

_RISKS = np.round(np.arange(0.001, 0.5005, 0.001), 3)


def set_dial(
    scores: Floats, labels: NDArray[np.int64], settings: GuardSettings, n_classes: int
) -> SetDial | ClassSetDial:
    """Return the dial of the coverage: every calibration score is the threshold of a level.

    Args:
        scores: (n,) of the calibration samples.
        labels: (n,) their classes.
        settings: the levels.
        n_classes: number of classes C.
    """
    name = settings.inputs["coverage"]
    level = settings.coverage / 100
    # a coverage that so few samples cannot promise: all classes
    last = np.float32(np.inf)
    if not settings.per_class:
        order = np.argsort(scores, kind="stable")
        return SetDial(name, level, np.append(scores[order], last), labels[order])
    by_class = [np.append(np.sort(scores[labels == c]), last) for c in range(n_classes)]
    return ClassSetDial(name, level, np.concatenate(by_class), np.bincount(labels, minlength=n_classes))


def risk_dial(values: Values, settings: GuardSettings, n_classes: int) -> RiskDial:
    """Return the dial of the risk, in steps of 0.1 % and the level that was asked for."""
    risk = settings.risk / 100
    risks = np.unique(np.append(_RISKS, risk))
    limits = accept_at(values.values["confidence"], values.hit, risks, settings.delta / 100, n_classes)
    # a row holds from its own risk on: below, that of the smaller risk; below all, nothing is accepted
    levels = np.nextafter(risks.astype(np.float32), np.float32(0))
    return RiskDial(settings.inputs["risk"], risk, levels, np.append(np.float32(np.inf), limits))


def prior_dial(labels: NDArray[np.int64], settings: GuardSettings, n_classes: int) -> PriorDial:
    """Return the dial of the class frequencies; by default those of the samples, half a sample more in each class."""
    counts = np.bincount(labels, minlength=n_classes)
    return PriorDial(settings.inputs["class_prior"], smoothed(counts / len(labels), len(labels)).astype(np.float32))


def default_thresholds(dials: Dials) -> dict[str, Floats]:
    """Return what the file compares with where nobody turns a dial: `accept` [], `set` [] or [C]."""
    found: dict[str, Floats] = {}
    if dials.accept is not None:
        at = int(np.count_nonzero(dials.accept.levels < np.float32(dials.accept.default)))
        found["accept"] = np.asarray(dials.accept.thresholds[at], np.float32)
    if isinstance(dials.set, SetDial):
        levels = ranked_levels(len(dials.set.labels)).astype(np.float32)
        at = int(np.count_nonzero(levels < np.float32(dials.set.default)))
        found["set"] = np.asarray(dials.set.scores[at], np.float32)
    if isinstance(dials.set, ClassSetDial):
        ranks = np.ceil(np.float32(dials.set.default) * dials.set.factors)
        places = np.clip(ranks - 1, 0, dials.set.counts).astype(np.int64)
        found["set"] = dials.set.scores[places + dials.set.starts]
    return found


def dial_inputs(dials: Dials) -> tuple[GuardInput, ...]:
    """Describe the dials."""
    found = []
    if dials.accept is not None:
        # only what changes the decisions is a level that the dial tells apart
        useful = dials.accept.levels[np.isfinite(dials.accept.thresholds[1:])]
        found.append(_level(dials.accept, "risk", float(useful[0]), float(useful[-1])))
    if dials.set is not None:
        counts = np.array([len(dials.set.labels)]) if isinstance(dials.set, SetDial) else dials.set.counts
        found.append(_level(dials.set, "coverage", 1 / (counts.max() + 1), counts.max() / (counts.max() + 1)))
    if dials.prior is not None:
        found.append(GuardInput(dials.prior.name, "class_prior", tuple(dials.prior.default.tolist()), None, None))
    return tuple(found)


def _level(dial: RiskDial | SetDial | ClassSetDial, role: str, lowest: float, highest: float) -> GuardInput:
    return GuardInput(dial.name, role, dial.default, float(lowest), float(highest))
