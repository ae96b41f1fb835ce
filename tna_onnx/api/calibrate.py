"""`calibrate`: load, head, features, search, fit, rewrite, verify, report."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tna_onnx.api.arguments import check_level, check_numbers
from tna_onnx.calibration.details import collect_details
from tna_onnx.calibration.notes import dry_run_note, notes_on, worse_note
from tna_onnx.calibration.other_outputs import check_other_outputs
from tna_onnx.calibration.provenance import provenance_entries, versions
from tna_onnx.calibration.strategy import Outcome, Strategy
from tna_onnx.calibration.task import QuantizedHead, Task, open_task
from tna_onnx.calibration.written import check_file, check_probabilities
from tna_onnx.data import Format, Recipe
from tna_onnx.data.options import DataOptions
from tna_onnx.engine.outputs import score_models
from tna_onnx.engine.placement import Host
from tna_onnx.errors import UnsupportedModel, UsageError
from tna_onnx.extraction.batch_size import BatchSize, batch_size_notes
from tna_onnx.graph.load import ModelSource
from tna_onnx.graph.nodes import NodeOps, can_append
from tna_onnx.graph.rewrite import Rewritten, can_insert, can_scale, rewrite
from tna_onnx.graph.save import pending
from tna_onnx.maps import MAPS
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.averages import LIMIT
from tna_onnx.numerics.metric import Objective
from tna_onnx.numerics.metrics import objective_value
from tna_onnx.numerics.reliability import Reliability
from tna_onnx.numerics.rotations import TiltParameters
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.progress import Progress, silent
from tna_onnx.results.gates import GateMissed, Gates
from tna_onnx.results.report import Changes, Comparison, CurvePoint, How, Report, compare_scores
from tna_onnx.search.candidates import Candidate
from tna_onnx.search.settings import SearchSettings

__all__ = ["calibrate"]


def calibrate(
    model: ModelSource,
    calib: Any,
    *,
    eval: Any = None,  # noqa: A002 - the word of the command line
    output: str | Path | None = None,
    search: Literal["sparse", "complete", "none"] = "sparse",
    map: Literal["none", "ts", "ets", "irova", "aar", "auto"] = "ts",  # noqa: A002 - the word of the command line
    fold: bool = True,
    ets_loss: Literal["squared", "nll"] = "squared",
    objective: Objective = "ece",
    max_accuracy_drop: float = 0.3,
    ensemble_size: int | Literal["auto", "inf"] = "auto",
    max_ensemble_size: int = 2560,
    antithetic: bool = False,
    angle_step: float = 2.0,
    adaptive: bool = True,
    alpha: float = 5.0,
    beta: float = 1.0,
    theta_s: float = 0.9,
    n_t: int = 50,
    bins: int = 15,
    seed: int = 0,
    head: str | None = None,
    output_name: str | None = None,
    output_kind: Literal["logits", "probabilities"] | None = None,
    quantized_head: QuantizedHead = "requantize",
    preprocessing: Recipe | str | Path | None = None,
    format: Format | None = None,  # noqa: A002 - the word of the command line
    labels: Any = None,
    eval_labels: Any = None,
    classes: Sequence[str] | str | Path | None = None,
    label_column: str | None = None,
    skip_bad: bool = False,
    expect_accuracy: float | None = None,
    max_ece: float | None = None,
    max_nll: float | None = None,
    min_accuracy: float | None = None,
    require_improvement: bool = False,
    fail_if_worse: bool = True,
    confidence_level: float = 95.0,
    dry_run: bool = False,
    device: str = "auto",
    batch_size: BatchSize = 64,
    cache: str | Path | None = None,
    overwrite: bool = False,
    details: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Recalibrate an ONNX classifier and write it as a drop-in file.

    Args:
        model: path of the ONNX file, its bytes, an onnx.ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph;
            never modified.
        calib: labelled calibration data: a path, a URL, a mapping of arrays, an iterable of batches (docs/data.md).
        eval: held-out data for the report; cross-fitting on `calib` without it.
        output: path of the new file; `NAME.tna.onnx` beside the model by default. Without it a model in memory gives
            `Report.recalibrated` and no file.
        search: `sparse` (the weight first, then the map), `complete` (all pairs of a weight and its map) or `none` (the
            original weight).
        map: `none`, `ts` (temperature), `ets` (ensemble temperature), `irova` (isotonic one-vs-all), `aar`
            (atypicality-aware), or `auto`: the one with the least cross-validated NLL.
        fold: put TS into weight and bias, so that the graph stays as it is.
        ets_loss: what the weights of ETS minimise.
        objective: metric that the search minimises: `ece`, `adaece` or `nll`.
        max_accuracy_drop: percentage points of accuracy that the new weight may lose on the calibration data; and a
            gate on the result, missed if the whole interval of the loss lies beyond it.
        ensemble_size: tilted weights averaged, n_e. `auto` starts at the paper's 10 and takes more if accuracy asks for
            it; a number is taken as given; `inf` is the limit of many, cos(mRC) times the original weight.
        max_ensemble_size: cap on the members under `auto`.
        antithetic: average pairs of a rotation and its transpose.
        angle_step: grid step in degrees.
        adaptive: look at the angles from coarse to fine; otherwise at the whole grid first.
        alpha: first shape of the Beta distribution of the rotation angles.
        beta: second shape.
        theta_s: largest angle of one rotation, radians.
        n_t: rotations drawn at a time; speed only.
        bins: bins of ECE and AdaECE.
        seed: of all random draws.
        head: node of the head, where the model has several.
        output_name: graph output to calibrate, where the model has several.
        output_kind: what that output holds, where the graph does not tell; for `search` none on a model without a
            linear head.
        quantized_head: what becomes of a weight that is stored quantised (QDQ): quantised anew, per class, or kept in
            float.
        preprocessing: recipe for images, or the path of a `preprocessor_config.json` or timm `config.json`.
        format: what the paths of the data are; found out by default.
        labels: labels of `calib` that stand apart from the samples: values, or the path of a file.
        eval_labels: the same for `eval`.
        classes: the model's class names in the order of its output, or the path of a file with them.
        label_column: column of a manifest or table that holds the labels.
        skip_bad: leave out images that cannot be read, and count them.
        expect_accuracy: accuracy in per cent that the model is known to have; the data are refused if it is more than
            two standard errors lower on them.
        max_ece: gate: largest ECE of the result, per cent. All gates read the honest numbers, on `eval` or
            cross-fitted.
        max_nll: gate: largest NLL of the result, nats.
        min_accuracy: gate: least accuracy of the result, per cent.
        require_improvement: gate: the whole interval of the objective's difference has to lie below zero.
        fail_if_worse: gate: the whole interval of the objective's difference must not lie above zero, nor that of the
            NLL's where the objective did not improve.
        confidence_level: of all intervals, per cent.
        dry_run: do everything, verification and gates included, but write no model; `Report.changes` says what would
            be written. `cache` is still filled.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run; `auto` finds them by a short probe.
        cache: folder in which features are kept; an interrupted run goes on there, and a later one starts from them.
        overwrite: allow the output to be the input.
        details: collect the numbers behind the figures of the HTML report too, as `Report.details`.
        progress: called with (stage, done, total).

    Raises:
        UsageError: a path or setting that cannot be used.
        UnsupportedModel: no head that can be replaced.
        DataError: the data do not fit the model, or a map cannot be fitted on them.
        DeviceError: ONNX Runtime or the device is missing.
        CheckFailed: the file does not verify, or the accuracy is not the expected one. No file is written.
        GateMissed: a CheckFailed whose `result` is the Report of a result that missed gates. No file is written.
    """
    show = progress or silent
    _check_words(search=search, map=map, objective=objective, ets_loss=ets_loss)
    if search == "none" and map == "none":
        raise UsageError("search none with map none changes nothing; choose another --search or another --map")
    shape = {"alpha": alpha, "beta": beta, "theta_s": theta_s}
    limits = {"max_ece": max_ece, "max_nll": max_nll, "min_accuracy": min_accuracy}
    check_numbers("a whole number", max_ensemble_size=max_ensemble_size, n_t=n_t, bins=bins, seed=seed)
    check_numbers("a number", max_accuracy_drop=max_accuracy_drop, angle_step=angle_step, **shape)
    check_numbers("a number or None", **limits, expect_accuracy=expect_accuracy)
    settings = _settings(
        **_members(ensemble_size, max_ensemble_size),
        angle_step=angle_step,
        adaptive=adaptive,
        objective=objective,
        bins=bins,
        max_accuracy_drop=max_accuracy_drop / 100,
        seed=seed,
        antithetic=antithetic,
        tilt={**shape, "n_t": n_t},
    )
    gates = Gates(
        **limits,
        max_accuracy_drop=max_accuracy_drop,
        require_improvement=require_improvement,
        fail_if_worse=fail_if_worse,
    )
    level = check_level(confidence_level)
    data = DataOptions(preprocessing, format, classes, label_column, skip_bad, expect_accuracy)
    task = open_task(
        model, calib, eval, output, needs_head=search != "none", head=head, output_name=output_name,
        output_kind=output_kind, quantized_head=quantized_head, data=data,
        labels=labels, held_out_labels=eval_labels, device=device,
        batch_size=batch_size, cache=cache, overwrite=overwrite, bins=bins, show=show,
    )  # fmt: skip
    predicted = task.logits(task.head.weight if task.head else None).predictions()
    suspicion = data.check(predicted, task.source.labels, task.class_names, task.readout.n_classes)
    allowed = _allowed_maps(task)
    if map not in ("auto", *allowed):
        _refuse_map(task, map)
    strategy = Strategy(
        task.logits,
        task.head.weight if task.head else None,
        search,
        map,
        settings,
        _insertable(task, allowed, fold),
        {"ets_loss": ets_loss},
    )
    try:
        found = strategy.run(functools.partial(show, "search"))
    except ValueError as error:
        raise UnsupportedModel(f"{task.model.name}: {_where(task)}: {error}; use --search none") from error
    fitted, chosen = found.fitted, found.chosen
    factor = 1 / fitted.temperature if fold and isinstance(fitted, Temperature) and _foldable(task, found) else None
    rewritten = rewrite(
        task.model,
        task.readout,
        _written_weight(found, factor),
        bias_factor=factor or 1.0,
        write_map=fitted.forward if fitted and factor is None else None,
        keeps_order=found.map in _ORDER_KEPT,
        logits_shape=task.probed.logits_shape,
        metadata=provenance_entries(task, settings, search, found),
    )
    target = None if dry_run else task.output
    with pending(task.model, rewritten.proto, target) as path:
        checker = check_file(task.model, rewritten, path)
        session = task.samples.runner(task.model, path, task.class_output.name, task.device)
        written = found.logits if factor is None else task.logits(found.weight, factor)
        verification = check_probabilities(session, task, written, fitted, checker=checker)
        check_other_outputs(task, session, path, verification.bound)
        comparison, compared = _compare(task, strategy, found, path, show, level)
        missed = _missed(gates, comparison, objective)
        more = collect_details(task, settings, found, compared, path, show) if details else None
        after = found.logits.mapped_scores(fitted)
        drift = None if found.weight is None else task.quantization_drift(found.weight)
        changes = _changes(rewritten, task.output)
        kept = not missed and not dry_run
        report = Report(
            model=task.model.name,
            model_sha256=task.model.sha256,
            output=str(task.output) if task.output and kept else "",
            head=task.head.node if task.head else "",
            classes=task.readout.n_classes,
            features=task.head.n_features if task.head else 0,
            search=search,
            map=found.map,
            folded=factor is not None,
            parameters=fitted.brief if fitted else {},
            map_nll=found.map_nll,
            angle=chosen.angle,
            reached=chosen.reached,
            ensemble_size=chosen.ensemble_size,
            rotations=chosen.rotations,
            objective=objective,
            curve=tuple(_point(c, settings) for c in found.candidates),
            settings={
                **dataclasses.asdict(settings),
                "search": search,
                "map": map,
                "fold": fold,
                "ets_loss": ets_loss,
                "quantized_head": quantized_head,
                "ensemble_size_asked": ensemble_size,
                "device": device,
                "computed_on": _computed_on(task),
                "batch_size": task.batch_size,
                "confidence_level": confidence_level,
                "gates": dataclasses.asdict(gates),
            },
            calibration=compare_scores(task.source.describe(), "fitted", found.before, after, bins, seed, level),
            comparison=comparison,
            reliability=Reliability.of(*compared, bins),
            verification=verification,
            preprocessing=task.source.recipe(),
            provider=task.provider,
            versions=versions(),
            notes=(
                *notes_on(task, found, settings, search, comparison, drift, suspicion),
                *batch_size_notes(batch_size, task.batch_size),
                *(() if fail_if_worse else worse_note(comparison, objective)),
                *((dry_run_note(changes),) if dry_run else ()),
            ),
            quantization_drift=drift,
            recalibrated=rewritten.proto if task.output is None and kept else None,
            details=more,
            changes=changes,
            dry_run=dry_run,
            missed=missed,
        )
        if missed:
            raise GateMissed(report, "; no file was written")
    return report


