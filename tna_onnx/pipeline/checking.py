"""Checks of a written file before it gets its name: (1) rebuilt, it is the same; (2) the ONNX checker accepts it; (3)
ONNX Runtime computes the scored probabilities up to rounding; (4) relations between the source's outputs hold.

    |p - p'| <= 8 eps a_i + 1e-6,   a_i = max_c sum_f |z_if||w_cf| + |b_c| over classes that no bias masks; at most 0.05

1. A map adds 4 times what such a rounding of logits and features, with random signs, does to its formula.
2. Where only the graph computes the logits, a_i = |z_i| max_c |w_c| + |b_c| over all positions.
3. Steps of quantisation behind the layer, and what a Clip or constant behind the probabilities changes, are added.
4. A quantised feature may move by a step d, with random signs: logits move by d |w_c| each.
5. Casts of probabilities, to a unit e, add e / 2; of log-probabilities e (1 + log C) / 2; of logits up to s, e s / 2.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.digest import file_sha256
from tna_onnx.data.several import PositionSource, first_batches
from tna_onnx.data.source import Source
from tna_onnx.engine.logits import HeadLogits, Logits
from tna_onnx.errors import CheckFailed
from tna_onnx.extraction.independence import (
    VERIFIED,
    is_verified_in_other_batches,
    other_batches,
    quantizes_batches,
    require_independence,
)
from tna_onnx.graph.constants import quantization_step
from tna_onnx.graph.load import Model, checker_complaint, load_model
from tna_onnx.graph.options import Difference
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.save import pending, written_files
from tna_onnx.graph.tensors import FLOAT_TYPES, TF32_EPSILON, epsilon, numpy_type
from tna_onnx.maps.base import CalibrationMap, apply_map
from tna_onnx.maps.clamp import Clamped
from tna_onnx.numerics.ops import to_host
from tna_onnx.numerics.rotations import class_blocks
from tna_onnx.pipeline.job import Collected, Task
from tna_onnx.pipeline.other_outputs import check_other_outputs, outputs_beside
from tna_onnx.pipeline.record import Proof, prove
from tna_onnx.pipeline.writing import Shipped
from tna_onnx.results.report import Changes, Report, Verification
from tna_onnx.runtime import CUDA, Device, Session, open_session, trim_memory

if TYPE_CHECKING:
    import onnx

_log = logging.getLogger("tna_onnx")

FloatArray = NDArray[np.float64]

_MAX_BOUND = 0.05
# Softmax and the report of float32 probabilities round too.
_FLOOR = 1e-6
# k: the runtime sums in another order, in blocks and with fused multiply-adds.
_ROUNDINGS = 16
# Sign patterns of rounding tried on a map.
_DRAWS = 4
# Logits so far below another have the probability 0, however they are rounded.
_GONE = 100.0
# What makes probabilities of logits.
_ACTIVATIONS = ("Softmax", "LogSoftmax", "Sigmoid")
# A bias so far below another masks its class, where products of features and weights are smaller.
_MASK = 1e3
# Types coarser than this (float16, bfloat16) are bounded as if their rounding errors had random signs: the sum of all
# terms would allow a wrong weight.
_COARSE = 1e-4


def probability_bounds(
    task: Task,
    features: FloatArray,
    logits: FloatArray,
    fitted: CalibrationMap | None,
    sizes: FloatArray | None = None,
) -> FloatArray:
    """Return the largest |p - p'| per sample that rounding explains, (R,).

    `logits`: of the same, (R, C), before the map. `sizes`: those of `logit_sizes`, if they are known.
    """
    # the formula of the module docstring from here on; rules where they apply
    eps = _unit(task)
    if sizes is None:
        sizes = logit_sizes(task, features, logits)
    moved = _ROUNDINGS * eps * sizes[:, None]
    if task.head:
        moved += task.head.step  # rule 3
        moved += _features_moved(task, task.head)  # rule 4
    bounds = _FLOOR + moved[:, 0] / 2
    if fitted is not None:
        if task.readout.resolution:  # where trees add p up, log p moves by k eps / p
            p = task.readout.probabilities(logits)
            moves_of_log = 1 / p
            if task.readout.multi_label:
                moves_of_log += 1 / (1 - p)
            moved = moved + _ROUNDINGS * eps * moves_of_log
        bounds += 4 * _magnified(task, fitted, logits, features, moved, _ROUNDINGS * eps)  # rule 1
    bounds += task.readout.output_step + task.readout.slack  # rule 3
    mapped = logits
    if fitted is not None:
        mapped = apply_map(fitted, logits, features)
    bounds += _cast_moves(task, mapped)  # rule 5
    bounded: FloatArray = np.minimum(_MAX_BOUND, bounds)
    if isinstance(fitted, Clamped):
        bounded[fitted.near_ties(logits, moved)] = 1.0  # predictions may go either way
    return bounded


def _cast_moves(task: Task, logits: FloatArray) -> FloatArray:
    """Return by how much casts on the way from the logits to the output move a probability, (R,) (rule 5)."""
    moved = np.zeros(len(logits))
    largest = np.maximum(_largest(task, logits), 1.0)
    for eps, behind in casts_behind(task.model, task.readout):
        if not behind:
            moved += eps * largest / 2
        elif task.readout.activation == "log_softmax":
            moved += eps * (1 + math.log(task.readout.n_classes)) / 2
        else:
            moved += eps / 2
    return moved


def casts_behind(model: Model, readout: Readout) -> list[tuple[float, bool]]:
    """Return the unit of rounding of each cast between logits and output, and whether it is behind the activation.

    The activation itself is one of them: it rounds what it gives.
    """
    before = model.ancestors(readout.logits)
    casts = []
    if readout.activation != "none":
        casts.append((epsilon(readout.logits_type), True))
    for k in model.ancestors(readout.output) - before:
        node = model.proto.graph.node[k]
        names = [FLOAT_TYPES.get(a.i) for a in node.attribute if node.op_type == "Cast" and a.name == "to"]
        if names and names[0] is not None:
            operators = {model.proto.graph.node[j].op_type for j in model.ancestors(node.output[0]) - before}
            casts.append((epsilon(names[0]), not operators.isdisjoint(_ACTIVATIONS)))
    return casts


# Steps that are coarser than those of float16 may make one number of a class and the one just below it.
_FINEST = 1e-3


def tells_apart(task: Task) -> bool:
    """Whether what lies behind the logits keeps a class above another that is just below it."""
    steps = [eps for eps, _ in casts_behind(task.model, task.readout)]
    return not (task.readout.output_step or task.readout.slack) and max(steps, default=0.0) <= _FINEST


def _features_moved(task: Task, head: Head) -> float:
    step = quantization_step(task.model, head.features)
    if step == 0:
        return 0.0
    return step * max(float(np.max(np.linalg.norm(w, axis=1))) for _, w in class_blocks(head.weight))


def _unit(task: Task) -> float:
    """Unit of rounding of the logits: of their dtype or the weight's, whichever is coarser."""
    eps = epsilon(task.readout.logits_type)
    # the factors of a product are rounded, whatever its sum is in
    if task.tf32 and task.readout.logits_type == "float32":
        eps = max(eps, TF32_EPSILON)
    if task.head is None:
        return eps
    return max(eps, epsilon(task.head.stored_weight.value.dtype.name))


