"""The result of `inspect`."""

from __future__ import annotations

from dataclasses import dataclass

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.refusal import Refusal

__all__ = ["LABELS", "HeadInfo", "Inspection", "ScoresInfo"]

LABELS = "holds class labels, not scores"
"""Why an output of labels is no head's."""


@dataclass(frozen=True)
class HeadInfo:
    """A linear head.

    Attributes:
        node: label of its node.
        op_type: operator of that node.
        weight: tensor of the weight.
        weight_type: NumPy's name of the type in which the weight is stored.
        classes: number of classes C, at least 1.
        n_features: length n of the features, at least 1.
        bias: tensor of the bias; None without one.
        features: tensor of the features.
        logits: tensor of the logits.
        logits_type: NumPy's name of their dtype.
        activation: what makes probabilities of the logits.
        follows: operators between the layer and the output.
        output: graph output behind the head.
        several: there are several predictions a sample: tokens, pixels, the next token.
        multi_label: whether each class is a label that holds or does not by itself.
    """

    node: str
    op_type: str
    weight: str
    weight_type: str
    classes: int
    n_features: int
    bias: str | None
    features: str
    logits: str
    logits_type: str
    activation: str
    follows: tuple[str, ...]
    output: str
    several: bool
    multi_label: bool


@dataclass(frozen=True)
class ScoresInfo:
    """Scores without a linear head: no class vectors to search, but a map can go behind them.

    Attributes:
        output: graph output.
        node: label of the node that they come from.
        logits: tensor behind which a map goes.
        holds: what is in it: `logits` or `probabilities`; empty where the graph does not tell, and `--output-kind` has
            to.
        classes: number of classes C, at least 2.
        activation: what makes probabilities of them.
        measure: what the scores are, where the nodes tell: `negative Euclidean distances`, say; else empty.
        several: there are several predictions a sample.
        multi_label: whether each class is a label that holds or does not by itself.
    """

    output: str
    node: str
    logits: str
    holds: str
    classes: int
    activation: str
    measure: str
    several: bool
    multi_label: bool


@dataclass(frozen=True)
class Inspection:
    """What `inspect` found.

    Attributes:
        model: path of the model.
        sha256: SHA-256 of the file.
        ir_version: IR version of the file.
        opset: version of the default operator set.
        inputs: name, dtype and shape of each input, as text.
        heads: heads found, one per node.
        scores: outputs that a map can go behind, of a model without a head.
        refusals: outputs that lead to no head.
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
    provenance: dict[str, str]

    def require_head(self) -> HeadInfo:
        """Return the first head.

        Raises:
            UnsupportedModel: there is none.
        """
        if not self.heads:
            # every output was walked, and a user has to see why each of them leads nowhere
            reasons = "; ".join(f"output '{r.output}', at {r.node}: {r.reason}" for r in self.refusals)
            raise UnsupportedModel(f"{self.model}: no linear head found ({reasons})")
        return self.heads[0]

    def require_scores(self) -> None:
        """Refuse a model that `calibrate` refuses too, whatever is searched.

        Raises:
            UnsupportedModel: it has neither a head nor scores of which the graph tells what they are.
        """
        if not any(scores.holds for scores in self.scores):
            self.require_head()
