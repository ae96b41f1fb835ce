"""A sum, difference or mean of linear layers, which is one linear layer over all their features side by side:

    s = a_1 (x_1 W_1^T + b_1) + a_2 (x_2 W_2^T + b_2) = [x_1, x_2] [a_1 W_1, a_2 W_2]^T + (a_1 b_1 + a_2 b_2)

So DeiT, PiT and LeViT average a head on the class token and one on the token of the teacher, and CrossViT two branches.
Layers that read the same features add up to one weight. A new value of it goes to the first of them, and the others
stay; so it is with the bias.

Features of several tensors are no tensor of the file: `graph.cut` puts them side by side in the part that is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.graph.cut import ancestors
from tna_onnx.graph.load import Model
from tna_onnx.graph.readout import Head
from tna_onnx.graph.stored import Refused, Stored


@dataclass(frozen=True, eq=False)
class SummedHead(Head):
    """Linear layers whose scores are added up, seen as one layer.

    Attributes:
        layers: the layers, each with its factor in `weight_scale` and `bias_scale`.
    """

    layers: tuple[Head, ...] = ()

    @property
    def parts(self) -> dict[str, int]:
        """The tensors that the features consist of, with the length of each; none where all layers read the same."""
        lengths = {layer.features: layer.n_features for layer in self.layers}
        return lengths if len(lengths) > 1 else {}

    @property
    def readers(self) -> tuple[int, ...]:
        """The indices of the linear nodes."""
        return tuple(reader for layer in self.layers for reader in layer.readers)

    @property
    def places(self) -> tuple[Stored, ...]:
        """The constants behind weights and biases."""
        return tuple(place for layer in self.layers for place in layer.places)

    @cached_property
    def weight(self) -> NDArray[Any]:
        """(C, n) class vectors over all features, with the factors in them."""
        return self._side_by_side([layer.weight for layer in self.layers])

    @cached_property
    def bias(self) -> NDArray[Any]:
        """(C,) sum of the biases, with the factors in them."""
        return self._added([layer.bias for layer in self.layers])

    @property
    def holds_bias(self) -> bool:
        """Whether one of the layers has a place for one bias a class."""
        return any(layer.holds_bias for layer in self.layers)

    def written(
        self, weight: NDArray[Any] | None, bias: NDArray[Any] | None
    ) -> Iterator[tuple[Head, NDArray[Any] | None, NDArray[Any] | None]]:
        """Yield each layer with what is written to it; None where it stays."""
        holder = next((layer for layer in self.layers if layer.holds_bias), None)
        start = 0
        read: set[str] = set()
        for layer in self.layers:
            new_weight = new_bias = None
            if weight is not None and layer.features not in read:
                end = start + layer.n_features
                others = [each.weight for each in self.layers if each is not layer and each.features == layer.features]
                new_weight = weight[:, start:end] - sum(others) if others else weight[:, start:end]
                start = end
            read.add(layer.features)
            if bias is not None and layer is holder:
                new_bias = bias - sum(each.bias for each in self.layers if each is not layer)
            yield layer, new_weight, new_bias

    @property
    def written_as_is(self) -> bool:
        """Whether a (C, n) weight is in the file what it was before."""
        apart = len({layer.features for layer in self.layers}) == len(self.layers)
        return apart and all(layer.written_as_is for layer in self.layers)

    def as_written(self, weight: NDArray[Any]) -> NDArray[Any]:
        """Return what becomes of a (C, n) weight in the file."""
        written = self.written(weight, None)
        return self._side_by_side([layer.weight if new is None else layer.as_written(new) for layer, new, _ in written])

    def new_bias_as_written(self, bias: NDArray[Any]) -> NDArray[Any]:
        """Return what becomes of a new (C,) bias in the file."""
        written = self.written(None, bias)
        return self._added([layer.bias if new is None else layer.new_bias_as_written(new) for layer, _, new in written])

    def bias_as_written(self, factor: float) -> NDArray[Any]:
        """Return what becomes of the (C,) bias times a factor in the file."""
        return self._added([layer.bias_as_written(factor) for layer in self.layers])

    def _side_by_side(self, weights: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return weights of the layers as one, those on the same features added up."""
        blocks: dict[str, NDArray[Any]] = {}
        for layer, weight in zip(self.layers, weights, strict=True):
            blocks[layer.features] = blocks[layer.features] + weight if layer.features in blocks else weight
        return np.ascontiguousarray(np.concatenate(list(blocks.values()), axis=1), self.working_type)

    def _added(self, biases: Sequence[NDArray[Any]]) -> NDArray[Any]:
        return np.asarray(np.sum(biases, axis=0), self.working_type)


def summed(model: Model, heads: Sequence[Head]) -> SummedHead:
    """Return the one head that some linear layers are, whose scores are added up.

    Raises:
        Refused: one of them bends its scores, is quantised, or reads what another gives.
    """
    layers = [layer for head in heads for layer in (head.layers if isinstance(head, SummedHead) else (head,))]
    for layer in layers:
        _require_plain(model, layer, layers)
    first = layers[0]
    features = dict.fromkeys(layer.features for layer in layers)
    values = {field.name: getattr(first, field.name) for field in fields(Head)}
    values["node"] = " + ".join(layer.node for layer in layers)
    values["features"] = " + ".join(features)
    head = SummedHead(**values, layers=tuple(layers))
    # what the layers hold together, as far as a description needs it
    stored = first.stored_weight
    shared = any(layer.stored_weight.shared for layer in layers)
    value = head.weight[-first.rows :].astype(np.result_type(*(layer.stored_weight.value for layer in layers)))
    name = ", ".join(layer.stored_weight.name for layer in layers)
    together = replace(stored, name=name, value=value, steps=(), shared=shared)
    return replace(head, stored_weight=together, orient=(), weight_scale=np.ones(()))


def _require_plain(model: Model, layer: Head, layers: Sequence[Head]) -> None:
    """Refuse a layer that cannot be one of several.

    Raises:
        Refused: see `summed`.
    """
    behind = ancestors(model, layer.features)
    before = next((each for each in layers if each is not layer and behind.intersection(each.readers)), None)
    if before is not None:
        raise Refused(f"the features of {layer.node} are computed from the scores of {before.node}")
    if not layer.linear or layer.step:
        raise Refused(f"something bends the scores of {layer.node} before they are added")
    if any(place.quantized is not None for place in layer.places):
        raise Refused(f"{layer.node} is quantised")
    if layer.several or layer.features_transposed or layer.op_type in ("Conv", "FusedConv"):
        raise Refused(f"{layer.node} does not read one vector a sample, (N, n)")
    if layer.rows != layers[0].rows:
        raise Refused(f"{layer.node} has {layer.rows} class vectors, and {layers[0].node} has {layers[0].rows}")
