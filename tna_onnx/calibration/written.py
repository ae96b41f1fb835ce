"""The written file against the numerics, before it gets its final name.

Four checks:

1. the protobuf differs from its source in nothing but what was meant;
2. the ONNX checker accepts it wherever it accepts the source;
3. ONNX Runtime computes from it the probabilities that were scored, as far as rounding allows;
4. what held between its outputs in the source still holds.

Checks 3 and 4 run a part of the samples: of the held-out ones where there are enough, else of the calibration data;
of those that enter at the model's inputs, where only one set does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tna_onnx.calibration.other_outputs import check_other_outputs, outputs_beside
from tna_onnx.calibration.rounding import logit_sizes, probability_bounds
from tna_onnx.calibration.task import Collected, Task
from tna_onnx.calibration.writing import Shipped
from tna_onnx.data.positions import PositionSource, first_batches
from tna_onnx.engine.outputs import Runs
from tna_onnx.errors import CheckFailed
from tna_onnx.graph.checker import checker_complaint
from tna_onnx.graph.difference import unexpected_differences
from tna_onnx.graph.integers import opened_like, quantizes_batches
from tna_onnx.graph.limits import NO_MODEL_LIMITS
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.rewrite import Rewritten
from tna_onnx.maps.base import apply_map
from tna_onnx.results.verification import Verification
from tna_onnx.runtime import trim_memory
from tna_onnx.runtime.session import CUDA

__all__ = ["check_file", "check_probabilities", "check_runs", "check_written", "checked_samples"]

# Samples run through the written file.
_SAMPLES = 512
# Rounding averages out: on average it moves probabilities by a tenth of the bound at most, or by this much.
_MIN_MEAN = 1e-5

# Probabilities that are compared at a time: 8 MB each of those of the file, those that were scored, and their bounds.
_TOGETHER = 2**20

FloatArray = NDArray[np.float64]


def check_written(
    task: Task,
    rewritten: Rewritten,
    path: Path,
    checked: Collected,
    shipped: Shipped,
) -> Verification:
    """Run all checks on a file.

    Args:
        task: what was opened.
        rewritten: the new model, and what was meant to change.
        path: the file.
        checked: `checked_samples(task)`.
        shipped: what the file should compute for these samples.

    Raises:
        CheckFailed: one of the checks.
    """
    # checks 1 and 2 need no session
    checker = check_file(task.model, rewritten, path)
    # the copy of the file that was compared: a session makes its own
    trim_memory()
    return check_runs(task, checked, shipped, path, checker=checker)


def check_runs(task: Task, checked: Collected, shipped: Shipped, path: Path, *, checker: bool) -> Verification:
    """Run checks 3 and 4 on a file.

    Args:
        task: what was opened.
        checked: `checked_samples(task)`.
        shipped: what the file should compute for these samples.
        path: the file.
        checker: what `check_file` returned.

    Raises:
        CheckFailed: one of the checks.
    """
    rows = _rows(task, checked)
    # features on the device are moved there again; the session has its memory until then
    task.placement.forget()
    runner = checked.samples.open_written(path, task.class_output.name, task.device)
    # where nothing else is run through the file, its weights need not lie beside those that are multiplied
    release = None if outputs_beside(task, checked) else runner.close
    verification = check_probabilities(runner, task, checked, rows, shipped, checker=checker, release=release)
    # check 4, within the bound of check 3
    check_other_outputs(task, checked, rows, runner, path, verification.bound)
    # the comparison multiplies with large weights again
    runner.close()
    trim_memory()
    return verification


def checked_samples(task: Task) -> Collected:
    """Return the samples of which a part is run through the written file."""
    sets = [task.calibration]
    if task.held_out is not None:
        enough = len(task.held_out.source) >= _SAMPLES
        sets.insert(0 if enough else 1, task.held_out)
    # data for the model's inputs show more than features: they run the whole file, and its other outputs
    whole = [each for each in sets if not each.samples.given]
    return (whole or sets)[0]


def check_file(model: Model, rewritten: Rewritten, path: Path) -> bool:
    """Compare the file with its source, and run the ONNX checker in full.

    Returns:
        Whether the checker accepts the file; False only where it refuses the source too.

    Raises:
        CheckFailed: an unexpected difference, or the checker refuses the file but not the source.
    """
    # in the form in which the source was read: the bytes of fields are compared
    written = load_model(path, NO_MODEL_LIMITS, whole=not model.apart)
    differences = unexpected_differences(model, rewritten, opened_like(model, written).proto)
    del written
    if differences:
        raise CheckFailed(f"verification: the written file differs from {model.name} in {'; '.join(differences)}")
    complaint = checker_complaint(path)
    # a source that the checker refuses too says nothing about the rewrite
    if complaint and not checker_complaint(model.path or model.proto):
        raise CheckFailed(f"verification: the ONNX checker refuses the written file: {complaint}")
    return not complaint


def check_probabilities(
    runner: Runs,
    task: Task,
    checked: Collected,
    rows: NDArray[np.int64],
    shipped: Shipped,
    *,
    checker: bool,
    release: Callable[[], None] | None = None,
) -> Verification:
    """Run the written file on some samples and compare with softmax(map(logits)).

    Args:
        runner: on the written file.
        task: what was opened.
        checked: the samples and their features.
        rows: samples that are run.
        shipped: what the file should compute for all of these samples.
        checker: what `check_file` returned.
        release: called when all samples have been run.

    Raises:
        CheckFailed: a probability is off by more than the bound. Within it, a class that leads by more than twice the
            bound stays the first.
    """
    output = task.class_output
    batches = checked.source.batches(task.batch_size, rows)
    written = np.concatenate([runner.run([output.name], batch)[0] for batch in batches])
    if release is not None:
        release()
        trim_memory()
    # some samples at a time: probabilities of thousands of classes are large in float64
    count = max(1, _TOGETHER // task.readout.n_classes)
    blocks = [slice(start, start + count) for start in range(0, len(rows), count)]
    sizes = _sizes(task, checked, rows, shipped)
    parts = [
        _differences(
            task,
            checked,
            rows[block],
            output.probabilities(written[block]),
            shipped,
            None if sizes is None else sizes[block],
        )
        for block in blocks
    ]
    difference, bound, other = (np.concatenate(values) for values in zip(*parts, strict=True))
    _check_each(task, checked, rows, difference, bound)
    _check_mean(difference, bound, task.readout.output_step / 2 + task.readout.slack)
    largest = int(np.argmax(difference))
    return Verification(len(rows), float(difference[largest]), float(bound[largest]), checker, int(np.sum(other)))


def _sizes(task: Task, checked: Collected, rows: NDArray[np.int64], shipped: Shipped) -> FloatArray | None:
    """Return `logit_sizes` of all samples at once, as the weight is widened for it; None without a head."""
    if task.head is None:
        return None
    return logit_sizes(task, np.asarray(checked.table.features[rows], np.float64), source=shipped.logits)


def _differences(
    task: Task,
    checked: Collected,
    rows: NDArray[np.int64],
    actual: FloatArray,
    shipped: Shipped,
    sizes: FloatArray | None,
) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    """Return the largest |p - p'| of each of R samples, (R,), what rounding explains of it, and which class differs."""
    # float64: the rounding that is left is the runtime's
    z = np.asarray(checked.table.features[rows], np.float64)
    s = np.asarray(shipped.logits.at(rows), np.float64)
    expected = task.readout.probabilities(apply_map(shipped.fitted, s, z))
    bound = probability_bounds(task, z, s, shipped.fitted, shipped.logits, sizes)
    other = np.argmax(actual, axis=1) != np.argmax(expected, axis=1)
    if task.readout.multi_label:
        other = np.any((actual > 0.5) != (expected > 0.5), axis=1)
    return np.max(np.abs(actual - expected), axis=1, initial=0), bound, other


