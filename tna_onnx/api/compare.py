"""`compare`: several models on the same samples, one after the other, each against a baseline.

Only one ONNX Runtime session is open at a time. The data are opened once for all models with the same inputs and class
names (labels, list of files, arrays); images are decoded anew for each model, so that memory holds no decoded data set.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tna_onnx.api.arguments import data_of, held_out_of, model_options_of, refuse_unknown
from tna_onnx.api.compared_runs import Run, RunSettings, reduced, run_model
from tna_onnx.api.compared_samples import ComparedSamples
from tna_onnx.api.named_models import GivenModel, named_models, position_of
from tna_onnx.api.shown import ProgressWord, check_targets, kept, shown, write_text
from tna_onnx.api.words import DataModelWords, Unpack
from tna_onnx.calibration.provenance import versions
from tna_onnx.errors import UsageError
from tna_onnx.extraction.batch_size import check_batch_size
from tna_onnx.extraction.isolated import open_source
from tna_onnx.extraction.words import BatchSize
from tna_onnx.graph.load import Model
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.graph.outputs import ClassOutput, class_output
from tna_onnx.guarding.reading import require_outlier_score
from tna_onnx.numerics.checks import check_level, check_numbers
from tna_onnx.results.comparison import ModelComparison, multiplicity_note
from tna_onnx.runtime import parse_device

__all__ = ["compare"]

_log = logging.getLogger("tna_onnx")


def compare(
    models: Sequence[ModelSource] | Mapping[str, ModelSource],
    data: Any,
    *,
    baseline: str | int = 1,
    ood_data: Any = None,
    confidence_level: float = 95.0,
    bins: int = 15,
    device: str = "auto",
    batch_size: BatchSize = 64,
    report: str | Path | None = None,
    json: str | Path | None = None,
    progress: ProgressWord = None,
    **words: Unpack[DataModelWords],
) -> ModelComparison:
    """Measure classifiers on the same labelled data, with paired differences to one of them.

    The models may differ in names, sizes and dtypes of their inputs, if the data fit all of them; they must have
    the same number of classes. Intervals are not corrected for the number of models; a note says so.

    Args:
        models: two or more ONNX models, as for `calibrate`; a mapping gives them names. One may be given twice.
        data: labelled data, as for `calibrate`. For models with different inputs they are opened several times and must
            give the same samples in the same order.
        baseline: model that the others are compared with: its name, its path, or its position from 1.
        ood_data: samples that the models should not know, for guarded models with the output `ood`; in the same forms
            as `data`. Their labels are not used.
        confidence_level: of each interval, per cent.
        bins: bins of ECE and AdaECE.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run; `auto` finds them for each model by a short probe.
        report: HTML page to write.
        json: JSON file to write.
        progress: True for bars on standard error, or a function that is called with (model, done, total).
        **words: single fields by name: of `tna_onnx.Data`, where `expect_accuracy` is for the baseline, and of
            `tna_onnx.ModelOptions`, for all models.

    Raises:
        TypeError: a keyword that none of these has.
        UsageError: a path or setting that cannot be used, fewer than two models, or different numbers of classes.
        UnsupportedModel: a file is no classifier that can be read.
        DataError: the data do not fit a model, or models read different samples.
        CheckFailed: the baseline's accuracy is more than two standard errors below the expected one.
        DeviceError: ONNX Runtime or the device is missing.
        ResultError: `report` or `json` cannot be written.
    """
    # arguments first: none of these needs a model or data
    refuse_unknown("compare", words, DataModelWords)
    level = check_level(confidence_level)
    check_numbers("a whole number", bins=bins)
    options = model_options_of(words)
    labelled = data_of(data, words)
    check_batch_size(batch_size)
    check_targets(json, report)
    given = named_models(models)
    first = position_of(baseline, given)
    where = parse_device(device)

    def read(g: GivenModel, options: ModelOptions) -> tuple[Model, ClassOutput]:
        model = open_source(g.source, options)
        return model, class_output(model, options.head, options.output_name, options.output_kind)

    apart = held_out_of(ood_data, labelled, {})
    # all of them before the first one runs; none is kept
    _check_classes([(g, read(g, options)[1]) for g in given])
    if apart is not None:
        require_outlier_score(read(g, options)[0] for g in given)
    options = replace(options, isolate=False)  # each was opened in a child process above
    samples = ComparedSamples(labelled, bins)
    with shown(progress) as advance:
        settings = RunSettings(where, batch_size, advance, confidence_level, apart)
        # one after the other: a session is closed before the next is opened
        runs = [run_model(g, read(g, options), samples, settings, expected=k == first) for k, g in enumerate(given)]
    result = ModelComparison(
        data=samples.description,
        baseline=given[first].name,
        confidence_level=confidence_level,
        models=tuple(reduced(run, runs[first], bins, level) for run in runs),
        versions=versions(),
        notes=_notes(given, runs, runs[first], confidence_level),
    )
    kept(json, result)
    if report is not None:
        from tna_onnx.render.html.comparison import comparison_page  # noqa: PLC0415 - only if it is asked for

        write_text(report, comparison_page(result))
    return result


def _check_classes(read: Sequence[tuple[GivenModel, ClassOutput]]) -> None:
    """Refuse models with different numbers of classes.

    Raises:
        UsageError: two of them differ.
    """
    (one, first), *others = read
    for other, output in others:
        if output.multi_label != first.multi_label:
            raise UsageError(
                f"of {other.name} (output '{output.name}') and {one.name} (output '{first.name}') one gives several "
                "labels a sample, the other one class; only models of the same kind can be compared"
            )
        if output.n_classes != first.n_classes:
            raise UsageError(
                f"{other.name} has {output.n_classes:,} classes (output '{output.name}') and {one.name} has "
                f"{first.n_classes:,} (output '{first.name}'); only models of the same classes can be compared"
            )


def _notes(given: Sequence[GivenModel], runs: Sequence[Run], first: Run, level: float) -> tuple[str, ...]:
    notes = [f"{run.name}: {note}" for run in runs for note in run.notes]
    # resolved: a link and what it points to are one file
    resolved = [g.path.resolve() for g in given if g.path is not None]
    if len(set(resolved)) < len(resolved):
        notes.append("a file was given more than once")
    notes += [
        f"{run.name} numbers the classes in another order than {first.name}; they were matched by the labels"
        for run in runs
        if not np.array_equal(run.labels, first.labels)
    ]
    others = len(runs) - 1
    if others > 1:
        notes.append(multiplicity_note(others, level))
    return tuple(notes)
