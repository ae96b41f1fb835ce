"""The written file against the numerics, before it gets its final name.

Three checks: the protobuf differs from its source in nothing but what was meant; the ONNX checker accepts it wherever
it accepts the source; ONNX Runtime computes from it, on calibration samples, the probabilities that were scored.

Bound on the probabilities. Rounding moves a logit of sample i by at most k eps a_i, with
a_i = max_c sum_f |z_if||w_cf| + |b_c| and k = 16 for the order of summation, and a softmax moves by at most half of
what its logits move. So |p - p'| <= 8 eps a_i + 1e-6. A map behind the logits can magnify that (isotonic ramps are up
to 1024 steep), so four times what such a rounding of logits and features, with random signs, does to the numerics is
added. Never above 0.05. Where only the graph computes the logits, a_i = |z_i| max_c |w_c| + |b_c| over all
positions, and a step of the quantisation after the linear layer is added, if there is one; one of the output's, too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tna_onnx.calibration.rounding import magnified, rounding_of
from tna_onnx.calibration.task import Task
from tna_onnx.engine.logits import Logits
from tna_onnx.engine.outputs import Runs
from tna_onnx.errors import CheckFailed
from tna_onnx.graph.checker import checker_complaint
from tna_onnx.graph.difference import unexpected_differences
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.rewrite import Rewritten
from tna_onnx.maps import CalibrationMap, apply_map
from tna_onnx.numerics.ops import softmax
from tna_onnx.results.verification import Verification

__all__ = ["check_file", "check_probabilities", "sample_rows"]


# Samples run through the written file.
_SAMPLES = 512


_LARGEST = 0.05


_LEAST_MEAN = 1e-5


def check_file(model: Model, rewritten: Rewritten, path: Path) -> bool:
    """Compare the file with its source, and run the ONNX checker in full.

    Returns:
        Whether the checker accepts the file; False only where it refuses the source too.

    Raises:
        CheckFailed: an unexpected difference, or the checker refuses the file but not the source.
    """
    found = unexpected_differences(model, rewritten, load_model(path).proto)
    if found:
        raise CheckFailed(f"verification: the written file differs from {model.name} in {'; '.join(found)}")
    complaint = checker_complaint(path)
    if complaint and not checker_complaint(model.path or model.proto):
        raise CheckFailed(f"verification: the ONNX checker refuses the written file: {complaint}")
    return not complaint


def check_probabilities(
    session: Runs, task: Task, logits: Logits, fitted: CalibrationMap | None, *, checker: bool
) -> Verification:
    """Run the written file on calibration samples and compare with softmax(map(logits)).

    Args:
        session: on the written file.
        task: with the calibration samples and their features.
        logits: of the calibration samples under the weight that was written, before a folded temperature.
        fitted: the map, folded or not.
        checker: what `check_file` returned.

    Raises:
        CheckFailed: a probability is off by more than the bound, or another class is predicted.
    """
    source, output = task.source, task.class_output
    rows = sample_rows(task)
    parts = [session.run([output.name], batch)[0] for batch in source.batches(task.batch_size, rows)]
    found = output.probabilities(np.concatenate(parts))

    z, s = np.asarray(task.store.features[rows], np.float64), np.asarray(logits.at(rows), np.float64)
    expected = softmax(apply_map(fitted, s, z))
    rounding, relative = rounding_of(task, z, s)
    bound = 1e-6 + rounding[:, 0] / 2
    if fitted is not None:
        bound += 4 * magnified(fitted, s, z, rounding, relative)
    bound = np.minimum(_LARGEST, bound + task.readout.output_step)
    difference = np.max(np.abs(found - expected), axis=1, initial=0)
    worst = int(np.argmax(difference - bound))
    if not difference[worst] <= bound[worst]:
        raise CheckFailed(
            f"verification: the written file gives sample {rows[worst]} a probability that is {difference[worst]:.3g} "
            f"off the numerics; expected at most {bound[worst]:.3g}"
            + (
                "; the model quantises this output, and its range may be too narrow for the new probabilities"
                if task.readout.output_step
                else ""
            )
        )
    if (mean := float(np.mean(difference))) > max(_LEAST_MEAN, float(np.mean(bound)) / 10):
        raise CheckFailed(
            f"verification: the written file's probabilities are {mean:.3g} off the numerics on average, too much for "
            "rounding, which averages out"
        )
    top = np.sort(expected, axis=1)
    clear = top[:, -1] - top[:, -2] > 2 * bound
    if np.any(found.argmax(axis=1)[clear] != expected.argmax(axis=1)[clear]):
        raise CheckFailed("verification: the written file predicts another class than the numerics")
    largest = int(np.argmax(difference))
    return Verification(len(rows), float(difference[largest]), float(bound[largest]), checker)


def sample_rows(task: Task) -> NDArray[np.int64]:
    """Choose samples all over the data; the first ones, in the same batches, where results may depend on the batch.

    Without a float head the model may quantise each batch in its own way.
    """
    n = len(task.source)
    if task.head is None:
        return np.arange(min(_SAMPLES // task.batch_size * task.batch_size or task.batch_size, n), dtype=np.int64)
    return np.unique(np.linspace(0, n - 1, min(_SAMPLES, n)).astype(np.int64))
