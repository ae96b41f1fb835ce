"""A guarded file as others read it: which of its outputs are decisions, and what they say of samples."""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Source
from tna_onnx.engine.outputs import score_model
from tna_onnx.errors import UsageError
from tna_onnx.graph.load import Model
from tna_onnx.graph.outputs import ClassOutput, decision_outputs
from tna_onnx.graph.own_names import provenance
from tna_onnx.guarding.measure import measure, measure_detection
from tna_onnx.guarding.samples import Listening, Values, collect_values
from tna_onnx.guarding.settings import ADDITIONS
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.progress import Progress
from tna_onnx.results.guarding import Decisions, Detection
from tna_onnx.runtime import Session

__all__ = ["guards_about", "guards_of", "require_outlier_score", "score_guarded"]

_ROLES = (*ADDITIONS, "ood_alarm")


def guards_of(model: Model) -> dict[str, str]:
    """Return role -> graph output of a model's decisions; none where it has none.

    What the file says of itself counts only where it has such outputs.
    """
    try:
        prefix = json.loads(provenance(model).get("guard", "")).get("prefix", "")
    except (ValueError, AttributeError, RecursionError):  # not written by this tool
        return {}
    return decision_outputs(model, {role: f"{prefix}{role}" for role in _ROLES})


def guards_about(model: Model, output: ClassOutput) -> dict[str, str]:
    """Return those that are about the classes of an output: decisions of another head say nothing of its labels."""
    about = provenance(model).get("output")
    return guards_of(model) if about in (None, output.name) else {}


def require_outlier_score(models: Iterable[Model]) -> None:
    """Refuse samples that a model should not know where no model could tell.

    Raises:
        UsageError: none of the models has the outputs `ood` and `ood_alarm`.
    """
    if not any({"ood", "ood_alarm"} <= {*guards_of(model)} for model in models):
        raise UsageError(
            "--ood-data are for a model with the output ood, as guard --add ood makes it; give such a model, or leave "
            "them out"
        )


def score_guarded(
    session: Session,
    model: Model,
    output: ClassOutput,
    source: Source,
    batch_size: int,
    progress: Progress,
    level: float = 95.0,
    unknown: Source | None = None,
    fresh: bool | None = None,
) -> tuple[SampleScores, NDArray[np.int64], Decisions | None]:
    """Do what `score_model` does, and measure in the same run what a guarded model decides.

    Args:
        session: on the model.
        model: guarded or not.
        output: the output that classifies.
        source: the samples.
        batch_size: samples per run.
        progress: called with (stage, done, total).
        level: of intervals, in per cent.
        unknown: samples that the model should not know, if there are any.
        fresh: whether no threshold comes from the samples; None where nobody knows.

    Returns:
        (scores, predicted classes (N,), decisions; None where the model decides nothing).

    Raises:
        DataError: an output of the wrong shape, or NaN or infinite values in it.
    """
    guards = guards_about(model, output)
    if not guards:
        scores, predicted = score_model(session, output, source, batch_size, progress)
        return scores, predicted, None
    listening = Listening(session, guards, source.labels, source.describe())
    scores, predicted = score_model(listening, output, source, batch_size, progress)
    columns = listening.columns
    decided = Values(source.labels, scores.hit, scores.confidence, columns.columns, columns.sizes)
    detection: Detection | None = None
    if unknown is not None and {"ood", "ood_alarm"} <= {*guards}:
        names = {role: guards[role] for role in ("ood", "ood_alarm")}
        found = collect_values(session, output, names, unknown, batch_size, progress, stage="unknown samples").values
        detection = measure_detection(
            decided.values["ood"], found["ood"], found["ood_alarm"], level, unknown.describe()
        )
    described = source.describe()
    decisions = measure(decided, output.n_classes, level, described, fresh=fresh, detection=detection)
    return scores, predicted, decisions