def logit_sizes(
    task: Task, features: FloatArray, logits: FloatArray | None = None, source: Logits | None = None
) -> FloatArray:
    """Return the largest a_i of any class, per sample, (R,): sizes of the terms that a logit is the sum of.

    A large weight is widened once for all samples, so many of them together cost little more than a few.

    `logits`: of the same, (R, C), where there is no head.
    """
    head = task.head
    if head is None:
        assert logits is not None  # noqa: S101 - there is nothing else to look at
        return _largest(task, logits)
    weight = head.weight
    bias = head.bias.astype(np.float64)
    # a folded map may have made them larger
    if isinstance(source, HeadLogits):
        weight = to_host(source.head.weight)
        bias = np.asarray(to_host(source.head.bias), np.float64)
    masked = (bias < np.max(bias) - _MASK) & (not task.readout.multi_label)
    largest = _largest_sizes(task, features, weight, np.where(masked, 0, bias))
    if np.any(masked) and 2 * np.max(largest) + _GONE > _MASK:  # they may be above another class all the same
        return _largest_sizes(task, features, weight, bias)
    return largest


def _largest(task: Task, logits: FloatArray) -> FloatArray:
    """Return the largest |logit| of each sample, (R,), of classes whose probability is not 0."""
    alive = logits > np.max(logits, axis=1, keepdims=True) - _GONE
    return np.asarray(np.max(np.abs(logits), axis=1, where=alive | task.readout.multi_label, initial=0))


