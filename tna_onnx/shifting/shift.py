"""`shift`: open a model and samples, find the class frequencies, move the logits by them, check the file, measure it.

s' = s + d: where nothing else reads the scores of a head with a float bias, the bias alone changes; else an Add follows
the logits, or log p + d and a Softmax the probabilities.
"""

import json
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.engine.scoring import BatchRunner, score_model
from tna_onnx.errors import CheckFailed, UnsupportedModel
from tna_onnx.extraction.head_check import CheckedHead
from tna_onnx.graph.load import PREFIX, Model
from tna_onnx.graph.nodes import PRIOR_BLOCK
from tna_onnx.graph.readers import CannotInsert, OutputChange, can_scale, outputs_of_scores
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.rewrite import Rewritten
from tna_onnx.graph.save import written_files
from tna_onnx.graph.tensors import epsilon
from tna_onnx.numerics import prior_shift
from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.pipeline.checking import casts_behind, checked_file, first_rows
from tna_onnx.pipeline.job import target_of
from tna_onnx.pipeline.record import Added, Change, write_change
from tna_onnx.pipeline.sample_checks import digests_in_file
from tna_onnx.progress import Progress
from tna_onnx.results.outcomes import ClassFrequency, Shift, ShiftEffect
from tna_onnx.results.report import MovedOutput
from tna_onnx.runtime import Session
from tna_onnx.shifting.frequencies import Frequencies, find_frequencies
from tna_onnx.shifting.shift_job import ShiftJob, ShiftSamples, open_shift

FloatArray = NDArray[np.float64]


def shift(job: ShiftJob, progress: Progress) -> Shift:
    """Give a model new class frequencies and write it."""
    opened = open_shift(job)
    model = opened.model
    target = target_of(job, model, ".shift.onnx")
    if job.dry_run:
        target = None
    frequencies = find_frequencies(job, opened, progress)
    change = prior_shift.log_ratio(frequencies.source, frequencies.target)
    rewritten, placed = _write(opened, change, _metadata(job, opened, frequencies))
    with checked_file(model, rewritten.proto, target, opened.device, rewritten.large_values) as (path, session):
        largest = _check_result(opened, rewritten, session, frequencies.old, change)
        effect = _effect(job, opened, session, frequencies.target, progress)
        files = written_files(path, target)
    # other outputs that are computed from the scores
    unmoved = {opened.output.name, *opened.unmoved}
    moved = [MovedOutput(name) for name in outputs_of_scores(model, opened.probed.readout) if name not in unmoved]
    ends = [None] * len(opened.names) if frequencies.interval is None else map(tuple, frequencies.interval.tolist())
    rows = zip(opened.names, frequencies.source.tolist(), frequencies.target.tolist(), ends, strict=True)
    return Shift(
        model=model.name,
        model_sha256=model.sha256,
        output=str(target or ""),
        files=files,
        class_output=opened.output.name,
        method=job.method,
        classes=tuple(ClassFrequency(*row) for row in rows),
        data=opened.source.describe(),
        samples=len(opened.source),
        target_data="" if opened.unlabelled is None else opened.unlabelled.describe(),
        target_samples=0 if opened.unlabelled is None else len(opened.unlabelled),
        evidence=frequencies.evidence,
        effect=effect,
        placed=placed,
        nodes=len(rewritten.proto.graph.node) - len(model.proto.graph.node),
        max_difference=largest,
        notes=(*opened.notes, *frequencies.notes, *(output.text for output in moved)),
        provider=opened.session.provider,
    )


def _write(opened: ShiftSamples, change: FloatArray, metadata: dict[str, str]) -> tuple[Rewritten, str]:
    """Return the new model, and where the change is: `bias` or `nodes`. `change`: (C,) what is added to the logits."""
    model, probed = opened.model, opened.probed
    readout = replace(probed.readout, quantum=0.0)  # a probability of 0 stays 0
    moved = Added(change)
    # a new bias would move the outputs that stay
    if not opened.unmoved and isinstance(readout, Head) and _holds(model, readout, probed):
        return write_change(model, readout, Change(folded=moved), metadata), "bias"
    is_taken = any(name.startswith(f"{PREFIX}/") for name in model.producers)
    appended = Change(
        maps=(moved,),
        shape=probed.logits_shape,
        block=PRIOR_BLOCK if is_taken else PREFIX,
        other_outputs=OutputChange(opened.unmoved),
    )
    try:
        return write_change(model, readout, appended, metadata), "nodes"
    except UnsupportedModel as error:
        # the advice there is on maps
        reason = error.reason if isinstance(error, CannotInsert) else error
        raise UnsupportedModel(f"{reason}; shift the class frequencies in your program instead") from error


