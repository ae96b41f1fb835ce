"""The result of `verify`: what differs between two files, and how far the outputs moved."""

from __future__ import annotations

from dataclasses import dataclass

from tna_onnx.graph.difference import Difference

__all__ = ["ModelDifference", "OtherOutput", "OutputDifference"]


@dataclass(frozen=True)
class OtherOutput:
    """An output that does not classify, in both files.

    Attributes:
        name: name of the graph output.
        depends_on_head: whether it is computed from the head's scores. If it is not, nothing of it may move (on CUDA
            two runs may differ in the last digits; the CPU settles it).
        values: numbers (or strings) that were compared.
        differing: how many of them are not the same.
        largest: largest |new - old|, in units of the output; None if some are strings, not finite, or in another shape.
    """

    name: str
    depends_on_head: bool
    values: int
    differing: int
    largest: float | None


@dataclass(frozen=True)
class OutputDifference:
    """How far the outputs moved on N samples, and how often the predicted class is the same.

    Attributes:
        data: what the samples are, in one line.
        samples: number of samples N, at least 1.
        output: graph output that classifies.
        output_kind: what that output holds.
        largest: largest |p - p'| over samples and classes, a probability as a fraction.
        mean: mean of |p - p'| over samples and classes, a probability as a fraction.
        same_class: samples for which both files predict the same class; of several labels, the same ones.
        confidence_before: mean probability of the predicted class in the original, a fraction; of several labels, the
            mean over them, and so for the next three.
        confidence_after: mean probability of the predicted class in the recalibrated file, a fraction.
        accuracy_before: accuracy of the original, a fraction.
        accuracy_after: accuracy of the recalibrated file, a fraction.
        others: the other outputs.
        preprocessing: what was done to the images; None where values are used as they are.
        provider: execution provider of ONNX Runtime that was obtained.
    """

    data: str
    samples: int
    output: str
    output_kind: str
    largest: float
    mean: float
    same_class: int
    confidence_before: float
    confidence_after: float
    accuracy_before: float
    accuracy_after: float
    others: tuple[OtherOutput, ...]
    preprocessing: dict[str, object] | None
    provider: str

    @property
    def agreement(self) -> float:
        """Fraction of samples with the same predicted class."""
        return self.same_class / self.samples


@dataclass(frozen=True)
class ModelDifference:
    """What `verify` found: in what two ONNX files differ.

    Attributes:
        original: path of the file before.
        original_sha256: SHA-256 of the file before.
        recalibrated: path of the file after.
        recalibrated_sha256: SHA-256 of the file after.
        source_sha256: SHA-256 of the source that the recalibrated file names; empty if it names none.
        head: node of the original's head; empty if it has none.
        nodes: number of nodes of the original.
        tensors: number of initializers of the original.
        differences: everything that differs.
        only_head_and_block: whether a recalibration explains every difference: the head's weight and bias, the appended
            block, provenance, decisions.
        outputs: how far the outputs moved; None without data, or where they cannot be compared.
        notes: what the user should know, in sentences.
    """

    original: str
    original_sha256: str
    recalibrated: str
    recalibrated_sha256: str
    source_sha256: str
    head: str
    nodes: int
    tensors: int
    differences: tuple[Difference, ...]
    only_head_and_block: bool
    outputs: OutputDifference | None
    notes: tuple[str, ...]

    @property
    def unexplained(self) -> tuple[Difference, ...]:
        """Return the differences that a recalibration does not explain."""
        return tuple(d for d in self.differences if not d.explained)

    @property
    def moved_outputs(self) -> tuple[OtherOutput, ...]:
        """Return the outputs that moved although they do not depend on the head."""
        others = self.outputs.others if self.outputs else ()
        return tuple(other for other in others if other.differing and not other.depends_on_head)

    @property
    def passed(self) -> bool:
        """Whether nothing changed but what a recalibration may change."""
        return self.only_head_and_block and not self.moved_outputs

    @property
    def verdict(self) -> str:
        """One sentence: whether anything changed that a recalibration does not change."""
        # the file first: outputs can only tell whether it matters
        if not self.only_head_and_block:
            count = len(self.unexplained)
            return f"changed: {count} {'difference is' if count == 1 else 'differences are'} not of the head or its map"
        if moved := self.moved_outputs:
            names = ", ".join(f"'{other.name}'" for other in moved)
            return f"changed: the output {names} does not depend on the head, but moved"
        if not self.differences:
            return "identical: nothing differs"
        # a file whose metadata alone changed computes the same
        kept = [d for d in self.differences if d.part != "metadata"]
        if not kept:
            return "identical but for the provenance"
        if all(d.explained == "decisions" for d in kept):
            return "sound: only decisions are added"
        more = ", and decisions are added" if any(d.explained == "decisions" for d in kept) else ""
        return f"sound: only the head and the appended block differ{more}"