def _largest_sizes(task: Task, features: FloatArray, weight: Any, bias: FloatArray) -> FloatArray:
    """Return the largest a_i of any class under a weight, (R,)."""
    largest = np.zeros(len(features))
    for block, w in class_blocks(weight):
        b = bias[block]
        if task.probed.tail is not None:  # rule 2
            length = np.linalg.norm(features.reshape(len(features), -1), axis=1, keepdims=True)
            sizes = length * np.linalg.norm(w, axis=1) + np.abs(b)
        elif _unit(task) < _COARSE:  # all rounding errors with one sign: the worst case
            sizes = np.abs(features) @ np.abs(w.T) + np.abs(b)
        else:  # random signs: errors add up like the root of the sum of squares
            sizes = (np.sqrt(features**2 @ (w**2).T + b**2) + np.abs(features @ w.T + b)) / 2
        np.maximum(largest, np.max(sizes, axis=1), out=largest)
    return largest


def _magnified(
    task: Task, fitted: CalibrationMap, logits: FloatArray, features: FloatArray, moved: FloatArray, relative: float
) -> FloatArray:
    """Largest change of a probability per sample when logits and features are off by a rounding of random sign.

    The formula runs in the dtype of the graph, as there: its own steps round too. How far they do without any other
    change is known for all samples together, as chance may spare one of them.
    """
    # a fixed seed: the bound of a run is the same when it is repeated
    draws = np.random.default_rng(0)
    exact = task.readout.probabilities(apply_map(fitted, logits, features))
    rounding = np.max(np.abs(_in_dtype(task, fitted, logits, features) - exact))
    largest = np.full(len(logits), rounding)
    for _ in range(_DRAWS):
        s = logits + moved * draws.choice([-1.0, 1.0], logits.shape)
        z = features * (1 + relative * draws.choice([-1.0, 1.0], features.shape))
        change = np.abs(_in_dtype(task, fitted, s, z) - exact)
        largest = np.maximum(largest, np.max(change, axis=1))
    return largest


def _in_dtype(task: Task, fitted: CalibrationMap, logits: FloatArray, features: FloatArray) -> FloatArray:
    """Return probabilities that a map computes in the dtype of the graph."""
    dtype = numpy_type(task.readout.logits_type)
    with np.errstate(over="ignore"):
        mapped = apply_map(fitted, logits.astype(dtype), features.astype(dtype))
    return task.readout.probabilities(np.asarray(mapped, np.float64))


# Rounding averages out: on average it moves probabilities by a tenth of the bound at most, or by this much.
_MIN_MEAN = 1e-5

# Probabilities that are compared at a time: 8 MB each of those of the file, those that were scored, and their bounds.
_TOGETHER = 2**20


