"""What differs between the two files, and what was written or, in a dry run or after a refusal, was not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tna_onnx.graph.difference import Difference
from tna_onnx.render.html.blocks import Text, more, plain, table, terms
from tna_onnx.results.details import Details
from tna_onnx.results.report import Report

__all__ = ["changes"]

# Kinds of added nodes that a row names.
_MOST_KINDS = 6
# Rows that are shown without being asked for.
_MOST_ROWS = 12


def changes(report: Report, details: Details) -> str:
    """Write the section."""
    rows = _rows(details.changes)
    strange = sum(not d.explained for d in details.changes)
    verdict = (
        "Only the head, the appended block and the provenance differ; every other byte is the input's."
        if not strange
        else f"{strange} differences are not of the head or its map."
    )
    v = report.verification
    folded = ", folded into weight and bias" if report.folded else ", appended as nodes"
    fitted = ", ".join(f"{name} {plain(value)}" for name, value in report.parameters.items())
    listed = [
        ("Head", f"{report.head}: weight ({report.classes:,}, {report.features:,})" if report.head else "none"),
        ("Weight", "the original weight" if not report.angle else _weight_text(report)),
        ("Map", report.map + ("" if report.map == "none" else folded) + (f" ({fitted})" if fitted else "")),
        ("File", _file_text(report)),
        (
            "Verified",
            f"{v.samples:,} samples run through the new file: largest |p - p'| {v.max_difference:.1e} "
            f"(bound {v.bound:.1e})",
        ),
    ]
    heads = ["part", *map(Text, ("name", "change", "before and after")), "largest |change|", Text("explained by")]
    found = table(heads, rows, "Differences between the files")
    found = found if len(rows) <= _MOST_ROWS else more(f"All {len(rows):,}", found)
    return f"<p>{verdict}</p>{terms(listed)}{found}"


def _file_text(report: Report) -> str:
    target = report.changes.target if report.changes else ""
    if report.missed:
        return f"refused, not written: {target or 'the model in memory'}"
    if report.dry_run:
        return f"dry run, not written: {target or 'the model in memory'}"
    return report.output or "none, the model stays in memory"


def _rows(changes: Sequence[Difference]) -> list[list[str]]:
    """One row for each change; what was added for one reason shares a row."""
    rows, added = [], dict[tuple[str, str], list[Difference]]()
    for d in changes:
        if d.change == "added" and d.explained:
            added.setdefault((d.part, d.explained), []).append(d)
            continue
        largest = "" if d.largest is None else f"{d.largest:.3g}"
        detail = d.detail.replace(" -> ", " → ")
        rows.append([d.part, *map(Text, (d.name, d.change, detail)), largest, Text(d.explained or "not explained")])
    for (part, why), group in added.items():
        name = group[0].name if len(group) == 1 else f"{group[0].name} to {group[-1].name}"
        kinds = Counter(d.detail for d in group).most_common(_MOST_KINDS + 1)
        detail = ", ".join(f"{count} x {kind}" if count > 1 else kind for kind, count in kinds[:_MOST_KINDS])
        rest = ", ..." if len(kinds) > _MOST_KINDS else ""
        rows.append([part, *map(Text, (name, f"{len(group):,} added", detail + rest)), "", Text(why)])
    return rows


def _weight_text(report: Report) -> str:
    if not report.ensemble_size:
        return f"limit of many members at {report.angle:g}°: the original times cos({report.angle:g}°)"
    return (
        f"average of {report.ensemble_size} members, mRC {report.reached:.3g}° (target {report.angle:g}°), "
        f"{report.rotations:.0f} rotations each"
    )
