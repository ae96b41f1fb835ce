"""The result of `calibrate_heads` as text: a report on each head, under its name."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from tna_onnx.printable import printable
from tna_onnx.render.text import report_text
from tna_onnx.results.heads import HeadReports

__all__ = ["heads_text"]


def heads_text(result: HeadReports, *, plot: bool = False) -> RenderableType:
    """Write the reports one after the other."""
    parts: list[RenderableType] = []
    for name, report in result.heads.items():
        parts += [Text(f"== head {printable(name)} ==", style="bold"), report_text(report, plot=plot), Text("")]
    return Group(*parts[:-1])
