"""What a comparison works on."""

from __future__ import annotations

from dataclasses import dataclass

from tna_onnx.graph.difference.explained import Explained
from tna_onnx.graph.load import Model
from tna_onnx.graph.own_names import PRIOR_BLOCK, RAW_LOGITS, block_of, raw_logits

__all__ = ["Pair"]


@dataclass(frozen=True, eq=False)
class Pair:
    """Two models to compare.

    Attributes:
        old: before.
        new: after.
        explained: what a recalibration may change.
        encoded: every byte counts, but external data are not read; else what the bytes mean counts.
    """

    old: Model
    new: Model
    explained: Explained
    encoded: bool = False

    @property
    def raw_logits(self) -> str:
        """What the logits in front of the new block are called: a block may stand behind one that was there."""
        # of several heads, each has a block of its own
        names = (RAW_LOGITS, raw_logits(PRIOR_BLOCK), raw_logits(block_of(self.explained.output)))
        new = (name for name in names if name in self.new.producers and name not in self.old.producers)
        return next(new, RAW_LOGITS)
