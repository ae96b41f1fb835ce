"""Whether the nodes behind a linear layer keep the classes apart, so that a new weight does what it says."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Batch
from tna_onnx.errors import UnsupportedModel
from tna_onnx.extraction.sessions import OpenModel
from tna_onnx.extraction.tail import Tail
from tna_onnx.graph.cut import read_beside
from tna_onnx.graph.load import Model
from tna_onnx.graph.readout import Head

__all__ = ["check_tail", "read_by_tail"]

# Classes whose vectors are changed to see that only their own logits follow.
_PROBED_CLASSES = 8

# Of the largest logit: what a graph that is cut and optimised in another way may differ by.
_TAIL_TOLERANCE = 1e-3


def read_by_tail(opened: OpenModel, head: Head, batch: Batch, features: NDArray[Any]) -> Batch:
    """Return what the nodes from the linear layer to the logits read of one batch."""
    names = read_beside(opened.model, head)
    missing = opened.computed(name for name in names if name not in batch)
    values = dict(batch)
    if missing:
        values.update(zip(missing, opened.session.run(missing, batch), strict=True))
    return {head.features: features, **{name: values[name] for name in names}}


def check_tail(model: Model, head: Head, tail: Tail, sample: Batch, logits: NDArray[Any]) -> None:
    """Check the sub-graph after the features: it gives the logits, and class vector k moves logit k alone.

    Raises:
        UnsupportedModel: one of them does not hold.
    """
    computed = tail.logits(None)(sample)
    tolerance = _TAIL_TOLERANCE * max(1.0, float(np.abs(logits).max())) + 2 * head.step
    if computed.shape != logits.shape or np.any(np.abs(computed - logits) > tolerance):
        raise UnsupportedModel(
            f"{model.name}: the nodes from head '{head.node}' to '{head.logits}' do not give the model's logits; "
            "choose another with --head NODE"
        )
    original = tail.logits(head.weight)(sample)
    moved = [_moves_alone(model, head, tail, sample, original, k) for k in _probed_classes(head)]
    if not any(moved):
        raise UnsupportedModel(
            f"{model.name}: changing the class vectors of head '{head.node}' does not move the logits of the first "
            f"{len(logits)} samples"
        )


def _probed_classes(head: Head) -> range:
    """Classes whose vectors are changed; a first vector of zeros is the fixed one of a binary head."""
    first = int(np.all(head.weight[0] == 0))
    return range(first, min(head.n_classes, first + _PROBED_CLASSES))


def _moves_alone(model: Model, head: Head, tail: Tail, sample: Batch, original: NDArray[Any], k: int) -> bool:
    """Whether a changed class vector k moves the logit of its class.

    Raises:
        UnsupportedModel: it moves the logits of other classes.
    """
    # a copy: the head's own weight is the source's
    changed = head.weight.copy()
    changed[k] = 0.5 * np.roll(changed[k], 1) - changed[k]
    moved = tail.logits(changed)(sample).astype(np.float64) - original
    if head.holds == "probabilities" and moved.shape[1] > 1:
        moved -= np.delete(moved, k, axis=1)[:, :1]  # dividing by the sum moves all others by the same
    own = np.abs(moved[:, k]).max()
    others = np.abs(np.delete(moved, k, axis=1)).max(initial=0)
    if others > _TAIL_TOLERANCE * max(own, float(np.abs(original).max())) + 2 * head.step:
        raise UnsupportedModel(
            f"{model.name}: class vector {k} of head '{head.node}' moves the logits of other classes too: it is "
            "not the classifier's own layer"
        )
    # a change within one step may be the quantisation's
    return bool(own > head.step)
