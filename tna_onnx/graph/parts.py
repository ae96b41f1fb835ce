"""What a comparison of two models gives: light to import, as results hold it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """One thing in which two models differ.

    Attributes:
        part: what it belongs to: `tensor`, `node`, `input`, `output`, `opset`, `metadata`, `value_info`, `function`,
            `graph` or `model`.
        name: its name there; for `graph` and `model`, of the field.
        change: `added`, `removed`, `moved`, or the field that changed: `values`, `type`, `shape`, `input`,
            `attribute:NAME`, ...
        detail: before and after, as text.
        explained: what makes it part of a change that this tool writes; empty if nothing does.
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
