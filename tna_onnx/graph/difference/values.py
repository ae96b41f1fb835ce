"""What a comparison works on (`Pair`), and what it gives (`Difference`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tna_onnx.graph.own_names import PRIOR_BLOCK, RAW_LOGITS, block_of, raw_logits

if TYPE_CHECKING:
    from tna_onnx.graph.difference.explained import Explained
    from tna_onnx.graph.load import Model

__all__ = ["Difference", "Pair"]


@dataclass(frozen=True)
class Difference:
    """One thing in which two models differ.

    Attributes:
        part: what it belongs to: `tensor`, `node`, `input`, `output`, `opset`, `metadata`, `value_info`, `function`,
            `graph` or `model`.
        name: its name there; for `graph` and `model`, of the field.
        change: `added`, `removed`, `moved`, or the field that changed: `values`, `type`, `shape`, `input`,
            `attribute:NAME`, ...; `encoding` where the same is stored in other bytes, if that counts.
        detail: before and after, as text.
        explained: what makes it part of a recalibration; empty if nothing does.
        largest: of changed numbers, the largest |new - old|, in units of the tensor; None if it is not finite, or not
            about numbers.
        relative: `largest` over the largest |old| of the tensor, no unit; None as above, or where all are 0.
    """

    part: str
    name: str
    change: str
    detail: str = ""
    explained: str = ""
    largest: float | None = None
    relative: float | None = None


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
