"""What happens inside `shift`, in order: open, class frequencies, a new bias, checks of the file, the effect.

s' = s + d: where nothing else reads the scores of a head with a float bias, the bias alone changes; else an Add follows
the logits, or log p + d and a Softmax the probabilities.
"""

import json
import logging
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.frequencies import read_prior, restricted
from tna_onnx.data.options import Data
from tna_onnx.data.source import Source
from tna_onnx.data.suspicion import checked_warnings
from tna_onnx.engine.scoring import BatchRunner, score_model, with_projections
from tna_onnx.errors import CheckFailed, UnsupportedModel, UsageError
from tna_onnx.extraction.classifier import OpenModel, read_classifier
from tna_onnx.extraction.head_check import CheckedHead, check_readout
from tna_onnx.extraction.opened_samples import open_inputs
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import PREFIX, PRIOR_BLOCK, provenance
from tna_onnx.graph.options import ModelOptions
from tna_onnx.graph.outputs import ClassOutput, require_one_prediction
from tna_onnx.graph.readers import CannotInsert, OutputChange, can_scale, outputs_of_scores
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.rewrite import Rewritten
from tna_onnx.graph.save import written_files
from tna_onnx.graph.scores import find_readout
from tna_onnx.graph.tensors import epsilon
from tna_onnx.numerics.checks import check_batch_size, check_level
from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.prior_shift import RULED_OUT, Observed, disagreement, log_ratio, smoothed
from tna_onnx.pipeline.checking import casts_behind, checked_file, first_rows
from tna_onnx.pipeline.job import ModelJob, target_of
from tna_onnx.pipeline.opening import Opened
from tna_onnx.pipeline.other_outputs import find_others
from tna_onnx.pipeline.record import Added, Change, write_change
from tna_onnx.pipeline.sample_checks import DigestedSamples, check_target, digests_in_file
from tna_onnx.progress import Progress
from tna_onnx.results.outcomes import ClassFrequency, Shift, ShiftEffect
from tna_onnx.results.report import MovedOutput
from tna_onnx.runtime import Session, parse_device
from tna_onnx.shifting.frequencies import Estimated, estimate, off_centre, source_counts
from tna_onnx.shifting.shift_settings import ShiftSettings


@dataclass(frozen=True, eq=False)
class ShiftJob(ModelJob):
    """The request for new class frequencies: `calib` is like the training data, `held_out` like the data to come.

    Raises:
        UsageError: frequencies that are both given and to be estimated, or neither.
    """

    target: Data | None = None  # samples without labels of the data to come; None where their frequencies are given
    settings: ShiftSettings = field(default_factory=ShiftSettings)  # where the frequencies come from

    def __post_init__(self) -> None:
        stated = (self.target is not None, self.settings.target_prior is not None, bool(self.settings.only))
        if sum(stated) != 1:
            raise UsageError(
                "expected either class frequencies (--target-prior FILE or uniform), samples without labels to "
                "estimate them on (--target-data), or the classes that can occur (--only CLASS,...)"
            )


# What the graph does not show behind an appended map; provenance tells.
_KINDS = {"logits": "logits", "positive_logit": "logit"}


@dataclass(frozen=True, eq=False)
class ShiftSamples(Opened):
    """The model, and labelled samples of the data that it was made for, as `source`."""

    probed: CheckedHead  # where its scores are
    unlabelled: Source | None  # samples of the target without labels; None where its frequencies are given
    kept: tuple[str, ...]  # other outputs that stay: those with the class of each sample among them


def open_shift(job: ShiftJob) -> ShiftSamples:
    """Open model and data, cheapest first."""
    check_batch_size(job.batch_size)
    model, output = read_classifier(job.model, job.options)
    _refuse_earlier_work(model)
    require_one_prediction(model, output, "class frequencies are estimated on samples of one prediction each")
    readout = _readout(model, job.options, output)
    opened = OpenModel(model, readout, parse_device(job.device), job.calib, output)
    data, source = open_inputs(opened, job.calib)
    # labels that the samples of the target bring are not read: an estimate must not know them
    unlabelled = None if job.target is None else open_inputs(opened, job.target, labels=False)[1]
    held_out = None if job.held_out is None else open_inputs(opened, job.held_out)[1]
    target, evaluated = (None if samples is None else DigestedSamples.of(samples) for samples in (unlabelled, held_out))
    shared = check_target(model, DigestedSamples.of(source), target, evaluated, job.calib.limits)
    notes = (*shared, *source.notes)
    if unlabelled is not None:
        notes += unlabelled.notes
    size = job.batch_size
    probed = check_readout(opened, readout, opened.session, source, size)
    notes += probed.notes
    others = find_others(model, probed.readout, output, opened.device, source, size)
    notes += tuple(
        f"output '{label.name}' is the model's own decision and is unchanged, so another class may be likelier: take "
        "the class from the probabilities to have it follow the new class frequencies"
        for label in others.labels
    )
    kept = (*others.rest, *(label.name for label in others.labels))
    return ShiftSamples(opened, data, source, held_out, size, notes, probed, unlabelled, kept)


