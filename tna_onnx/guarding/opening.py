"""Everything that `guard` opens and checks before anything is fitted: model, data, device, the path to write."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tna_onnx.calibration.decided import decided_on
from tna_onnx.calibration.leaks import Told, check_leaks
from tna_onnx.data import InputSpec, Source
from tna_onnx.data.digest import sample_form
from tna_onnx.data.options import Data
from tna_onnx.data.suspicion import checked_warnings
from tna_onnx.errors import UsageError
from tna_onnx.extraction.batch_size import batch_size_notes, check_batch_size, choose_batch_size
from tna_onnx.extraction.isolated import open_source
from tna_onnx.extraction.sessions import input_specs, open_model
from tna_onnx.graph.load import Model
from tna_onnx.graph.outputs import ClassOutput, class_output, require_one_prediction
from tna_onnx.guarding.job import GuardJob
from tna_onnx.guarding.settings import GuardSettings
from tna_onnx.guarding.thresholds import require_enough
from tna_onnx.guarding.unknown import open_unknown
from tna_onnx.runtime import Device, Session, parse_device

__all__ = ["PROMISES", "Opened", "open_guard"]

PROMISES = "thresholds are promises on new samples of one prediction each"
"""Why a model with several predictions a sample is refused."""

_MAX_NAMES = 8  # in a note: enough to see which classes they are


@dataclass(frozen=True, eq=False)
class Opened:
    """The model and its data.

    Attributes:
        model: the source.
        output: the output that classifies.
        source: samples that thresholds come from.
        fit: samples that scores are fitted to.
        fit_rows: those of them that are used, indices; none where nothing is fitted.
        held_out: samples for the report; None without.
        unknown: samples that the model should not know; None without.
        device: where to run.
        batch_size: samples per run.
        provider: that ONNX Runtime obtained.
        notes: on the data.
    """

    model: Model
    output: ClassOutput
    source: Source
    fit: Source
    fit_rows: NDArray[np.int64]
    held_out: Source | None
    unknown: Source | None
    device: Device
    batch_size: int
    provider: str
    notes: tuple[str, ...]

    @property
    def fresh(self) -> NDArray[np.bool_]:
        """Which samples of `source` no score is fitted to, (N,)."""
        fresh = np.ones(len(self.source), np.bool_)
        if self.fit is self.source:
            fresh[self.fit_rows] = False
        return fresh

    @property
    def shown(self) -> Source:
        """The samples that the report is about."""
        return self.held_out or self.source


def open_guard(job: GuardJob) -> Opened:
    """Open model and data, and refuse samples that decided on something before.

    Raises:
        UsageError, UnsupportedModel, DataError, DeviceError, CheckFailed: see `tna_onnx.guard`.
    """
    check_batch_size(job.batch_size)
    options = job.options
    model = open_source(job.model, options)
    output = class_output(model, options.head, options.output_name, options.output_kind)
    require_one_prediction(model, output, PROMISES)
    # decisions read the output: an integer head stays as it is, unless an outlier score looks behind it
    if model.closed is not None and "ood" not in job.settings.add:
        model = model.closed
    device = parse_device(job.device)
    session = open_model(model, device)
    names = job.calib.class_names(model.metadata, output.labels, output.n_classes)
    inputs = input_specs(session)

    source = job.calib.open(inputs, output.n_classes, names)
    fit = _opened(job.fit, inputs, output, names)
    rows = _to_fit(fit, source, job.settings)
    _check_number(job.settings, source, fit, rows)
    held_out = _opened(job.held_out, inputs, output, names)
    notes = _leaks(job, model, source, held_out)
    size = choose_batch_size(job.batch_size, session, [output.name], source)
    notes += batch_size_notes(job.batch_size, size)
    for data, samples in ((job.calib, source), (job.held_out, held_out)):
        notes += _label_warnings(data, samples, names, output, session, size)
    notes += _unseen_notes(source, output.n_classes, job.settings)
    return Opened(
        model=model,
        output=output,
        source=source,
        fit=fit or source,
        fit_rows=rows,
        held_out=held_out,
        unknown=_unknown(job, inputs, source),
        device=device,
        batch_size=size,
        provider=session.provider,
        notes=notes,
    )


def _opened(
    data: Data | None, inputs: tuple[InputSpec, ...], output: ClassOutput, names: tuple[str, ...] | None
) -> Source | None:
    if data is None:
        return None
    return data.open(inputs, output.n_classes, names)


def _check_number(settings: GuardSettings, source: Source, fit: Source | None, rows: NDArray[np.int64]) -> None:
    """Refuse too few samples for thresholds; those that scores are fitted to give none."""
    fresh = len(source)
    if fit is None:
        fresh -= len(rows)
    require_enough(settings, len(source), fresh, source.describe())


def _leaks(job: GuardJob, model: Model, source: Source, held_out: Source | None) -> tuple[str, ...]:
    told = Told(source, sample_form(source))
    judging = None
    if held_out is not None:
        judging = Told(held_out, sample_form(held_out))
    notes = check_leaks(model, told, judging, job.calib.limits, cross_fits=False)
    notes += decided_on(model, told, job.calib.limits)
    if judging is not None:
        notes += decided_on(model, judging, job.calib.limits)
    return notes


def _label_warnings(
    data: Data | None,
    samples: Source | None,
    names: tuple[str, ...] | None,
    output: ClassOutput,
    session: Session,
    size: int,
) -> tuple[str, ...]:
    """Refuse labels that are certainly wrong, which would make thresholds and figures meaningless.

    Raises:
        DataError: such labels.
        CheckFailed: the accuracy is more than two standard errors below the expected one.
    """
    if data is None or samples is None:
        return ()
    predicted = _predicted(session, output, samples, size)
    suspicion = data.check(predicted, samples.labels, names, output.n_classes)
    return checked_warnings(suspicion, names, samples.describe())


def _unseen_notes(source: Source, n_classes: int, settings: GuardSettings) -> tuple[str, ...]:
    """Say which classes have no sample; with one threshold a class, there is another note."""
    unseen = np.flatnonzero(np.bincount(source.labels, minlength=n_classes) == 0)
    if settings.per_class or not len(unseen):
        return ()
    listed = ", ".join(map(str, unseen[:_MAX_NAMES]))
    if len(unseen) > _MAX_NAMES:
        listed += f", {len(unseen) - _MAX_NAMES:,} more"
    note = f"no sample of the classes {listed}: no promise is about samples of these"
    if "ood" in settings.add:
        note += ", and the outlier score may take them for unknown"
    if "class_prior" in settings.inputs:
        note += ", and a class_prior in which they are frequent gives sets of all classes"
    return (note,)


def _predicted(session: Session, output: ClassOutput, source: Source, size: int) -> NDArray[np.int64]:
    batches = source.batches(size)
    return np.concatenate([output.probabilities(session.run([output.name], b)[0]).argmax(axis=1) for b in batches])


def _to_fit(fit: Source | None, source: Source, settings: GuardSettings) -> NDArray[np.int64]:
    """Return the samples that scores are fitted to: half of them, where the others have to give the thresholds.

    A threshold on samples that an outlier score was fitted to would be too low: they look nearer than new ones.
    """
    if not settings.fits:
        return np.zeros(0, np.int64)
    if fit is not None:
        return np.arange(len(fit))
    shuffled = np.random.default_rng(settings.seed).permutation(len(source))
    return np.sort(shuffled[: len(source) // 2])


def _unknown(job: GuardJob, inputs: tuple[InputSpec, ...], known: Source) -> Source | None:
    if job.unknown is None:
        return None
    if "ood" not in job.settings.add:
        raise UsageError("--ood-data are for the output ood; add it with --add ood, or leave them out")
    return open_unknown(job.unknown, inputs, known)
