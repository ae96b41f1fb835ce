"""One model of `compare`: run over the samples, and reduced to what the comparison says of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tna_onnx.api.compared_samples import ComparedSamples
from tna_onnx.api.named_models import GivenModel
from tna_onnx.calibration.decided import decided_on
from tna_onnx.calibration.leaks import Told
from tna_onnx.data.digest import sample_form
from tna_onnx.data.images.notes import preprocessing_notes
from tna_onnx.data.options import Data
from tna_onnx.data.suspicion import warnings_of
from tna_onnx.extraction.batch_size import batch_size_notes, choose_batch_size
from tna_onnx.extraction.sessions import in_rows, input_specs, open_model
from tna_onnx.extraction.words import BatchSize
from tna_onnx.graph.load import Model
from tna_onnx.graph.outputs import ClassOutput
from tna_onnx.guarding.reading import score_guarded
from tna_onnx.guarding.unknown import open_unknown
from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.metrics import Interval, Metrics
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.progress import Progress
from tna_onnx.results.bin_free import BinFree
from tna_onnx.results.comparison import ComparedModel, verdict_text
from tna_onnx.results.details import Bins
from tna_onnx.results.guarding import Decisions
from tna_onnx.runtime import Device

__all__ = ["Run", "RunSettings", "reduced", "run_model"]

_log = logging.getLogger("tna_onnx")


@dataclass(frozen=True, eq=False)
class Run:
    """What is left of a run when its session and model are gone; (N,) classes are as the model numbers them."""

    name: str
    model: str
    model_sha256: str
    output: ClassOutput
    scores: SampleScores
    predicted: NDArray[np.int64]
    labels: NDArray[np.int64]
    preprocessing: dict[str, object] | None
    provider: str
    notes: tuple[str, ...]
    decisions: Decisions | None


@dataclass(frozen=True, eq=False)
class RunSettings:
    """Where models run, and how."""

    device: Device
    batch_size: BatchSize
    progress: Progress
    level: float
    unknown: Data | None


def run_model(
    given: GivenModel,
    read: tuple[Model, ClassOutput],
    samples: ComparedSamples,
    settings: RunSettings,
    *,
    expected: bool,
) -> Run:
    """Run one model over the samples; its session is closed with this call.

    Args:
        given: the model and its name.
        read: the model and its output.
        samples: for all models.
        settings: of the run.
        expected: whether the accuracy that the user expects is this model's.
    """
    model, output = read
    data = samples.data
    if not expected:  # the accuracy that the user expects is the baseline's
        data = replace(data, expect_accuracy=None)
    names = data.class_names(model.metadata, output.labels, output.n_classes)
    session = in_rows(open_model(model, settings.device), output, model.name)
    inputs = input_specs(session)
    source = samples.open(model, inputs, output, names)
    unknown = None if settings.unknown is None else open_unknown(settings.unknown, inputs, source)

    # each model has a bar of its own
    def advance(_: str, done: int, total: int) -> None:
        settings.progress(given.name, done, total)

    size = choose_batch_size(settings.batch_size, session, [output.name], source)
    _log.info("open: %s, provider %s", given.name, session.provider)
    _log.debug("open: output %s (%s), samples per run: %d", output.name, output.kind, size)
    _log.info("data: %s", source.describe())
    scores, classes, decisions = score_guarded(session, model, output, source, size, advance, settings.level, unknown)
    suspicion = data.check(classes, source.labels, names, output.n_classes)
    more = preprocessing_notes(source, inputs, data.preprocessing)
    more += decided_on(model, Told(source, sample_form(source)), data.limits)
    return Run(
        name=given.name,
        model=model.name,
        model_sha256=model.sha256,
        output=output,
        scores=scores,
        predicted=classes,
        labels=source.labels,
        preprocessing=source.recipe(),
        provider=session.provider,
        notes=(*batch_size_notes(settings.batch_size, size), *warnings_of(suspicion, names), *more),
        decisions=decisions,
    )


def reduced(run: Run, first: Run, bins: int, level: float) -> ComparedModel:
    """Reduce a run to its metrics, and to paired differences to the first one, with intervals at a level."""
    agreement = _agreement(run, first)
    together = run.scores.pooled()
    differences: dict[str, Interval] = {}
    what = "labels" if run.output.multi_label else "class"
    if run is not first:
        same = agreement == 1
        differences = paired_differences(first.scores, run.scores, bins, level=level, same_predictions=same)
    return ComparedModel(
        name=run.name,
        model=run.model,
        model_sha256=run.model_sha256,
        output=run.output.name,
        output_kind=run.output.kind,
        metrics=Metrics.of(run.scores, bins),
        reliability=Bins.of(together.confidence, together.hit, bins),
        bin_free=BinFree.of(run.scores, bins),
        agreement=agreement,
        differences=differences,
        verdict=verdict_text(first.name, differences, agreement, what) if differences else "",
        preprocessing=run.preprocessing,
        provider=run.provider,
        decisions=run.decisions,
    )


def _agreement(run: Run, first: Run) -> float:
    """Share of samples with the same predicted class, or of several labels a sample, with all of them the same.

    Models that number the classes differently (their class names stand in another order) have their classes matched by
    the labels of the samples; classes without samples then count as different.
    """
    if run.output.multi_label:
        return float(np.mean(np.all(run.predicted == first.predicted, axis=1)))
    number = np.arange(run.output.n_classes)
    if not np.array_equal(run.labels, first.labels):
        # no class has this number: classes without samples then agree with none
        number[:] = -1
        number[run.labels] = first.labels
    return float(np.mean(number[run.predicted] == first.predicted))