# The paper's n_e, where `auto` starts.
_FIRST_MEMBERS = 10


def _members(ensemble_size: int | str, cap: int) -> dict[str, int]:
    """Ensemble size and its cap: a number is taken as given, `auto` starts at the paper's and may grow.

    Raises:
        UsageError: neither a positive whole number nor `auto` nor `inf`.
    """
    if ensemble_size == "auto":
        return {"ensemble_size": min(_FIRST_MEMBERS, cap), "max_ensemble_size": cap}
    if ensemble_size == "inf":
        return {"ensemble_size": LIMIT, "max_ensemble_size": LIMIT}
    if isinstance(ensemble_size, str):
        raise UsageError(f"ensemble size '{ensemble_size}' is not known; expected auto, inf or a positive number")
    check_numbers("a whole number", ensemble_size=ensemble_size)
    if ensemble_size < 1:
        raise UsageError(f"ensemble_size must be at least 1, auto or inf, got {ensemble_size}")
    return {"ensemble_size": ensemble_size, "max_ensemble_size": ensemble_size}


def _missed(gates: Gates, comparison: Comparison, objective: str) -> tuple[str, ...]:
    """Lines on the gates that a result misses."""
    kind = "calibration" if comparison.how == "unchanged" else comparison.how
    after = comparison.after
    changes = gates.changes_missed(comparison.differences, objective, after, kind)
    return (*gates.limits_missed(after, kind), *changes)


