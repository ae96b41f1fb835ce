"""What a file decides: promises, coverage and set sizes, risk and coverage with the chosen point, ROC of the alarm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tna_onnx.render.guard_text import between, off, per_cent
from tna_onnx.render.html.blocks import Column, Figure, Key, Table, line_key, table
from tna_onnx.render.html.charts import Series, line_chart
from tna_onnx.results.guarding import Decisions, Detection, Guard, GuardInput

__all__ = ["Decided", "decided", "promised"]

# Classes in the table without a click; models may have thousands.
_MAX_CLASSES = 1000


_INPUTS = {
    "risk": "the risk asked for",
    "coverage": "the coverage asked for",
    "class_prior": "how frequent each class is",
}


@dataclass(frozen=True)
class Decided:
    """What a section shows of one file.

    Attributes:
        title: heads the part; empty where a section has one only.
        data: what the samples are, in a sentence.
        promises: outputs that were added; none where that is not known.
        figures: what was measured.
        groups: sets by confidence; none without sets.
        classes: sets by class; none without sets.
        keys: of the curves.
        curves: risk and coverage, ROC; as far as they are known.
    """

    title: str
    data: str
    promises: tuple[Table, ...]
    figures: Table
    groups: tuple[Table, ...]
    classes: tuple[Table, ...]
    keys: tuple[Key, ...]
    curves: tuple[Figure, ...]


def promised(guard: Guard) -> Decided:
    """Return the values of a section on decisions that were added."""
    rows = [(each.name, each.promise, _limit(each.threshold)) for each in guard.outputs]
    rows += [(dial.name, f"input: {_INPUTS[dial.role]}; may be left out", _default(dial)) for dial in guard.inputs]
    heads = ("name", Column("what it is", wraps=True), "threshold")
    return decided(guard.decisions, "", (table(heads, rows, "Outputs and inputs that were added"),))


def _default(dial: GuardInput) -> str:
    return "as in the samples" if isinstance(dial.default, tuple) else f"{dial.default:g}"


def decided(found: Decisions, title: str, promises: tuple[Table, ...] = ()) -> Decided:
    """Return what a section shows of the decisions of one file."""
    fresh = {True: ", held-out samples", False: ", from which the thresholds come: no test of the promises", None: ""}
    curves = []
    if found.risk_coverage is not None:
        curves.append(_risk_curve(found))
    if found.detection is not None:
        curves.append(_roc(found.detection, found.alarms))
    return Decided(
        title=title,
        data=f"{found.data}: {found.n:,} samples{fresh[found.fresh]}.",
        promises=promises,
        figures=table(("", Column("", wraps=True)), [*_figures(found)], "What the file decides"),
        groups=_groups(found),
        classes=_classes(found),
        keys=(line_key("after", "all thresholds"),) if curves else (),
        curves=tuple(curves),
    )


def _figures(found: Decisions) -> Iterator[tuple[str, str]]:
    if found.calibration is not None:
        yield "calibration of the confidence", off(found.calibration)
    if found.accepted is not None:
        yield "accepted", per_cent(found.accepted)
    if found.risk is not None and found.risk_interval is not None:
        yield "of these wrong", f"{per_cent(found.risk)} {between(found.risk_interval)}"
        yield "wrong without accept", per_cent(1 - found.accuracy)
    if found.coverage is not None and found.coverage_interval is not None:
        yield "sets that hold the class", f"{per_cent(found.coverage)} {between(found.coverage_interval)}"
        yield "classes in a set", f"{found.mean_set_size:.2f} on average"
        yield "sets of one class", per_cent(found.single_sets)
        yield "empty sets", per_cent(found.empty_sets)
        yield "vacuous sets, of all classes", per_cent(found.full_sets)
    if found.alarms is not None:
        yield "alarms", per_cent(found.alarms)
    if found.detection is not None:
        each = found.detection
        yield "unknown samples", f"{each.data}: {each.n:,}"
        yield "of these alarms", f"{per_cent(each.detected)} {between(each.detected_interval)}"
        yield "AUROC", f"{each.auroc:.4f}"


def _groups(found: Decisions) -> tuple[Table, ...]:
    if not found.by_confidence:
        return ()
    rows = [
        (f"{each.low:.4f} to {each.high:.4f}", f"{each.n:,}", per_cent(each.coverage), f"{each.mean_set_size:.2f}")
        for each in found.by_confidence
    ]
    return (table(("confidence", "samples", "sets that hold the class", "classes in a set"), rows, "By confidence"),)


def _classes(found: Decisions) -> tuple[Table, ...]:
    if not found.class_coverage or not found.class_set_size:
        return ()
    pairs = zip(found.class_coverage, found.class_set_size, strict=True)
    rows = [
        (str(k), per_cent(share), "-" if size is None else f"{size:.2f}")
        for k, (share, size) in enumerate(pairs)
        if k < _MAX_CLASSES
    ]
    return (table(("class", "sets that hold it", "classes in a set"), rows, "By class"),)


def _risk_curve(found: Decisions) -> Figure:
    curve = found.risk_coverage
    assert curve is not None  # noqa: S101 - the caller has seen to it
    points = tuple((100 * c, 100 * r) for c, r in zip(curve.coverage, curve.risk, strict=True))
    chosen = []
    if found.accepted is not None and found.risk is not None:
        chosen = [(100 * found.accepted, 100 * found.risk)]
    drawing = line_chart(
        [Series("all thresholds", points, "after")],
        "Risk and coverage, the chosen point in a ring",
        "accepted, %",
        "wrong among them, %",
        x_range=(0, 100),
        rings=chosen,
    )
    return Figure(drawing, "Risk and coverage")


def _roc(found: Detection, alarms: float | None) -> Figure:
    pairs = zip(found.roc_false_alarms, found.roc_detected, strict=True)
    points = tuple((100 * x, 100 * y) for x, y in pairs)
    chosen = [] if alarms is None else [(100 * alarms, 100 * found.detected)]
    drawing = line_chart(
        [Series("all thresholds", points, "after")],
        "ROC of the alarm, the chosen point in a ring",
        "alarms for known samples, %",
        "alarms for unknown samples, %",
        x_range=(0, 100),
        y_range=(0, 100),
        rings=chosen,
    )
    return Figure(drawing, f"ROC of the alarm: AUROC {found.auroc:.4f}")


def _limit(threshold: tuple[float | None, ...]) -> str:
    if not threshold:
        return "-"
    if len(threshold) > 1:
        return "one a class"
    if threshold[0] is None:
        return "none"
    return f"{threshold[0]:.6g}"
