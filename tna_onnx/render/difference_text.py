"""What `verify` found, as text for a terminal or a pipe."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from tna_onnx.graph.difference import Difference
from tna_onnx.render.lines import count_text, lines_text, note_lines
from tna_onnx.results.difference import ModelDifference, OtherOutput, OutputDifference

__all__ = ["difference_text"]

# Unexplained differences that are listed; another model altogether has thousands.
_MAX_LINES = 40


def difference_text(result: ModelDifference) -> RenderableType:
    """What differs between two files, explained or not, how far the outputs moved, verdict."""
    lines = [
        f"original {result.original}",
        f"new file {result.recalibrated}",
        f"head     {result.head or 'none'}",
        *_explained_lines(result),
        f"the same {_untouched(result, 'node', result.nodes)}, {_untouched(result, 'tensor', result.tensors)}",
        *_unexplained_lines(result),
    ]
    if result.outputs:
        lines += _output_lines(result.outputs)
    lines += note_lines(result.notes)
    return Group(lines_text(lines), Text(result.verdict, style="bold"))


def _explained_lines(result: ModelDifference) -> list[str]:
    """Each explained difference; the nodes and tensors of the appended block as counts."""
    # A map can append dozens of nodes; which ones is in the JSON.
    block = [d for d in result.differences if d.explained == "appended block"]
    decisions = [d for d in result.differences if d.explained == "decisions"]
    shown = [d for d in result.differences if d.explained and d not in block and d not in decisions]
    lines = [f"changed  {_difference_line(d)}" for d in shown]
    if block:
        nodes = sum(d.part == "node" for d in block)
        tensors = sum(d.part == "tensor" for d in block)
        lines.append(f"appended {count_text(nodes, 'node')}, {count_text(tensors, 'tensor')}")
    if decisions:
        made = ", ".join(d.name for d in decisions if d.part in ("output", "input"))
        lines.append(f"decides  {made}")
    return lines


def _unexplained_lines(result: ModelDifference) -> list[str]:
    lines = [f"DIFFERS  {_difference_line(d)}" for d in result.unexplained[:_MAX_LINES]]
    more = len(result.unexplained) - _MAX_LINES
    if more > 0:
        lines.append(f"DIFFERS  {more:,} more: --json")
    return lines


def _untouched(result: ModelDifference, part: str, total: int) -> str:
    # added parts are not of the original, whose parts are counted
    changed = {d.name for d in result.differences if d.part == part and d.change != "added"}
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
        f"class    the same for {o.same_class:,} of {count_text(o.samples, 'sample')} ({o.agreement:.2%})",
        f"before   mean confidence {o.confidence_before:.2%}, accuracy {o.accuracy_before:.2%}",
        f"after    mean confidence {o.confidence_after:.2%}, accuracy {o.accuracy_after:.2%}",
        *map(_other_output_line, o.others),
    ]


def _other_output_line(other: OtherOutput) -> str:
    """Say how an output that does not classify differs."""
    name = f"output   '{other.name}'"
    if not other.depends_on_head:
        name += " (does not depend on the head)"
    if not other.differing:
        return f"{name}: the same"
    text = f"{name}: {other.differing:,} of {count_text(other.values, 'value')} differ"
    if other.largest is not None:
        text += f", largest change {other.largest:.2e}"
    return text
