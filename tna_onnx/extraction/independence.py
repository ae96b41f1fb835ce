"""The check that a sample's scores are its own: they do not depend on the samples that are run with it.

The first batch is run again, some samples alone and all in eight parts in another order; so is a fortieth of all
samples, unless the check of the written file runs as many in other batches. What a share q of the samples does to
others, n of them miss with a probability of (1 - q)^n. A model is refused where probabilities, features or outlier
scores move by more than rounding explains; the limit is wider for dynamic quantisation.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.several import POSITIONS, SHAPE, PositionSource
from tna_onnx.data.source import Batch, Source
from tna_onnx.errors import DataError, UnsupportedModel
from tna_onnx.extraction.sessions import compared_rows
from tna_onnx.graph.bounds import all_nodes
from tna_onnx.graph.constants import RANDOM
from tna_onnx.graph.load import Model
from tna_onnx.graph.readout import ClassOutput, Head, Readout, require_rows
from tna_onnx.graph.tensors import FLOAT_TYPES
from tna_onnx.runtime import CUDA, Session

_log = logging.getLogger("tna_onnx")

VERIFIED = 512
"""Samples that are run through a written file, all over the data."""

_ALONE = 3
_PARTS = 8
_SPREAD = 40  # one of so many samples is run in another batch

# |p - p'| that rounding explains. Float32 reaches 1e-4 in deep networks; a step of a quantised activation that falls to
# the other side moves more.
_LIMIT = 0.01
_COARSE_LIMIT = 0.05  # float16, bfloat16, TF32
_QUANTIZED_LIMIT = 0.1
_DYNAMIC_LIMIT = 0.25
_CHANCE = 1e-6  # of the same batch, run again: less is rounding of float32
_SHOWN = 0.01  # of nodes that quantise each batch: less is not worth a note
_MIN_SPREAD = 0.1  # of the length of features: below it, rounding would count for too much

_DYNAMIC = {"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"}


@dataclass(frozen=True)
class OutputCheck:
    """A tensor that is compared between batches."""

    name: str  # of the tensor
    # makes probabilities (N, C) of it; None compares its values (N, ...) by how far samples lie apart
    probabilities: Callable[[NDArray[Any]], NDArray[np.float64]] | None = None

    def rows(self, values: NDArray[Any], count: int) -> NDArray[np.float64] | None:
        """Return a row of numbers a prediction, (N, n), in units of which the limits are; None if there are none."""
        if self.probabilities is not None:
            return self.probabilities(values)
        if values.dtype.kind != "f" or values.ndim == 0 or len(values) != count:
            return None
        return values.reshape(count, -1).astype(np.float64)

    def unit(self, rows: NDArray[np.float64]) -> float:
        """Return how far apart samples lie: 1 for probabilities."""
        if self.probabilities is not None:
            return 1.0
        spread = np.median(np.linalg.norm(rows - rows.mean(axis=0), axis=1))
        length = np.median(np.linalg.norm(rows, axis=1))
        return float(max(spread, _MIN_SPREAD * length)) or 1.0

    def moved(self, change: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the size of the change of each row, (N,)."""
        if self.probabilities is not None:
            return np.asarray(np.max(np.abs(change), axis=1, initial=0))
        return np.asarray(np.linalg.norm(change, axis=1))

    def amount(self, moved: float) -> str:
        """Say by how much a row moved."""
        if self.probabilities is not None:
            return f"a probability that differs by {moved:.2g}"
        return f"values that differ by {moved:.2g} of the distance between samples"


def quantizes_batches(model: Model) -> bool:
    """Whether nodes quantise a batch by its own range, so that results depend on which samples are run together."""
    return any(node.op_type in _DYNAMIC for node in model.proto.graph.node)