@dataclass(frozen=True, eq=False)
class FileCheck:
    """Whether written files compute a recalibration: checks 3 and 4."""

    task: Task  # what was opened
    checked: Collected  # samples of which a part is run through a file
    shipped: Shipped  # what the recalibration should compute for them

    def run(self, path: Path, *, checker: bool) -> Verification:
        """Run both checks on a file. `checker`: what `check_file` says of it."""
        task = self.task
        verification = self._in_other_batches(path) or self._check_rows(path, self.rows(), task.batch_size)
        size = min(task.batch_size, len(self.checked.source))
        return dataclasses.replace(verification, checker=checker, batch=size)

    def report(self, report: Report, path: Path) -> Report:
        """Return the report with differences and checks of the file at `path`, which has decisions."""
        differences = require_intact(self.task.model, path).differences
        verification = self.run(path, checker=report.verification.checker)
        details = None if report.details is None else dataclasses.replace(report.details, changes=differences)
        changes = None if report.changes is None else _with_added(report.changes, differences)
        changed = dataclasses.replace(report, verification=verification, details=details, changes=changes)
        return with_file(changed, path)

    def rows(self) -> NDArray[np.int64]:
        """Choose samples all over the data; in the batches they were collected in, where results may depend on those.

        `is_verified_in_other_batches` says where. The last batch may be a shorter one: it comes last here too, so that
        none is cut in another way.
        """
        task, source = self.task, self.checked.source
        n = len(source)
        size = task.batch_size
        together = isinstance(source, PositionSource) and task.provider == CUDA
        if task.head is None or together or quantizes_batches(task.model):
            return first_rows(source, size)
        # spread, because files often come sorted by class
        if task.provider != CUDA:
            return _spread(n, VERIFIED)
        batches = _spread(-(-n // size), max(1, VERIFIED // size)).tolist()
        return np.concatenate([np.arange(k * size, min((k + 1) * size, n), dtype=np.int64) for k in batches])

    def _in_other_batches(self, path: Path) -> Verification | None:
        """Check a file on samples in other batches than the model ran; None where results may depend on the batch."""
        task, source = self.task, self.checked.source
        if self.checked.samples.given:
            return None
        if not is_verified_in_other_batches(task.model, task.readout, source, task.provider):
            return None
        try:
            return self._check_rows(path, *other_batches(self.rows(), task.batch_size))
        except CheckFailed:
            _log.debug("check: samples in other batches differ", exc_info=True)
        # the model's own fault, or rounding that differs between batches
        opened = task.opened
        tensors = opened.computed([opened.readout.main])
        require_independence(
            task.model, opened.session, opened.output, source, task.batch_size, tensors, least=VERIFIED
        )
        opened.close()
        return None

    def _check_rows(self, path: Path, rows: NDArray[np.int64], size: int) -> Verification:
        """Run some samples through a file, so many at a time."""
        task = dataclasses.replace(self.task, batch_size=size)
        checked = self.checked
        # features on the device are moved there again; the session has its memory until then
        task.placement.forget()
        name = task.opened.output.name
        runner = checked.samples.open_written(path, name, task.device, task.model.limits)
        written = np.concatenate([runner.run([name], batch)[0] for batch in checked.source.batches(size, rows)])
        # where nothing else is run through the file, its weights need not lie beside those that are multiplied
        if not outputs_beside(task, checked):
            runner.close()
            trim_memory()
        verification = self.probabilities(rows, written)
        # check 4, within the bound of check 3
        moved = check_other_outputs(task, checked, rows, runner, path, verification.bound, self.shipped.other_outputs)
        # the comparison multiplies with large weights again
        runner.close()
        trim_memory()
        return dataclasses.replace(verification, moved=moved)

    def probabilities(self, rows: NDArray[np.int64], written: NDArray[Any]) -> Verification:
        """Compare what a file gives for some samples with softmax(map(logits))."""
        task, logits = self.task, self.shipped.logits
        # some samples at a time: probabilities of thousands of classes are large in float64
        count = max(1, _TOGETHER // task.readout.n_classes)
        blocks = [slice(start, start + count) for start in range(0, len(rows), count)]
        sizes = None
        if task.head is not None:  # of all at once, as the weight is widened for it
            sizes = logit_sizes(task, np.asarray(self.checked.table.features[rows], np.float64), source=logits)
        parts = []
        for block in blocks:
            p = task.opened.output.probabilities(written[block])
            parts.append(self._differences(rows[block], p, None if sizes is None else sizes[block]))
        difference, bound, differs = (np.concatenate(values) for values in zip(*parts, strict=True))
        # as for a quantised output: every sample is rounded there, and none of it averages out
        casts = [_cast_moves(task, np.asarray(logits.at(rows[block]), np.float64)) for block in blocks]
        constant = task.readout.output_step / 2 + task.readout.slack + float(np.mean(np.concatenate(casts)))
        self._require_close(rows, difference, bound, constant)
        worst = int(np.argmax(difference))
        return Verification(len(rows), float(difference[worst]), float(bound[worst]), other_class=int(np.sum(differs)))

    def _differences(
        self, rows: NDArray[np.int64], actual: FloatArray, sizes: FloatArray | None
    ) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
        """Return the largest |p - p'| of R samples, (R,), what rounding explains of it, and whether the class differs.

        Refuses a file that changes a prediction which its map keeps; the bound of near ties is 1.
        """
        task, fitted = self.task, self.shipped.fitted
        # float64: the rounding that is left is the runtime's
        z = np.asarray(self.checked.table.features[rows], np.float64)
        logits = self.shipped.logits.given if fitted is None else self.shipped.logits
        s = np.asarray(logits.at(rows), np.float64)
        expected = task.readout.probabilities(apply_map(fitted, s, z))
        bound = probability_bounds(task, z, s, fitted, sizes)
        first = np.argmax(actual, axis=1)
        differs = first != np.argmax(expected, axis=1)
        if task.readout.multi_label:
            differs = np.any((actual > 0.5) != (expected > 0.5), axis=1)
        elif isinstance(fitted, Clamped):
            changed = (first != np.argmax(s, axis=1)) & (bound < 1)
            if changed.any():
                raise CheckFailed(
                    f"verification: the written file gives sample {rows[changed][0]} of "
                    f"{self.checked.source.describe()} another class than the input does; use --map ts, or "
                    "--predictions change"
                )
        return np.max(np.abs(actual - expected), axis=1, initial=0), bound, differs

    def _require_close(
        self, rows: NDArray[np.int64], difference: FloatArray, bound: FloatArray, constant: float
    ) -> None:
        """Refuse a difference of a sample, or a mean one, that rounding does not explain.

        `constant` moves every sample alike, and so stays in the mean: an output that is quantised is off by up to half
        a step, whatever the sample.
        """
        # bounds differ from sample to sample
        worst = int(np.argmax(difference - bound))
        if difference[worst] > bound[worst]:
            reason = ""
            if self.task.readout.output_step:
                reason = "; the model quantises this output, and its range may be too narrow for the new probabilities"
            elif bound[worst] == _MAX_BOUND and self.task.head is not None:
                reason = (
                    "; the logits are so large that rounding alone explains more than that: subtract from the bias "
                    "what all classes have in common"
                )
            raise CheckFailed(
                f"verification: the written file gives sample {rows[worst]} of {self.checked.source.describe()} a "
                f"probability that differs by {difference[worst]:.3g} from what tna-onnx computed; expected at most "
                f"{bound[worst]:.3g}{reason}"
            )
        mean = float(np.mean(difference))
        if mean > max(_MIN_MEAN, constant + float(np.mean(bound)) / 10):
            raise CheckFailed(
                f"verification: the written file's probabilities differ by {mean:.3g} on average from what tna-onnx "
                "computed, too much for rounding, which averages out"
            )


def checked_samples(task: Task) -> Collected:
    """Return the samples of which a part is run through the written file."""
    sets = [task.calibration]
    if task.held_out is not None:
        enough = len(task.held_out.source) >= VERIFIED
        sets.insert(0 if enough else 1, task.held_out)
    # data for the model's inputs show more than features: they run the whole file, and its other outputs
    at_inputs = [collected for collected in sets if not collected.samples.given]
    return (at_inputs or sets)[0]


def check_file(model: Model, path: Path) -> bool:
    """Run checks 1 and 2 on a file: rebuild it from its source, compare both, and run the ONNX checker in full.

    Gives whether the checker accepts the file; False only where it refuses the source too.
    """
    require_intact(model, path)
    complaint = checker_complaint(path)
    # a source that the checker refuses too says nothing about the rewrite
    if complaint and not checker_complaint(model.path or model.proto):
        raise CheckFailed(f"verification: the ONNX checker refuses the written file: {complaint}")
    # the copy of the file that was compared: a session makes its own
    trim_memory()
    return not complaint


@contextlib.contextmanager
def checked_file(
    model: Model,
    proto: onnx.ModelProto,
    target: Path | None,
    device: Device,
    large_values: Mapping[bytes, Any] | None = None,
) -> Iterator[tuple[Path, Session]]:
    """Write a model under a temporary name, run checks 1 and 2, and open it; it gets its name when the block ends.

    `target`: path to write; None for none.
    """
    with pending(model, proto, target, large_values=large_values) as path:
        check_file(model, path)
        yield path, open_session(path, path.name, device)


def require_intact(model: Model, path: Path) -> Proof:
    """Return the proof that a file is a source and a change."""
    proof = prove(model, load_model(path, model.limits, similar=model))
    if not proof.intact:
        wrong = [f"{difference.part} {difference.name}: {difference.change}" for difference in proof.unexplained]
        text = proof.reason or "; ".join(wrong)
        raise CheckFailed(
            f"verification: the written file differs from {model.name} by more than the recorded change: {text}"
        )
    return proof


def first_rows(source: Source, batch_size: int) -> NDArray[np.int64]:
    """Return the samples of the first batches, which are run through a written file; at least one batch.

    They are whole batches, as a model may quantise each in its own way.
    """
    return np.arange(first_batches(source, batch_size, VERIFIED), dtype=np.int64)


def _spread(n: int, count: int) -> NDArray[np.int64]:
    """Return up to `count` of n numbers, as far apart as they can be."""
    return np.unique(np.linspace(0, n - 1, min(count, n)).astype(np.int64))


def with_file(report: Report, path: Path) -> Report:
    """Return a report with the SHA-256 of the file at `path`, where that is kept, and all files of the model."""
    digest = ""
    if report.output:
        digest = file_sha256(path).hex()
    return dataclasses.replace(report, output_sha256=digest, files=written_files(path, report.output))


def _with_added(changes: Changes, differences: tuple[Difference, ...]) -> Changes:
    added = {(difference.part, difference.name) for difference in differences if difference.change == "added"}
    nodes = {*changes.nodes, *(name for part, name in added if part == "node")}
    tensors = {*changes.added, *(name for part, name in added if part == "tensor")}
    return dataclasses.replace(changes, nodes=tuple(sorted(nodes)), added=tuple(sorted(tensors)))
