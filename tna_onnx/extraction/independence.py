"""The check that a sample's scores are its own: they do not depend on the samples that are run with it.

Some samples of a batch that was run are run again, each alone, and some in reverse order without the others. Where
their probabilities move by more than rounding explains (a mean over the batch, batch normalisation as in training, a
constant for each place in the batch, random numbers), no figure on them would hold for the next batch, and the model is
refused.

Rounding differs between batches, too: products are added up in another order. How far that reaches is known from the
types that a model computes in. Nodes that quantise a batch by its own range (`DynamicQuantizeLinear`) make scores
depend on the batch by design: the limit for these is wider, and a note says how far they do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Batch, Source
from tna_onnx.data.positions import POSITIONS, SHAPE, PositionSource
from tna_onnx.errors import DataError, UnsupportedModel
from tna_onnx.graph.load import Model
from tna_onnx.graph.outputs import ClassOutput
from tna_onnx.graph.tensors import FLOAT_TYPES
from tna_onnx.runtime import Session

__all__ = ["check_independence", "quantizes_batches", "require_independence"]

_log = logging.getLogger("tna_onnx")

_Probabilities: TypeAlias = Callable[[NDArray[Any]], NDArray[np.float64]]

_READ = 24  # samples that are read where no batch is at hand: it is too few to be felt, and fills a mean over a batch
_ALONE = 3
_REVERSED = 12

# |p - p'| that rounding explains. Float32 reaches 1e-4 in deep networks; a step of a quantised activation that falls to
# the other side moves more.
_LIMIT = 0.01
_COARSE_LIMIT = 0.05  # float16, bfloat16, TF32
_QUANTIZED_LIMIT = 0.1
_DYNAMIC_LIMIT = 0.25
_SHOWN = 0.01  # of nodes that quantise each batch: less is not worth a note


_DYNAMIC = {"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"}


def quantizes_batches(model: Model) -> bool:
    """Whether nodes quantise a batch by its own range, so that results depend on which samples are run together."""
    return any(node.op_type in _DYNAMIC for node in model.proto.graph.node)


def require_independence(
    model: Model, session: Session, output: ClassOutput, source: Source, batch_size: int
) -> tuple[str, ...]:
    """Run a few samples in several batches and compare what a model's output says of them.

    Args:
        model: what runs.
        session: on it.
        output: that classifies.
        source: the samples; the first are read.
        batch_size: samples per run.

    Returns:
        Notes.

    Raises:
        UnsupportedModel: the scores of a sample depend on the others.
        DataError: a sample cannot be read, or the network cannot run it.
    """
    rows = None if isinstance(source, PositionSource) else np.arange(min(batch_size, _READ, len(source)))
    batch = next(source.batches(min(batch_size, _READ), rows))
    (values,) = session.run([output.name], batch)
    if values.size != len(next(iter(batch.values()))) * output.width:
        return ()  # the run itself says what is wrong with it
    return check_independence(model, session, output.name, output.probabilities, batch, values)


def check_independence(
    model: Model, session: Session, name: str, probabilities: _Probabilities, batch: Batch, values: NDArray[Any]
) -> tuple[str, ...]:
    """Run some samples of a batch again, alone and in another batch, and compare.

    Args:
        model: what runs.
        session: on it, or on a part.
        name: of the tensor of scores.
        probabilities: makes probabilities (N, C) of it.
        batch: what was run.
        values: that it gave.

    Returns:
        Notes.

    Raises:
        UnsupportedModel: the scores of a sample depend on the others.
    """
    samples = _count(batch)
    # each portion of a fixed batch of one is a sample alone
    if samples < 2 or session.fixed_batch == 1:
        return ()
    before = probabilities(values)
    if not np.all(np.isfinite(before)):
        return ()  # the run itself says so
    limit, why = _limit_of(model, session)
    largest = 0.0
    for chosen, how in _trials(samples):
        other, rows = _taken(batch, chosen)
        try:
            (again,) = session.run([name], other)
        except DataError as error:  # a size that the network does not take, whatever its inputs say
            _log.debug("independence: %s not run: %s", how, error)
            continue
        if again.shape != (len(rows), *values.shape[1:]):
            _log.debug("independence: %s gives an output of shape %s", how, again.shape)
            continue
        moved = np.max(np.abs(probabilities(again) - before[rows]), axis=1, initial=0)
        worst = int(np.argmax(moved))
        if not moved[worst] <= limit:  # NaN is larger than any limit
            raise _refusal(model, session, name, probabilities, batch, before, f"{how}{why}", rows[worst], moved[worst])
        largest = max(largest, float(moved[worst]))
    _log.debug("independence: probabilities move by at most %.2g, limit %g", largest, limit)
    if largest <= _SHOWN or not quantizes_batches(model):
        return ()
    return (
        f"{model.name} quantises each batch by its own range, so a sample's probabilities depend on the others of its "
        f"batch: by up to {largest:.2g} on {samples} samples",
    )


def _trials(samples: int) -> list[tuple[NDArray[np.int64], str]]:
    """Return which samples of a batch are run again, and how the messages call that."""
    alone = np.unique(np.linspace(0, samples - 1, _ALONE).astype(np.int64)).tolist()
    # the others of its batch are missing, too
    step = max(1, -(-samples // _REVERSED), min(2, samples // 2))
    reverse = np.arange(samples, dtype=np.int64)[::-step]
    return [*((np.array([k]), "alone") for k in alone), (reverse, "in another order and without some others")]


def _limit_of(model: Model, session: Session) -> tuple[float, str]:
    """Return by how much rounding may move a probability, and why that is more than it is for float32."""
    operators = {node.op_type for node in model.proto.graph.node}
    if quantizes_batches(model):
        return _DYNAMIC_LIMIT, ", more than quantising each batch by its own range explains"
    if any("Quant" in each or "Integer" in each or "NBits" in each or each.startswith("Q") for each in operators):
        return _QUANTIZED_LIMIT, ", more than quantisation explains"
    half = {number for number, name in FLOAT_TYPES.items() if name in ("float16", "bfloat16")}
    casts = {a.i for node in model.proto.graph.node if node.op_type == "Cast" for a in node.attribute if a.name == "to"}
    if session.tf32 or casts & half or any(t.data_type in half for t in model.proto.graph.initializer):
        return _COARSE_LIMIT, ", more than rounding explains"
    return _LIMIT, ""


def _refusal(
    model: Model,
    session: Session,
    name: str,
    probabilities: _Probabilities,
    batch: Batch,
    before: NDArray[np.float64],
    how: str,
    row: int,
    moved: float,
) -> UnsupportedModel:
    what = f"run {how}"
    (again,) = session.run([name], batch)
    same = float(np.max(np.abs(probabilities(again) - before)))
    if not same <= _LIMIT:
        what = "run again in the same batch"
        moved = same
    return UnsupportedModel(
        f"{model.name}: the scores of a sample depend on what it is run with: '{name}' gives row {row} of the first "
        f"batch a probability that differs by {moved:.2g} when it is {what}. No figure on them would hold for another "
        "batch; export the model for inference (model.eval(); no mean or normalisation over the batch, no random "
        "numbers)"
    )


def _count(batch: Batch) -> int:
    """Return the number of samples in a batch."""
    return len(next(array for name, array in batch.items() if name not in (POSITIONS, SHAPE)))


def _taken(batch: Batch, samples: NDArray[np.int64]) -> tuple[Batch, NDArray[np.int64]]:
    """Return a batch of some samples of another one, in their order, and which rows of that its rows are."""
    count = _count(batch)
    # as in `Session.run`: an array without a row for each sample is for all of them
    taken = {
        name: array[samples] if array.ndim and len(array) == count and name not in (POSITIONS, SHAPE) else array
        for name, array in batch.items()
    }
    if POSITIONS not in batch:
        return taken, samples
    positions = int(np.prod(batch[SHAPE]))
    owner, place = np.divmod(batch[POSITIONS], positions)
    parts = [np.flatnonzero(owner == sample) for sample in samples]
    rows = np.concatenate(parts)
    new_owner = np.repeat(np.arange(len(samples)), [len(part) for part in parts])
    taken[POSITIONS] = place[rows] + positions * new_owner
    return {name: taken[name] for name in batch}, rows
