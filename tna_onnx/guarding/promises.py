"""What each output promises, in words: the guarantee, and the samples that it is about."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tna_onnx.guarding.settings import GuardSettings
from tna_onnx.guarding.thresholds import Thresholds
from tna_onnx.numerics.conformal import coverage_band
from tna_onnx.results.guarding import GuardOutput

__all__ = ["new_outputs"]

_EXCHANGEABLE = "for samples that come as these did"


def new_outputs(
    settings: GuardSettings, thresholds: Thresholds, n: int, classes: int, temperature: float
) -> tuple[GuardOutput, ...]:
    """Describe the new outputs.

    Args:
        settings: what was asked for.
        thresholds: what was found.
        n: number of samples that decided on the sets.
        classes: number of classes C.
        temperature: at which sets are made.
    """
    words = {
        "confidence": f"largest of the {classes} probabilities; how far it is off is measured below",
        "accept": f"with a certainty of {100 - settings.delta:g} %, at most {settings.risk:g} % of accepted samples "
        f"are classified wrong, {_EXCHANGEABLE}",
        "set": _set_promise(settings, n) + _made_at(temperature),
        "posterior": "the probabilities under the class frequencies of the dial, which confidence and accept are about",
        "ood": f"{settings.ood_score}: the larger, the less a sample is like these",
        "ood_alarm": f"raised by at most {settings.false_alarm:g} % of the samples that come as these did, on average "
        "over calibration sets",
    }
    scores = {"accept": "accept", "set": "set", "ood_alarm": "ood"}
    return tuple(
        GuardOutput(name, role, words[role], _numbers(thresholds.values.get(scores.get(role, ""))))
        for role, name in settings.outputs.items()
    )


def _numbers(levels: NDArray[np.float32] | None) -> tuple[float | None, ...]:
    """Return thresholds as they are reported; an infinite one lets every score pass."""
    if levels is None:
        return ()
    return tuple(level if math.isfinite(level) else None for level in np.ravel(levels).tolist())


def _set_promise(settings: GuardSettings, n: int) -> str:
    level = settings.coverage / 100
    if settings.per_class:
        return (
            f"holds the true class of at least {settings.coverage:g} % of the samples of each class on "
            f"average over calibration sets, {_EXCHANGEABLE}"
        )
    low, high = coverage_band(n, level, None, 0.95)
    return (
        f"holds the true class of at least {settings.coverage:g} % of samples on average over calibration sets, "
        f"{_EXCHANGEABLE}; with this one {100 * low:.1f} to {100 * high:.1f} % in 95 of 100 cases"
    )


def _made_at(temperature: float) -> str:
    if temperature == 1:
        return ""
    return f"; made of probabilities at temperature {temperature:.4g}"