def is_verified_enough(source: Source, batch_size: int) -> bool:
    """Whether the check of a written file runs as many samples as are run again here, or all."""
    return min(len(source), batch_size + max(batch_size, len(source) // _SPREAD)) <= VERIFIED


def is_verified_in_other_batches(model: Model, readout: Readout, source: Source, provider: str) -> bool:
    """Whether the check of a written file runs samples of a source in other batches than they were collected in.

    Without a float head the model may quantise each batch in its own way; dynamic quantisation does. On CUDA the
    algorithm of a product or a convolution may depend on the size of the batch.
    """
    own_ranges = not isinstance(readout, Head) or quantizes_batches(model)
    return not (own_ranges or provider == CUDA or isinstance(source, PositionSource))


def other_batches(rows: NDArray[np.int64], batch_size: int) -> tuple[NDArray[np.int64], int]:
    """Return samples in parts as those of a batch, one after the other, and how many at most to run together."""
    parts = [part for part, _ in _parts(len(rows), None)]
    return rows[np.concatenate(parts)], min(batch_size, len(parts[0]))


def require_independence(
    model: Model,
    session: Session,
    output: ClassOutput,
    source: Source,
    batch_size: int,
    extra_outputs: Sequence[str] = (),
    *,
    least: int = 0,
) -> tuple[str, ...]:
    """Run the first batch, and again in other ways, and compare what a model's output says of the samples.

    Gives notes. `extra_outputs`: other tensors of one or more numbers a sample, which are compared too. `least`: how
    many samples behind the first batch are run, if there are as many.
    """
    batch = next(source.batches(batch_size, compared_rows(output.n_classes, source, batch_size)))
    names = [output.name, *extra_outputs]
    tensors = dict(zip(names, session.run(names, batch), strict=True))
    require_rows(tensors[output.name], _rows(batch), f"{model.name}: '{output.name}'")
    if tensors[output.name].size != _rows(batch) * output.width:
        return ()  # the run itself says what is wrong with it
    compared = [OutputCheck(output.name, output.probabilities), *(OutputCheck(name) for name in extra_outputs)]
    further = spread_batches(source, batch_size, least)
    return check_independence(model, session, compared, batch, tensors, further)


def spread_batches(source: Source, batch_size: int, least: int = 0) -> Iterator[Batch]:
    """Return batches of samples from all over the data, but the first batch; none of several predictions a sample."""
    rest = len(source) - batch_size
    if rest <= 0 or isinstance(source, PositionSource):
        return iter(())
    count = min(rest, max(batch_size, len(source) // _SPREAD, least))
    rows = batch_size + np.sort(np.random.default_rng(0).choice(rest, count, replace=False))
    return source.batches(batch_size, rows)


def check_independence(
    model: Model,
    session: Session,
    compared: Sequence[OutputCheck],
    batch: Batch,
    tensors: Mapping[str, NDArray[Any]],
    further: Iterable[Batch] = (),
    *,
    most_parts: int | None = None,
) -> tuple[str, ...]:
    """Run the samples of batches again, alone and in parts of a batch, in another order, and compare.

    Gives notes. `further`: batches of other samples, which are run and compared with their parts. `most_parts`: how
    many parts of the first batch are run at most; all of them by default.
    """
    _refuse_random(model, session, compared, batch, tensors)
    samples = _count(batch)
    # each portion of a fixed batch of one is a sample alone
    if samples < 2 or session.fixed_batch == 1:
        session.remember(batch, tensors)
        if not session.alone:
            return ()
        return (
            f"{model.name} declares batches of any size, but ONNX Runtime runs it with one sample only, so samples "
            "were run one at a time; for more speed, export it so that batches run",
        )
    if quantizes_batches(model):
        compared = compared[:1]
    alone = np.unique(np.linspace(0, samples - 1, _ALONE).astype(np.int64))
    trials: list[_Trial] = [(np.array([sample]), "alone") for sample in alone]
    trials += _parts(samples, session.fixed_batch)[:most_parts]
    comparison = _Comparison(model, session, compared, *_limit_of(model, session))
    largest = comparison.largest_move(batch, tensors, trials, "the first batch")
    names = [tensor.name for tensor in compared]
    computed: list[tuple[Batch, Mapping[str, NDArray[Any]]]] = [(batch, tensors)]
    for number, spread_batch in enumerate(further, 2):
        results = dict(zip(names, session.run(names, spread_batch), strict=True))
        parts = _parts(_count(spread_batch), session.fixed_batch)
        where = f"batch {number} of a sample of the data"
        largest = max(largest, comparison.largest_move(spread_batch, results, parts, where))
        if number == 2:  # of two batches in all, this is the second one, as it is collected
            computed.append((spread_batch, results))
    for feeds, outputs in computed:
        session.remember(feeds, outputs)
    _log.debug("independence: scores move by at most %.2g", largest)
    if largest <= _SHOWN or not quantizes_batches(model):
        return ()
    return (
        f"{model.name} quantises each batch by its own range, so a sample's probabilities depend on the others of its "
        f"batch: by up to {largest:.2g} on {samples} samples",
    )


def _refuse_random(
    model: Model, session: Session, compared: Sequence[OutputCheck], batch: Batch, tensors: Mapping[str, NDArray[Any]]
) -> None:
    """Refuse scores that differ where the same batch is run again."""
    # Dropout is random in a model that was exported for training
    if not any(node.op_type in {*RANDOM, "Dropout"} for node in all_nodes(model.proto.graph)):
        return
    again: list[_Trial] = [(np.arange(_count(batch)), "again")]
    largest = _Comparison(model, session, compared, math.inf).largest_move(batch, tensors, again, "the first batch")
    if largest > _CHANCE:
        raise UnsupportedModel(
            f"{model.name}: its scores are random: the same batch gives others when it is run again. No figure on them "
            "would hold for another run; export the model for inference (model.eval(); no random numbers)"
        )


@dataclass(frozen=True, eq=False)
class _Comparison:
    """Tensors of a model, and by how much their rows may move where samples are run in another batch."""

    model: Model
    session: Session
    compared: Sequence[OutputCheck]
    limit: float  # in the units of `OutputCheck`
    why: str = ""  # why it is more than for float32

    def largest_move(
        self, batch: Batch, tensors: Mapping[str, NDArray[Any]], trials: Sequence[_Trial], where: str
    ) -> float:
        """Return by how much a row moves at most, where some samples of a batch are run in other ways."""
        before = self._rows_of(batch, tensors)
        largest = 0.0
        for samples, how in trials if before else ():
            subset, rows = _taken(batch, samples)
            try:
                results = self.session.run([tensor.name for tensor in before], subset)
            except DataError as error:  # a size that the network does not take, whatever its inputs say
                _log.debug("independence: %s not run: %s", how, error)
                continue
            for tensor, values in zip(before, results, strict=True):
                if values.shape != (len(rows), *tensors[tensor.name].shape[1:]):
                    _log.debug("independence: %s gives an output of shape %s", how, values.shape)
                    continue
                change = np.asarray(tensor.rows(values, len(values))) - before[tensor][rows]
                moved = tensor.moved(change) / tensor.unit(before[tensor])
                worst = int(np.argmax(moved))
                if not moved[worst] <= self.limit:  # NaN is larger than any limit
                    raise UnsupportedModel(
                        f"{self.model.name}: the scores of a sample depend on what it is run with: '{tensor.name}' "
                        f"gives row {rows[worst]} of {where} {tensor.amount(moved[worst])} when it is run "
                        f"{how}{self.why}. No figure on them would hold for another batch; export the model for "
                        "inference (model.eval(); no mean or normalisation over the batch)"
                    )
                largest = max(largest, float(moved[worst]))
        return largest

    def _rows_of(self, batch: Batch, tensors: Mapping[str, NDArray[Any]]) -> dict[OutputCheck, NDArray[np.float64]]:
        """Return the rows of each tensor; of one that holds NaN or infinity the run itself tells."""
        finite = {}
        for tensor in self.compared:
            values = tensors[tensor.name]
            if tensor.probabilities is not None:
                require_rows(values, _rows(batch), f"{self.model.name}: '{tensor.name}'")
            if values.dtype.kind == "f" and not np.all(np.isfinite(values)):
                continue
            rows = tensor.rows(values, _rows(batch))
            if rows is not None and np.all(np.isfinite(rows)):
                finite[tensor] = rows
        return finite


_Trial: TypeAlias = tuple[NDArray[np.int64], str]
"""Which samples of a batch are run again, and how the messages call that."""


def _parts(samples: int, fixed_batch: int | None) -> list[_Trial]:
    """Return all samples of a batch, each once, in parts of it: what ranks or counts them finds other ones."""
    # a part of a fixed batch takes as long as a whole one
    parts = min(_PARTS if fixed_batch is None else 2 * -(-samples // fixed_batch), samples)
    order = one_cycle(samples)
    return [(order[k::parts], "in another order and without some others") for k in range(parts)]


def one_cycle(samples: int) -> NDArray[np.int64]:
    """Return samples in an order that is one cycle over all places, by Sattolo's algorithm: neighbours change, too."""
    order = np.arange(samples, dtype=np.int64)
    rng = np.random.default_rng(0)
    for k in range(samples - 1, 0, -1):
        j = int(rng.integers(k))
        order[[k, j]] = order[[j, k]]
    return order


def _limit_of(model: Model, session: Session) -> tuple[float, str]:
    """Return by how much rounding may move a probability, and why that is more than it is for float32."""
    operators = {node.op_type for node in model.proto.graph.node}
    if quantizes_batches(model):
        return _DYNAMIC_LIMIT, ", more than quantising each batch by its own range explains"
    if any(re.search("^Q|Quant|Integer|NBits", operator) for operator in operators):
        return _QUANTIZED_LIMIT, ", more than quantisation explains"
    half = {number for number, name in FLOAT_TYPES.items() if name in ("float16", "bfloat16")}
    casts = {a.i for node in model.proto.graph.node if node.op_type == "Cast" for a in node.attribute if a.name == "to"}
    if session.tf32 or casts & half or any(t.data_type in half for t in model.proto.graph.initializer):
        return _COARSE_LIMIT, ", more than rounding explains"
    return _LIMIT, ""


def _rows(batch: Batch) -> int:
    """Return the number of predictions in a batch."""
    return len(batch[POSITIONS]) if POSITIONS in batch else _count(batch)


def _count(batch: Batch) -> int:
    """Return the number of samples in a batch."""
    return len(next(array for name, array in batch.items() if name not in (POSITIONS, SHAPE)))


def _taken(batch: Batch, samples: NDArray[np.int64]) -> tuple[Batch, NDArray[np.int64]]:
    """Return a batch of some samples of another one, in their order, and which rows of that its rows are."""
    count = _count(batch)
    # as in `Session.run`: an array without a row for each sample is for all of them
    part = {
        name: array[samples] if array.ndim and len(array) == count and name not in (POSITIONS, SHAPE) else array
        for name, array in batch.items()
    }
    if POSITIONS not in batch:
        return part, samples
    positions = int(np.prod(batch[SHAPE]))
    owner, place = np.divmod(batch[POSITIONS], positions)
    parts = [np.flatnonzero(owner == sample) for sample in samples]
    rows = np.concatenate(parts)
    new_owner = np.repeat(np.arange(len(samples)), [len(part) for part in parts])
    part[POSITIONS] = place[rows] + positions * new_owner
    return {name: part[name] for name in batch}, rows
