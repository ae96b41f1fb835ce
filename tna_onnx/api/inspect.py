"""`inspect`: which node is the head, or why none is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.load import Model, load_model, tensor_types
from tna_onnx.graph.options import DEFAULT_MODEL_LIMITS, ModelLimits, ModelSource
from tna_onnx.graph.purpose import other_purpose
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.scores import LABELS, SeveralHeads, behind_outputs, find_heads, find_readout
from tna_onnx.graph.tensors import FLOAT_TYPES
from tna_onnx.graph.walk.steps import Refusal
from tna_onnx.pipeline.record import recorded_numbers
from tna_onnx.results.inspection import HeadInfo, Inspection, ScoresInfo


def inspect(model: ModelSource, *, model_limits: ModelLimits = DEFAULT_MODEL_LIMITS) -> Inspection:
    """Find the heads of an ONNX file; nothing is run.

    Args:
        model: an ONNX model as for `calibrate`.
        model_limits: how much of the model is taken in.

    Raises:
        UsageError: no such file.
        UnsupportedModel: not an ONNX file, or a damaged one.
    """
    loaded = load_model(model, model_limits)
    heads, refusals = find_heads(loaded)
    # several outputs may lead to one node: the first of them is shown
    by_node = {head.node: head for head in reversed(heads)}
    scores: tuple[ScoresInfo, ...] = ()
    subject = ""
    if not heads:
        scores = _scores(loaded)
    if not heads and not scores:
        subject = other_purpose(loaded)
    types = tensor_types(loaded)
    return Inspection(
        model=loaded.name,
        sha256=loaded.sha256,
        ir_version=loaded.proto.ir_version,
        opset=loaded.opset,
        inputs=tuple(f"{name}: {types[name]}" for name in loaded.inputs),
        heads=tuple(_info(head) for head in by_node.values()),
        scores=scores,
        refusals=tuple(_refusal(loaded, refusal, subject) for refusal in refusals),
        refused=_refused(loaded),
        provenance={**loaded.provenance, **recorded_numbers(loaded)},
    )


def _refused(model: Model) -> str:
    """Return why `calibrate` refuses a model; empty where it does not, or asks which of several heads is meant."""
    try:
        find_readout(model)
    except SeveralHeads:
        return ""
    except UnsupportedModel as error:
        return str(error)
    return ""


def _scores(model: Model) -> tuple[ScoresInfo, ...]:
    """Say which outputs a map can go behind; one of several that lead to the same tensor."""
    by_tensor = {readout.logits: (readout, walked) for readout, walked in reversed(behind_outputs(model))}
    return tuple(ScoresInfo(**_about(readout, walked.where)) for readout, walked in reversed(by_tensor.values()))


def _about(readout: Readout, node: str) -> dict[str, Any]:
    """Return what is said of heads and of other scores alike."""
    return {
        "output": readout.output,
        "node": node,
        "logits": readout.logits,
        "classes": readout.n_classes,
        "activation": readout.activation,
        "several": readout.several,
        "multi_label": readout.multi_label,
        "holds": readout.holds,
    }


def _refusal(model: Model, refusal: Refusal, subject: str) -> Refusal:
    """Say what the model is, where its file tells, and of an output without scores what it holds: more than where the
    walk ended.
    """
    if subject:
        return replace(refusal, reason=subject)
    kinds = {info.name: info.type.tensor_type.elem_type for info in model.proto.graph.output}
    mapped = model.proto.graph.output[model.outputs.index(refusal.output)].type.HasField("sequence_type")
    if mapped or kinds[refusal.output] in (0, *FLOAT_TYPES):  # 0 is a type that the file does not say
        return refusal
    return replace(refusal, reason=LABELS)


def _info(head: Head) -> HeadInfo:
    weight = head.stored_weight
    bias = head.stored_bias
    return HeadInfo(
        **_about(head, head.node),
        op_type=head.op_type,
        weight=weight.name,
        weight_type=weight.quantized.dtype.name if weight.quantized else weight.float_type,
        n_features=head.n_features,
        bias=None if bias is None else bias.name,
        features=head.features,
        logits_type=head.logits_type,
        follows=head.follows,
    )
