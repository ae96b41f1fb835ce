"""What this tool calls its own things in a file: metadata, and the logits in front of what it appends."""

from __future__ import annotations

from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import PREFIX

__all__ = ["METADATA_PREFIX", "PRIOR_BLOCK", "RAW_LOGITS", "provenance", "raw_logits"]

METADATA_PREFIX = f"{PREFIX}."
"""How the keys of this tool's metadata begin."""

RAW_LOGITS = f"{PREFIX}/logits"
"""What the logits in front of an appended map are called."""

PRIOR_BLOCK = f"{PREFIX}/prior"
"""How names of the nodes begin that shift the class prior, behind a map that was appended before."""


def provenance(model: Model) -> dict[str, str]:
    """What this tool wrote into a model's metadata_props, without the prefix; empty for any other model."""
    return {k.removeprefix(METADATA_PREFIX): v for k, v in model.metadata.items() if k.startswith(METADATA_PREFIX)}


def raw_logits(block: str = PREFIX) -> str:
    """Return what the logits are called in front of an appended block."""
    return RAW_LOGITS.replace(PREFIX, block, 1)
