"""`calibrate --add`: a recalibration, and decisions on its probabilities, in one file.

The samples are split in two. Weight and map are fitted on one half, and so are an outlier score and a temperature of
sets. All thresholds come from the other half, of which the recalibration has seen nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tna_onnx.data.options import Data
from tna_onnx.data.source import Part, halves
from tna_onnx.errors import TnaError, UsageError
from tna_onnx.extraction.samples import open_samples
from tna_onnx.extraction.sessions import OpenModel, open_source
from tna_onnx.graph.load import load_model
from tna_onnx.graph.outputs import require_one_prediction
from tna_onnx.graph.save import pending
from tna_onnx.graph.scores import find_readout
from tna_onnx.guarding.guard import guard
from tna_onnx.guarding.opening import PROMISES, GuardJob
from tna_onnx.guarding.settings import GuardSettings
from tna_onnx.guarding.thresholds import NotReached, require_enough
from tna_onnx.pipeline.checking import FinalFile
from tna_onnx.pipeline.job import Job, refuse_finished, target_of
from tna_onnx.pipeline.recalibrate import recalibrate
from tna_onnx.progress import Progress
from tna_onnx.results.report import Report
from tna_onnx.runtime import parse_device

__all__ = ["recalibrate_and_guard"]

_PURPOSES = ("fit weight and map", "give thresholds")


def recalibrate_and_guard(job: Job, settings: GuardSettings, unknown: Data | None, progress: Progress) -> Report:
    """Recalibrate a model, add decisions, and write one file.

    Args:
        job: the recalibration.
        settings: of the decisions.
        unknown: samples that the model should not know, for the report.
        progress: called with (stage, done, total).

    Raises:
        UsageError, UnsupportedModel, DataError, DeviceError, CheckFailed, GateMissed: see `tna_onnx.calibrate`.
    """
    if unknown is not None and "ood" not in settings.add:
        raise UsageError("--ood-data are for the output ood; add it with --add ood, or leave them out")
    target, fit, decide = _split(job, settings)
    guarding = _Guarding(job, settings, fit, decide, unknown, target, progress)
    return recalibrate(replace(job, calib=_data(job.calib, fit)), progress, guarding.finish)


def _split(job: Job, settings: GuardSettings) -> tuple[Path, Part, Part]:
    """Return the path to write, and both halves of the samples.

    Raises:
        UsageError: no path, or samples that the model cannot be run on.
    """
    model = open_source(job.model, job.options)
    refuse_finished(model, job.options)
    target = target_of(job, model)
    if target is None:
        raise UsageError("a model that is no file needs an output where decisions are added: the path of a file")
    options = job.options
    readout = find_readout(model, options.head, options.output_name, options.output_kind)
    require_one_prediction(model, readout, PROMISES)
    opened = OpenModel(model, readout, parse_device(job.device))
    names = job.calib.class_names(model.metadata, readout.labels, readout.n_classes)
    samples = open_samples(opened, job.calib, names)
    if samples.given:
        raise UsageError(
            f"{samples.source.describe()}: holds what the model computed before; --add runs the new file, and needs "
            "the data themselves"
        )
    fit, decide = halves(samples.source, settings.seed, _PURPOSES)
    # before the search, which may take minutes
    require_enough(settings, len(decide), len(decide), decide.describe())
    return target, fit, decide


def _data(data: Data, part: Part) -> Data:
    """Return a part of the samples in place of all; what says how to read them is done with."""
    return replace(data, samples=part, labels=None, format=None)


@dataclass(frozen=True, eq=False)
class _Guarding:
    """What is done to a recalibrated file before it is written."""

    job: Job
    settings: GuardSettings
    fit: Part
    decide: Part
    unknown: Data | None
    target: Path
    progress: Progress

    def finish(self, path: Path, report: Report, final: FinalFile) -> Report:
        """Add the decisions to the file at `path`, and write the result.

        Raises:
            TnaError: see `guard`; the message names the file that was to be written.
        """
        job = self.job
        asked = GuardJob(
            model=path,
            calib=replace(_data(job.calib, self.decide), expect_accuracy=None),
            held_out=job.held_out,
            fit=_data(job.calib, self.fit),
            unknown=self.unknown,
            # it was opened before, and says itself what its output is
            options=replace(job.options, isolate=False),
            settings=self.settings,
            output=self.target,
            overwrite=True,
            dry_run=job.dry_run,
            device=job.device,
            batch_size=job.batch_size,
        )
        reports: list[Report] = []
        try:
            result = guard(asked, self.progress, lambda written: reports.append(final.report(report, written)))
        except NotReached as error:
            if self.settings.if_unreachable == "fail":
                raise
            return self._without(path, report, final, str(error))
        except TnaError as error:
            raise type(error)(str(error).replace(str(path), str(self.target))) from error
        note = (
            f"decisions: {len(self.fit):,} of the {len(self.fit.whole):,} samples fit weight and map, the other "
            f"{len(self.decide):,} give the thresholds"
        )
        result = replace(result, model=report.model, model_sha256=report.model_sha256)
        (report,) = reports
        return replace(report, guard=result, notes=(*report.notes, note, *result.notes))

    def _without(self, path: Path, report: Report, final: FinalFile, why: str) -> Report:
        """Write the recalibrated file as it is: there is no decision that the samples can promise."""
        model = load_model(path)
        with pending(model, model.proto, None if self.job.dry_run else self.target, verbatim=True) as written:
            report = final.report(report, written)
        return replace(report, notes=(*report.notes, f"no decision is added: {why}"))
