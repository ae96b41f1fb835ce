"""The score of which sets are made, and its temperature: as it is, or the one with the smallest sets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tna_onnx.graph.guarded import SetScore
from tna_onnx.guarding.opening import Opened
from tna_onnx.guarding.settings import GuardSettings
from tna_onnx.numerics.set_scores import small_set_temperature
from tna_onnx.progress import Progress
from tna_onnx.runtime import Session

__all__ = ["set_score_of"]

# Of `raps`: a penalty of this for each class behind the first five (Angelopoulos et al., ICLR 2021, section 3.3).
_RAPS = SetScore("raps", free=5, weight=0.01)

# Samples that a temperature is chosen on: one number, and N C probabilities in memory.
_SAMPLES = 5000


def set_score_of(settings: GuardSettings, opened: Opened, session: Session, progress: Progress) -> SetScore | None:
    """Return the set score; None without sets.

    Raises:
        DataError: the samples cannot be read.
    """
    if "set" not in settings.add:
        return None
    score = _RAPS if settings.set_score == "raps" else SetScore(settings.set_score)
    if settings.set_temperature != "auto":
        return replace(score, temperature=float(settings.set_temperature))
    rows = opened.fit_rows
    if len(rows) > _SAMPLES:
        rows = np.sort(np.random.default_rng(settings.seed).choice(rows, _SAMPLES, replace=False))
    output = opened.output
    parts = []
    done = 0
    for batch in opened.fit.batches(opened.batch_size, rows):
        parts.append(output.probabilities(session.run([output.name], batch)[0]))
        done += len(parts[-1])
        progress("choose set temperature", done, len(rows))
    penalty = score.penalty(output.n_classes)
    level = settings.coverage / 100
    found = small_set_temperature(np.concatenate(parts), opened.fit.labels[rows], level, score.name, penalty)
    return replace(score, temperature=found)
