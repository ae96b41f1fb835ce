"""`evaluate`: run a model over labelled data and reduce what it says to metrics."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.api.arguments import (
    EvaluateWords,
    ProgressWord,
    Unpack,
    check_targets,
    data_of,
    held_out_of,
    kept,
    limits_of,
    model_options_of,
    refuse_unknown,
    shown,
)
from tna_onnx.data import InputSpec, Source
from tna_onnx.data.choices import BatchSize
from tna_onnx.data.digest import sample_form
from tna_onnx.data.images.recipes import preprocessing_notes
from tna_onnx.data.options import Data
from tna_onnx.data.source import require_samples, source_search
from tna_onnx.data.suspicion import warnings_of
from tna_onnx.extraction.batch_size import batch_size_notes, check_batch_size, choose_batch_size
from tna_onnx.extraction.independence import require_independence
from tna_onnx.extraction.preparation import Preparation
from tna_onnx.extraction.sessions import in_rows, input_specs, open_model, open_source
from tna_onnx.graph.load import Model
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.graph.outputs import ClassOutput, class_output
from tna_onnx.guarding.measure import require_outlier_score, score_guarded
from tna_onnx.guarding.opening import open_unknown
from tna_onnx.numerics.checks import check_numbers
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.reliability import Bins
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline.notes import decided_on, decided_thresholds
from tna_onnx.pipeline.sample_checks import Told
from tna_onnx.progress import Progress
from tna_onnx.results.details import BinFree, LabelMetrics
from tna_onnx.results.evaluation import Evaluation
from tna_onnx.results.gates import GateMissed, Gates
from tna_onnx.results.guarding import Decisions
from tna_onnx.runtime import Device, Session, parse_device

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
        DeviceError: ONNX Runtime or the device is missing.
    """
    refuse_unknown("evaluate", words, EvaluateWords)
    check_numbers("a whole number", bins=bins)
    # limits are checked before the model is loaded
    gates = limits_of(words)
    check_batch_size(batch_size)
    check_targets(json)
    labelled = data_of(data, words)
    opened = _open(model, labelled, model_options_of(words), parse_device(device), batch_size, bins)
    labelled = opened.data
    unknown = _open_unknown(opened, held_out_of(ood_data, labelled, {}))
    with shown(progress) as advance:
        scores, predicted, decisions = _scored(opened, labelled, unknown, advance)
    suspicion = labelled.check(predicted, opened.source.labels, opened.names, opened.output.n_classes)
    notes = (*batch_size_notes(batch_size, opened.batch_size), *opened.notes, *warnings_of(suspicion, opened.names))
    evaluation = _evaluation(opened, labelled, scores, decisions, bins, gates, notes)
    _log.info("done: %s samples", f"{evaluation.metrics.n:,}")
    kept(json, evaluation)
    # with the whole result: the command line prints it before it exits
    if evaluation.missed:
        raise GateMissed(evaluation)
    return evaluation


@dataclass(frozen=True, eq=False)
class _Opened:
    """A model with a session, and the samples that it is measured on."""

    model: Model
    output: ClassOutput
    session: Session
    inputs: tuple[InputSpec, ...]
    names: tuple[str, ...] | None
    source: Source
    data: Data
    batch_size: int
    notes: tuple[str, ...]

    @functools.cached_property
    def told(self) -> Told:
        """What tells these samples from others."""
        return Told(self.source, sample_form(self.source))


def _open(
    given: ModelSource, data: Data, options: ModelOptions, device: Device, batch_size: BatchSize, bins: int
) -> _Opened:
    model = open_source(given, options)
    output = class_output(model, options.head, options.output_name, options.output_kind)
    session = in_rows(open_model(model, device), output, model.name)
    names = data.class_names(model.metadata, output.labels, output.n_classes)
    inputs = input_specs(session)
    source = data.open(inputs, output.n_classes, names, several=output.several, multi_label=output.multi_label)
    require_samples(source, bins)
    data, source = Preparation(model, output, session).settle(data, source)
    size = choose_batch_size(batch_size, session, [output.name], source)
    _log.info("open: %s, provider %s", model.name, session.provider)
    _log.debug("open: output %s (%s), samples per run: %d", output.name, output.kind, size)
    _log.info("data: %s", source.describe())
    notes = require_independence(model, session, output, source, size)
    return _Opened(model, output, session, inputs, names, source, data, size, notes)


def _open_unknown(opened: _Opened, data: Data | None) -> Source | None:
    """Open the samples that a guarded model should not know."""
    if data is None:
        return None
    require_outlier_score([opened.model])
    return open_unknown(data, opened.inputs, opened.source)


def _scored(
    opened: _Opened, data: Data, unknown: Source | None, progress: Progress
) -> tuple[SampleScores, NDArray[np.int64], Decisions | None]:
    gave_thresholds = decided_thresholds(opened.model, opened.told, data.limits)
    return score_guarded(
        opened.session,
        opened.model,
        opened.output,
        opened.source,
        opened.batch_size,
        progress,
        unknown=unknown,
        fresh=None if gave_thresholds is None else not gave_thresholds,
    )


def _evaluation(
    opened: _Opened,
    data: Data,
    scores: SampleScores,
    decisions: Decisions | None,
    bins: int,
    gates: Gates,
    notes: tuple[str, ...],
) -> Evaluation:
    source = opened.source
    metrics = Metrics.of(scores, bins)
    together = scores.pooled()
    return Evaluation(
        model=opened.model.name,
        model_sha256=opened.model.sha256,
        output=opened.output.name,
        output_kind=opened.output.kind,
        data=source.describe(),
        metrics=metrics,
        reliability=Bins.of(together.confidence, together.hit, bins),
        bin_free=BinFree.of(scores, bins),
        preprocessing=source.recipe(),
        recipe_search=source_search(source),
        provider=opened.session.provider,
        notes=(
            *notes,
            *preprocessing_notes(source, opened.inputs, data.preprocessing),
            *decided_on(opened.model, opened.told, data.limits),
        ),
        missed=gates.limits_missed(metrics, ""),
        decisions=decisions,
        labels=LabelMetrics.of(scores, None, bins, opened.names),
    )
