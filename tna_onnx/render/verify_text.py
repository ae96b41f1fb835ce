"""Text of `verify` (whether a file is intact, and as good) and of `inspect` (what can be calibrated or not)."""

from rich.console import Group, RenderableType
from rich.text import Text

from tna_onnx.errors import count_text
from tna_onnx.graph.options import Difference
from tna_onnx.graph.scores import LABELS
from tna_onnx.graph.walk.steps import Refusal
from tna_onnx.render.wording import lines_text, note_lines
from tna_onnx.results.inspection import HeadInfo, Inspection, ModelDifference, OtherOutput, OutputDifference, ScoresInfo

# Unexplained differences that are listed; another model altogether has thousands.
_MAX_LINES = 40

# Characters of an entry that is shown; the record of a change is longer.
_MAX_ENTRY = 1000


def difference_text(difference: ModelDifference) -> RenderableType:
    """What the change is, what is not of it, how far the outputs moved, verdict."""
    lines = [f"original {difference.original}", f"new file {difference.recalibrated}"]
    if difference.shares_nothing or (difference.reason and not difference.differences):  # there is nothing to compare
        return Group(lines_text([*lines, *note_lines(difference.notes)]), Text(difference.verdict, style="bold"))
    unchanged = (_untouched(difference, "node", difference.nodes), _untouched(difference, "tensor", difference.tensors))
    lines += [
        f"head     {difference.head or 'none'}",
        *_explained_lines(difference),
        f"the same {', '.join(unchanged)}",
        *(f"DIFFERS  {_difference_line(d)}" for d in difference.unexplained[:_MAX_LINES]),
    ]
    more = len(difference.unexplained) - _MAX_LINES
    if more > 0:
        lines.append(f"DIFFERS  {more:,} more: --json")
    if difference.outputs:
        lines += _output_lines(difference.outputs)
    lines += note_lines(difference.notes)
    return Group(lines_text(lines), Text(difference.verdict, style="bold"))


def _explained_lines(difference: ModelDifference) -> list[str]:
    """Each explained difference; the nodes and tensors of the appended block as counts."""
    # A map can append dozens of nodes; which ones is in the JSON.
    block = [d for d in difference.differences if d.explained == "appended block"]
    decisions = [d for d in difference.differences if d.explained == "decisions"]
    listed = [d for d in difference.differences if d.explained and d not in block and d not in decisions]
    lines = [f"changed  {_difference_line(d)}" for d in listed]
    if block:
        nodes = sum(d.part == "node" for d in block)
        tensors = sum(d.part == "tensor" for d in block)
        lines.append(f"appended {count_text(nodes, 'node')}, {count_text(tensors, 'tensor')}")
    if decisions:
        ports = ", ".join(d.name for d in decisions if d.part in ("output", "input"))
        lines.append(f"decides  {ports}")
    return lines


def _untouched(difference: ModelDifference, part: str, total: int) -> str:
    # added parts are not of the original, whose parts are counted
    changed = {d.name for d in difference.differences if d.part == part and d.change != "added"}
    return f"{max(0, total - len(changed)):,} of {count_text(total, part)}"


def _difference_line(d: Difference) -> str:
    size = ""
    if d.largest is not None:
        size = f"largest change {d.largest:.3g}"
    if d.relative is not None:
        size += f", {d.relative:.3g} of the largest value"
    text = f"{d.part} {d.name}: {d.change}"
    if d.explained:
        text += f" [{d.explained}]"
    return text + "".join(f" ({remark})" for remark in (d.detail, size) if remark)


def _output_lines(o: OutputDifference) -> list[str]:
    return [
        f"data     {o.data}, output '{o.output}' ({o.output_kind}) on {o.provider}",
        f"moved    largest |p - p'| {o.largest:.2e}, mean {o.mean:.2e}",
        f"class    the same for {o.same_class:,} of {count_text(o.samples, 'sample')} ({100 * o.agreement:.2f} %)",
        f"before   mean confidence {100 * o.confidence_before:.2f} %, accuracy {100 * o.accuracy_before:.2f} %",
        f"after    mean confidence {100 * o.confidence_after:.2f} %, accuracy {100 * o.accuracy_after:.2f} %",
        *map(_other_output_line, o.others),
    ]


def _other_output_line(output: OtherOutput) -> str:
    """Say how an output that does not classify differs."""
    name = f"output   '{output.name}'"
    if not output.depends_on_head:
        name += " (does not depend on the head)"
    if not output.differing:
        return f"{name}: the same"
    text = f"{name}: {output.differing:,} of {count_text(output.values, 'value')} differ"
    if output.largest is not None:
        text += f", largest change {output.largest:.2e}"
    return text


_POSITIONS = "several a sample: labels are an array with an axis for the positions, -100 for those without one"


def inspection_text(inspection: Inspection) -> RenderableType:
    """Heads, scores without a head, and refusals of a model."""
    lines = [
        f"model    {inspection.model}",
        f"opset    {inspection.opset} (IR version {inspection.ir_version})",
        *(f"input    {line}" for line in inspection.inputs),
    ]
    if len(inspection.heads) == 1:
        lines += ["", *_head_lines(inspection.heads[0])]
    elif inspection.heads:
        lines += ["", *map(_head_line, inspection.heads), _several_heads(inspection)]
    for scores in inspection.scores:
        lines += ["", *_scores_lines(scores)]
    for refusal in inspection.refusals:
        lines += ["", _refusal_line(refusal, inspection)]
    if inspection.provenance:
        lines += ["", "recalibrated by tna-onnx:"]
    # what `verify` makes the file again from is for that alone
    hidden = {key for key, value in inspection.provenance.items() if len(value) > _MAX_ENTRY or key == "change"}
    lines += [f"  {key}: {value}" for key, value in inspection.provenance.items() if key not in hidden]
    lines += [f"  {key}: {len(value):,} characters" for key, value in inspection.provenance.items() if key in hidden]
    return lines_text(lines)


def _head_line(head: HeadInfo) -> str:
    """Return one of several heads in a line."""
    kinds = ["multi-label"] * head.multi_label + ["several a sample"] * head.several
    size = f"({head.classes}, {head.n_features})"
    return "; ".join([f"head     {head.node} ({head.op_type}) {size}, output {head.output}", *kinds])


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
    names = " or ".join(f"--head {head.output}" for head in reversed(inspection.heads))
    text = f"heads    {len(inspection.heads)}: choose one with {names}; a second run on the new file takes another"
    # three scales of a YOLO, say, which look like those of a segmentation
    if all(head.several for head in inspection.heads) and len({head.classes for head in inspection.heads}) == 1:
        text += "; none of them, if these are the grids of a detector, which mix boxes and classes"
    return text


_ENDS = {"softmax": "probabilities", "log_softmax": "log-probabilities", "sigmoid": "probabilities"}
"""What an activation behind the logits gives."""


def _scores_lines(scores: ScoresInfo) -> list[str]:
    kind = _ENDS.get(scores.activation, scores.holds)
    noun = "classes"
    if scores.multi_label:
        noun = "labels"
    works = "calibrate as it is: a map goes behind them, nothing is searched"
    if not scores.holds:
        works = "calibrate as it is, where rows add up to 1; else say what it is: --search none --output-kind logits"
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
    word = "refused"
    if refusal.output in {scores.output for scores in inspection.scores}:
        word = "no head"
    return f"{word}  output '{refusal.output}', at {refusal.node}: {refusal.reason}"
