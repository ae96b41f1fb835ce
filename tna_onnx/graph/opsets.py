"""Which version of the default operator set appended nodes have."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from tna_onnx.graph.load import Model
from tna_onnx.graph.traverse import subgraphs

__all__ = ["map_opset"]

# IR version -> the first default operator set that came with it.
_OPSETS = {3: 7, 4: 9, 5: 10, 6: 11, 7: 12, 8: 15, 9: 19, 10: 21}


def map_opset(model: Model) -> int:
    """Return the version of the default operator set that appended nodes have; 0 if they cannot have one.

    A file without standard nodes, such as boosted trees alone, need not import the set. Then it is the oldest one of
    the file's IR version, which every runtime of that version knows.
    """
    if model.opset or any(domain in ("", "ai.onnx") for domain in _domains(model.proto.graph)):
        return model.opset
    return _OPSETS.get(model.proto.ir_version, max(_OPSETS.values()))


def _domains(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the domains of all nodes, those of sub-graphs included."""
    for node in graph.node:
        yield node.domain
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                yield from _domains(inner)
