"""Heads whose logits only the graph can compute: the part of the graph behind the features."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from tna_onnx.data import Batch
from tna_onnx.extraction.sessions import open_part
from tna_onnx.graph.cut import cut_between, keeping
from tna_onnx.graph.fed import new_floats
from tna_onnx.graph.load import Model
from tna_onnx.graph.readout import Head
from tna_onnx.graph.rewrite import Rewritten, rewrite
from tna_onnx.runtime import Device, Session

__all__ = ["Tail"]


class Tail:
    """The sub-graph from the features to the logits, for heads that only the graph can compute.

    Every weight is written into the model as it will be shipped, so that what is scored is what ships.

    Args:
        model: the source.
        head: its head.
        device: where to run.
        sample: what the sub-graph reads of one batch.
        fixed_batch: the only batch size that the model accepts.
        one_session: whether weights of floats are inputs of one session. Opening one takes long, and memory, on CUDA.
    """

    def __init__(
        self,
        model: Model,
        head: Head,
        device: Device,
        sample: Batch,
        fixed_batch: int | None,
        *,
        one_session: bool = False,
    ) -> None:
        self._feeds = {name: array.dtype for name, array in sample.items()}
        # Each weight is written into a copy: of the head's own constants, not of the whole network.
        self._model = keeping(model, cut_between(model.proto, self._feeds, [head.logits]))
        self._head = head
        self._device = device
        self._fixed_batch = fixed_batch
        # a fixed batch is run in portions of rows, which a weight does not have
        self._one_session = one_session and fixed_batch is None
        self._sessions: dict[frozenset[str], Session] = {}

    def in_float(self) -> Tail:
        """Return the same with a weight that is kept in float where the file has it quantised."""
        tail = copy.copy(self)
        tail._head = self._head.kept_in_float()
        tail._sessions = {}
        return tail

    def logits(self, weight: NDArray[Any] | None) -> Callable[[Batch], NDArray[Any]]:
        """Return the function from {features, beside} of a batch to its (N, C) logits, under a weight."""
        # quantised and rounded as in the file: what is scored is what ships
        written = rewrite(self._model, self._head, weight, metadata={})
        values = new_floats(written) if self._one_session else {}
        session = self._session(written, values)

        def run(batch: Batch) -> NDArray[Any]:
            return self._head.class_logits(session.run([self._head.logits], {**batch, **values})[0])

        return run

    def _session(self, written: Rewritten, values: Batch) -> Session:
        names = frozenset(values)
        if names in self._sessions:
            return self._sessions[names]
        feeds = {**self._feeds, **{name: array.dtype for name, array in values.items()}}
        cut = cut_between(written.proto, feeds, [self._head.logits])
        session = open_part(self._model, cut, self._device, self._fixed_batch)
        if names:
            self._sessions[names] = session
        return session
