"""What differs between the two files, and what was written or, in a dry run or after a refusal, was not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tna_onnx.graph.difference import Difference
from tna_onnx.render.html.blocks import Column, Table, Term, table
from tna_onnx.render.html.words import plain
from tna_onnx.render.lines import tied
from tna_onnx.results.details import Details
from tna_onnx.results.report import Report

__all__ = ["Changes", "changes"]

# Kinds of added nodes that a row names.
_MAX_KINDS = 6
# Where a map went, by whether it was folded.
_PLACES = {True: "folded into weight and bias", False: "appended as nodes"}
# Longer tables are folded away until they are asked for.
_MAX_ROWS = 12


@dataclass(frozen=True)
class Changes:
    """What the section shows; `summary` heads a table that is folded away, and is empty for one that is not."""

    verdict: str
    terms: tuple[Term, ...]
    differences: Table
    summary: str


def changes(report: Report, details: Details) -> Changes:
    """Return the values of the section."""
    rows = _rows(details.changes)
    summary = ""
    if len(rows) > _MAX_ROWS:
        summary = f"All {len(rows):,}"
    heads = (
        "part",
        Column("name", wraps=True),
        Column("change", wraps=True),
        Column("before and after", wraps=True),
        "largest |change|",
        Column("explained by", wraps=True),
    )
    return Changes(
        _verdict(details.changes, report),
        _terms(report),
        table(heads, rows, "Differences between the files"),
        summary,
    )


def _verdict(differences: Sequence[Difference], report: Report) -> str:
    unexplained = sum(not d.explained for d in differences)
    if unexplained:
        return f"{unexplained} differences are not of the head or its map."
    if report.guard is not None:
        names = ", ".join(output.name for output in report.guard.outputs)
        return f"The head, the map and the provenance, as below; and {report.guard.nodes} nodes that decide: {names}."
    return "Only the head, the appended block and the provenance differ; every other byte is the input's."


def _terms(report: Report) -> tuple[Term, ...]:
    head = "none"
    if report.head:
        head = f"{report.head}: weight ({report.classes:,}, {report.features:,})"
    checked = report.verification
    return (
        Term("Head", head),
        Term("Weight", _weight_text(report)),
        Term("Map", _map_text(report)),
        Term("File", _file_text(report)),
        Term(
            "Verified",
            f"{checked.samples:,} samples run through the new file: largest |p - p'| {checked.max_difference:.1e} "
            f"(bound {checked.bound:.1e}){tied(checked)}",
        ),
    )


def _weight_text(report: Report) -> str:
    if not report.angle:
        return f"the {report.untilted} weight"
    if not report.ensemble_size:
        return f"limit of many members at {report.angle:g}°: the {report.untilted} weight times cos({report.angle:g}°)"
    return (
        f"average of {report.ensemble_size} members, mRC {report.reached:.3g}° (target {report.angle:g}°), "
        f"{report.rotations:.0f} rotations each"
    )


def _map_text(report: Report) -> str:
    text = report.map
    if report.map != "none":
        text += f", {_PLACES[report.folded]}"
    fitted = ", ".join(f"{name} {plain(value)}" for name, value in report.parameters.items())
    return f"{text} ({fitted})" if fitted else text


def _file_text(report: Report) -> str:
    target = "the model in memory"
    if report.changes and report.changes.target:
        target = report.changes.target
    if report.missed:
        return f"refused, not written: {target}"
    if report.dry_run:
        return f"dry run, not written: {target}"
    return report.output or "none, the model stays in memory"


def _rows(differences: Sequence[Difference]) -> list[tuple[str, ...]]:
    """One row for each change; what was added for one reason shares a row."""
    rows: list[tuple[str, ...]] = []
    added = dict[tuple[str, str], list[Difference]]()
    for d in differences:
        # What nothing explains has a row of its own, whatever the change.
        if d.change == "added" and d.explained:
            added.setdefault((d.part, d.explained), []).append(d)
            continue
        largest = ""
        if d.largest is not None:
            largest = f"{d.largest:.3g}"
        detail = d.detail.replace(" -> ", " → ")
        rows.append((d.part, d.name, d.change, detail, largest, d.explained or "not explained"))
    rows += [_added_row(part, reason, group) for (part, reason), group in added.items()]
    return rows


def _added_row(part: str, reason: str, group: Sequence[Difference]) -> tuple[str, ...]:
    name = group[0].name
    if len(group) > 1:
        name = f"{name} to {group[-1].name}"
    kinds = Counter(d.detail for d in group).most_common()
    texts = [_counted(count, kind) for kind, count in kinds[:_MAX_KINDS]]
    if len(kinds) > _MAX_KINDS:
        texts.append("...")
    return part, name, f"{len(group):,} added", ", ".join(texts), "", reason


def _counted(count: int, kind: str) -> str:
    if count == 1:
        return kind
    return f"{count} x {kind}"
