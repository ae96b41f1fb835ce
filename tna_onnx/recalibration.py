"""`calibrate`: load, head, features, search, fit, rewrite, verify, report."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tna_onnx.crossfit import cross_fit
from tna_onnx.data import Recipe
from tna_onnx.engine.logits import HeadLogits
from tna_onnx.errors import CheckFailed, UnsupportedModel, UsageError
from tna_onnx.evaluation import score_models
from tna_onnx.features import Progress, silent
from tna_onnx.graph.rewrite import rewrite
from tna_onnx.graph.save import pending
from tna_onnx.maps import MAPS, CalibrationMap, Reduce, Temperature
from tna_onnx.numerics.metrics import Objective, objective_value
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.numerics.tilt import TiltParameters
from tna_onnx.provenance import provenance_entries, versions
from tna_onnx.report.notes import notes_on, worse_text
from tna_onnx.report.report import Comparison, CurvePoint, Report, compare_scores
from tna_onnx.runtime import open_session
from tna_onnx.search import Candidate, SearchSettings, candidate_weight, choose, search_sparse
from tna_onnx.task import Task, open_task
from tna_onnx.verify import check_file, check_probabilities

__all__ = ["calibrate"]


def calibrate(
    model: str | Path,
    calib: str | Path,
    *,
    eval: str | Path | None = None,  # noqa: A002 - the word of the command line
    output: str | Path | None = None,
    search: Literal["sparse", "none"] = "sparse",
    map: Literal["none", "ts", "ets"] = "ts",  # noqa: A002 - the word of the command line
    fold: bool = True,
    objective: Objective = "ece",
    max_accuracy_drop: float = 0.3,
    ensemble_size: int = 10,
    max_ensemble_size: int = 2560,
    angle_step: float = 2.0,
    alpha: float = 5.0,
    beta: float = 1.0,
    theta_s: float = 0.9,
    n_t: int = 50,
    bins: int = 15,
    seed: int = 0,
    head: str | None = None,
    preprocessing: Recipe | None = None,
    device: str = "auto",
    batch_size: int = 64,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Recalibrate an ONNX classifier and write it as a drop-in file.

    Args:
        model: path of the ONNX file; never modified.
        calib: labelled calibration data, an image folder or `.npz`.
        eval: held-out data for the report; cross-fitting on `calib` without it.
        output: path of the new file; `NAME.tna.onnx` beside the model by default.
        search: `sparse` (the weight first, then the map) or `none` (the original weight).
        map: `none`, `ts` (temperature) or `ets` (ensemble temperature).
        fold: put TS into weight and bias, so that the graph stays as it is.
        objective: metric that the search minimises: `ece`, `adaece` or `nll`.
        max_accuracy_drop: percentage points of accuracy that the new weight may lose on the calibration data.
        ensemble_size: tilted weights averaged, n_e.
        max_ensemble_size: cap on the members when the accuracy constraint asks for more than `ensemble_size`.
        angle_step: grid step in degrees.
        alpha: first shape of the Beta distribution of the rotation angles.
        beta: second shape.
        theta_s: largest angle of one rotation, radians.
        n_t: rotations drawn at a time; speed only.
        bins: bins of ECE and AdaECE.
        seed: of all random draws.
        head: node of the head, where the model has several.
        preprocessing: recipe for images.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run.
        overwrite: allow the output to be the input.
        progress: called with (stage, done, total).

    Raises:
        UsageError: a path or setting that cannot be used.
        UnsupportedModel: no head that can be replaced.
        DataError: the data do not fit the model, or a map cannot be fitted on them.
        DeviceError: ONNX Runtime or the device is missing.
        CheckFailed: the file does not verify, or is significantly worse on the honest numbers. Nothing is written.
    """
    show = progress or silent
    if search == "none" and map == "none":
        raise UsageError("search none with map none changes nothing; choose --search sparse, or --map ts or ets")
    settings = _settings(
        ensemble_size=ensemble_size,
        max_ensemble_size=max(max_ensemble_size, ensemble_size),
        angle_step=angle_step,
        objective=objective,
        bins=bins,
        max_accuracy_drop=max_accuracy_drop / 100,
        seed=seed,
        tilt={"alpha": alpha, "beta": beta, "theta_s": theta_s, "n_t": n_t},
    )
    task = open_task(
        model, calib, eval, output, head=head, recipe=preprocessing, device=device, batch_size=batch_size,
        overwrite=overwrite, bins=bins, show=show,
    )  # fmt: skip
    candidates = _candidates(task, settings, search, show)
    chosen = candidates[choose(candidates, settings)]
    weight = candidate_weight(task.head.weight, chosen, settings)
    logits = HeadLogits(task.store, weight, task.head.bias)
    fitted = _fit(map, logits.reduce())
    factor = 1 / fitted.temperature if fold and isinstance(fitted, Temperature) else None
    rewritten = rewrite(
        task.model,
        task.head,
        weight * np.asarray(factor or 1.0, weight.dtype),
        bias_factor=factor or 1.0,
        write_map=fitted.forward if fitted and factor is None else None,
        metadata=provenance_entries(task, settings, chosen, search, map, fitted),
    )
    with pending(rewritten.proto, task.output) as path:
        checker = check_file(task.model, task.head, rewritten, path)
        session = open_session(path, str(task.output), task.device)
        verification = check_probabilities(session, task, weight, fitted, checker=checker)
        if task.held_out is not None:
            before = open_session(task.model.path, str(task.model.path), task.device)
            models = [(before, task.class_output), (session, task.class_output)]
            old, new = score_models(models, task.held_out, batch_size, show)
            comparison = compare_scores(task.held_out.describe(), "held-out", old, new, bins, seed)
        elif chosen.angle == 0 and fitted is None:
            same = chosen.scores
            comparison = compare_scores(task.source.describe(), "unchanged", same, same, bins, seed)
        else:
            comparison = _cross_fitted(task, candidates, map, settings)
        if comparison.is_worse(objective):
            raise CheckFailed(worse_text(comparison, objective))
    after = logits.mapped_scores(fitted)
    return Report(
        model=str(task.model.path),
        model_sha256=task.model.sha256,
        output=str(task.output),
        head=task.head.node,
        classes=task.head.n_classes,
        features=task.head.n_features,
        search=search,
        map=map,
        folded=factor is not None,
        parameters=fitted.parameters if fitted else {},
        angle=chosen.angle,
        ensemble_size=chosen.ensemble_size,
        rotations=chosen.rotations,
        objective=objective,
        curve=tuple(_point(c, settings) for c in candidates),
        settings={**dataclasses.asdict(settings), "batch_size": batch_size},
        calibration=compare_scores(task.source.describe(), "fitted", candidates[0].scores, after, bins, seed),
        comparison=comparison,
        verification=verification,
        preprocessing=task.source.recipe(),
        provider=task.provider,
        versions=versions(),
        notes=notes_on(task, candidates, chosen, settings, search, comparison),
    )


