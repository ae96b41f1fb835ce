"""What `guard` was asked for, and all that it opens and checks before anything is fitted."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.digest import repeats_of
from tna_onnx.data.options import Data
from tna_onnx.data.source import Part, Source, clusters_of, drawn_by_weight, group_notes, halves, sample_labels
from tna_onnx.data.suspicion import checked_labels, checked_warnings
from tna_onnx.engine.scoring import score_model
from tna_onnx.errors import DataError, UnsupportedModel, UsageError, listed
from tna_onnx.extraction.classifier import Classifier, OpenModel, read_classifier
from tna_onnx.extraction.opened_samples import open_inputs, open_samples, open_unknown
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.readout import ClassOutput, Readout, require_one_prediction
from tna_onnx.graph.scores import find_readout
from tna_onnx.guarding.deciding import rule_of
from tna_onnx.guarding.guard_settings import GuardSettings
from tna_onnx.numerics.conformal import samples_needed
from tna_onnx.pipeline.job import Job, ModelJob, target_of
from tna_onnx.pipeline.opening import Opened, batch_notes, refuse_finished
from tna_onnx.pipeline.sample_checks import FEW_COPIES, DigestedSamples, check_leaks, decided_on
from tna_onnx.progress import silent
from tna_onnx.results.measured import check_positive
from tna_onnx.runtime import parse_device


@dataclass(frozen=True, eq=False)
class GuardJob(ModelJob):
    """The request for decisions; the thresholds come from `calib`."""

    # samples that an outlier score and a penalty of sets are fitted to; None for one half of `calib`
    fit: Data | None = None
    unknown: Data | None = None  # samples that the model should not know, for the report; None without
    settings: GuardSettings = field(default_factory=GuardSettings)  # what is added, at which levels


@dataclass(frozen=True, eq=False)
class GuardSamples(Opened):
    """The model, and the samples that thresholds come from, as `source`."""

    fit: Source  # samples that scores are fitted to
    fit_rows: NDArray[np.int64]  # those of them that are used, indices; none where nothing is fitted
    unknown: Source | None  # samples that the model should not know; None without

    @property
    def fresh(self) -> NDArray[np.bool_]:
        """Which samples of `source` no score is fitted to, (N,)."""
        fresh = np.ones(len(self.source), np.bool_)
        if self.fit is self.source:
            fresh[self.fit_rows] = False
        return fresh

    def deciding(self, seed: int) -> NDArray[np.int64]:
        """Return the samples of `source` that thresholds come from: all, or one of each group, at random.

        Thresholds on independent samples keep their promises as they are. Source: R. Dunn, L. Wasserman, A. Ramdas,
        Distribution-free prediction sets for two-layer hierarchical models, JASA 2022, section 3.2 (subsampling once).
        """
        clusters = clusters_of(self.source)
        if clusters is None:
            return np.arange(len(self.source))
        order = np.random.default_rng(seed).permutation(len(self.source))
        _, first = np.unique(clusters[order], return_index=True)
        return np.sort(order[first])


def open_guard(job: GuardJob) -> GuardSamples:
    """Open model and data, and refuse samples that decided on something before."""
    if job.unknown is not None and "ood" not in job.settings.add:
        raise UsageError("--ood-data measures the output ood; add that with --add ood, or leave --ood-data out")
    model, output = read_classifier(job.model, job.options)
    check_output(model, output, job.settings)
    classifier = Classifier(model, output, parse_device(job.device), job.calib)
    data, source = open_inputs(classifier, job.calib)
    source = drawn_by_weight(source, job.settings.seed)
    fit = _opened_if(classifier, job.fit, job.settings.seed)
    fit_rows = _to_fit(fit, source, job.settings)
    opened = GuardSamples(classifier, data, source, None, job.batch_size, (), fit or source, fit_rows, None)
    deciding = opened.deciding(job.settings.seed)
    where = source.describe()
    if clusters_of(source) is not None:
        where += ", of each group one"
    # those that scores are fitted to give no thresholds
    require_enough(job.settings, len(deciding), int(opened.fresh[deciding].sum()), where)
    held_out = _opened_if(classifier, job.held_out, job.settings.seed)
    digested = [DigestedSamples.of(samples) for samples in (source, held_out) if samples is not None]
    limits = job.calib.limits
    notes = (*check_leaks(model, digested, limits, cross_fits=False), *_copy_notes(source))
    for entry in digested:
        notes += decided_on(model, entry, limits)
    about_model = batch_notes(classifier, source, job.batch_size)
    notes += (*source.notes, *group_notes(held_out or source), *about_model)
    for described, samples in ((job.calib, source), (job.held_out, held_out)):
        if described is not None and samples is not None:
            notes += _label_warnings(job, described, samples, classifier)
    notes += _unseen_notes(source, classifier.names_or_numbers, job.settings)
    unknown = None
    if job.unknown is not None:
        unknown = open_unknown(classifier, job.unknown, source)
    return replace(opened, held_out=held_out, notes=notes, unknown=unknown)


def _opened_if(classifier: Classifier, data: Data | None, seed: int) -> Source | None:
    if data is None:
        return None
    return drawn_by_weight(open_inputs(classifier, data)[1], seed)


def check_output(model: Model, output: Readout | ClassOutput, settings: GuardSettings) -> None:
    """Refuse a model with several predictions a sample; one of several labels can only have the output `decision`."""
    if not output.multi_label or output.several:
        require_one_prediction(model, output, "thresholds are promises on new samples of one prediction each")
    elif settings.add or not settings.decide:
        raise UnsupportedModel(
            f"{model.name}: predicts several labels a sample, so there is no confidence and no set; use --decide "
            "GOAL without --add"
        )


def _label_warnings(job: GuardJob, data: Data, samples: Source, classifier: Classifier) -> tuple[str, ...]:
    """Refuse labels that are certainly wrong, which would make thresholds and figures meaningless."""
    names, output = classifier.names, classifier.output
    scores, predicted = score_model(classifier.session, output, samples, job.batch_size, silent)
    suspicion = checked_labels(data, predicted, samples.labels, names, output.n_classes, lambda: scores.confidence)
    return checked_warnings(suspicion, names, samples.describe(), trusted=job.settings.trust_labels)


def _unseen_notes(source: Source, names: Sequence[str], settings: GuardSettings) -> tuple[str, ...]:
    """Say which classes have no sample; with one threshold a class, there is another note."""
    if source.labels.ndim > 1:
        return ()
    unseen = np.flatnonzero(np.bincount(source.labels, minlength=len(names)) == 0)
    if settings.per_class or not len(unseen):
        return ()
    note = f"no sample of the classes {listed(names[c] for c in unseen.tolist())}: no promise is about samples of these"
    if "ood" in settings.add:
        note += ", and the outlier score may take them for unknown"
    return (note,)


def _copy_notes(source: Source) -> tuple[str, ...]:
    """Say what copies do to promises, where no groups hold them together."""
    repeats = repeats_of(source.sample_digests(), sample_labels(source))
    if "group" in source.sample_info or repeats.copies <= FEW_COPIES * repeats.n:
        return ()
    return (
        f"{source.describe()}: a promise counts each copy as a sample, and is broken more often than it says if "
        "they are one sample given again: give each once, or name them by --group-column",
    )


def _to_fit(fit: Source | None, source: Source, settings: GuardSettings) -> NDArray[np.int64]:
    """Return the samples that scores are fitted to: half of them, where the others have to give the thresholds.

    A threshold on samples that an outlier score was fitted to would be too low: they look nearer than new ones.
    """
    if not settings.fits:
        return np.zeros(0, np.int64)
    if fit is not None:
        return np.arange(len(fit))
    rng = np.random.default_rng(settings.seed)
    clusters = clusters_of(source)
    if clusters is None:
        return np.sort(rng.permutation(len(source))[: len(source) // 2])
    place = rng.permutation(int(clusters.max()) + 1)[clusters]
    return np.flatnonzero(2 * place <= place.max())


def require_enough(settings: GuardSettings, n: int, fresh: int, where: str) -> None:
    """Refuse too few samples for a level, before a model has run."""
    promises = []
    if "set" in settings.add and not settings.per_class:  # of a class with too few, every set holds it
        count = fresh if settings.fits_sets else n
        promises.append((f"sets with a coverage of {settings.coverage:g} %", settings.coverage / 100, count))
    if "ood" in settings.add:
        promises.append((f"false alarms below {settings.false_alarm:g} %", 1 - settings.false_alarm / 100, fresh))
    for promise, level, count in promises:
        needed = samples_needed(level)
        if count < needed:
            raise DataError(f"{where}: {promise} need {needed:,} samples, and there are {count:,}; give more")


def halves_to_guard(job: Job, settings: GuardSettings) -> tuple[Path, Part, Part]:
    """Return the path that `calibrate --add` writes, and both halves of the samples: to fit on, and for thresholds."""
    model = load_model(job.model, job.options.model_limits)
    refuse_finished(model, job.options)
    target = target_of(job, model, ".tna.onnx", in_memory=True)
    if target is None:
        raise UsageError("a model in memory needs output if decisions are added: the path of the file to write")
    options = job.options
    readout = find_readout(model, options.head, options.output_name, options.output_kind)
    check_output(model, readout, settings)
    opened = OpenModel(model, readout, parse_device(job.device), job.calib)
    if settings.decide:
        rule_of(settings, readout, opened.names_or_numbers)
        job.gates.require_classes(opened.names_or_numbers)
    else:
        check_positive(job.settings.positive, readout.n_classes, labels=readout.multi_label)
    samples = open_samples(opened, job.calib)
    if samples.given:
        raise UsageError(
            f"{samples.source.describe()}: contains computed features or logits; --add runs the new file, and needs "
            "samples for its inputs"
        )
    fit, decide = halves(samples.source, settings.seed, ("fit weight and map", "give thresholds"))
    # before the search, which may take minutes
    deciding = drawn_by_weight(decide, settings.seed)
    require_enough(settings, len(deciding), len(deciding), deciding.describe())
    return target, fit, decide
