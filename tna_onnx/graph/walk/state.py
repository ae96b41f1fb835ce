"""What a walk has learned so far, and the two things that any step may have to say about it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tna_onnx.graph.load import Model
from tna_onnx.graph.several import ONE
from tna_onnx.graph.stored import Permute, Refused, Step, Stored

__all__ = ["State"]


@dataclass
class State:
    """State of one backward walk; used by the modules of this package alone.

    Attributes:
        model: the model.
        output: the graph output at which the walk starts.
        tensor: the tensor that the walk has reached.
        reader: index of the node that reads it.
        where: label of the node that the walk has reached.
        logits: tensor that holds the logits, as far as the walk knows.
        holds: `logits`, or `probabilities` where the graph has no tensor of logits.
        activation: what follows the logits: none, softmax, log_softmax or sigmoid.
        paired: the walk has passed Concat(1 - p, p).
        summed: the walk is between a division by the own sum and the activation that is summed.
        only_column: the walk has passed the choice of one column of probabilities, which must be the only one.
        aligned: the walk has passed a node that moves, selects or averages scores.
        order: where the classes of the output are among the scores, if a Gather has put them in another order.
        bias_steps: the same for the bias.
        turned: the walk is in front of a Transpose of a matrix: scores are (C, N) there.
        logged: the walk is between a Log and its Softmax.
        raised: the walk is between an Exp and its LogSoftmax.
        labels: what the model calls its classes.
        follows: operators that the walk has passed, in order of execution.
        scale: product of the constant factors on the scores, () or (C,).
        bias: the constant that is added to the scores, if there is one.
        bias_scale: product of the constant factors on the bias.
        linear: nothing on the way bends the scores: the logits are features @ weight.T + bias.
        homogeneous: scaling the scores scales the logits.
        step: largest step of a quantisation between the linear layer and the logits.
        output_step: the same between the activation and the output.
        output_slack: largest change of a probability by a Clip or an added constant behind the activation.
        cast_to: float type that the logits are cast to, where they are.
        side_inputs: tensors that change the scores from the side; none may come from the linear layer itself.
        single: the output is said to hold one logit a sample, whose Sigmoid was left out.
        forks: number of products of two computed tensors that the walk has passed.
        class_axis: of several predictions a sample, 1 or -1; 0 for one prediction a sample.
        measure: what the scores are where they have no class vectors, and the largest is of the best class.
        labelled: the output is said to hold the logits of several labels, whose Sigmoid was left out.
    """

    model: Model
    output: str
    tensor: str
    reader: int
    where: str = "the output"
    logits: str = ""
    holds: str = "logits"
    activation: str = "none"
    paired: bool = False
    summed: bool = False
    only_column: bool = False
    aligned: bool = False
    order: tuple[int, ...] = ()
    bias_steps: tuple[Step, ...] = ()
    turned: bool = False
    logged: bool = False
    raised: bool = False
    labels: tuple[int | str, ...] = ()
    follows: tuple[str, ...] = ()
    scale: NDArray[np.float64] = field(default_factory=lambda: np.ones(()))
    bias: Stored | None = None
    bias_scale: NDArray[np.float64] = field(default_factory=lambda: np.ones(()))
    linear: bool = True
    homogeneous: bool = True
    step: float = 0.0
    output_step: float = 0.0
    output_slack: float = 0.0
    cast_to: str = ""
    side_inputs: tuple[str, ...] = ()
    single: bool = False
    forks: int = 0
    class_axis: int = ONE
    measure: str = ""
    labelled: bool = False

    def leave_to_graph(self, *, homogeneous: bool) -> None:
        """Note that only the graph itself computes the logits from the scores (rule 5)."""
        self.linear = False
        self.homogeneous = self.homogeneous and homogeneous

    def permuted(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return numbers of the scores, one a class, in the order of the output."""
        if values.size == len(self.order):
            return values.reshape(-1)[list(self.order)]
        return values

    def bias_permuted(self, bias: Stored) -> tuple[Step, ...]:
        """Return the step that puts a bias into the order of the output."""
        shape = bias.value.shape
        if len(self.order) not in shape:
            return ()
        return (Permute(self.order, len(shape) - 1 - shape[::-1].index(len(self.order))),)

    def require_plain(self, what: str) -> None:
        """Refuse what comes between probabilities and the output, other than a change of shape, type or resolution."""
        scaled = self.scale.ndim > 0 or self.scale != 1
        if scaled or self.bias is not None or not self.linear or self.aligned:
            raise Refused(f"{what} is scaled, shifted or changed in another way before the output")
        # Whatever was quantised so far lies behind the activation.
        self.output_step = max(self.output_step, self.step)
        self.step = 0.0

    def begin_logits(self, tensor: str) -> str:
        """Note that the logits are an earlier tensor; casts behind it are no casts of the logits."""
        self.logits = tensor
        self.cast_to = ""
        return tensor
