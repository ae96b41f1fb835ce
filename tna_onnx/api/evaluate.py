"""`evaluate`: run a model over labelled data and reduce what it says to metrics."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.api import arguments
from tna_onnx.data.images.known_recipes import preprocessing_notes, source_search
from tna_onnx.data.options import Data
from tna_onnx.data.source import group_notes, require_samples
from tna_onnx.engine.scoring import with_projections
from tna_onnx.errors import DataError, NoLabels, UnsupportedModel, UsageError
from tna_onnx.extraction.classifier import Classifier, read_classifier
from tna_onnx.extraction.opened_samples import local_npz, open_inputs
from tna_onnx.extraction.sessions import open_part
from tna_onnx.graph.cut import cut_at
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.guarding.measure import Scored, guards_about, opened_to_score, score_opened
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.positive import Classes, PositiveSide
from tna_onnx.numerics.reference import Reference
from tna_onnx.numerics.reliability import Bins
from tna_onnx.pipeline.opening import Opened, batch_notes, open_computed
from tna_onnx.pipeline.writing import read_reference
from tna_onnx.progress import Progress
from tna_onnx.results import measured
from tna_onnx.results.details import BinFree, LabelMetrics
from tna_onnx.results.gates import LIMITS, GateMissed, Gates
from tna_onnx.results.outcomes import ClassFrequency
from tna_onnx.results.verdict import Recall
from tna_onnx.runtime import Device, parse_device

_log = logging.getLogger("tna_onnx")

_LEVEL = 0.05

# Below, means are not normally distributed.
_FEWEST = 50

_NEED_LABELS = ["group_column", "groups", "by", "weight_column", "weights", "class_prior", "expect_accuracy"]
# without labels, an accuracy is to be expected
_NEED_LABELS += [*(name for name in LIMITS if name != "min_accuracy"), "min_recall", "positive"]


@arguments.checked
def evaluate(
    model: ModelSource,
    data: Any,
    *,
    labels: Any = None,
    preset: arguments.PresetWord = None,
    classes: arguments.ClassNames = None,
    bins: int = 15,
    positive: str = "",
    gates: Gates | None = None,
    model_options: ModelOptions | None = None,
    device: str = "auto",
    batch_size: int = 64,
    json: str | Path | None = None,
    progress: arguments.ProgressWord = None,
) -> measured.Evaluation:
    """Measure a classifier on labelled data: accuracy, ECE, AdaECE, NLL, Brier.

    On data without labels, say which accuracy is to be expected (`Evaluation.without_labels`).

    Args:
        model: an ONNX model as for `calibrate`, written by this package or not.
        data: data with labels or without, as for `calibrate`, or a `tna_onnx.Data`, whose `by`, a column or values
            (N,), splits the samples into subgroups; features or logits of the model, or of the one that it is a
            recalibration of, go through the nodes behind them alone.
        bins: bins of ECE and AdaECE.
        positive: of two classes the one that P(positive) is about, by name or number; the second without it.
        gates: the limits `max_ece`, `max_nll`, `min_accuracy` and `min_recall`, which is by the output `decision` where
            the model has it.
        model_options: which output, and what it holds.
        labels, preset, classes, device, batch_size, json, progress: as for `calibrate`.

    Raises:
        UsageError: a path or setting that cannot be used.
        UnsupportedModel: the file is no classifier that can be read.
        DataError: the data do not fit the model.
        CheckFailed: the accuracy is more than two standard errors below the expected one.
        GateMissed: a CheckFailed whose `result` is the Evaluation of a model that missed gates.
        DeviceError: ONNX Runtime or the device is missing.
    """
    gates = arguments.limits_of(gates, "evaluate", *LIMITS, "min_recall")
    reading = arguments.reading_of(None, labels=labels, preprocessing=preset, classes=classes)
    labelled = arguments.samples_of(data, reading)
    arguments.check_targets(json, in_use=[model, labelled])
    options = model_options or ModelOptions()
    with arguments.progress_callback(progress) as advance:
        place = parse_device(device)
        try:
            opened = _open(model, labelled, options, place, batch_size, bins)
        except NoLabels as missing:
            stated = arguments.stated_in(labelled) | arguments.stated_in(gates) | {"positive": positive or None}
            needed = [name for name in _NEED_LABELS if stated.get(name) is not None]
            if needed:
                option = f"--{needed[0].replace('_', '-')}"
                raise UsageError(f"{option} needs labels, and there are none; leave it out. {missing}") from missing
            try:
                expected = _unlabelled(model, labelled, options, place, batch_size, advance)
            except UnsupportedModel as error:
                raise type(missing)(f"{missing}. Without labels: {error}") from error
            return _finished(replace(expected, missed=gates.expected_missed(expected)), json)
        scored = score_opened(opened, advance)
    scored = replace(scored, scores=scored.scores.resolved(opened.output.resolution, opened.output.n_classes))
    classes_read = measured.named_classes(positive, opened.names, labels=opened.output.multi_label)
    evaluation = _evaluation(opened, scored, bins, classes_read, gates)
    if gates.min_recall:
        recall = _recall(opened, scored)
        missed = gates.classes_missed(recall, f"{evaluation.metrics.n:,} samples")
        evaluation = replace(evaluation, missed=(*evaluation.missed, *missed))
    return _finished(evaluation, json)


def _finished(evaluation: measured.Evaluation, json: str | Path | None) -> measured.Evaluation:
    """Write and return a result, or raise it if it misses a gate."""
    _log.info("done: %s samples", f"{evaluation.metrics.n:,}")
    arguments.save_json(json, evaluation)
    # with the whole result: the command line prints it before it exits
    if evaluation.missed:
        raise GateMissed(evaluation)
    return evaluation


def _recall(opened: Opened, scored: Scored) -> dict[str, float | None]:
    """Return the recall of each class: of the output `decision`, or of predictions where there is none."""
    if scored.decisions is not None and scored.decisions.decision is not None:
        return {result.name: result.recall for result in scored.decisions.decision.classes}
    labelled = scored.scores.labelled(opened.source.labels)
    recall = Recall.of(labelled, scored.scores, opened.names, same_predictions=True)
    return {result.name: result.after for result in recall.classes}


def _open(model: ModelSource, data: Data, options: ModelOptions, device: Device, batch_size: int, bins: int) -> Opened:
    loaded, output = read_classifier(model, options)
    guards = guards_about(loaded, output)
    form = ""
    with local_npz(data) as place:
        data = replace(data, samples=place)
        computed = open_computed(loaded, output, device, data, options, guards.values())
        if computed is None:
            classifier = Classifier(loaded, output, device, data)
            data, source = open_inputs(classifier, data)
        else:
            classifier, samples = computed
            source = samples.source
            form = samples.form
    require_samples(source, bins)
    opened = opened_to_score(classifier, data, source, batch_size, form)
    return replace(opened, notes=(*group_notes(source), *opened.notes))


def _evaluation(opened: Opened, scored: Scored, bins: int, classes: Classes, gates: Gates) -> measured.Evaluation:
    source = opened.source
    scores = scored.scores.labelled(source.labels)
    metrics = replace(Metrics.of(scores, bins), positive=PositiveSide.of(scores, classes, bins).worst(bins))
    parts = source.sample_info.get("by")
    notes = scored.notes
    subgroups: tuple[measured.Subgroup, ...] = ()
    if parts is not None:
        subgroups = measured.subgroups_of(scores, parts, classes, bins)
        notes += measured.subgroup_notes(parts, subgroups)
    return measured.Evaluation(
        model=opened.model.name,
        model_sha256=opened.model.sha256,
        output=opened.output.name,
        output_kind=opened.output.kind,
        data=source.describe(),
        metrics=metrics,
        reliability=Bins.of_scores(scores, bins),
        bin_free=BinFree.of(scores, bins),
        preprocessing=source.recipe(),
        recipe_search=source_search(source),
        provider=opened.session.provider,
        notes=(*notes, *measured.resolution_notes(opened.output.resolution, opened.output.n_classes)),
        resolution=opened.output.resolution,
        missed=gates.limits_missed(metrics, ""),
        decisions=scored.decisions,
        labels=LabelMetrics.of(scores, None, bins, opened.classifier.names),
        estimates=measured.estimates_of(scores, classes, bins),
        subgroups=subgroups,
    )


def _unlabelled(
    model: ModelSource, data: Data, options: ModelOptions, device: Device, batch_size: int, progress: Progress
) -> measured.Evaluation:
    """Say what accuracy is to be expected on samples without labels, and test whether that can be said."""
    loaded, output = read_classifier(model, options)
    reference = read_reference(loaded, output.name)
    further = [*filter(None, [reference.features])]
    if len(reference.counts) != output.n_classes or not {*further} <= {*loaded.producers}:
        raise UnsupportedModel(f"{loaded.name}: the reference of its calibration is of another model; give labels")
    session = open_part(loaded, cut_at(loaded, [output.name, *further]), device)
    classifier = Classifier(loaded, output, device, data, session)
    data, source = open_inputs(classifier, data, labels=False)
    if len(source) < _FEWEST:
        raise DataError(f"{source.describe()}: expected at least {_FEWEST} samples; give more, or labels")
    notes = batch_notes(classifier, source, batch_size)
    notes += (*preprocessing_notes(source, classifier.inputs, data.preprocessing),)
    values = with_projections(session, output, further, source, batch_size, "evaluate", progress)
    expected = _known(reference, values, classifier.names_or_numbers)
    notes += (
        f"the test is for one look; if you look k times, such as weekly, only p below {_LEVEL:g} / k is an alarm",
    )
    if expected.alarm:
        size = min(measured.LABELLED, len(source))
        notes += (f"label {size} of these samples, drawn at random, and run: tna-onnx evaluate {loaded.name} FILE",)
    return measured.Evaluation(
        model=loaded.name,
        model_sha256=loaded.sha256,
        output=output.name,
        output_kind=output.kind,
        data=source.describe(),
        metrics=Metrics.unknown(len(source)),
        reliability=Bins((), (), ()),
        bin_free=BinFree.unknown(),
        preprocessing=source.recipe(),
        provider=session.provider,
        notes=notes,
        without_labels=expected,
    )


def _known(reference: Reference, values: Sequence[NDArray[Any]], names: Sequence[str]) -> measured.WithoutLabels:
    """Return the result; after an alarm without what assumes that there is none."""
    accuracy, shares, other_p = reference.expected(*values)
    confidence = float(values[0].max(axis=1).mean(dtype=np.float64))
    if other_p < _LEVEL:
        return measured.WithoutLabels(None, confidence, other_p, True, ())
    before = (reference.counts / reference.counts.sum()).tolist()
    rows = zip(names, before, shares.tolist(), strict=True)
    frequencies = tuple(ClassFrequency(name, share, now, (low, high)) for name, share, (now, low, high) in rows)
    return measured.WithoutLabels(accuracy, confidence, other_p, False, frequencies)
