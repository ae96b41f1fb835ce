"""The comparison as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import onnx

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.difference.decisions import without_decisions
from tna_onnx.graph.difference.explained import explained_by
from tna_onnx.graph.difference.frame import frame_differences
from tna_onnx.graph.difference.nodes import nodes_differences
from tna_onnx.graph.difference.pair import Pair
from tna_onnx.graph.difference.tensors import tensors_differences
from tna_onnx.graph.difference.values import Difference
from tna_onnx.graph.load import Model
from tna_onnx.graph.readout import Head, Readout

__all__ = ["differences", "head_differences"]


def differences(
    original: Model, recalibrated: Model, readout: Readout | None, *, encoded: bool = False
) -> tuple[Difference, ...]:
    """Compare two models.

    Args:
        original: before.
        recalibrated: after.
        readout: the head of the original, or its tensor of logits or probabilities; None explains nothing but metadata.
        encoded: every byte counts, but external data are not read; else what the bytes mean counts.

    Raises:
        UnsupportedModel: external data are missing, too short, or outside a model's folder; or a name is no text.
    """
    for model in (original, recalibrated):
        _require_text(model, encoded)
    decisions: tuple[Difference, ...] = ()
    if not encoded:  # a rewrite adds none
        recalibrated, decisions = without_decisions(original, recalibrated)
    pair = Pair(original, recalibrated, explained_by(original, readout), encoded)
    return (*decisions, *frame_differences(pair), *tensors_differences(pair), *nodes_differences(pair))


def head_differences(original: Model, recalibrated: Model, readouts: Sequence[Readout]) -> tuple[Difference, ...]:
    """Compare two models of which several heads were recalibrated.

    Each head explains what is its own. What another head's comparison does not find, or explains, is explained; a node
    without a name that only one of them can match with its own is one of these.

    Raises:
        UnsupportedModel: as for `differences`.
    """
    runs = [{_key(d): d for d in differences(original, recalibrated, readout)} for readout in readouts]
    tied = _tied(original, readouts)
    found = []
    for key, difference in {key: d for run in runs for key, d in run.items()}.items():
        seen = [run.get(key) for run in runs]
        explained = next((each for each in seen if each is not None and each.explained), None)
        if explained is not None:
            found.append(explained)
        elif difference.part == "tensor" and difference.name in tied and difference.change == "values":
            found.append(replace(difference, explained="weight or bias of several heads"))
        elif None not in seen:
            found.append(difference)
    return tuple(found)


def _tied(model: Model, readouts: Sequence[Readout]) -> set[str]:
    """Return the constants that these heads share with no other node: the last of them keeps the place."""
    heads = [readout for readout in readouts if isinstance(readout, Head)]
    places = [place for head in heads for place in (head.stored_weight, head.stored_bias) if place is not None]
    readers = Counter(place.name for place in places)
    return {name for name, count in readers.items() if count > 1 and model.uses.get(name) == count}


def _key(difference: Difference) -> tuple[str, str, str]:
    return (difference.part, difference.name, difference.change)


def _require_text(model: Model, encoded: bool) -> None:
    """Refuse a damaged file: of names that are not UTF-8, protobuf gives the bytes, or raises."""
    # Which of the two protobuf does differs by version.
    try:
        damaged = next((word for word in _words(model.proto, encoded) if isinstance(word, bytes)), None)
    except UnicodeDecodeError as error:
        raise UnsupportedModel(f"{model.name}: damaged: a name is not UTF-8 text ({error})") from error
    if damaged:
        raise UnsupportedModel(f"{model.name}: damaged: the name {damaged!r} is not UTF-8 text")


def _words(proto: onnx.ModelProto, encoded: bool) -> Iterator[str | bytes]:
    """Yield every text by which items are found; as encoded, what is outside nodes and tensors is compared as bytes."""
    for node in proto.graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
    yield from (tensor.name for tensor in proto.graph.initializer)
    if encoded:
        return
    for part in ("input", "output", "value_info"):
        yield from (item.name for item in getattr(proto.graph, part))
    for entry in proto.metadata_props:
        yield entry.key
        yield entry.value
    yield from (entry.domain for entry in proto.opset_import)
