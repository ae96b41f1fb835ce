"""Tables from which the graph takes a threshold by a level that its caller chooses.

Every level has its own promise, which holds if the level is chosen without a look at the samples that it is used on.
Levels between two rows get the threshold of the safer one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tna_onnx.graph.decision_ops import Dial
from tna_onnx.guarding.samples import Values
from tna_onnx.guarding.settings import GuardSettings
from tna_onnx.numerics.conformal import ranked_levels
from tna_onnx.numerics.selective import accept_at
from tna_onnx.results.guarding import GuardInput

__all__ = ["accept_dial", "dial_inputs", "dial_threshold", "set_dial"]

_RISKS = np.round(np.arange(0.001, 0.5005, 0.001), 3)


def set_dial(scores: NDArray[np.float32], settings: GuardSettings) -> Dial:
    """Return the dial of the coverage: every calibration score is the threshold of a level."""
    levels = ranked_levels(len(scores)).astype(np.float32)
    # a coverage that so few samples cannot promise: all classes
    limits = np.append(np.sort(scores), np.float32(np.inf))
    return Dial(settings.inputs["coverage"], settings.coverage / 100, levels, limits)


def accept_dial(values: Values, settings: GuardSettings, n_classes: int) -> Dial:
    """Return the dial of the risk, in steps of 0.1 % and the level that was asked for."""
    risk = settings.risk / 100
    risks = np.unique(np.append(_RISKS, risk))
    limits = accept_at(values.values["confidence"], values.hit, risks, settings.delta / 100, n_classes)
    # a row holds from its own risk on: below, that of the smaller risk; below all, nothing is accepted
    levels = np.nextafter(risks.astype(np.float32), np.float32(0))
    return Dial(settings.inputs["risk"], risk, levels, np.append(np.float32(np.inf), limits))


def dial_threshold(dial: Dial) -> NDArray[np.float32]:
    """Return the threshold at the default, []."""
    at = int(np.count_nonzero(dial.levels < np.float32(dial.default)))
    return np.asarray(dial.thresholds[at], np.float32)


def dial_inputs(dials: dict[str, Dial]) -> tuple[GuardInput, ...]:
    """Describe the dials, by the output that each is for."""
    roles = {"set": "coverage", "accept": "risk"}
    found = []
    for role, dial in dials.items():
        # only what changes the decisions is a level that the dial tells apart
        useful = dial.levels[np.isfinite(dial.thresholds[1:])] if role == "accept" else dial.levels
        found.append(GuardInput(dial.name, roles[role], dial.default, float(useful[0]), float(useful[-1])))
    return tuple(found)
