"""Everything outside nodes and initializers: inputs, outputs, opsets, metadata, the models' own fields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tna_onnx.graph.difference.pair import Pair
from tna_onnx.graph.difference.parts import by_name, field_differences, item_differences, serialized
from tna_onnx.graph.difference.texts import info_text, shortened
from tna_onnx.graph.difference.values import Difference
from tna_onnx.graph.load import Model
from tna_onnx.graph.opsets import map_opset
from tna_onnx.graph.own_names import METADATA_PREFIX, provenance

__all__ = ["frame_differences"]

# Fields that are compared item by item, here or in other modules.
_MODEL_ITEMS = {"graph", "metadata_props", "opset_import"}
_GRAPH_ITEMS = {"node", "initializer", "sparse_initializer", "input", "output", "value_info"}
# The same, less the lists whose bytes count: by name, an entry that is there twice is seen once.
_MODEL_ITEMS_ENCODED = {"graph", "metadata_props"}
_GRAPH_ITEMS_ENCODED = {"node", "initializer"}


def frame_differences(pair: Pair) -> Iterator[Difference]:
    """Compare all but nodes and initializers."""
    old = pair.old.proto
    new = pair.new.proto
    # As encoded, no text of before and after is needed: the bytes of each field tell.
    if pair.encoded:
        yield from field_differences("model", "", old, new, _MODEL_ITEMS_ENCODED, encoded=True)
        yield from field_differences("graph", "", old.graph, new.graph, _GRAPH_ITEMS_ENCODED, encoded=True)
        if _metadata_bytes(pair.old) != _metadata_bytes(pair.new):
            yield Difference("metadata", "", "encoding")
        return
    yield from field_differences("model", "", old, new, _MODEL_ITEMS)
    yield from field_differences("graph", "", old.graph, new.graph, _GRAPH_ITEMS)
    for difference in item_differences("opset", _opsets(pair.old), _opsets(pair.new), shortened):
        yield replace(difference, explained=_imported(pair, difference))
    for part in ("input", "output", "value_info"):
        before = by_name(getattr(old.graph, part))
        after = by_name(getattr(new.graph, part))
        yield from item_differences(part, before, after, info_text, serialized)
    yield from _metadata_differences(pair)
    yield from _function_differences(pair)


def _imported(pair: Pair, difference: Difference) -> str:
    """What explains an import: appended nodes, in a file that had no standard node (rule 7)."""
    fits = difference.change == "added" and not pair.old.opset and pair.new.opset == map_opset(pair.old)
    if not (fits and pair.raw_logits in pair.new.producers):
        return ""
    return "for the appended nodes"


def _opsets(model: Model) -> dict[str, int]:
    return {entry.domain or "ai.onnx": entry.version for entry in model.proto.opset_import}


def _metadata_differences(pair: Pair) -> Iterator[Difference]:
    """Compare metadata; this tool's own are one difference, and explained (rule 6)."""
    entries = provenance(pair.old)
    entries_after = provenance(pair.new)
    if entries != entries_after:
        detail = f"{len(entries)} entries -> {len(entries_after)} entries"
        yield Difference("metadata", f"{METADATA_PREFIX}*", "values", detail, "provenance")
    yield from item_differences("metadata", _other_metadata(pair.old), _other_metadata(pair.new), shortened)


def _other_metadata(model: Model) -> dict[str, str]:
    return {key: value for key, value in model.metadata.items() if not key.startswith(METADATA_PREFIX)}


def _metadata_bytes(model: Model) -> list[bytes]:
    return [serialized(e) for e in model.proto.metadata_props if not e.key.startswith(METADATA_PREFIX)]


def _function_differences(pair: Pair) -> Iterator[Difference]:
    """Compare the functions that were inlined on reading; that they are gone is explained (rule 6)."""
    for name in sorted({*pair.old.inlined} ^ {*pair.new.inlined}):
        if name in pair.old.inlined:
            yield Difference("function", name, "removed", "", "inlined")
        else:
            yield Difference("function", name, "added")
