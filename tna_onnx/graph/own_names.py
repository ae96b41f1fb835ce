"""What this tool calls its own things in a file: metadata, and the logits in front of what it appends."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

import onnx

from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import PREFIX

__all__ = [
    "METADATA_PREFIX",
    "PRIOR_BLOCK",
    "RAW_LOGITS",
    "annotate",
    "block_of",
    "calibrated_heads",
    "head_entries",
    "head_provenance",
    "provenance",
    "raw_logits",
]

METADATA_PREFIX = f"{PREFIX}."
"""How the keys of this tool's metadata begin."""

RAW_LOGITS = f"{PREFIX}/logits"
"""What the logits in front of an appended map are called."""

PRIOR_BLOCK = f"{PREFIX}/prior"
"""How names of the nodes begin that shift the class prior, behind a map that was appended before."""


def provenance(model: Model) -> dict[str, str]:
    """What this tool wrote into a model's metadata_props, without the prefix; empty for any other model."""
    return {k.removeprefix(METADATA_PREFIX): v for k, v in model.metadata.items() if k.startswith(METADATA_PREFIX)}


def annotate(proto: onnx.ModelProto, metadata: Mapping[str, str]) -> None:
    """Replace the entries of ours, keep the others."""
    kept = [(e.key, e.value) for e in proto.metadata_props if not e.key.startswith(METADATA_PREFIX)]
    del proto.metadata_props[:]
    for key, value in (*kept, *((METADATA_PREFIX + key, value) for key, value in metadata.items())):
        proto.metadata_props.add(key=key, value=value)


def raw_logits(block: str = PREFIX) -> str:
    """Return what the logits are called in front of an appended block."""
    return RAW_LOGITS.replace(PREFIX, block, 1)


_HEAD = "head"


def block_of(output: str) -> str:
    """Return how names of the nodes of one of several heads begin, by the graph output of that head."""
    return f"{PREFIX}/{_HEAD}/{_quoted(output)}"


def _quoted(output: str) -> str:
    # `h` is no part of `h/b`
    return quote(output, safe="")


def head_entries(entries: Mapping[str, str], output: str) -> dict[str, str]:
    """Return the entries of one of several heads as they stand in the file: `head/OUTPUT/KEY`."""
    return {f"{_HEAD}/{_quoted(output)}/{key}": value for key, value in entries.items()}


def calibrated_heads(model: Model) -> tuple[str, ...]:
    """Return the graph outputs of which a file of several heads has entries, in order; empty for any other file."""
    keys = [key for key in provenance(model) if key.startswith(f"{_HEAD}/")]
    found = (output for key in keys for output in model.outputs if key.startswith(f"{_HEAD}/{_quoted(output)}/"))
    return tuple(dict.fromkeys(found))


def head_provenance(model: Model, output: str | None) -> dict[str, str]:
    """Return the entries on one output of a file with several heads; of any other file, all entries."""
    entries = provenance(model)
    start = f"{_HEAD}/{_quoted(output or '')}/"
    own = {key.removeprefix(start): value for key, value in entries.items() if key.startswith(start)}
    return own or entries
