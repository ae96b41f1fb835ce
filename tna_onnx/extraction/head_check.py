"""The check of a head on the first batch of real data: its layer must give the model's own logits up to rounding,

    features @ weight.T + bias == logits

Where only the graph can compute the logits (`Tail`), the nodes behind the features must give them, and a changed class
vector must change the logit of its class alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.source import Batch, Source
from tna_onnx.errors import DataError, UnsupportedModel
from tna_onnx.extraction.classifier import OpenModel
from tna_onnx.extraction.independence import (
    OutputCheck,
    check_independence,
    is_verified_enough,
    is_verified_in_other_batches,
    spread_batches,
)
from tna_onnx.extraction.sessions import batch_in_rows, compared_rows, open_part, sample_shape
from tna_onnx.graph.cut import cut_between, keeping
from tna_onnx.graph.load import Model
from tna_onnx.graph.readout import AMBIGUOUS_SCORES, Head, Layout, Readout, require_rows
from tna_onnx.graph.rewrite import rewrite
from tna_onnx.graph.tensors import TF32_EPSILON, epsilon
from tna_onnx.numerics.rotations import class_blocks
from tna_onnx.numerics.scores import NotProbabilities
from tna_onnx.runtime import Device, Session


class HeadDiffers(UnsupportedModel):
    """The features and the head's weight alone do not give the logits; a map behind the logits needs no head."""


# Classes whose vectors are changed to see that only their own logits follow.
_PROBED_CLASSES = 8

# Of the largest logit: what a graph that is cut and optimised in another way may differ by.
_TAIL_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class Tail:
    """The sub-graph from the features to the logits, for heads that only the graph can compute.

    Every weight is written into the model as it will be shipped, so that what is scored is what ships.
    """

    # the source, with the constants of the head alone: each weight is written into a copy, which need not hold the
    # network in front
    model: Model
    head: Head
    feeds: Mapping[str, np.dtype[Any]]  # the features, and their type
    device: Device  # where to run
    fixed_batch: int | None  # the only batch size that the model accepts

    def in_float(self) -> Tail:
        """Return the same with a weight that is kept in float where the file has it quantised."""
        return replace(self, head=self.head.kept_in_float())

    def logits(self, weight: NDArray[Any] | None) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """Return the function from features of a batch to its (N, C) logits, under a weight."""
        head = self.head
        # quantised and rounded as in the file: what is scored is what ships
        written = rewrite(self.model, head, weight, metadata={})
        cut = cut_between(written.proto, self.feeds, [head.logits])
        session = open_part(self.model, cut, self.device, self.fixed_batch)
        return lambda features: head.class_logits(session.run([head.logits], {head.features: features})[0])

    def check(self, features: NDArray[Any], logits: NDArray[Any]) -> None:
        """Check that the sub-graph gives the logits, and that class vector k moves logit k alone."""
        model, head = self.model, self.head
        computed = self.logits(None)(features)
        tolerance = _TAIL_TOLERANCE * max(1.0, _largest(logits)) + 2 * head.step
        if computed.shape != logits.shape or np.any(np.abs(computed - logits) > tolerance):
            raise HeadDiffers(
                f"{model.name}: the nodes from head '{head.node}' to '{head.logits}' do not give the model's logits; "
                "use --search none --output-kind logits"
            )
        original = self.logits(head.weight)(features)
        first = int(np.all(head.weight[0] == 0))  # a first vector of zeros is the fixed one of a binary head
        probed = range(first, min(head.n_classes, first + _PROBED_CLASSES))
        moved = [self._moves_alone(features, original, k) for k in probed]
        if not any(moved):
            raise UnsupportedModel(
                f"{model.name}: changing the class vectors of head '{head.node}' does not move the logits of the first "
                f"{len(logits)} samples"
            )

    def _moves_alone(self, features: NDArray[Any], original: NDArray[Any], k: int) -> bool:
        """Whether a changed class vector k moves the logit of its class."""
        head = self.head
        # a copy: the head's own weight is the source's
        changed = head.weight.copy()
        changed[k] = 0.5 * np.roll(changed[k], 1) - changed[k]
        moved = self.logits(changed)(features).astype(np.float64) - original
        if head.holds == "probabilities" and moved.shape[1] > 1:
            moved -= np.delete(moved, k, axis=1)[:, :1]  # dividing by the sum moves all others by the same
        own_moved = np.abs(moved[:, k]).max()
        rest_moved = np.abs(np.delete(moved, k, axis=1)).max(initial=0)
        if rest_moved > _TAIL_TOLERANCE * max(own_moved, _largest(original)) + 2 * head.step:
            raise UnsupportedModel(
                f"{self.model.name}: class vector {k} of head '{head.node}' moves the logits of other classes too: it "
                "is not the last layer of the classifier"
            )
        # a change within one step may be the quantisation's
        return bool(own_moved > head.step)


