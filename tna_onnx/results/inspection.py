"""Results of the commands that read or compare files: `features`, `inspect` and `verify`."""

from __future__ import annotations

from dataclasses import dataclass

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.options import Difference
from tna_onnx.graph.walk.steps import Refusal


@dataclass(frozen=True)
class Collection:
    """The result of `features`: a complete feature store.

    Attributes:
        model: path of the model that the features were computed with.
        model_sha256: SHA-256 of its file.
        data: what the samples are, in one line.
        head: node of the linear head; empty for a model without one, whose logits are kept.
        tensor: tensor that was kept.
        shape: its shape, (N, ...).
        dtype: NumPy's name of its dtype.
        folder: where the store lies: data for `calibrate --calib`.
        notes: what the user should know, in sentences: what an earlier, unfinished store held.
        preprocessing: what was done to the images; None where values are used as they are.
        provider: execution provider of ONNX Runtime that was obtained.
    """

    model: str
    model_sha256: str
    data: str
    head: str
    tensor: str
    shape: tuple[int, ...]
    dtype: str
    folder: str
    notes: tuple[str, ...]
    preprocessing: dict[str, object] | None
    provider: str


@dataclass(frozen=True, kw_only=True)
class ScoresInfo:
    """Scores that a map can go behind.

    Attributes:
        output: graph output.
        node: label of the node that they come from.
        logits: tensor behind which a map goes.
        classes: number of classes C, at least 1.
        activation: what makes probabilities of them.
        several: there are several predictions a sample: tokens, pixels, the next token.
        multi_label: whether each class is a label that holds or does not by itself.
        holds: what is in the tensor: `logits` or `probabilities`; empty where the graph does not tell, and
            `--output-kind` has to.
    """

    output: str
    node: str
    logits: str
    classes: int
    activation: str
    several: bool
    multi_label: bool
    holds: str


@dataclass(frozen=True, kw_only=True)
class HeadInfo(ScoresInfo):
    """A linear head, whose class vectors can be searched.

    Attributes:
        op_type: operator of its node.
        weight: tensor of the weight.
        weight_type: NumPy's name of the type in which the weight is stored.
        n_features: length n of the features, at least 1.
        bias: tensor of the bias; None without one.
        features: tensor of the features.
        logits_type: NumPy's name of the dtype of the logits.
        follows: operators between the layer and the output.
    """

    op_type: str
    weight: str
    weight_type: str
    n_features: int
    bias: str | None
    features: str
    logits_type: str
    follows: tuple[str, ...]


@dataclass(frozen=True)
class Inspection:
    """The result of `inspect`: heads and scores of a model, and why outputs have none.

    Attributes:
        model: path of the model.
        sha256: SHA-256 of the file.
        ir_version: IR version of the file.
        opset: version of the default operator set.
        inputs: name, dtype and shape of each input, as text.
        heads: heads found, one per node.
        scores: outputs that a map can go behind, of a model without a head.
        refusals: outputs that lead to no head.
        refused: why `calibrate` refuses the model; empty where it does not, or asks which of several heads is meant.
        provenance: what tna-onnx wrote into the file's metadata; empty for a file that it did not write.
    """

    model: str
    sha256: str
    ir_version: int
    opset: int
    inputs: tuple[str, ...]
    heads: tuple[HeadInfo, ...]
    scores: tuple[ScoresInfo, ...]
    refusals: tuple[Refusal, ...]
    refused: str
    provenance: dict[str, str]

    def require_scores(self) -> None:
        """Refuse a model that `calibrate` refuses too, in the same words.

        Raises:
            UnsupportedModel: it has neither a head nor scores; or scores of several predictions a sample, of which the
                graph does not tell what they are.
        """
        if self.refused:
            raise UnsupportedModel(self.refused)


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
    """The result of `verify`: whether a file is its source and a change that this tool writes, and as good.

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
        intact: whether the recalibrated file, made again of the original and of what it says of its making, is the
            same, and the ONNX checker accepts it wherever it accepts the original.
        reason: why it could not be made again, or what the checker says; empty otherwise.
        missed: gates that the recalibrated file misses on the data, a line for each.
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
    intact: bool
    reason: str
    missed: tuple[str, ...]
    outputs: OutputDifference | None
    notes: tuple[str, ...]

    @property
    def unexplained(self) -> tuple[Difference, ...]:
        """Return the differences that are not of a change that this tool writes."""
        return tuple(d for d in self.differences if not d.explained)

    @property
    def shares_nothing(self) -> bool:
        """Whether every node and tensor of the original differs or is missing."""
        gone = {(d.part, d.name) for d in self.differences if d.part in ("node", "tensor") and d.change != "added"}
        return len(gone) >= self.nodes + self.tensors

    @property
    def moved_outputs(self) -> tuple[OtherOutput, ...]:
        """Return the outputs that moved although they do not depend on the head."""
        if self.outputs is None:
            return ()
        return tuple(output for output in self.outputs.others if output.differing and not output.depends_on_head)

    @property
    def passed(self) -> bool:
        """Whether the file is intact, and on the data, if there are any, as good."""
        return self.intact and not self.moved_outputs and not self.missed

    @property
    def _doubt(self) -> str:
        """Why the file is not proved to be intact."""
        if self.shares_nothing:
            return f"another model: {self.recalibrated} has no node and no tensor of {self.original}"
        if self.reason:
            return f"cannot be proved: {self.reason}"
        count = len(self.unexplained)
        if count == 1:
            return "not intact: 1 difference is not recorded"
        return f"not intact: {count:,} differences are not recorded"

    @property
    def verdict(self) -> str:
        """One sentence: whether the file is intact, and as good."""
        # the file first: outputs can only tell whether it matters
        if not self.intact:
            return self._doubt
        if moved := self.moved_outputs:
            names = ", ".join(f"'{output.name}'" for output in moved)
            return f"not intact: the output {names} does not depend on the head, but moved"
        text = "identical: nothing differs"
        if self.differences:
            text = "intact: every difference is part of the recorded change"
        if self.missed:
            return f"{text}; not as good: {'; '.join(self.missed)}"
        if self.outputs is not None:
            return f"{text}; as good"
        return text
