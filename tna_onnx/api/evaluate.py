"""`evaluate`: run a model over labelled data and reduce what it says to metrics."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from tna_onnx.api.arguments import data_of, held_out_of, limits_of, model_options_of, refuse_unknown
from tna_onnx.api.shown import ProgressWord, check_targets, kept, shown
from tna_onnx.api.words import EvaluateWords, Unpack
from tna_onnx.calibration.decided import decided_on, decided_thresholds
from tna_onnx.calibration.leaks import Told
from tna_onnx.data.digest import sample_form
from tna_onnx.data.images.notes import preprocessing_notes
from tna_onnx.data.source import require_samples
from tna_onnx.data.suspicion import warnings_of
from tna_onnx.engine.scoring import scorers_on
from tna_onnx.errors import UsageError
from tna_onnx.extraction.batch_size import batch_size_notes, check_batch_size, choose_batch_size
from tna_onnx.extraction.isolated import open_source
from tna_onnx.extraction.sessions import in_rows, input_specs, open_model
from tna_onnx.extraction.words import BatchSize
from tna_onnx.graph.load import Model
from tna_onnx.graph.options import ModelSource
from tna_onnx.graph.outputs import ClassOutput, class_output
from tna_onnx.guarding.reading import guards_about, require_outlier_score, score_guarded
from tna_onnx.guarding.unknown import open_unknown
from tna_onnx.numerics.checks import check_numbers
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.reliability import Bins
from tna_onnx.results.bin_free import BinFree
from tna_onnx.results.evaluation import Evaluation
from tna_onnx.results.gates import GateMissed
from tna_onnx.results.label_metrics import LabelMetrics
from tna_onnx.runtime import parse_device

__all__ = ["evaluate"]

_log = logging.getLogger("tna_onnx")


def evaluate(
    model: ModelSource,
    data: Any,
    *,
    ood_data: Any = None,
    bins: int = 15,
    device: str = "auto",
    batch_size: BatchSize = 64,
    engine: str = "local",
    json: str | Path | None = None,
    progress: ProgressWord = None,
    **words: Unpack[EvaluateWords],
) -> Evaluation:
    """Measure a classifier on labelled data: accuracy, ECE, AdaECE, NLL, Brier.

    Args:
        model: an ONNX model as for `calibrate`, written by this package or not.
        data: labelled data, as for `calibrate`.
        ood_data: for a guarded model with the output `ood`: samples that it should not know, likewise; their labels
            may be any.
        bins: bins of ECE and AdaECE.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run; `auto` finds them by a short probe.
        engine: `local`, `processes:N`, `ray` or `ray:HOST:PORT`: who runs the model (docs/how-to/cluster.md).
        json: JSON file to write.
        progress: True for bars on standard error, or a function that is called with (stage, done, total).
        **words: single fields by name: of `tna_onnx.Data`, of `tna_onnx.ModelOptions`, and the limits `max_ece`,
            `max_nll` and `min_accuracy` of `tna_onnx.Gates`.

    Raises:
        TypeError: a keyword that none of these has.
        UsageError: a path or setting that cannot be used.
        UnsupportedModel: the file is no classifier that can be read.
        DataError: the data do not fit the model.
        CheckFailed: the accuracy is more than two standard errors below the expected one.
        GateMissed: a CheckFailed whose `result` is the Evaluation of a model that missed gates.
        DeviceError: ONNX Runtime, the device or the Ray cluster is missing, or workers end again and again.
    """
    refuse_unknown("evaluate", words, EvaluateWords)
    check_numbers("a whole number", bins=bins)
    # limits are checked before the model is loaded
    gates = limits_of(words)
    check_batch_size(batch_size)
    check_targets(json)
    options = model_options_of(words)
    labelled = data_of(data, words)
    workers = scorers_on(engine, labelled)
    loaded = open_source(model, options)
    output = class_output(loaded, options.head, options.output_name, options.output_kind)
    if workers is not None:
        _require_scores_alone(loaded, output, engine)
    session = in_rows(open_model(loaded, parse_device(device)), output, loaded.name)
    names = labelled.class_names(loaded.metadata, output.labels, output.n_classes)
    inputs = input_specs(session)
    source = labelled.open(inputs, output.n_classes, names, several=output.several, multi_label=output.multi_label)
    require_samples(source, bins)
    size = choose_batch_size(batch_size, session, [output.name], source)
    apart = held_out_of(ood_data, labelled, {})
    unknown = None
    if apart is not None:
        require_outlier_score([loaded])
        unknown = open_unknown(apart, inputs, source)
    _log.info("open: %s, provider %s", loaded.name, session.provider)
    _log.debug("open: output %s (%s), samples per run: %d", output.name, output.kind, size)
    _log.info("data: %s", source.describe())
    told = Told(source, sample_form(source))
    gave_thresholds = decided_thresholds(loaded, told, labelled.limits)
    fresh = None if gave_thresholds is None else not gave_thresholds
    with shown(progress) as advance:
        if workers is None:
            scores, predicted, decisions = score_guarded(
                session, loaded, output, source, size, advance, unknown=unknown, fresh=fresh
            )
        else:
            where = parse_device(device)
            scores, predicted = workers.score(loaded, where, output, source, names, session.provider, size, advance)
            decisions = None
    suspicion = labelled.check(predicted, source.labels, names, output.n_classes)
    metrics = Metrics.of(scores, bins)
    together = scores.pooled()
    evaluation = Evaluation(
        model=loaded.name,
        model_sha256=loaded.sha256,
        output=output.name,
        output_kind=output.kind,
        data=source.describe(),
        metrics=metrics,
        reliability=Bins.of(together.confidence, together.hit, bins),
        bin_free=BinFree.of(scores, bins),
        preprocessing=source.recipe(),
        provider=session.provider,
        notes=(
            *batch_size_notes(batch_size, size),
            *warnings_of(suspicion, names),
            *preprocessing_notes(source, inputs, labelled.preprocessing),
            *decided_on(loaded, told, labelled.limits),
        ),
        missed=gates.limits_missed(metrics, ""),
        decisions=decisions,
        labels=LabelMetrics.of(scores, None, bins, names),
    )
    _log.info("done: %s samples", f"{metrics.n:,}")
    kept(json, evaluation)
    # with the whole result: the command line prints it before it exits
    if evaluation.missed:
        raise GateMissed(evaluation)
    return evaluation


def _require_scores_alone(model: Model, output: ClassOutput, engine: str) -> None:
    """Refuse what more than scores of single samples is measured of.

    Raises:
        UsageError: such a model.
    """
    if output.several:
        raise UsageError(f"several predictions a sample are scored in this process; leave --engine {engine} out")
    if output.multi_label:  # scores of all labels would travel
        raise UsageError(f"samples with several labels are scored in this process; leave --engine {engine} out")
    if guards_about(model, output):
        raise UsageError(
            f"{model.name}: what a guarded model decides is measured in this process; leave --engine {engine} out"
        )
