"""What a user says about a model beside its graph. Light to import, for the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from tna_onnx.graph.limits import DEFAULT_MODEL_LIMITS, ModelLimits

__all__ = ["LABEL_KINDS", "OUTPUT_KINDS", "ModelOptions", "ModelSource", "OutputKind"]

ModelSource: TypeAlias = Any
"""A path, the bytes of a file, an onnx.ModelProto, an onnx_ir.Model or an onnx_graphsurgeon.Graph."""

OutputKind: TypeAlias = Literal["logits", "probabilities", "logit", "label-logits", "label-probabilities"]

OUTPUT_KINDS: tuple[OutputKind, ...] = get_args(OutputKind)
"""What a user may say that an output holds.

`logit` is one number a sample, of the second of two classes; `label-logits` and `label-probabilities` are of several
labels a sample, each of which holds or does not by itself.
"""

LABEL_KINDS: tuple[OutputKind, ...] = ("label-logits", "label-probabilities")
"""Those of several labels a sample."""


@dataclass(frozen=True)
class ModelOptions:
    """Which head, which output, what it holds, and how far the file is trusted.

    None leaves the choice to the graph.

    Attributes:
        head: label of the head's node, where a model has several.
        output_name: graph output, where a model has several.
        output_kind: what that output holds, where the graph does not tell.
        isolate: open the model in a child process first, so that a crash of native code there is an error.
        model_limits: how much of the model is taken in.
    """

    head: str | None = None
    output_name: str | None = None
    output_kind: OutputKind | None = None
    isolate: bool = False
    model_limits: ModelLimits = DEFAULT_MODEL_LIMITS