def _changes(rewritten: Rewritten, target: Path | None) -> Changes:
    names = (tuple(sorted(names)) for names in (rewritten.changed, rewritten.added, rewritten.nodes))
    return Changes("" if target is None else str(target), *names)


def _settings(*, tilt: dict[str, Any], **values: Any) -> SearchSettings:
    """Check the settings that the command line's types do not see on the way through Python.

    Raises:
        UsageError: a value out of its range.
    """
    try:
        return SearchSettings(**values, tilt=TiltParameters(**tilt))
    except ValueError as error:
        raise UsageError(str(error)) from error


_WORDS = {
    "search": ("sparse", "complete", "none"),
    "map": ("none", *MAPS, "auto"),
    "objective": ("ece", "adaece", "nll"),
    "ets_loss": ("squared", "nll"),
}


def _check_words(**given: str) -> None:
    """Refuse a misspelt choice.

    Raises:
        UsageError: a word that is not known.
    """
    for name, word in given.items():
        if word not in _WORDS[name]:
            raise UsageError(f"{name} '{word}' is not known; expected {', '.join(_WORDS[name])}")


# Maps that never change which class comes first.
_ORDER_KEPT = ("none", "ts", "ets")


def _written_weight(found: Outcome, factor: float | None) -> NDArray[Any] | None:
    """Return the weight that goes into the file; None if it stays as it is, to the bit."""
    if found.weight is None or (factor is None and found.chosen.angle == 0):
        return None
    weight: NDArray[Any] = found.weight * np.asarray(factor or 1.0, found.weight.dtype)
    return weight


