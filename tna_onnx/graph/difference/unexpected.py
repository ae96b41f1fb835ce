"""The check of a written model: nothing differs but what the rewrite named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx

from tna_onnx.graph.difference.compare import differences
from tna_onnx.graph.difference.content import CONTENT
from tna_onnx.graph.difference.values import Difference
from tna_onnx.graph.load import Model
from tna_onnx.graph.rewrite import Rewritten

__all__ = ["unexpected_differences"]


def unexpected_differences(model: Model, rewritten: Rewritten, written: onnx.ModelProto) -> list[str]:
    """Compare byte for byte, field by field; an empty list is what a sound rewrite gives.

    Allowed:

    1. values of `rewritten.changed`;
    2. initializers of `rewritten.added`, behind all others, and all of them;
    3. nodes of `rewritten.nodes`;
    4. the fields of `rewritten.edited`;
    5. metadata under `tna_onnx.`;
    6. another place of external data: `graph.save` copies them;
    7. the import of `rewritten.opset`.
    """
    if rewritten.opset:
        model = replace(model, proto=_importing(model.proto, rewritten.opset))  # rule 7
    # As encoded, no external data are read: it does not matter where the file lies.
    all_differences = differences(model, Model(written, "", None), rewritten.readout, encoded=True)
    # Differences name nodes by label, the rewrite by index.
    numbers = {label: k for k, label in enumerate(model.labels)}
    tensors = [d for d in all_differences if d.part == "tensor" and not _changed_values(d, rewritten)]
    nodes = [d for d in all_differences if d.part == "node" and not _edited(d, rewritten, numbers)]
    texts = [*_tensor_texts(tensors, rewritten), *_node_texts(nodes, model)]
    if any(d.part not in ("tensor", "node") for d in all_differences):
        texts.append("inputs, outputs, opsets, metadata or another field outside nodes and initializers")
    return texts


def _importing(proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Return a copy that imports the default operator set too."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    copy.opset_import.append(onnx.helper.make_opsetid("", opset))
    return copy


def _changed_values(difference: Difference, rewritten: Rewritten) -> bool:
    """Rule 1."""
    return difference.name in rewritten.changed and difference.change in CONTENT


def _edited(difference: Difference, rewritten: Rewritten, numbers: dict[str, int]) -> bool:
    """Rules 3 and 4."""
    if difference.change == "added":
        return difference.name in rewritten.nodes
    return difference.change in rewritten.edited.get(numbers[difference.name], ())


def _tensor_texts(tensors: Sequence[Difference], rewritten: Rewritten) -> list[str]:
    added = sorted(d.name for d in tensors if d.change == "added")
    kept = dict.fromkeys(d.name for d in tensors if d.change not in ("added", "removed"))
    texts = [f"initializer '{name}'" for name in kept]
    texts += [f"missing initializer '{d.name}'" for d in tensors if d.change == "removed"]
    if added != sorted(rewritten.added):  # rule 2
        texts.append(f"new initializers {added}, not {sorted(rewritten.added)}")
    return texts


def _node_texts(nodes: Sequence[Difference], model: Model) -> list[str]:
    added = sum(d.change == "added" for d in nodes)
    removed = sum(d.change == "removed" for d in nodes)
    kept = dict.fromkeys(d.name for d in nodes if d.change not in ("added", "removed"))
    texts = []
    if added or removed:
        count = len(model.labels)
        texts.append(f"{count + added - removed} nodes, not {count}")
    return [*texts, *(f"node '{name}'" for name in kept)]