def _holds(model: Model, head: Head, probed: CheckedHead) -> bool:
    """Tell whether a change of the bias changes the logits by as much, and the file has a float for each class."""
    if not head.linear or probed.tail is not None or not head.holds_bias or head.stored_bias is None:
        return False
    return head.stored_bias.quantized is None and can_scale(model, head)


def _metadata(job: ShiftJob, opened: ShiftSamples, frequencies: Frequencies) -> dict[str, str]:
    """Return all of this tool's entries; no time, no path: the same run writes the same bytes."""
    entries = {
        "method": job.method,
        "source": frequencies.source.tolist(),
        "target": frequencies.target.tolist(),
        "samples": len(opened.source),
        "calib_sha256": opened.source.digest(),
        **digests_in_file(opened.source, "calib"),
        "source_sha256": opened.model.sha256,
    }
    if frequencies.interval is not None and opened.unlabelled is not None:
        entries["interval"] = frequencies.interval.tolist()
        entries["target_samples"] = len(opened.unlabelled)
        entries["target_sha256"] = opened.unlabelled.digest()
        entries |= digests_in_file(opened.unlabelled, "target")
    output = {**opened.output.provenance, "output_kind": opened.output.kind}
    return {**opened.model.provenance, **output, "shift": json.dumps(entries)}


# Roundings of a probability by the runtime: of the logits, their sum with d, and the softmax. A ratio of frequencies
# multiplies those of the smallest probabilities.
_ROUNDINGS = 256
_NOTHING = 1e-6  # a probability that is 0 but for rounding
_MAX_BOUND = 0.05


def _check_result(
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
    expected = old[rows] * np.exp(change - change.max())
    total = expected.sum(axis=1, keepdims=True)
    # a row whose classes are all ruled out has no probabilities
    expected /= np.where(total > 0, total, 1.0)
    ruled_out = change == prior_shift.RULED_OUT
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
    bound = _bound(opened.model, rewritten.readout)
    if not largest <= bound:
        raise CheckFailed(
            f"verification: the written file gives a probability that is {largest:.3g} off the formula; expected at "
            f"most {bound:.3g}"
        )
    return largest


def _bound(model: Model, readout: Readout) -> float:
    """Return how far a probability may be off by rounding."""
    casts = casts_behind(model, readout)
    coarsest = max([epsilon(readout.logits_type), *(eps for eps, behind in casts if not behind)])
    if isinstance(readout, Head) and readout.stored_bias is not None and readout.stored_bias.quantized is None:
        coarsest = max(coarsest, epsilon(readout.stored_bias.value.dtype.name))
    # casts behind: of the old probability, of the sum that it is divided by, and of the new one
    behind_it = 2 * sum(eps for eps, behind in casts if behind)
    return min(_MAX_BOUND, _ROUNDINGS * coarsest) + readout.output_step + 2 * readout.slack + behind_it


_BINS = 15
"""Of the ECE in the report."""


def _effect(
    job: ShiftJob, opened: ShiftSamples, session: Session, target: FloatArray, progress: Progress
) -> ShiftEffect | None:
    """Compare the written file with its source on labelled samples of the target."""
    data = opened.held_out
    if data is None:
        return None
    output = opened.output
    sides = (score_model(side, output, data, opened.batch_size, progress)[0] for side in (opened.session, session))
    before, after = (scores.resolved(output.resolution, output.n_classes) for scores in sides)
    level = job.settings.confidence_level / 100
    differences = paired_differences(before, after, _BINS, level=level, seed=job.settings.seed)
    counts = np.bincount(data.labels, minlength=len(target)) / len(data)
    distance = prior_shift.disagreement(counts, target)
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