def _foldable(task: Task, found: Outcome) -> bool:
    """Whether a temperature can go into weight and bias; a quantised weight that stays as it is keeps its integers."""
    head = task.head
    if head is None or not can_scale(task.model, head):
        return False
    return head.stored_weight.quantized is None or found.chosen.angle != 0


def _computed_on(task: Task) -> str:
    """Where the search and the fits are computed: only products with a plain weight can be on a device."""
    on_device = task.head is not None and task.probed.tail is None
    return task.placement.name if on_device else Host.name


def _where(task: Task) -> str:
    return f"head '{task.head.node}'" if task.head else f"output '{task.readout.output}'"


def _allowed_maps(task: Task) -> tuple[str, ...]:
    """Maps that the model's graph can hold: new nodes need its opset, `aar` its features as a plain matrix."""
    if not can_append(task.readout.logits_type, task.model.opset):
        return ("none", "ts") if task.head and task.head.homogeneous else ("none",)
    return tuple(name for name in ("none", *MAPS) if task.probed.plain_features or not _reads_features(name))


def _insertable(task: Task, allowed: tuple[str, ...], fold: bool) -> tuple[str, ...]:
    """Those of the maps that can be written so that no one reads the scores in front of them."""
    folded = fold and task.head is not None and can_scale(task.model, task.head)

    def fits(name: str) -> bool:
        inside = name == "ts" and folded
        return name == "none" or inside or can_insert(task.model, task.readout, keeps_order=name in _ORDER_KEPT)

    return tuple(filter(fits, allowed))


