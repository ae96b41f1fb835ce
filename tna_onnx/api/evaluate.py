"""`evaluate`: run a model over labelled data and reduce what it says to metrics."""

from __future__ import annotations

import logging
import math
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
from tna_onnx.data.suspicion import warnings_of
from tna_onnx.engine.scoring import with_projections, with_quantum
from tna_onnx.errors import DataError, NoLabels, UnsupportedModel, UsageError
from tna_onnx.extraction.classifier import Classifier, read_classifier
from tna_onnx.extraction.opened_samples import local_npz, open_inputs
from tna_onnx.extraction.sessions import open_part
from tna_onnx.graph.cut import cut_at
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.graph.readers import answer_of
from tna_onnx.graph.readout import STATED_KINDS, ClassOutput
from tna_onnx.guarding.measure import guards_about, outlier_scores, score_guarded
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.positive import Classes, PositiveSide
from tna_onnx.numerics.reference import Reference
from tna_onnx.numerics.reliability import Bins
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline.opening import Opened, batch_notes, open_computed
from tna_onnx.pipeline.sample_checks import decided_on, decided_thresholds
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.writing import read_reference
from tna_onnx.progress import Progress
from tna_onnx.results import measured
from tna_onnx.results.details import BinFree, LabelMetrics
from tna_onnx.results.gates import LIMITS, GateMissed, Gates
from tna_onnx.results.outcomes import ClassFrequency, Decisions
from tna_onnx.results.verdict import Recall
from tna_onnx.runtime import Device, parse_device

_log = logging.getLogger("tna_onnx")

# Probability of a logit of 1, up to rounding.
_LARGEST = 1 / (1 + math.exp(-1)) + 1e-6

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
        labels: labels of the samples of `data`, if they are stored apart: a file, or values (N,).
        preset: preprocessing of images, as for `calibrate`.
        classes: class names in the model's order, or a file with them.
        bins: bins of ECE and AdaECE.
        positive: of two classes the one that P(positive) is about, by name or number; the second without it.
        gates: the limits `max_ece`, `max_nll`, `min_accuracy` and `min_recall`, which is by the output `decision` where
            the model has it.
        model_options: which output, and what it holds.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run.
        json: JSON file to write.
        progress: True for bars on standard error, or a function that is called with (stage, done, total).

    Raises:
        TypeError: an unknown keyword; the message names the dataclass that has it.
        UsageError: a path or setting that cannot be used.
        UnsupportedModel: the file is no classifier that can be read.
        DataError: the data do not fit the model.
        CheckFailed: the accuracy is more than two standard errors below the expected one.
        GateMissed: a CheckFailed whose `result` is the Evaluation of a model that missed gates.
        DeviceError: ONNX Runtime or the device is missing.
    """
    Settings(bins=bins)  # refuses what is no number of bins
    gates = arguments.limits_of(gates, "evaluate", *LIMITS, "min_recall")
    reading = arguments.reading_of(None, labels=labels, preprocessing=preset, classes=classes)
    labelled = arguments.samples_of(data, reading)
    arguments.check_targets(json, others=[model, labelled])
    options = model_options or ModelOptions()
    with arguments.progress_callback(progress) as advance:
        place = parse_device(device)
        try:
            opened = _open(model, labelled, options, place, batch_size, bins)
        except NoLabels as missing:
            said = arguments.stated_in(labelled) | arguments.stated_in(gates) | {"positive": positive or None}
            needed = [name for name in _NEED_LABELS if said.get(name) is not None]
            if needed:
                option = f"--{needed[0].replace('_', '-')}"
                raise UsageError(f"{option} needs labels, and there are none; leave it out. {missing}") from missing
            try:
                expected = _unlabelled(model, labelled, options, place, batch_size, advance)
            except UnsupportedModel as error:
                raise type(missing)(f"{missing}. Without labels: {error}") from error
            return _finished(replace(expected, missed=gates.expected_missed(expected)), json)
        scores, predicted, decisions = _scored(opened, advance)
    scores = scores.resolved(opened.output.resolution, opened.output.n_classes)
    notes = (
        *opened.notes,
        *warnings_of(opened.suspicion(predicted, lambda: scores.confidence), opened.classifier.names),
    )
    notes += doubtful_logits(opened.output, scores, predicted)
    classes_read = measured.named_classes(positive, opened.names, labels=opened.output.multi_label)
    evaluation = _evaluation(opened, scores, decisions, bins, classes_read, gates, notes)
    if gates.min_recall:
        recall = _recall(opened, scores, decisions)
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


def doubtful_logits(output: ClassOutput, scores: SampleScores, predicted: NDArray[np.int64]) -> tuple[str, ...]:
    """Say that an output which was said to hold single logits has values from 0 to 1 alone, as probabilities do.

    Such a logit gives the second class a probability from a half to `_LARGEST`.
    """
    inside = (scores.confidence <= 0.5) | ((predicted == 1) & (scores.confidence <= _LARGEST))
    if output.kind not in STATED_KINDS or not np.all(inside):
        return ()
    word = STATED_KINDS[output.kind].replace("logits", "probabilities").replace("logit", "probability")
    return (
        f"output '{output.name}' should hold logits, and all its values lie between 0 and 1: if they are "
        f"probabilities, the numbers are wrong; say --output-kind {word}",
    )


def _recall(opened: Opened, scores: SampleScores, decisions: Decisions | None) -> dict[str, float | None]:
    """Return the recall of each class: of the output `decision`, or of predictions where there is none."""
    if decisions is not None and decisions.decision is not None:
        return {result.name: result.recall for result in decisions.decision.classes}
    names = opened.names
    recall = Recall.of(scores.labelled(opened.source.labels), scores, names, same_predictions=True)
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
    outlier_outputs = outlier_scores(classifier.model, classifier.output)
    notes = batch_notes(classifier, source, batch_size, outlier_outputs)
    classifier.output = with_quantum(classifier.session, classifier.output, source, batch_size)
    about_images = preprocessing_notes(source, classifier.inputs, data.preprocessing)
    notes = (*notes, *group_notes(source), *about_images)
    return Opened(classifier, data, source, None, batch_size, notes, form=form)


def _scored(opened: Opened, progress: Progress) -> tuple[SampleScores, NDArray[np.int64], Decisions | None]:
    gave_thresholds = decided_thresholds(opened.model, opened.digested, opened.data.limits)
    return score_guarded(
        opened.session,
        opened.model,
        opened.output,
        opened.source,
        opened.batch_size,
        progress,
        fresh=None if gave_thresholds is None else not gave_thresholds,
        names=opened.classifier.names,
        label=None if opened.form else answer_of(opened.model, opened.output),
    )


def _evaluation(
    opened: Opened,
    scores: SampleScores,
    decisions: Decisions | None,
    bins: int,
    classes: Classes,
    gates: Gates,
    notes: tuple[str, ...],
) -> measured.Evaluation:
    source = opened.source
    scores = scores.labelled(source.labels)
    metrics = replace(Metrics.of(scores, bins), positive=PositiveSide.of(scores, classes, bins).worst(bins))
    parts = source.sample_info.get("by")
    notes += decided_on(opened.model, opened.digested, opened.data.limits)
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
        decisions=decisions,
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
    known = _known(reference, values, classifier.names or tuple(map(str, range(output.n_classes))))
    notes += (
        f"the test is for one look; if you look k times, such as weekly, only p below {_LEVEL:g} / k is an alarm",
    )
    if known.alarm:
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
        without_labels=known,
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
