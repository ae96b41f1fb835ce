"""What a file decides: promises, coverage and set sizes, risk and coverage with the chosen point, ROC of the alarm."""

from collections.abc import Iterator
from types import SimpleNamespace

from tna_onnx.render.charts import MarkedChart, curve
from tna_onnx.render.html.blocks import Column, Table, chart_figure, key_of, table
from tna_onnx.render.rows import between, cost_lines, decision_parts, per_cent
from tna_onnx.results.outcomes import Decisions, DecisionScores, Guard, GuardInput

# Classes in the table without a click; models may have thousands.
_MAX_CLASSES = 1000
_MAX_CONFUSION = 20  # columns that a page has place for

_INPUTS = {
    "risk": "the risk asked for",
    "coverage": "the coverage asked for",
    "class_prior": "how frequent each class is",
    "threshold": "what a probability has to reach",
}


def promised(guard: Guard) -> SimpleNamespace:
    """Return the values of a section on decisions that were added."""
    rows = [(output.name, output.promise, _limit(output.threshold)) for output in guard.outputs]
    rows += [(dial.name, f"input: {_INPUTS[dial.role]}; may be left out", _default(dial)) for dial in guard.inputs]
    if guard.operating_point is not None:
        rows += [("cost", line, "-") for line in cost_lines(guard.operating_point)]
    heads = ("name", Column("what it is", wraps=True), "threshold")
    return decided(guard.decisions, "", (table(heads, rows, "Outputs and inputs that were added"),))


def _default(dial: GuardInput) -> str:
    if isinstance(dial.default, tuple):
        if dial.role == "class_prior":
            return "as in the samples"
        return "several"
    return f"{dial.default:g}"


def decided(decisions: Decisions, title: str, promises: tuple[Table, ...] = ()) -> SimpleNamespace:
    """Return what a section shows of the decisions of one file."""
    fresh = {True: ", held-out samples", False: ", from which the thresholds come: no test of the promises", None: ""}
    measured = [(name.rstrip(":,"), text) for name, text in decision_parts(decisions)]
    curves = list(_curves(decisions))
    return SimpleNamespace(
        title=title,
        data=f"{decisions.data}: {decisions.n:,} samples{fresh[decisions.fresh]}.",
        promises=promises,
        figures=table(("", Column("", wraps=True)), measured, "What the file decides"),
        groups=_groups(decisions),
        classes=(*_classes(decisions), *_decided_classes(decisions.decision)),
        keys=(key_of(curves[0].lines[0]),) if curves else (),
        curves=tuple(map(chart_figure, curves)),
    )


def _groups(decisions: Decisions) -> tuple[Table, ...]:
    if not decisions.by_confidence:
        return ()
    rows = [
        (f"{group.low:.4f} to {group.high:.4f}", f"{group.n:,}", per_cent(group.coverage), f"{group.mean_set_size:.2f}")
        for group in decisions.by_confidence
    ]
    return (table(("confidence", "samples", "sets that hold the class", "classes in a set"), rows, "By confidence"),)


def _classes(decisions: Decisions) -> tuple[Table, ...]:
    if not decisions.class_coverage or not decisions.class_set_size:
        return ()
    pairs = zip(decisions.class_coverage, decisions.class_set_size, strict=True)
    rows = [
        (str(k), per_cent(share), "-" if size is None else f"{size:.2f}")
        for k, (share, size) in enumerate(pairs)
        if k < _MAX_CLASSES
    ]
    return (table(("class", "sets that hold it", "classes in a set"), rows, "By class"),)


def _decided_classes(scores: DecisionScores | None) -> tuple[Table, ...]:
    """Return recall and precision by class, and the confusion matrix of a few."""
    if scores is None:
        return ()
    rows = [
        (
            point.name,
            f"{point.samples:,}",
            f"{point.decided:,}",
            _share(point.recall, point.recall_interval),
            _share(point.precision, point.precision_interval),
        )
        for point in scores.classes[:_MAX_CLASSES]
    ]
    tables = [table(("decision", "samples", "decided so", "recall", "precision"), rows, "Decisions by class")]
    if scores.confusion is not None and len(scores.classes) <= _MAX_CONFUSION:
        names = [point.name for point in scores.classes]
        cells = [(name, *map(str, row)) for name, row in zip(names, scores.confusion, strict=True)]
        tables.append(table(("true", *names, "none"), cells, "True class and decision"))
    return tuple(tables)


def _share(share: float | None, interval: tuple[float, float] | None) -> str:
    if interval is None:
        return per_cent(share)
    return f"{per_cent(share)} {between(interval)}"


def _curves(decisions: Decisions) -> Iterator[MarkedChart]:
    """Yield what other thresholds would give, with the chosen point in a ring."""
    if (risks := decisions.risk_coverage) is not None:
        points, chosen = (risks.coverage, risks.risk), (decisions.accepted, decisions.risk)
        yield curve("Risk and coverage", ("accepted, %", "wrong among them, %"), points, chosen, y_range=None)
    if decisions.decision is not None:
        classes = {point.name: point for point in decisions.decision.classes}
        for line in decisions.decision.curves:
            chosen = (classes[line.name].recall, classes[line.name].precision)
            title = f"Recall and precision of {line.name}"
            yield curve(title, ("recall, %", "precision, %"), (line.recall, line.precision), chosen)
    if (detection := decisions.detection) is not None:
        labels = ("alarms for known samples, %", "alarms for unknown samples, %")
        points = (detection.roc_false_alarms, detection.roc_detected)
        title = f"ROC of the alarm: AUROC {detection.auroc:.4f}"
        yield curve(title, labels, points, (decisions.alarms, detection.detected))


def _limit(threshold: tuple[float | None, ...]) -> str:
    if not threshold:
        return "-"
    if len(threshold) > 1:
        return "several"
    if threshold[0] is None:
        return "none"
    return f"{threshold[0]:.6g}"