def _reads_features(name: str) -> bool:
    return name in MAPS and MAPS[name].needs_features


def _refuse_map(task: Task, name: str) -> None:
    """Say why the graph cannot hold a map.

    Raises:
        UnsupportedModel: always.
    """
    NodeOps(task.readout.logits_type, task.model.opset)  # raises, if that is the reason
    what = f"the features '{task.head.features}'" if task.head else "the features of a linear head"
    raise UnsupportedModel(
        f"{task.model.name}: map {name} reads {what} in the graph and expects (N, n) in the dtype of the logits; "
        "choose another --map"
    )


def _compare(
    task: Task, strategy: Strategy, found: Outcome, path: Path, show: Progress, level: float
) -> tuple[Comparison, tuple[SampleScores, SampleScores]]:
    """Held-out data run through both files; else cross-fitting; else, if nothing changed, the input with itself.

    Returns:
        (comparison, (scores before, scores after)).
    """
    bins, seed = strategy.settings.bins, strategy.settings.seed
    how: How = "cross-fitted"
    described = task.source.describe()
    if task.held_out is not None:
        data, output = task.held_out, task.class_output
        runners = [data.runner(task.model, file, output.name, task.device) for file in (None, path)]
        models = [(runner, output) for runner in runners]
        old, new = score_models(models, data.source, task.batch_size, show)
        how, described = "held-out", data.source.describe()
    elif found.chosen.angle == 0 and found.fitted is None:  # every bit of the output is the input's
        how, old, new = "unchanged", found.before, found.before
    else:
        old, new = strategy.cross_fitted(found)
    return compare_scores(described, how, old, new, bins, seed, level), (old, new)


def _point(candidate: Candidate, settings: SearchSettings) -> CurvePoint:
    value = objective_value(candidate.scores, settings.objective, settings.bins)
    accuracy = float(np.mean(candidate.scores.hit))
    parameters = candidate.fitted.brief if candidate.fitted else {}
    return CurvePoint(
        candidate.angle, candidate.ensemble_size, candidate.rotations, value, accuracy, parameters, candidate.reached
    )