def _refuse_earlier_work(model: Model) -> None:
    entries = provenance(model)
    if "guard" in entries:
        raise UnsupportedModel(
            f"{model.name}: has been guarded already, with thresholds for its probabilities as they are; shift the "
            "model without these outputs, and guard the result with samples of the target"
        )
    if "shift" in entries:
        raise UnsupportedModel(f"{model.name}: has been shifted already; start from the model before that shift")


def _readout(model: Model, options: ModelOptions, output: ClassOutput) -> Readout:
    """Return where the scores are, also behind a map that this package added."""
    kind = options.output_kind
    name = options.output_name
    if any(tensor.startswith(f"{PREFIX}/") for tensor in model.producers):
        kind = kind or _KINDS.get(output.kind)  # type: ignore[assignment]  # words of the same choice
        name = name or output.name
    # the word names a head by its output, which leads to the scores behind a map too
    head = None if options.head == output.name else options.head
    return find_readout(model, head, name, kind)


FloatArray = NDArray[np.float64]

# Roundings of a probability by the runtime: of the logits, their sum with d, and the softmax. A ratio of frequencies
# multiplies those of the smallest probabilities.
_ROUNDINGS = 256
_NOTHING = 1e-6  # a probability that is 0 but for rounding
_MAX_BOUND = 0.05