def _check_each(
    task: Task, checked: Collected, rows: NDArray[np.int64], difference: FloatArray, bound: FloatArray
) -> None:
    # bounds differ from sample to sample
    worst = int(np.argmax(difference - bound))
    if difference[worst] <= bound[worst]:
        return
    reason = ""
    if task.readout.output_step:
        reason = "; the model quantises this output, and its range may be too narrow for the new probabilities"
    raise CheckFailed(
        f"verification: the written file gives sample {rows[worst]} of {checked.source.describe()} a probability that "
        f"is {difference[worst]:.3g} off the numerics; expected at most {bound[worst]:.3g}{reason}"
    )


def _check_mean(difference: FloatArray, bound: FloatArray, constant: float) -> None:
    """Refuse a mean that rounding does not explain; `constant` is what moves every sample, and does not average out.

    An output that is quantised is off by up to half a step, whatever the sample.
    """
    mean = float(np.mean(difference))
    if mean > max(_MIN_MEAN, constant + float(np.mean(bound)) / 10):
        raise CheckFailed(
            f"verification: the written file's probabilities are {mean:.3g} off the numerics on average, too much for "
            "rounding, which averages out"
        )


def _rows(task: Task, checked: Collected) -> NDArray[np.int64]:
    """Choose samples all over the data; in the batches they were collected in, where results may depend on those.

    Without a float head the model may quantise each batch in its own way; dynamic quantisation does: the first batches.
    On CUDA the algorithm of a product or a convolution may depend on the size of the batch.
    """
    n = len(checked.source)
    together = isinstance(checked.source, PositionSource) and task.provider == CUDA
    if task.head is None or together or quantizes_batches(task.model):
        return np.arange(first_batches(checked.source, task.batch_size, _SAMPLES), dtype=np.int64)
    if task.provider == CUDA:
        return _whole_batches(n, task.batch_size)
    # spread, because files often come sorted by class
    return np.unique(np.linspace(0, n - 1, min(_SAMPLES, n)).astype(np.int64))


def _whole_batches(n: int, size: int) -> NDArray[np.int64]:
    """Return the samples of some batches of `size`, all over n samples.

    The last batch may be a shorter one: it comes last here too, so that none is cut in another way.
    """
    batches = -(-n // size)
    chosen = np.unique(np.linspace(0, batches - 1, min(max(1, _SAMPLES // size), batches)).astype(np.int64))
    return np.concatenate([np.arange(k * size, min((k + 1) * size, n), dtype=np.int64) for k in chosen.tolist()])
