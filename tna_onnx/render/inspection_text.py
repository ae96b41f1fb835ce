"""What `inspect` found, as text: first what can be calibrated, then what was refused."""

from __future__ import annotations

from rich.console import RenderableType

from tna_onnx.graph.refusal import Refusal
from tna_onnx.render.lines import lines_text
from tna_onnx.results.inspection import LABELS, HeadInfo, Inspection, ScoresInfo

__all__ = ["inspection_text"]

_POSITIONS = "several a sample: labels are an array with an axis for the positions, -100 for those without one"


def inspection_text(inspection: Inspection) -> RenderableType:
    """Heads, scores without a head, and refusals of a model."""
    lines = [
        f"model    {inspection.model}",
        f"opset    {inspection.opset} (IR version {inspection.ir_version})",
        *(f"input    {line}" for line in inspection.inputs),
    ]
    for head in inspection.heads:
        lines += ["", *_head_lines(head)]
    if len(inspection.heads) > 1:
        lines += ["", _several_heads(inspection)]
    for scores in inspection.scores:
        lines += ["", *_scores_lines(scores)]
    for refusal in inspection.refusals:
        lines += ["", _refusal_line(refusal, inspection)]
    if inspection.provenance:
        lines += ["", "recalibrated by tna-onnx:", *(f"  {k}: {v}" for k, v in inspection.provenance.items())]
    return lines_text(lines)


def _head_lines(head: HeadInfo) -> list[str]:
    lines = [
        f"head     {head.node} ({head.op_type})",
        f"weight   {head.weight} ({head.classes}, {head.n_features}), {head.weight_type}",
        f"bias     {head.bias or 'none'}",
        f"features {head.features}",
        f"logits   {head.logits}, {head.logits_type}",
        f"follows  {', '.join(head.follows) or 'nothing'}",
        f"output   {head.output}",
    ]
    if head.several:
        lines.append(f"predicts {_POSITIONS}")
    if head.multi_label:
        lines.append(_labels_line(head.classes))
    return lines


def _labels_line(count: int) -> str:
    shape = f"(N, {count})"
    return f"kind     multi-label: {count} labels, each with a sigmoid of its own; labels of shape {shape}, 0 or 1"


def _several_heads(inspection: Inspection) -> str:
    names = " ".join(f"--head {head.output}" for head in reversed(inspection.heads))
    return f"heads    {len(inspection.heads)}: choose one with --head, or calibrate all in one file with {names}"


def _scores_lines(scores: ScoresInfo) -> list[str]:
    kind = scores.measure or scores.holds
    noun = "labels" if scores.multi_label else "classes"
    works = "calibrate as it is: a map goes behind them, nothing is searched"
    if not scores.holds:
        works = "calibrate --search none with --output-kind logits, or --output-kind probabilities: whichever it is"
    lines = [
        f"scores   output '{scores.output}': {kind or 'logits or probabilities'}, {scores.classes} {noun}, no linear "
        "head",
        f"works    {works}",
    ]
    if scores.multi_label:
        lines.append(_labels_line(scores.classes))
    if scores.several:
        lines.append(f"predicts {_POSITIONS}")
    return lines


def _refusal_line(refusal: Refusal, inspection: Inspection) -> str:
    """Say why an output has no head; what is beside others that have one is no refusal."""
    works = [*inspection.heads, *inspection.scores]
    if refusal.reason == LABELS and works:
        return f"labels   output '{refusal.output}', from {refusal.node}"
    known = refusal.output in {each.output for each in inspection.scores}
    return f"{'no head' if known else 'refused':8} output '{refusal.output}', at {refusal.node}: {refusal.reason}"
