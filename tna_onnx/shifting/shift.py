"""The steps of `shift`: probabilities on all samples, class frequencies, a new bias, checks of the file, the effect.

New class frequencies change the logits by one number a class, s' = s + d. Where the head has a float bias for each
class, and nothing else reads its scores, the bias alone changes. Elsewhere one Add node follows the logits; if the
graph has probabilities only, the new nodes are log p + d and a Softmax.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Source
from tna_onnx.data.suspicion import checked_warnings
from tna_onnx.engine.scoring import Runs, probabilities_of, score_model
from tna_onnx.errors import CheckFailed, UnsupportedModel
from tna_onnx.extraction.head_check import Probed
from tna_onnx.graph.cut import reads
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import PREFIX, PRIOR_BLOCK, provenance
from tna_onnx.graph.outputs import ClassOutput
from tna_onnx.graph.readout import Head
from tna_onnx.graph.rewrite import Rewritten
from tna_onnx.graph.save import file_beside, pending
from tna_onnx.graph.scores import CannotInsert, can_scale
from tna_onnx.graph.tensors import epsilon
from tna_onnx.numerics.checks import check_level
from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.prior_shift import log_ratio
from tna_onnx.numerics.shift_evidence import Observed, disagreement
from tna_onnx.pipeline.change import Added, Change, write_change
from tna_onnx.pipeline.checking import casts_behind, check_file
from tna_onnx.pipeline.notes import digests_in_file
from tna_onnx.progress import Progress
from tna_onnx.results.report import MovedOutput
from tna_onnx.results.shifting import ClassFrequency, Shift, ShiftEffect
from tna_onnx.runtime import Session, open_session
from tna_onnx.shifting.estimate import Estimated, estimate, source_counts
from tna_onnx.shifting.shift_job import Opened, ShiftJob, off_centre, open_shift, read_prior

__all__ = ["check_result", "shift", "shifted", "write"]


FloatArray = NDArray[np.float64]

# Roundings of a probability by the runtime: of the logits, their sum with d, and the softmax. A ratio of frequencies
# multiplies those of the smallest probabilities.
_ROUNDINGS = 256
_MAX_BOUND = 0.05


def shifted(probabilities: NDArray[np.floating], change: FloatArray) -> FloatArray:
    """Return (N, C) probabilities after logits have changed by (C,) numbers."""
    weighted: FloatArray = probabilities * np.exp(change - change.max())
    weighted /= weighted.sum(axis=1, keepdims=True)
    return weighted


def write(model: Model, probed: Probed, change: FloatArray, metadata: dict[str, str]) -> tuple[Rewritten, str]:
    """Return the new model, and where the change is: `bias` or `nodes`.

    Args:
        model: the source.
        probed: where its logits are.
        change: (C,) what is added to them.
        metadata: all of this tool's entries.

    Raises:
        UnsupportedModel: the graph has no place for the change.
    """
    readout = probed.readout
    moved = Added(change)
    if isinstance(readout, Head) and _holds(model, readout, probed):
        return write_change(model, readout, Change(folded=moved), metadata), "bias"
    appended = Change(
        maps=(moved,),
        keeps_order=False,
        shape=probed.logits_shape,
        block=PRIOR_BLOCK if _has_map(model) else PREFIX,
    )
    try:
        written = write_change(model, readout, appended, metadata)
    except UnsupportedModel as error:
        # the advice there is on maps
        reason = error.reason if isinstance(error, CannotInsert) else error
        raise UnsupportedModel(f"{reason}; shift the class frequencies in the program instead") from error
    return written, "nodes"


def _holds(model: Model, head: Head, probed: Probed) -> bool:
    """Tell whether a change of the bias changes the logits by as much, and the file has a float for each class."""
    if not head.linear or probed.tail is not None or not head.holds_bias or head.stored_bias is None:
        return False
    return head.stored_bias.quantized is None and can_scale(model, head)


def _has_map(model: Model) -> bool:
    return any(name.startswith(f"{PREFIX}/") for name in model.producers)


def check_result(
    model: Model,
    rewritten: Rewritten,
    path: Path,
    session: Runs,
    output: ClassOutput,
    source: Source,
    batch_size: int,
    expected: NDArray[Any],
) -> float:
    """Compare the written file with the source and the formula; return the largest difference of a probability.

    Args:
        model: the source.
        rewritten: what was meant.
        path: the file.
        session: on the file.
        output: the output that classifies.
        source: samples.
        batch_size: samples per run.
        expected: (R, C) probabilities of the first R of them.

    Raises:
        CheckFailed: the file differs in something else, or a probability is off by more than rounding.
    """
    check_file(model, path)
    rows = np.arange(len(expected), dtype=np.int64)
    batches = source.batches(batch_size, rows)
    actual = output.probabilities(np.concatenate([session.run([output.name], batch)[0] for batch in batches]))
    largest = float(np.max(np.abs(actual - expected), initial=0))
    readout = rewritten.readout
    casts = casts_behind(model, readout)
    coarsest = max([epsilon(readout.logits_type), *(eps for eps, behind in casts if not behind)])
    bound = min(_MAX_BOUND, _ROUNDINGS * coarsest) + readout.output_step + 2 * readout.slack
    # of the old probability, of the sum that it is divided by, and of the new one
    bound += 2 * sum(eps for eps, behind in casts if behind)
    if not largest <= bound:
        raise CheckFailed(
            f"verification: the written file gives a probability that is {largest:.3g} off the formula; expected at "
            f"most {bound:.3g}"
        )
    return largest


_log = logging.getLogger("tna_onnx.shift")

# Samples run through the written file.
_CHECKED = 512

# Of the ECE in the report.
_BINS = 15


@dataclass(frozen=True, eq=False)
class _Estimate:
    """Class frequencies before and after, and how they were obtained.

    Attributes:
        source: (C,) before.
        target: (C,) after.
        old: (M, C) probabilities of the labelled samples.
        estimated: the estimate; None where the user states the frequencies.
        notes: what the user should know, in sentences.
    """

    source: FloatArray
    target: FloatArray
    old: NDArray[np.float32]
    estimated: Estimated | None
    notes: tuple[str, ...]


def shift(job: ShiftJob, progress: Progress) -> Shift:
    """Give a model new class frequencies and write it.

    Raises:
        UsageError, UnsupportedModel, DataError, DeviceError, CheckFailed: see `tna_onnx.shift`.
    """
    opened = open_shift(job)
    model = opened.model
    target = file_beside(model, job.output, ".shift.onnx", overwrite=job.overwrite, dry_run=job.dry_run)
    if job.dry_run:
        target = None
    estimated = _frequencies(job, opened, progress)
    change = log_ratio(estimated.source, estimated.target)
    rewritten, placed = write(model, opened.probed, change, _metadata(job, opened, estimated))
    with pending(model, rewritten.proto, target, apart=rewritten.apart) as path:
        session = open_session(path, path.name, opened.device)
        # whole batches: a model may quantise each in its own way
        rows = max(opened.batch_size, _CHECKED // opened.batch_size * opened.batch_size)
        expected = shifted(estimated.old[:rows], change)
        size = opened.batch_size
        largest = check_result(model, rewritten, path, session, opened.output, opened.source, size, expected)
        effect = _effect(job, opened, session, estimated.target, progress)
    evidence = None
    if estimated.estimated is not None:
        evidence = estimated.estimated.evidence
    return Shift(
        model=model.name,
        model_sha256=model.sha256,
        output=str(target or ""),
        class_output=opened.output.name,
        method=_method(job),
        classes=_classes(opened, estimated),
        data=opened.source.describe(),
        samples=len(opened.source),
        target_data="" if opened.unlabelled is None else opened.unlabelled.describe(),
        target_samples=0 if opened.unlabelled is None else len(opened.unlabelled),
        evidence=evidence,
        effect=effect,
        placed=placed,
        nodes=len(rewritten.proto.graph.node) - len(model.proto.graph.node),
        max_difference=largest,
        notes=(*opened.notes, *estimated.notes, *_moved_notes(opened)),
        provider=opened.session.provider,
    )


def _moved_notes(opened: Opened) -> list[str]:
    """Name the other outputs that are computed from the scores."""
    scores = opened.probed.readout.logits
    others = [name for name in opened.model.outputs if name != opened.output.name]
    return [MovedOutput(name).text for name in others if reads(opened.model, name, scores)]


def _method(job: ShiftJob) -> str:
    if job.target is None:
        return "given"
    return job.settings.estimator


def _frequencies(job: ShiftJob, opened: Opened, progress: Progress) -> _Estimate:
    settings = job.settings
    limits = job.calib.limits
    classes = opened.output.n_classes
    details = {
        name: read_prior(value, opened.known_names, classes, f"--{name}-prior", limits)
        for name, value in (("source", settings.source_prior), ("target", settings.target_prior))
        if value is not None
    }
    where = opened.source.describe()
    labels = opened.source.labels
    source = details.get("source")
    if source is None:
        source = source_counts(labels, opened.names, where)
    old = probabilities_of(opened.session, opened.output, opened.source, opened.batch_size, "source", progress)
    suspicion = job.calib.check(old.argmax(axis=1), labels, opened.known_names, classes)
    # wrong labels would make a wrong confusion matrix, and wrong frequencies
    warnings = checked_warnings(suspicion, opened.known_names, where)
    note = off_centre(old, labels, source, opened.names)
    notes = tuple(filter(None, (*warnings, note)))
    if opened.unlabelled is None:
        return _Estimate(source, details["target"], old, None, notes)
    new = probabilities_of(opened.session, opened.output, opened.unlabelled, opened.batch_size, "target", progress)
    sure = old.max(axis=1).astype(np.float64)
    observed = Observed(labels, old.argmax(axis=1), sure, new, source, counted="source" not in details)
    estimated = estimate(observed, settings, opened.unlabelled.describe(), note)
    _log.info("target: %s samples", f"{len(new):,}")
    return _Estimate(source, estimated.prior, old, estimated, (*notes, *estimated.notes))


def _classes(opened: Opened, estimated: _Estimate) -> tuple[ClassFrequency, ...]:
    ends: list[tuple[float, float] | None] = [None] * len(opened.names)
    if estimated.estimated is not None:
        ends = [(low, high) for low, high in estimated.estimated.interval.tolist()]
    rows = zip(opened.names, estimated.source.tolist(), estimated.target.tolist(), ends, strict=True)
    return tuple(ClassFrequency(name, before, after, interval) for name, before, after, interval in rows)


def _effect(
    job: ShiftJob, opened: Opened, session: Session, target: FloatArray, progress: Progress
) -> ShiftEffect | None:
    """Compare the written file with its source on labelled samples of the target.

    Raises:
        CheckFailed: the NLL is worse, by more than noise.
    """
    data = opened.held_out
    if data is None:
        return None
    before, _ = score_model(opened.session, opened.output, data, opened.batch_size, progress)
    after, _ = score_model(session, opened.output, data, opened.batch_size, progress)
    level = check_level(job.settings.confidence_level)
    differences = paired_differences(before, after, _BINS, level=level, seed=job.settings.seed)
    counts = np.bincount(data.labels, minlength=len(target)) / len(data)
    distance = disagreement(counts, target)
    if differences["nll"].low > 0:
        raise CheckFailed(
            f"{data.describe()}: the NLL rises by {differences['nll'].difference:.4f}, which is more than noise; these "
            f"labels have other class frequencies by {100 * distance:.1f} points in all; give --eval samples of the "
            "target, or other frequencies"
        )
    return ShiftEffect(
        data.describe(),
        Metrics.of(before, _BINS),
        Metrics.of(after, _BINS),
        differences["accuracy"],
        differences["nll"],
        distance,
    )


def _metadata(job: ShiftJob, opened: Opened, estimated: _Estimate) -> dict[str, str]:
    """Return all of this tool's entries; no time, no path: the same run writes the same bytes."""
    entries = {
        "method": _method(job),
        "source": estimated.source.tolist(),
        "target": estimated.target.tolist(),
        "samples": len(opened.source),
        "calib_sha256": opened.source.digest(),
        **digests_in_file(opened.source, "calib"),
        "source_sha256": opened.model.sha256,
    }
    if estimated.estimated is not None and opened.unlabelled is not None:
        entries["interval"] = estimated.estimated.interval.tolist()
        entries["target_samples"] = len(opened.unlabelled)
        entries["target_sha256"] = opened.unlabelled.digest()
        entries |= digests_in_file(opened.unlabelled, "target")
    output = {**opened.output.provenance, "output_kind": opened.output.kind}
    return {**provenance(opened.model), **output, "shift": json.dumps(entries)}
