"""What the user states about a model, limits on foreign models, and in what two models differ. Light to import."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from tna_onnx.fields import check_limits, check_settings, documented, setting


@dataclass(frozen=True)
class ModelLimits:
    """Bounds on models, each of which `--limit NAME=NUMBER` sets.

    Attributes:
        inlined_nodes: nodes that functions stand for, once they are inlined.
        inlined_bytes: their size; twenty times the size of the file is always allowed.
        constant_elements: of all results together that are computed from constants, to find a weight; sixteen times the
            elements of these constants are always allowed.
    """

    inlined_nodes: int = 1_000_000
    inlined_bytes: int = 2**28
    constant_elements: int = 2**25

    def __post_init__(self) -> None:
        check_limits("model", dataclasses.asdict(self))


DEFAULT_MODEL_LIMITS = ModelLimits()

ModelSource: TypeAlias = Any
"""A path, the bytes of a file, or an onnx.ModelProto."""

OutputKind: TypeAlias = Literal[
    "logits", "probabilities", "logit", "probability", "label-logits", "label-probabilities"
]

OUTPUT_KINDS: tuple[OutputKind, ...] = get_args(OutputKind)
"""What a user may say that an output holds.

`logit` and `probability` are one number a sample, of the second of two classes; `label-logits` and
`label-probabilities` are of several labels a sample, each of which holds or does not by itself.
"""

LABEL_KINDS: tuple[OutputKind, ...] = ("label-logits", "label-probabilities")
"""Those of several labels a sample."""

_SECTION = "Model"


@documented
@dataclass(frozen=True)
class ModelOptions:
    """Which head, which output, what it holds, and how far the file is trusted.

    None leaves the choice to the graph.
    """

    head: str | None = setting(
        None,
        "Head to use, for a model with several: its output, or its node.",
        section=_SECTION,
        unit="NAME",
        parse="head",
    )
    output_name: str | None = setting(
        None, "Name of the output to calibrate, if the model has several.", section=_SECTION, unit="NAME"
    )
    output_kind: OutputKind | None = setting(
        None,
        "What the output holds, if the graph does not show it; label-... for several labels a sample.",
        section=_SECTION,
    )
    model_limits: ModelLimits = setting(
        DEFAULT_MODEL_LIMITS,
        "Raise a limit on the model: inlined-nodes, inlined-bytes, constant-elements. "
        "Several with commas, or repeat the option.",
        flag="limit",
        unit="NAME=NUMBER",
        parse="limits",
    )

    def __post_init__(self) -> None:
        check_settings(self)


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