def shifted(probabilities: NDArray[np.floating], change: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (N, C) probabilities after logits have changed by (C,) numbers, and what they were divided by, (N, 1).

    A row whose classes are all ruled out has the sum 0, and no probabilities.
    """
    weighted: FloatArray = probabilities * np.exp(change - change.max())
    total: FloatArray = weighted.sum(axis=1, keepdims=True)
    return weighted / np.where(total > 0, total, 1.0), total


def write(
    model: Model,
    probed: CheckedHead,
    change: FloatArray,
    metadata: dict[str, str],
    kept: tuple[str, ...] = (),
) -> tuple[Rewritten, str]:
    """Return the new model, and where the change is: `bias` or `nodes`.

    `change`: (C,) what is added to the logits. `kept`: outputs that stay, which a new bias would move.
    """
    readout = replace(probed.readout, quantum=0.0)  # a probability of 0 stays 0
    moved = Added(change)
    if not kept and isinstance(readout, Head) and _holds(model, readout, probed):
        return write_change(model, readout, Change(folded=moved), metadata), "bias"
    appended = Change(
        maps=(moved,),
        shape=probed.logits_shape,
        block=PRIOR_BLOCK if any(name.startswith(f"{PREFIX}/") for name in model.producers) else PREFIX,
        other_outputs=OutputChange(kept),
    )
    try:
        written = write_change(model, readout, appended, metadata)
    except UnsupportedModel as error:
        # the advice there is on maps
        reason = error.reason if isinstance(error, CannotInsert) else error
        raise UnsupportedModel(f"{reason}; shift the class frequencies in your program instead") from error
    return written, "nodes"


def _holds(model: Model, head: Head, probed: CheckedHead) -> bool:
    """Tell whether a change of the bias changes the logits by as much, and the file has a float for each class."""
    if not head.linear or probed.tail is not None or not head.holds_bias or head.stored_bias is None:
        return False
    return head.stored_bias.quantized is None and can_scale(model, head)


def check_result(
    opened: ShiftSamples, rewritten: Rewritten, session: BatchRunner, old: NDArray[Any], change: FloatArray
) -> float:
    """Compare the written file with the formula; return the largest difference of a probability.

    `old`: (M, C) probabilities that the source gives the samples, of which the first batches are run again; `change`:
    (C,) what its logits change by.
    """
    output = opened.output
    rows = first_rows(opened.source, opened.batch_size)
    batches = opened.source.batches(opened.batch_size, rows)
    actual = output.probabilities(np.concatenate([session.run([output.name], batch)[0] for batch in batches]))
    expected, total = shifted(old[rows], change)
    ruled_out = change == RULED_OUT
    # where little is left of the old probabilities, that much is known of their ratios
    certainty = total if ruled_out.any() else np.ones_like(total)
    largest = float(np.max(np.abs(actual - expected) * certainty, initial=0))
    remaining = float(np.max(actual[:, ruled_out], initial=0))
    if remaining > _NOTHING:
        raise CheckFailed(
            f"verification: a class that cannot occur has a probability of up to {remaining:.3g} in the written "
            "file, because the nodes behind its scores cannot represent numbers so far apart; remove its "
            "probability in your program"
        )
    readout = rewritten.readout
    casts = casts_behind(opened.model, readout)
    coarsest = max([epsilon(readout.logits_type), *(eps for eps, behind in casts if not behind)])
    if isinstance(readout, Head) and readout.stored_bias is not None and readout.stored_bias.quantized is None:
        coarsest = max(coarsest, epsilon(readout.stored_bias.value.dtype.name))
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

# Of the ECE in the report.
_BINS = 15


@dataclass(frozen=True, eq=False)
class _Estimate:
    """Class frequencies before and after, and how they were obtained."""

    source: FloatArray  # (C,) before
    target: FloatArray  # (C,) after
    old: NDArray[np.float32]  # (M, C) probabilities of the labelled samples
    estimated: Estimated | None  # the estimate; None where the user states the frequencies
    notes: tuple[str, ...]  # what the user should know, in sentences


def shift(job: ShiftJob, progress: Progress) -> Shift:
    """Give a model new class frequencies and write it."""
    opened = open_shift(job)
    model = opened.model
    target = target_of(job, model, ".shift.onnx")
    if job.dry_run:
        target = None
    estimated = _frequencies(job, opened, progress)
    change = log_ratio(estimated.source, estimated.target)
    rewritten, placed = write(model, opened.probed, change, _metadata(job, opened, estimated), opened.kept)
    with checked_file(model, rewritten.proto, target, opened.device, rewritten.large_values) as (path, session):
        largest = check_result(opened, rewritten, session, estimated.old, change)
        effect = _effect(job, opened, session, estimated.target, progress)
        files = written_files(path, target)
    evidence = None
    if estimated.estimated is not None:
        evidence = estimated.estimated.evidence
    # other outputs that are computed from the scores
    kept = {opened.output.name, *opened.kept}
    moved = [MovedOutput(name) for name in outputs_of_scores(model, opened.probed.readout) if name not in kept]
    return Shift(
        model=model.name,
        model_sha256=model.sha256,
        output=str(target or ""),
        files=files,
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
        notes=(*opened.notes, *estimated.notes, *(output.text for output in moved)),
        provider=opened.session.provider,
    )


def _method(job: ShiftJob) -> str:
    if job.target is None:
        return "given"
    return job.settings.estimator


def _frequencies(job: ShiftJob, opened: ShiftSamples, progress: Progress) -> _Estimate:
    settings = job.settings
    limits = job.calib.limits
    classes = opened.output.n_classes
    details = {
        name: read_prior(value, opened.classifier.names, classes, f"--{name}-prior", limits)
        for name, value in (("source", settings.source_prior), ("target", settings.target_prior))
        if value is not None
    }
    where = opened.source.describe()
    labels = opened.source.labels
    source = details.get("source")
    if source is None and settings.only:
        # these frequencies cancel
        source = smoothed(np.bincount(labels, minlength=classes) / len(labels), len(labels))
    elif source is None:
        source = source_counts(labels, opened.names, where)
    if settings.only:
        details["target"] = restricted(source, settings.only, opened.classifier.names)
    features = _features(opened)
    old, *projected = _scored(opened, opened.source, features, "source", progress)
    # wrong labels would make a wrong confusion matrix, and wrong frequencies
    suspicion = opened.suspicion(old.argmax(axis=1), lambda: old.max(axis=1))
    warnings = checked_warnings(suspicion, opened.classifier.names, where, trusted=settings.trust_labels)
    note = "" if settings.only else off_centre(old, labels, source, opened.names)
    notes = tuple(filter(None, (*warnings, note)))
    if opened.unlabelled is None:
        return _Estimate(source, details["target"], old, None, notes)
    new, *new_projected = _scored(opened, opened.unlabelled, features, "target", progress)
    observed = Observed(labels, old, new, source, counted="source" not in details)
    estimated = estimate(observed, settings, opened.unlabelled.describe(), note, (projected, new_projected))
    _log.info("target: %s samples", f"{len(new):,}")
    return _Estimate(source, estimated.prior, old, estimated, (*notes, *estimated.notes))


def _features(opened: ShiftSamples) -> list[str]:
    """Return the tensor of the features, which the test looks at too; none where it is an input or of integers."""
    head = opened.probed.readout
    if not isinstance(head, Head) or head.features_transposed or not head.features_type.startswith("float"):
        return []
    return [name for name in opened.session.outputs if name == head.features]


def _scored(
    opened: ShiftSamples, source: Source, features: list[str], stage: str, progress: Progress
) -> list[NDArray[Any]]:
    return with_projections(opened.session, opened.output, features, source, opened.batch_size, stage, progress)


def _classes(opened: ShiftSamples, estimated: _Estimate) -> tuple[ClassFrequency, ...]:
    ends: list[tuple[float, float] | None] = [None] * len(opened.names)
    if estimated.estimated is not None:
        ends = [(low, high) for low, high in estimated.estimated.interval.tolist()]
    rows = zip(opened.names, estimated.source.tolist(), estimated.target.tolist(), ends, strict=True)
    return tuple(ClassFrequency(name, before, after, interval) for name, before, after, interval in rows)


def _effect(
    job: ShiftJob, opened: ShiftSamples, session: Session, target: FloatArray, progress: Progress
) -> ShiftEffect | None:
    """Compare the written file with its source on labelled samples of the target."""
    data = opened.held_out
    if data is None:
        return None
    output = opened.output
    sides = (score_model(each, output, data, opened.batch_size, progress)[0] for each in (opened.session, session))
    before, after = (scores.resolved(output.resolution, output.n_classes) for scores in sides)
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


def _metadata(job: ShiftJob, opened: ShiftSamples, estimated: _Estimate) -> dict[str, str]:
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
