"""`calibrate`: load, head, features, search, fit, rewrite, verify, report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray

import tna_onnx
from tna_onnx.crossfit import FOLDS, cross_fit
from tna_onnx.data import Recipe, Source, open_source
from tna_onnx.engine.logits import HeadLogits
from tna_onnx.errors import CheckFailed, DataError, UnsupportedModel, UsageError
from tna_onnx.evaluation import open_model, require_samples, score_models
from tna_onnx.features import FeatureStore, Progress, check_head, collect_features, input_specs, open_probe
from tna_onnx.graph.head import Head, choose_head
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.outputs import output_of
from tna_onnx.graph.rewrite import Rewritten, rewrite
from tna_onnx.graph.save import check_output, pending
from tna_onnx.maps import MAPS, CalibrationMap, Reduce, Temperature, apply_map
from tna_onnx.numerics.metrics import Objective, objective_value
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.numerics.tilt import TiltParameters
from tna_onnx.report.report import Comparison, CurvePoint, Report, compare_scores
from tna_onnx.runtime import Device, open_session, parse_device, runtime_version
from tna_onnx.search import Candidate, SearchSettings, candidate_weight, choose, search_sparse
from tna_onnx.verify import Verification, check_file, check_probabilities

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
    show = progress or (lambda stage, done, total: None)
    if search == "none" and map == "none":
        raise UsageError("search none with map none changes nothing; choose --search sparse, or --map ts or ets")
    if not 0 <= max_accuracy_drop <= 100:
        raise UsageError(f"max_accuracy_drop must lie in [0, 100] percentage points, got {max_accuracy_drop}")
    settings = _settings(
        ensemble_size=ensemble_size, max_ensemble_size=max(max_ensemble_size, ensemble_size), angle_step=angle_step,
        objective=objective, bins=bins, max_accuracy_drop=max_accuracy_drop / 100, seed=seed,
        tilt=dict(alpha=alpha, beta=beta, theta_s=theta_s, n_t=n_t),
    )  # fmt: skip
    task = _Task.open(model, calib, eval, output, head, preprocessing, device, batch_size, overwrite, bins, show)
    original = HeadLogits(task.store, task.head.weight, task.head.bias)
    candidates = _search(task, original, settings, search, show)
    chosen = candidates[choose(candidates, settings)]
    weight = candidate_weight(task.head.weight, chosen, settings)

    logits = HeadLogits(task.store, weight, task.head.bias)
    fitted = _fit(map, logits.reduce())
    folded = fold and isinstance(fitted, Temperature)
    factor = 1 / fitted.temperature if folded and isinstance(fitted, Temperature) else 1.0
    rewritten = rewrite(
        task.model,
        task.head,
        weight * np.asarray(factor, weight.dtype),
        bias_factor=factor,
        write_map=None if folded or fitted is None else fitted.forward,
        metadata=_provenance(task, settings, chosen, search, map, fitted),
    )
    with pending(rewritten.proto, task.output) as path:
        verification, held_out = _check(task, rewritten, path, weight, fitted, settings, show)
        comparison = held_out or _cross_fitted(task, candidates, map, settings)
        if comparison.is_worse(objective):
            raise CheckFailed(_worse(comparison, objective))
    after = SampleScores.concatenate([SampleScores.of_logits(apply_map(fitted, s), y) for s, y in logits.chunks()])
    return Report(
        model=str(task.model.path),
        model_sha256=task.model.sha256,
        output=str(task.output),
        head=task.head.node,
        classes=task.head.n_classes,
        features=task.head.n_features,
        search=search,
        map=map,
        folded=folded,
        parameters=fitted.parameters if fitted else {},
        angle=chosen.angle,
        ensemble_size=chosen.ensemble_size,
        rotations=chosen.rotations,
        objective=objective,
        curve=tuple(_point(c, settings) for c in candidates),
        settings=dict(
            max_accuracy_drop=max_accuracy_drop,
            ensemble_size=ensemble_size,
            max_ensemble_size=max_ensemble_size,
            angle_step=angle_step,
            alpha=alpha,
            beta=beta,
            theta_s=theta_s,
            n_t=n_t,
            bins=bins,
            seed=seed,
            batch_size=batch_size,
        ),  # fmt: skip
        calibration=compare_scores(task.source.describe(), "fitted", candidates[0].scores, after, bins, seed),
        comparison=comparison,
        verification=verification,
        preprocessing=task.source.recipe(),
        provider=task.provider,
        versions=_versions(),
        notes=tuple(task.notes + _notes(task, comparison, chosen, candidates, settings, search)),
    )


@dataclass(frozen=True, eq=False)
class _Task:
    """Everything that was opened and checked before any search."""

    model: Model
    head: Head
    output: Path
    source: Source
    held_out: Source | None
    store: FeatureStore
    device: Device
    batch_size: int
    provider: str
    notes: list[str]

    @classmethod
    def open(
        cls,
        path: str | Path,
        calib: str | Path,
        held_out: str | Path | None,
        output: str | Path | None,
        node: str | None,
        recipe: Recipe | None,
        device_name: str,
        batch_size: int,
        overwrite: bool,
        bins: int,
        show: Progress,
    ) -> _Task:
        if batch_size < 1:
            raise UsageError(f"batch size must be at least 1, got {batch_size}")
        device = parse_device(device_name)
        model = load_model(path)
        target = Path(output) if output is not None else model.path.with_suffix(".tna.onnx")
        check_output(model, target, overwrite=overwrite)
        head = choose_head(model, node)
        output_of(model, head)
        probe = open_probe(model, head, device)
        specs = input_specs(probe)
        source = open_source(calib, specs, head.n_classes, recipe)
        other = None if held_out is None else open_source(held_out, specs, head.n_classes, recipe)
        require_samples(source, bins, 0 if other else math.ceil(len(source) / FOLDS))
        if other is not None:
            require_samples(other, bins)
        check_head(model, head, probe, source, batch_size)
        store, session = collect_features(model, head, source, device, batch_size, show)
        used = session or probe
        notes = [f"device auto: CUDA was not obtained, running on the CPU: {used.fallback}"] if used.fallback else []
        return cls(model, head, target, source, other, store, device, batch_size, used.provider, notes)


def _settings(*, tilt: dict[str, Any], **values: Any) -> SearchSettings:
    checks = {
        "ensemble_size": values["ensemble_size"] >= 1,
        "angle_step": 0 < values["angle_step"] < 90,
        "bins": values["bins"] >= 1,
        "seed": values["seed"] >= 0,
    }
    for name, good in checks.items():
        if not good:
            raise UsageError(f"{name} is out of range: {values[name]}")
    try:
        return SearchSettings(**values, tilt=TiltParameters(**tilt))
    except ValueError as error:
        raise UsageError(str(error)) from error


def _search(
    task: _Task, original: HeadLogits, settings: SearchSettings, search: str, show: Progress
) -> tuple[Candidate, ...]:
    if search == "none":
        return (Candidate(0.0, 1, 0.0, original.scores()),)
    try:
        return search_sparse(
            task.head.weight,
            lambda weight: HeadLogits(task.store, weight, task.head.bias).scores(),
            settings,
            lambda done, total: show("search", done, total),
        )
    except ValueError as error:
        raise UnsupportedModel(f"{task.model.path}: head '{task.head.node}': {error}; use --search none") from error


def _fit(name: str, reduce: Reduce) -> CalibrationMap | None:
    return None if name == "none" else MAPS[name].fit(reduce)


def _check(
    task: _Task,
    rewritten: Rewritten,
    path: Path,
    weight: NDArray[Any],
    fitted: CalibrationMap | None,
    settings: SearchSettings,
    show: Progress,
) -> tuple[Verification, Comparison | None]:
    """Verify the file under its temporary name; compare it with the input on held-out data, if there are any."""
    checker = check_file(task.model, task.head, rewritten, path)
    output = output_of(task.model, task.head)
    session = open_session(path, str(task.output), task.device)
    samples, difference, bound = check_probabilities(
        session, task.head, output, task.source, task.store, weight, task.head.bias, fitted, task.batch_size
    )
    verification = Verification(samples, difference, bound, checker)
    if task.held_out is None:
        return verification, None
    before = open_session(task.model.path, str(task.model.path), task.device)
    pair = score_models([(before, output), (session, output)], task.held_out, task.batch_size, show)
    return verification, compare_scores(
        task.held_out.describe(), "held-out", pair[0], pair[1], settings.bins, settings.seed
    )


def _cross_fitted(task: _Task, candidates: tuple[Candidate, ...], name: str, settings: SearchSettings) -> Comparison:
    def logits_of(candidate: Candidate) -> HeadLogits:
        return HeadLogits(task.store, candidate_weight(task.head.weight, candidate, settings), task.head.bias)

    before, after = cross_fit(candidates, logits_of, lambda reduce: _fit(name, reduce), settings)
    return compare_scores(task.source.describe(), "cross-fitted", before, after, settings.bins, settings.seed)


def _worse(comparison: Comparison, objective: str) -> str:
    metric = objective if comparison.changed(objective) > 0 else "nll"
    d = comparison.differences[metric]
    return (
        f"the result is worse on {comparison.before.n:,} {comparison.how} samples: {metric} changes by {d.difference:+.4g} "
        f"({d.level:.0%} interval {d.low:+.4g} to {d.high:+.4g}); no file was written. Are calibration and evaluation data "
        "alike, and are there enough of them?"
    )


def _point(candidate: Candidate, settings: SearchSettings) -> CurvePoint:
    scores = candidate.scores
    value = objective_value(scores, settings.objective, settings.bins)
    return CurvePoint(candidate.angle, candidate.ensemble_size, candidate.rotations, value, float(np.mean(scores.hit)))


def _notes(
    task: _Task,
    comparison: Comparison,
    chosen: Candidate,
    candidates: tuple[Candidate, ...],
    settings: SearchSettings,
    search: str,
) -> list[str]:
    notes, classes = [], task.head.n_classes
    accuracy = float(np.mean(candidates[0].scores.hit))
    chance = 1 / classes + 3 * math.sqrt((1 - 1 / classes) / classes / len(task.source))
    if accuracy < chance:
        notes.append(
            f"accuracy on the calibration data is {accuracy:.1%}, near chance (1 in {classes}): check the order of the "
            "classes and the preprocessing"
        )
    recipe = task.source.recipe()
    if recipe is not None:
        notes.append("preprocessing: " + ", ".join(f"{k} {_plain(v)}" for k, v in recipe.items() if v is not None))
    if search == "sparse" and chosen.angle == 0:
        notes.append("no tilted weight was better than the original within the accuracy constraint")
    elif chosen.ensemble_size > settings.ensemble_size:
        notes.append(
            f"the accuracy constraint asked for {chosen.ensemble_size} members in place of {settings.ensemble_size}"
        )
    if comparison.how == "cross-fitted":
        notes.append(f"no --eval data: before and after are cross-fitted on the calibration data ({FOLDS} folds)")
    return notes


def _plain(value: object) -> str:
    """Write a value of the recipe: 0.485, (224, 224)."""
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(_plain(v) for v in value) + ")"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _provenance(
    task: _Task, settings: SearchSettings, chosen: Candidate, search: str, name: str, fitted: CalibrationMap | None
) -> Mapping[str, str]:
    entries: dict[str, object] = {
        "version": tna_onnx.__version__,
        "search": search,
        "map": name,
        "angle_degrees": chosen.angle,
        "ensemble_size": chosen.ensemble_size,
        "alpha": settings.tilt.alpha,
        "beta": settings.tilt.beta,
        "theta_s": settings.tilt.theta_s,
        "objective": settings.objective,
        "seed": settings.seed,
        **(fitted.parameters if fitted else {}),
        "source_sha256": task.model.sha256,
        "calibration_sha256": task.source.digest(),
        "calibration_samples": len(task.source),
        **({"preprocessing": task.source.recipe()} if task.source.recipe() else {}),
        **output_of(task.model, task.head).provenance,
    }
    return {key: value if isinstance(value, str) else repr(value) for key, value in entries.items()}


def _versions() -> dict[str, str]:
    return {
        "tna-onnx": tna_onnx.__version__,
        "onnx": onnx.__version__,
        "onnxruntime": runtime_version(),
        "numpy": np.__version__,
    }