def _settings(*, tilt: dict[str, Any], **values: Any) -> SearchSettings:
    """Check the settings that the command line's types do not see on the way through Python.

    Raises:
        UsageError: a value out of its range.
    """
    try:
        return SearchSettings(**values, tilt=TiltParameters(**tilt))
    except ValueError as error:
        raise UsageError(str(error)) from error


def _candidates(task: Task, settings: SearchSettings, search: str, show: Progress) -> tuple[Candidate, ...]:
    def score(weight: NDArray[Any]) -> SampleScores:
        return HeadLogits(task.store, weight, task.head.bias).scores()

    original = HeadLogits(task.store, task.head.weight, task.head.bias)
    if search == "none":
        return (Candidate(0.0, 1, 0.0, original.scores()),)
    try:
        return search_sparse(
            task.head.weight, score, settings, functools.partial(show, "search"), original.scaled_scores
        )
    except ValueError as error:
        raise UnsupportedModel(f"{task.model.path}: head '{task.head.node}': {error}; use --search none") from error


def _fit(name: str, reduce: Reduce) -> CalibrationMap | None:
    return None if name == "none" else MAPS[name].fit(reduce)


def _cross_fitted(task: Task, candidates: tuple[Candidate, ...], name: str, settings: SearchSettings) -> Comparison:
    def logits_of(candidate: Candidate) -> HeadLogits:
        return HeadLogits(task.store, candidate_weight(task.head.weight, candidate, settings), task.head.bias)

    before, after = cross_fit(candidates, logits_of, functools.partial(_fit, name), settings)
    return compare_scores(task.source.describe(), "cross-fitted", before, after, settings.bins, settings.seed)


def _point(candidate: Candidate, settings: SearchSettings) -> CurvePoint:
    value = objective_value(candidate.scores, settings.objective, settings.bins)
    accuracy = float(np.mean(candidate.scores.hit))
    return CurvePoint(candidate.angle, candidate.ensemble_size, candidate.rotations, value, accuracy)
