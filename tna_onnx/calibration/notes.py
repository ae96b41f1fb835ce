"""Sentences that a user should read beside the numbers."""

from __future__ import annotations

import numpy as np

from tna_onnx.calibration.crossfit import FOLDS
from tna_onnx.calibration.strategy import Outcome
from tna_onnx.calibration.task import Task
from tna_onnx.results.gates import difference_text, worse_in
from tna_onnx.results.report import Changes, Comparison
from tna_onnx.search.settings import SearchSettings

__all__ = ["dry_run_note", "notes_on", "worse_note"]


def notes_on(
    task: Task,
    found: Outcome,
    settings: SearchSettings,
    search: str,
    comparison: Comparison,
    drift: float | None = None,
    suspicion: str = "",
) -> tuple[str, ...]:
    """Collect what is unusual about a run.

    Args:
        task: what was opened.
        found: what was chosen.
        settings: of the search.
        search: `none`, `sparse` or `complete`.
        comparison: the honest numbers.
        drift: what quantising the new weight does to probabilities.
        suspicion: what looks wrong about the labels.
    """
    notes = []
    if task.fallback:
        notes.append(f"device auto: CUDA was not obtained, ran on the CPU: {task.fallback}")
    accuracy = float(np.mean(found.before.hit))
    if suspicion:
        notes.append(suspicion)
    if task.model.inlined:
        notes.append(f"model-local functions were inlined: {', '.join(task.model.inlined)}")
    notes += _head_notes(task, drift)
    recipe = task.source.recipe()
    if recipe is not None:
        used = ", ".join(f"{key} {_plain(value)}" for key, value in recipe.items() if value is not None)
        notes.append(f"preprocessing: {used}; accuracy of the input model with it {accuracy:.2%}")
    if found.map_nll:
        listing = ", ".join(f"{name} {value:.4f}" for name, value in found.map_nll.items())
        notes.append(f"map auto took {found.map}: least cross-validated NLL ({listing})")
    chosen = found.chosen
    if search != "none" and chosen.angle == 0:
        notes.append("no tilted weight was better than the original within the accuracy constraint")
    elif chosen.ensemble_size > settings.ensemble_size:
        notes.append(
            f"averaged {chosen.ensemble_size} members, not {settings.ensemble_size}: fewer cost too much accuracy"
        )
    for name, sign, label in (("accuracy", -1, "accuracy"), ("nll", 1, "NLL")):
        if comparison.changed(name) == sign:
            notes.append(f"{label} is significantly worse than the input's")
    if comparison.how == "cross-fitted":
        notes.append(f"no --eval data: before and after are cross-fitted on the calibration data ({FOLDS} folds)")
        if search == "sparse" or found.map_nll:
            shared = [
                ("the angles tried and the members", search == "sparse"),
                ("the choice of the map", bool(found.map_nll)),
            ]
            notes.append(" and ".join(text for text, used in shared if used) + " come from all calibration data")
    return tuple(notes)


def _head_notes(task: Task, drift: float | None) -> list[str]:
    if task.head is None:
        return [f"output '{task.readout.output}' is calibrated as it is ({task.readout.holds}), without a linear head"]
    stored = task.head.stored_weight
    if stored.quantized is not None:
        kind = "per class" if stored.quantized.axis is not None else "with one scale"
        if drift is None:
            return [f"the weight is quantised in the file ({stored.quantized.dtype}) and stays as it is"]
        return [
            f"the weight was quantised anew ({stored.quantized.dtype}, {kind}): that moves a probability by at most "
            f"{drift:.2g}; --quantized-head float keeps it in float"
        ]
    if stored.shared and drift is None and task.model.initializers.get(stored.name) is None and stored.steps:
        return [f"'{stored.read_as}' is quantised in the file; the head was given a float tensor of its own"]
    if stored.shared:
        return [f"'{stored.read_as}' is read elsewhere too, or computed: the head was given a tensor of its own"]
    return []


def worse_note(comparison: Comparison, objective: str) -> tuple[str, ...]:
    """Say that a result which no gate holds back is worse; nothing if it is not."""
    worse = worse_in(comparison.differences, objective)
    if not worse:
        return ()
    text = difference_text(worse, comparison.differences[worse])
    return (f"the result is significantly worse than the input: {text}; --no-fail-if-worse lets it pass",)


def dry_run_note(changes: Changes, most: int = 8) -> str:
    """Say what a dry run would have written."""

    def listed(what: str, names: tuple[str, ...]) -> str:
        more = f" and {len(names) - most} more" if len(names) > most else ""
        return f"{what} {', '.join(names[:most]) or 'none'}{more}"

    return (
        f"dry run, no file was written; a run would write {changes.target or 'the model in memory'} with "
        f"{listed('changed tensors:', changes.tensors)}; {listed('new tensors:', changes.added)}; "
        f"{listed('new nodes:', changes.nodes)}"
    )


def _plain(value: object) -> str:
    """Write a value of the recipe: 0.485, (224, 224)."""
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(_plain(v) for v in value) + ")"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