def _largest(logits: NDArray[Any]) -> float:
    """Return the largest |logit| of the classes that data move: a mask puts -10,000 in the place of the others."""
    moves = np.any(logits != logits[:1], axis=0)
    return float(np.abs(logits[:, moves]).max(initial=0))


# |features @ weight.T + bias - logits| may reach this many units of rounding of sum |z||w| + |b|: the runtime sums in
# another order. A wrong head is off by the size of the logits.
_ROUNDINGS = 16

# Units of rounding of 1 by which a sigmoid or softmax, 1 - p and a division by the sum move a probability.
_LINK_ROUNDINGS = 8


@dataclass(frozen=True)
class CheckedHead:
    """What the first batch showed of a head or of a model without one."""

    readout: Readout  # with what was found put in: whether the head is linear, the dtype of the logits
    # of one sample: (C,), () for some binary heads, (C, 1, 1) for convolutions; or a layout
    logits_shape: tuple[int, ...] | Layout
    plain_features: bool  # the feature tensor is (N, n), so that appended nodes can read it
    tail: Tail | None = None  # where only the graph computes the logits
    notes: tuple[str, ...] = ()  # on the model


def check_readout(
    opened: OpenModel,
    readout: Readout,
    session: Session | None,
    source: Source,
    batch_size: int,
    *,
    verified: bool = False,
) -> CheckedHead:
    """Compare what the head computes with the model's logits on the first batch.

    `session`: from the samples to the logits; None if the samples hold the logits. `verified`: whether a file is
    written and checked later.
    """
    model = opened.model
    batch = next(source.batches(batch_size, compared_rows(readout.n_classes, source, batch_size)))
    tensors = _first_batch(opened, readout, session, batch)
    raw = tensors[readout.logits]
    logits = class_logits(model, readout, raw, len(next(iter(batch.values()))))
    # before anything is compared: NaN is never larger than a tolerance
    bad = np.flatnonzero(~np.isfinite(logits).all(axis=1))
    if bad.size:
        raise DataError(f"{model.name}: logits '{readout.logits}' of sample {bad[0]} hold NaN or infinite values")
    _refuse_probabilities(model, readout, raw)
    if readout.output in tensors and _is_checked(model, readout):
        _check_output(model, readout, logits, tensors)
    run_later = verified and is_verified_enough(source, batch_size)
    run_later &= is_verified_in_other_batches(model, readout, source, session.provider if session else "")
    further: Iterable[Batch] = ()
    most_parts = None
    if run_later:
        # what is found at once saves the run of the other batches, where there are any
        most_parts = min(1, len(source) // (batch_size + 1))
    else:
        further = spread_batches(source, batch_size)
    notes = _independence_notes(model, readout, session, batch, tensors, further, most_parts)
    readout = replace(readout, logits_type=raw.dtype.name)
    shape = sample_shape(session, readout.logits, raw)
    if not isinstance(readout, Head):
        return CheckedHead(readout, shape, plain_features=False, notes=notes)
    features = tensors[readout.features]
    if readout.linear and features.size == len(logits) * readout.n_features:
        _check_linear(model, readout, features, logits, tf32=session is not None and session.tf32)
        return CheckedHead(readout, shape, _are_plain(readout, features, raw), notes=notes)
    head = replace(readout, linear=False)
    tail = _checked_tail(opened, head, session, features, logits)
    return CheckedHead(head, raw.shape[1:], _are_plain(head, features, raw), tail=tail, notes=notes)


def _checked_tail(
    opened: OpenModel, head: Head, session: Session | None, features: NDArray[Any], logits: NDArray[Any]
) -> Tail:
    """Return the part of the graph that computes the logits from the features, where these are not linear in them."""
    model = opened.model
    if head.parts:
        raise UnsupportedModel(
            f"{model.name}: the features of head '{head.node}' have shape {features.shape}; expected (N, "
            f"{head.n_features}), one vector a sample; use --search none --output-kind logits"
        )
    if head.several:
        raise UnsupportedModel(
            f"{model.name}: head '{head.node}' has several predictions a sample, and only the graph computes its "
            "logits; use --search none"
        )
    fixed_batch = session.fixed_batch if session else None
    check_batch_axis(model, head, features, len(logits), fixed_batch)
    feeds = {head.features: features.dtype}
    try:
        part = keeping(model, cut_between(model.proto, feeds, [head.logits]))
    except UnsupportedModel as error:
        reason = str(error).partition(";")[0]
        raise HeadDiffers(f"{model.name}: {reason}; use --search none --output-kind {head.holds}") from error
    tail = Tail(part, head, feeds, opened.device, fixed_batch)
    tail.check(features, logits)
    return tail


def _are_plain(head: Head, features: NDArray[Any], raw: NDArray[Any]) -> bool:
    """Whether nodes behind the logits can read the features: one row a sample, of a type that is known."""
    matrix = features.shape == (len(raw), head.n_features) and not (head.features_transposed or head.several)
    return matrix and not head.parts and features.dtype.name in (raw.dtype.name, head.features_type)


def _independence_notes(
    model: Model,
    readout: Readout,
    session: Session | None,
    batch: Batch,
    tensors: Batch,
    further: Iterable[Batch],
    most_parts: int | None,
) -> tuple[str, ...]:
    """Compare scores, and what is collected, with those in other batches; notes on what that shows."""
    if session is None:
        return ()

    def probabilities(raw: NDArray[Any]) -> NDArray[np.float64]:
        return readout.probabilities(readout.class_logits(raw).astype(np.float64))

    compared = [OutputCheck(readout.logits, probabilities)]
    if readout.output in tensors and readout.output not in batch:
        compared = [OutputCheck(readout.output, readout.class_output.probabilities)]
    if readout.main not in batch:
        compared.append(OutputCheck(readout.main))
    return check_independence(model, session, compared, batch, tensors, further, most_parts=most_parts)


def _first_batch(opened: OpenModel, readout: Readout, session: Session | None, batch: Batch) -> Batch:
    """Return the tensors of one batch that are compared; computed, unless the batch holds them."""
    missing = [name for name in dict.fromkeys([readout.main, readout.logits]) if name not in batch]
    if session is None or not missing:
        return batch
    if opened.is_whole(session) and _is_checked(opened.model, readout):
        missing.append(readout.output)
    if opened.is_whole(session) and opened.decided is not None:  # for the collection, which runs no batch again
        missing.append(opened.decided.name)
    results = dict(zip(missing, session.run(missing, batch), strict=True))
    return {**batch_in_rows(session, batch), **results}


def class_logits(model: Model, readout: Readout, raw: NDArray[Any], samples: int) -> NDArray[Any]:
    where = f"head '{readout.node}'" if isinstance(readout, Head) else f"output '{readout.output}'"
    require_rows(raw, samples, f"{model.name}: '{readout.logits}'")
    try:
        return readout.class_logits(raw)
    except NotProbabilities as mismatch:
        advice = ""
        if readout.activation == "none" and not isinstance(readout, Head):
            advice = f"; {AMBIGUOUS_SCORES}"
        raise UnsupportedModel(f"{model.name}: {where} should hold probabilities, but {mismatch}{advice}") from mismatch
    except UnsupportedModel as mismatch:
        raise UnsupportedModel(
            f"{model.name}: logits '{readout.logits}' have shape {raw.shape} for {samples} samples; expected (N, "
            f"{readout.n_classes}) for {where}"
        ) from mismatch


def _refuse_probabilities(model: Model, readout: Readout, raw: NDArray[Any]) -> None:
    """Refuse an output that was said to hold logits when every row is a distribution."""
    if readout.holds != "logits" or readout.activation != "none":
        return
    alone = readout.binary or readout.multi_label
    # of a head's one logit the graph says that it is linear in the features, if no HardSigmoid or Clip follows
    straight = isinstance(readout, Head) and (readout.linear or readout.homogeneous)
    if alone and not straight and np.all(raw >= 0) and np.all(raw <= 1):
        word = "label-probabilities" if readout.multi_label else "probability"
        raise UnsupportedModel(
            f"{model.name}: output '{readout.output}' should hold logits, but all values lie between 0 and 1; use "
            f"--output-kind {word}"
        )
    if raw.ndim == 2 and not readout.multi_label and np.all(raw >= 0) and np.all(np.abs(raw.sum(axis=1) - 1) < 1e-3):
        raise UnsupportedModel(
            f"{model.name}: output '{readout.output}' should hold logits, but all values are positive and add up to 1: "
            "they are probabilities; use --search none --output-kind probabilities, or choose another --output-name"
        )


def _is_checked(model: Model, readout: Readout) -> bool:
    """Whether an output comes after the logits that can be compared with them."""
    return not readout.class_output.mapped and readout.output != readout.logits and readout.output in model.producers


def _check_output(model: Model, readout: Readout, logits: NDArray[Any], tensors: Batch) -> None:
    """Compare an output that comes after the logits with what it should be."""
    output = readout.class_output
    values = tensors[readout.output]
    coarse = 1e-3 + 16 * epsilon(readout.logits_type) * max(1.0, float(np.abs(logits).max())) + readout.output_step
    coarse += readout.slack + 0.6 * (readout.output_step > 0)
    with contextlib.suppress(NotProbabilities):  # over another axis, a softmax gives other sums
        if values.size == len(logits) * output.width:
            error = np.abs(output.probabilities(values) - readout.probabilities(logits))
            if not np.any(error > coarse):
                return
    raise UnsupportedModel(
        f"{model.name}: output '{readout.output}' is not the {readout.activation} of '{readout.logits}' over the "
        "classes"
    )


def _check_linear(model: Model, head: Head, features: NDArray[Any], logits: NDArray[Any], *, tf32: bool) -> None:
    matrix = features.T if head.features_transposed else features
    if len(matrix) != len(logits):
        raise UnsupportedModel(
            f"{model.name}: features '{head.features}' have shape {features.shape}; expected (N, {head.n_features}), "
            "one vector a sample"
        )
    z = matrix.reshape(len(logits), -1).astype(np.float64)
    # what `_ROUNDINGS` counts in: sum |z||w| + |b|
    size = np.empty(logits.shape)
    expected = np.empty(logits.shape)
    for block, w in class_blocks(head.weight):
        expected[:, block] = z @ w.T + head.bias[block]
        size[:, block] = np.abs(z) @ np.abs(w, out=w).T + np.abs(head.bias[block])
    # the coarsest of the three types decides how far rounding reaches
    types = (head.stored_weight.value.dtype, features.dtype, logits.dtype)
    step = max(epsilon(dtype.name) for dtype in types)
    if tf32 and features.dtype == np.float32:
        step = max(step, TF32_EPSILON)
    moved = _ROUNDINGS * step * size + head.step
    largest = f"largest logit {np.abs(logits).max():.3g}"
    if head.holds == "probabilities":
        expected, logits, moved = _as_probabilities(head, expected, logits, moved)
        largest = "as probabilities"
    error = np.abs(expected - logits)
    if np.any(error > moved):
        raise HeadDiffers(
            f"{model.name}: head '{head.node}' does not give the model's logits: features @ weight.T + bias differs "
            f"from '{head.logits}' by up to {error.max():.3g} ({largest}); use --search none --output-kind {head.holds}"
        )


def _as_probabilities(
    head: Head, expected: NDArray[Any], logs: NDArray[Any], moved: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return expected and actual probabilities, and how far rounding takes them apart.

    Near 0 a probability that a runtime computes as 1 - p says nothing of its logit. Logits that move by at most d move
    log p, and log (1 - p), by at most 2 d.
    """
    p = head.probabilities(expected)
    largest = np.max(moved, axis=1, keepdims=True)
    bound = np.minimum(p, 1 - p) * np.expm1(np.minimum(2 * largest, 1)) + _LINK_ROUNDINGS * epsilon(logs.dtype.name)
    return p, head.probabilities(logs.astype(np.float64)), bound


def check_batch_axis(
    model: Model, head: Head, features: NDArray[Any], samples: int, fixed_batch: int | None = None
) -> None:
    """Refuse features that are not one row, or a fixed number of rows, per sample."""
    advice = ""
    if fixed_batch and len(features) != samples:
        advice = ", and the model has a fixed batch; export it with a dynamic batch"
    elif head.features_transposed or features.ndim < 2 or len(features) % samples:
        advice = "; expected the samples along axis 0"
    if advice:
        raise UnsupportedModel(
            f"{model.name}: features '{head.features}' have shape {features.shape} for {samples} samples{advice}"
        )
