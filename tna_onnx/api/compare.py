"""`compare`: several models on the same samples, one after the other, each against a baseline.

The data are opened once for models with the same inputs and class names; no decoded data set is kept in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.api import arguments
from tna_onnx.data.options import Data
from tna_onnx.data.source import InputSpec, Source, group_notes, require_samples
from tna_onnx.errors import DataError, UsageError
from tna_onnx.extraction.classifier import Classifier, read_classifier
from tna_onnx.extraction.opened_samples import read_inputs
from tna_onnx.files import resolved
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.graph.readout import ClassOutput
from tna_onnx.guarding.measure import opened_to_score, score_opened
from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.metric import POSITIVE_ECE
from tna_onnx.numerics.metrics import Interval, Metrics
from tna_onnx.numerics.positive import PositiveSide, positive_difference
from tna_onnx.numerics.reliability import Bins
from tna_onnx.numerics.scores import SampleScores, weighted_mean
from tna_onnx.pipeline.writing import versions
from tna_onnx.progress import Progress
from tna_onnx.results import measured
from tna_onnx.results.details import BinFree
from tna_onnx.runtime import parse_device


class ComparedSamples:
    """The data as each model reads them, and the check that these are the same samples."""

    def __init__(self, data: Data, bins: int) -> None:
        self.data = data
        self._bins = bins
        self._opened: dict[tuple[tuple[InputSpec, ...], tuple[str, ...] | None, bool, bool], Source] = {}

    def open(self, classifier: Classifier) -> Source:
        """Open the data for a model, or return what was opened for one with the same inputs and class names."""
        output = classifier.output
        # what a source depends on: the inputs to fill and the numbers of the classes
        key = classifier.inputs, classifier.names, output.several, output.multi_label
        if key not in self._opened:
            source = read_inputs(classifier, self.data)
            require_samples(source, self._bins)
            # differences are paired: row k must be the same sample in all models
            if self._opened and not _same_samples(source.labels, self.first.labels):
                raise DataError(
                    f"{classifier.model.name}: reads other samples than the first model ({len(source):,} and "
                    f"{len(self.first):,}, or with other labels); models with different inputs can only be compared "
                    "on data that come in the same order each time they are opened"
                )
            self._opened[key] = source
        return self._opened[key]

    @property
    def first(self) -> Source:
        """The samples as the first model reads them."""
        return next(iter(self._opened.values()))


def _same_samples(labels: NDArray[np.int64], first: NDArray[np.int64]) -> bool:
    """Whether two lists of labels are one, up to how the classes are numbered."""
    pairs = {*zip(labels.tolist(), first.tolist(), strict=False)}
    return len(labels) == len(first) and len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def named_models(models: Sequence[ModelSource] | Mapping[str, ModelSource]) -> dict[str, ModelSource]:
    """Give each model a name of its own."""
    # texts and bytes are sequences too: of letters and numbers
    if isinstance(models, (str, bytes, Path)) or not isinstance(models, (Sequence, Mapping)):
        raise UsageError(f"expected a list of models, got {type(models).__name__}")
    if len(models) < 2:
        raise UsageError(f"compare needs at least two models, got {len(models)}; `evaluate` measures one")
    if isinstance(models, Mapping):
        return dict(models)
    paths = [Path(source) if isinstance(source, (str, Path)) else None for source in models]
    named = dict(zip(_names(paths), models, strict=True))
    if len(named) < len(models):  # a file that is called as the second of two equal paths is
        raise UsageError(f"two of the models would be called alike, of {', '.join(named)}; give each model once")
    return named


def _names(paths: Sequence[Path | None]) -> list[str]:
    """Return the names of files, with as many folders as tell them apart; equal paths are numbered.

    >>> _names([Path("a/m.onnx"), Path("b/m.onnx"), Path("n.onnx"), None, Path("n.onnx")])
    ['a/m.onnx', 'b/m.onnx', 'n.onnx (1)', 'model in memory', 'n.onnx (2)']
    """
    parts_of = [("model in memory",) if path is None else path.absolute().parts for path in paths]
    names = []
    for parts in parts_of:
        # equal paths cannot be told apart by folders: they are numbered below
        rivals = {rival for rival in parts_of if rival != parts}
        depth = next(d for d in range(1, len(parts) + 1) if all(rival[-d:] != parts[-d:] for rival in rivals))
        names.append(Path(*parts[-depth:]).as_posix())
    numbered = []
    for k, name in enumerate(names):
        if names.count(name) > 1:
            numbered.append(f"{name} ({names[: k + 1].count(name)})")
        else:
            numbered.append(name)
    return numbered


@dataclass(frozen=True, eq=False)
class Run:
    """What is left of a run when its session and model are gone; (N,) classes are as the model numbers them."""

    about: dict[str, Any]  # fields of `ComparedModel` that are known now
    output: ClassOutput
    scores: SampleScores
    predicted: NDArray[np.int64]
    labels: NDArray[np.int64]
    notes: tuple[str, ...]
    names: tuple[str, ...]  # of the classes
    parts: NDArray[Any] | None  # values of the column of subgroups

    @property
    def name(self) -> str:
        """What reports call the model."""
        return str(self.about["name"])


def run_model(
    name: str, classifier: Classifier, samples: ComparedSamples, data: Data, size: int, level: float, progress: Progress
) -> Run:
    """Run one model over the samples. `size`: samples per run; `level`: of intervals, per cent."""
    data, source = classifier.preparation.settle(data, samples.open(classifier))
    opened = opened_to_score(classifier, data, source, size)
    # each model has a bar of its own
    scored = score_opened(opened, lambda _, done, total: progress(name, done, total), level)
    about = {
        "name": name,
        "model": opened.model.name,
        "model_sha256": opened.model.sha256,
        "output": opened.output.name,
        "output_kind": opened.output.kind,
        "preprocessing": source.recipe(),
        "provider": opened.session.provider,
        "decisions": scored.decisions,
    }
    return Run(
        about,
        opened.output,
        scored.scores,
        scored.predicted,
        source.labels,
        scored.notes,
        opened.names,
        source.sample_info.get("by"),
    )


def reduced(run: Run, first: Run, bins: int, level: float, positive: str = "") -> measured.ComparedModel:
    """Reduce a run to its metrics, and to paired differences to the first one, with intervals at a level."""
    agreement = _agreement(run, first)
    differences: dict[str, Interval] = {}
    verdict = ""
    subgroups: tuple[measured.Subgroup, ...] = ()
    before, after = (one.scores.labelled(one.labels) for one in (first, run))
    classes = measured.named_classes(positive, first.names, labels=first.output.multi_label)
    old = PositiveSide.of(before, classes, bins)
    # a model may number the two classes the other way round
    if not np.array_equal(run.labels, first.labels):
        classes = replace(classes, positive=1 - classes.positive)
    classes = replace(classes, names=run.names)
    new = PositiveSide.of(after, classes, bins)
    if run.parts is not None:
        baseline = None if run is first else before
        subgroups = measured.subgroups_of(after, run.parts, classes, bins, level, baseline)
    if run is not first:
        same = agreement == 1
        differences = paired_differences(first.scores, run.scores, bins, level=level, same_predictions=same)
        if old.positives:
            differences[POSITIVE_ECE] = positive_difference(old, new, bins, level)
        verdict = measured.verdict_text(
            first.name, differences, agreement, "labels" if run.output.multi_label else "class"
        )
    return measured.ComparedModel(
        **run.about,
        metrics=replace(Metrics.of(run.scores, bins), positive=new.worst(bins, level)),
        reliability=Bins.of_scores(run.scores, bins),
        bin_free=BinFree.of(run.scores, bins),
        agreement=agreement,
        differences=differences,
        verdict=verdict,
        subgroups=subgroups,
    )


def _agreement(run: Run, first: Run) -> float:
    """Share of samples with the same predicted class, or of several labels a sample, with all of them the same.

    Models that number the classes differently (their class names stand in another order) have their classes matched by
    the labels of the samples; classes without samples then count as different.
    """
    if run.output.multi_label:
        return weighted_mean(np.all(run.predicted == first.predicted, axis=1), run.scores.weights)
    number = np.arange(run.output.n_classes)
    if not np.array_equal(run.labels, first.labels):
        # no class has this number: classes without samples then agree with none
        number[:] = -1
        number[run.labels] = first.labels
    return weighted_mean(number[run.predicted] == first.predicted, run.scores.weights)


@arguments.checked
def compare(
    models: Sequence[ModelSource] | Mapping[str, ModelSource],
    data: Any,
    *,
    labels: Any = None,
    preset: arguments.PresetWord = None,
    classes: arguments.ClassNames = None,
    confidence_level: float = 95.0,
    bins: int = 15,
    positive: str = "",
    model_options: ModelOptions | None = None,
    device: str = "auto",
    batch_size: int = 64,
    report: str | Path | None = None,
    json: str | Path | None = None,
    progress: arguments.ProgressWord = None,
) -> measured.ModelComparison:
    """Measure classifiers on the same labelled data, with paired differences to one of them.

    The models may differ in names, sizes and dtypes of their inputs, if the data fit all of them; they must have
    the same number of classes. Intervals are not corrected for the number of models; a note says so.

    Args:
        models: two or more ONNX models, as for `calibrate`, the baseline first; a mapping gives them names. One may be
            given twice.
        data: labelled data, as for `calibrate`, or a `tna_onnx.Data`, whose `expect_accuracy` is for the baseline, and
            whose `by` compares the models in subgroups too. For models with different inputs they are opened several
            times and must give the same samples in the same order.
        confidence_level: of each interval, per cent.
        bins: bins of ECE and AdaECE.
        positive: of two classes the one that P(positive) is about, by name or number; the second without it.
        model_options: which output, and what it holds, for all models.
        report: HTML page to write.
        progress: True for bars on standard error, or a function that is called with (model, done, total).
        labels, preset, classes, device, batch_size, json: as for `calibrate`.

    Raises:
        UsageError: a path or setting that cannot be used, fewer than two models, or different numbers of classes.
        UnsupportedModel: a file is no classifier that can be read.
        DataError: the data do not fit a model, or models read different samples.
        CheckFailed: the baseline's accuracy is more than two standard errors below the expected one.
        DeviceError: ONNX Runtime or the device is missing.
        ResultError: `report` or `json` cannot be written.
    """
    # arguments first: none of these needs a model or data
    level = confidence_level / 100
    options = model_options or ModelOptions()
    reading = arguments.reading_of(None, labels=labels, preprocessing=preset, classes=classes)
    labelled = arguments.samples_of(data, reading)
    sources = named_models(models)
    arguments.check_targets(json, report, in_use=[labelled, *sources.values()])
    where = parse_device(device)

    # all of them before the first one runs; none is kept
    _check_classes({name: read_classifier(source, options)[1] for name, source in sources.items()})
    samples = ComparedSamples(labelled, bins)
    runs: list[Run] = []
    with arguments.progress_callback(progress) as advance:
        for name, source in sources.items():
            # the accuracy that the user expects is the baseline's
            described = replace(labelled, expect_accuracy=None) if runs else labelled
            # one after the other: a session is closed before the next is opened
            classifier = Classifier(*read_classifier(source, options), where, described)
            runs.append(run_model(name, classifier, samples, described, batch_size, confidence_level, advance))
            del classifier
    # of the coarsest: else a model would gain by probabilities that come in smaller steps
    coarsest = max(run.output.resolution for run in runs)
    n_classes = runs[0].output.n_classes
    runs = [replace(run, scores=run.scores.resolved(coarsest, n_classes)) for run in runs]
    compared = tuple(reduced(run, runs[0], bins, level, positive) for run in runs)
    notes = _notes(sources, runs, confidence_level)
    notes += group_notes(samples.first)
    if runs[0].parts is not None:
        notes += measured.subgroup_notes(runs[0].parts, compared[0].subgroups, confidence_level)
    result = measured.ModelComparison(
        data=samples.first.describe(),
        baseline=runs[0].name,
        confidence_level=confidence_level,
        models=compared,
        versions=versions(),
        notes=(*notes, *measured.resolution_notes(coarsest, n_classes)),
        resolution=coarsest,
    )
    arguments.save_json(json, result)
    if report is not None:
        from tna_onnx.render.html.pages import page_of

        arguments.write_text(report, page_of(result))
    return result


def _check_classes(outputs: Mapping[str, ClassOutput]) -> None:
    (one, first), *rest = outputs.items()
    for name, output in rest:
        if output.multi_label != first.multi_label:
            raise UsageError(
                f"{name} (output '{output.name}') and {one} (output '{first.name}') differ in kind: one predicts "
                "several labels a sample, the other one class; compare models of one kind"
            )
        if output.n_classes != first.n_classes:
            raise UsageError(
                f"{name} has {output.n_classes:,} classes (output '{output.name}') and {one} has "
                f"{first.n_classes:,} (output '{first.name}'); only models of the same classes can be compared"
            )


def _notes(sources: Mapping[str, ModelSource], runs: Sequence[Run], level: float) -> list[str]:
    first = runs[0]
    notes = [f"{run.name}: {note}" for run in runs for note in run.notes]
    # places: a link and what it points to are one file
    places = [resolved(Path(source)) for source in sources.values() if isinstance(source, (str, Path))]
    if len(set(places)) < len(places):
        notes.append("a file was given more than once")
    notes += [
        f"{run.name} numbers the classes in another order than {first.name}; they were matched by the labels"
        for run in runs
        if not np.array_equal(run.labels, first.labels)
    ]
    if len(runs) > 2:
        notes.append(measured.multiplicity_note(len(runs) - 1, level))
    return notes
