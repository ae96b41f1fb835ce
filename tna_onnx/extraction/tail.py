"""Heads whose logits only the graph can compute: the part of the graph behind the features."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from tna_onnx.data import Batch
from tna_onnx.extraction.sessions import open_part
from tna_onnx.graph.cut import cut_between, keeping
from tna_onnx.graph.load import Model
from tna_onnx.graph.readout import Head
from tna_onnx.graph.rewrite import rewrite
from tna_onnx.runtime import Device

__all__ = ["Tail"]


class Tail:
    """The sub-graph from the features to the logits, for heads that only the graph can compute.

    Every weight is written into the model as it will be shipped, so that what is scored is what ships.
    """

    def __init__(self, model: Model, head: Head, device: Device, sample: Batch, fixed_batch: int | None) -> None:
        self._feeds = {name: array.dtype for name, array in sample.items()}
        # Each weight is written into a copy: of the head's own constants, not of the whole network.
        self._model = keeping(model, cut_between(model.proto, self._feeds, [head.logits]))
        self._head = head
        self._device = device
        self._fixed_batch = fixed_batch

    def in_float(self) -> Tail:
        """Return the same with a weight that is kept in float where the file has it quantised."""
        tail = copy.copy(self)
        tail._head = self._head.kept_in_float()
        return tail

    def logits(self, weight: NDArray[Any] | None) -> Callable[[Batch], NDArray[Any]]:
        """Return the function from {features, beside} of a batch to its (N, C) logits, under a weight."""
        # quantised and rounded as in the file: what is scored is what ships
        written = rewrite(self._model, self._head, weight, metadata={})
        cut = cut_between(written.proto, self._feeds, [self._head.logits])
        session = open_part(self._model, cut, self._device, self._fixed_batch)

        def run(batch: Batch) -> NDArray[Any]:
            return self._head.class_logits(session.run([self._head.logits], batch)[0])

        return run
