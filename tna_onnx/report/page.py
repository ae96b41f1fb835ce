"""The report of a recalibration as one HTML file: style, script, drawings and pictures are inside, nothing is loaded.

Without JavaScript all of it can be read: the diagrams of the slider stand side by side, and figures have their numbers
in tables. Text from outside (names, paths, notes) is escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import PurePath
from typing import Any

from tna_onnx.graph.difference import Difference
from tna_onnx.numerics.metrics import METRICS
from tna_onnx.report.details import Angles, Bins, Details, Sample, Step
from tna_onnx.report.report import Report
from tna_onnx.report.svg import Series, confidence_histogram, interval_bar, line_chart, reliability_diagram

__all__ = ["to_html"]

_LABELS = {"accuracy": "Accuracy, %", "ece": "ECE, %", "adaece": "AdaECE, %", "nll": "NLL, nats", "brier": "Brier"}
_PERCENT = ("accuracy", "ece", "adaece")
# Accuracy that the search's figures show a loss of; beyond it, errors grow so much that nothing else can be seen.
_SHOWN_DROP = 0.1
# Classes with diagrams of their own; all are in the table.
_MOST_CLASSES = 24
# Kinds of added nodes that a row names.
_MOST_KINDS = 6
_HOW = {
    "held-out": "held-out samples, which neither the search nor the fit has seen",
    "cross-fitted": "the calibration samples, cross-fitted: each is scored with what was fitted without it",
    "fitted": "the calibration samples, which were fitted",
    "unchanged": "the calibration samples; nothing was changed",
}


def to_html(report: Report, command: str = "") -> str:
    """Write a report as a page.

    Args:
        report: made with details.
        command: command line that made it, if there was one.

    Raises:
        ValueError: the report has no details.
    """
    details = report.details
    if details is None:
        raise ValueError("the report has no details; call calibrate with details=True")
    sections = {
        "result": ("Result", _result(report)),
        "reliability": ("Reliability", _reliability(report, details)),
        "confidence": ("Confidence", _confidence(details)),
        "search": ("Search over the angle", _search(report, details)),
        "angles": ("Angles between features and class vectors", _angles(report, details)),
        "samples": ("Samples to look at", _samples(details)),
        "changes": ("What changed in the file", _changes(report, details)),
        "run": ("How it was made", _run(report, details, command)),
    }
    sections = {key: (title, body) for key, (title, body) in sections.items() if body}
    links = "".join(f'<li><a href="#{key}">{escape(title)}</a></li>' for key, (title, _) in sections.items())
    bodies = "".join(
        f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">{escape(title)}</h2>{body}</section>'
        for key, (title, body) in sections.items()
    )
    style, script = (files("tna_onnx.report").joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
    name = escape(PurePath(report.model).name)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>Calibration of {name}</title><style>\n{style}</style></head><body>'
        f'<a class="skip" href="#result">Skip to the result</a><header><h1>Calibration of {name}</h1>'
        f'<nav aria-label="Contents"><ul>{links}</ul></nav></header>\n<main>{bodies}</main>\n'
        f'<footer class="soft">Written by tna-onnx {escape(report.versions.get("tna-onnx", ""))}. Bins hold '
        "j/B &lt; confidence &le; (j+1)/B.</footer>"
        f"<script>\n{script}</script></body></html>\n"
    )


def _result(report: Report) -> str:
    c = report.comparison
    look = {-1: "better", 0: "open", 1: "worse"}[c.changed(report.objective)]
    level = next(iter(c.differences.values())).level
    rows = []
    for name in METRICS:
        scale, digits = (100, 2) if name in _PERCENT else (1, 4)
        d = c.differences[name]
        sign = -1 if name == "accuracy" else 1  # so that left and green are better in every row
        low, high = sorted((sign * d.low, sign * d.high))
        reach = max(abs(d.low), abs(d.high), abs(d.difference), 1e-12) * 1.05
        rows.append(
            [
                _LABELS[name],
                f"{scale * getattr(c.before, name):.{digits}f}",
                f"{scale * getattr(c.after, name):.{digits}f}",
                f"{scale * d.difference:+.{digits}f} ({scale * d.low:+.{digits}f} to {scale * d.high:+.{digits}f})",
                _Raw(interval_bar(sign * d.difference, low, high, reach)),
            ]
        )
    heads = ["", "before", "after", f"difference ({level:.0%} interval)", "better | worse"]
    caption = f"{c.data}: N = {c.before.n:,}, {c.before.bins} bins"
    notes, verdict = _list(report.notes), report.verdict.replace(" -> ", " → ")
    return (
        f'<p class="verdict {look}">{escape(verdict[:1].upper() + verdict[1:])}</p>'
        f"<p>Measured on {escape(_HOW[c.how])}. Differences are paired; an interval on one side of zero is a "
        "significant change. ECE and AdaECE are the mean gap between confidence and accuracy, over bins of equal width "
        "and of equal mass; even a perfectly calibrated model shows some on finite data.</p>"
        f"{_table(heads, rows, caption, 'metrics')}"
        f"{f'<h3>Notes</h3>{notes}' if notes else ''}"
    )


def _reliability(report: Report, details: Details) -> str:
    figures = "".join(
        _figure(reliability_diagram(bins, f"Reliability {word}"), f"{word.capitalize()}: ECE {100 * bins.ece:.2f} %")
        for word, bins in (("before", details.before), ("after", details.after))
    )
    numbers = _bins_table(details.before, "before") + _bins_table(details.after, "after")
    classes = details.classes
    rows = [[k.name, f"{k.samples:,}", f"{100 * k.before.ece:.2f}", f"{100 * k.after.ece:.2f}"] for k in classes]
    shown = sorted(classes, key=lambda k: -k.before.ece)[:_MOST_CLASSES] if len(classes) > _MOST_CLASSES else classes
    more = (
        f" (the {len(shown)} of {len(classes):,} classes with the largest gap before)"
        if len(shown) < len(classes)
        else ""
    )
    diagrams = "".join(
        f'<details><summary>Class {escape(k.name)}</summary><div class="pair">'
        + "".join(
            _figure(
                reliability_diagram(bins, f"Class {k.name}, {word}", "frequency", "probability"),
                f"{word}: gap {100 * bins.ece:.2f} %",
            )
            for word, bins in (("before", k.before), ("after", k.after))
        )
        + "</div></details>"
        for k in shown
    )
    return (
        f"<p>Each bar is the accuracy of the predictions whose confidence falls into the bin. On the dashed line, "
        "confidence is accuracy. The strip below counts the samples of each bin. "
        f"Data: {escape(report.comparison.data)}, {escape(report.comparison.how)}.</p>"
        f"{_legend(_key('accuracy', 'accuracy'), _key('over', 'confidence too high'), _key('under', 'too low'))}"
        f'<div class="pair">{figures}</div>'
        f"{_more('Numbers of both diagrams', numbers)}"
        "<h3>Class by class</h3>"
        f"<p>The probability of one class over all samples, against how often it is the label. {_data_of(details)}</p>"
        + _more(
            f"Gap of each of {len(classes):,} classes",
            _table(["class", "samples", "gap before, %", "gap after, %"], rows, "Mean gap, class-wise"),
        )
        + _more(f"Diagrams of each class{more}", diagrams)
    )


def _confidence(details: Details) -> str:
    highest = 100 * max(max(b.count) / sum(b.count) for b in (details.before, details.after))
    histograms = "".join(
        _figure(confidence_histogram(bins, f"Confidences {word}", highest), word.capitalize())
        for word, bins in (("before", details.before), ("after", details.after))
    )
    risks = (("before", details.risk_before), ("after", details.risk_after))
    chart = line_chart(
        [
            Series(name, tuple((100 * c, 100 * r) for c, r in zip(curve.coverage, curve.risk, strict=True)), name)
            for name, curve in risks
        ],
        "Risk and coverage",
        "coverage, %",
        "errors among them, %",
        x_range=(0, 100),
    )
    areas = ", ".join(f"{name} {100 * curve.area:.2f} %" for name, curve in risks)
    rows = [[f"{q} %", *(_risk_at(curve, q / 100) for _, curve in risks)] for q in (10, 25, 50, 75, 90, 100)]
    return (
        "<p>How many predictions are made with which confidence.</p>"
        f'{_legend(_key("accuracy", "right"), _key("over", "wrong"))}<div class="pair">{histograms}</div>'
        "<h3>Risk and coverage</h3>"
        "<p>Answer only the most confident share of the samples: how many of these answers are wrong? It tells how "
        f"well confidence ranks the samples; lower is better. Mean over all shares: {areas}.{_tied(details)}</p>"
        f"{_legend(_dash('before', 'before'), _dash('after', 'after'))}{_figure(chart)}"
        + _more("Numbers", _table(["coverage", "errors before, %", "errors after, %"], rows, "Errors at a coverage"))
    )


def _tied(details: Details) -> str:
    """Say why a curve begins late."""
    first = {"before": details.risk_before.coverage[0], "after": details.risk_after.coverage[0]}
    return "".join(
        f" {word.capitalize()}, {100 * share:.0f} % of samples share the highest confidence: the curve begins there."
        for word, share in first.items()
        if share > 0.02
    )


def _risk_at(curve: Any, coverage: float) -> str:
    found = next((r for c, r in zip(curve.coverage, curve.risk, strict=True) if c >= coverage - 1e-9), curve.risk[-1])
    return f"{100 * found:.2f}"


def _search(report: Report, details: Details) -> str:
    if len(details.steps) < 2:
        return ""
    percent = report.objective != "nll"
    label = _LABELS[report.objective]
    scale, word = 100 if percent else 1, label.split(",")[0]
    chosen = details.steps[details.chosen]
    where = (chosen.angle, f"chosen: {chosen.angle:g}°")
    near = [s for s in details.steps if s.calibration.accuracy >= details.steps[0].calibration.accuracy - _SHOWN_DROP]
    highest = 1.15 * max(scale * v.objective for s in near for v in (s.calibration, s.shown))
    x_range = (0.0, max(s.angle for s in near) + 2)
    seen = [100 * v.accuracy for s in near for v in (s.calibration, s.shown)]
    curve = line_chart(
        _lines(details, lambda scored: scale * scored.objective),
        f"{label} over the angle",
        "angle, degrees",
        label,
        x_range=x_range,
        y_range=(0, highest),
        vertical=where,
    )
    floor = 100 * (details.steps[0].calibration.accuracy - float(str(report.settings["max_accuracy_drop"])))
    accuracy = line_chart(
        _lines(details, lambda scored: 100 * scored.accuracy),
        "Accuracy over the angle",
        "angle, degrees",
        "accuracy, %",
        x_range=x_range,
        y_range=(min(seen) - 1, min(max(seen) + 1, 100.5)),
        vertical=where,
        horizontal=[(floor, "allowed on calibration data")],
    )
    keys = [_dash(f"m{min(k, 4)}", f"{_members(size)} members") for k, size in enumerate(_sizes(details))]
    if details.held_out:
        keys += [_dash("key", "held-out data"), _dash("key dashed", "calibration data")]
    mapped = "each with the map fitted for it" if details.with_map else "before any map"
    return (
        f"<p>Weights that were tried, {mapped}. The angle is the mean rotation of the class vectors (mRC); angle 0 is "
        "the original weight. Members are the tilted weights averaged. The choice was made on the calibration data "
        f"alone. The figures end where accuracy has fallen by {100 * _SHOWN_DROP:.0f} points; the table has the rest."
        "</p>"
        f'{_legend(*keys)}<div class="pair">{_figure(curve, f"{word} against angle")}'
        f"{_figure(accuracy, 'Accuracy against angle and members')}</div>"
        f"{_more('Numbers of all candidates', _steps_table(report, details, label, scale))}"
        f"<h3>Reliability at every angle</h3>{_slider(details, mapped)}"
    )


def _lines(details: Details, value: Any) -> list[Series]:
    """One line for each number of members and each kind of data; angle 0 belongs to all."""
    lines, sizes = [], _sizes(details)
    kinds = ("calibration", "held-out") if details.held_out else ("calibration",)
    for kind in kinds:
        for k, size in enumerate(sizes):
            steps = sorted((s for s in details.steps[1:] if s.members == size), key=lambda s: s.angle)
            if size == sizes[0]:
                steps = [details.steps[0], *steps]
            points = tuple((s.angle, value(s.calibration if kind == "calibration" else s.shown)) for s in steps)
            look = f"m{min(k, 4)}" + (" dashed" if details.held_out and kind == "calibration" else "")
            lines.append(Series(f"{kind} data, {_members(size)} members", points, look, markers=True))
    return lines


def _sizes(details: Details) -> list[int]:
    """Numbers of members, the limit of many last."""
    return sorted({s.members for s in details.steps[1:]}, key=lambda m: m or 10**9)


def _members(size: int) -> str:
    return f"{size}" if size else "infinitely many"


def _steps_table(report: Report, details: Details, label: str, scale: float) -> str:
    extra = ["held-out " + label, "held-out accuracy, %"] if details.held_out else []
    rows, digits = [], 2 if scale == 100 else 4
    for k, s in enumerate(details.steps):
        scored = [s.calibration, *([s.held_out] if s.held_out else [])]
        values = [text for v in scored for text in (f"{scale * v.objective:.{digits}f}", f"{100 * v.accuracy:.2f}")]
        rows.append([f"{s.angle:g}", f"{s.reached:.2f}", _members(s.members) if s.angle else "", *values])
        if k == details.chosen:
            rows[-1][0] += " (chosen)"
    heads = ["angle, °", "reached, °", "members", f"calibration {label}", "calibration accuracy, %", *extra]
    return _table(heads, rows, f"Objective: {report.objective.upper()}", chosen=details.chosen)


def _slider(details: Details, mapped: str) -> str:
    """One diagram for each angle; of several at an angle, the chosen one, else that of the most members."""
    by_angle: dict[float, Step] = {}
    chosen = details.steps[details.chosen]
    for step in sorted(details.steps, key=lambda s: (s.angle, s.members or 10**9, s is chosen)):
        if by_angle.get(step.angle) is not chosen:
            by_angle[step.angle] = step
    steps = list(by_angle.values())
    start = next(k for k, step in enumerate(steps) if step is chosen)
    figures = []
    for step in steps:
        text = "0°: the original weight" if not step.angle else f"{step.angle:g}°, {_members(step.members)} members"
        text += f", ECE {100 * step.shown.bins.ece:.2f} %, accuracy {100 * step.shown.accuracy:.2f} %"
        text += " (chosen)" if step is chosen else ""
        look = ' class="chosen active"' if step is chosen else ""
        drawing = reliability_diagram(step.shown.bins, f"Reliability at {step.angle:g} degrees")
        figures.append(
            f'<figure{look} data-text="{escape(text)}"><figcaption>{escape(text)}</figcaption>{drawing}</figure>'
        )
    return (
        f"<p>How tilting moves the diagram, {mapped}. {_data_of(details)}</p>"
        '<div class="slider"><label for="angle">Angle: <output for="angle"></output></label>'
        f'<input type="range" id="angle" min="0" max="{len(steps) - 1}" value="{start}"></div>'
        '<div class="steps" tabindex="0" role="group" aria-label="Reliability diagrams by angle">'
        f"{''.join(figures)}</div>"
    )


_WEIGHTS = {"original": "original weight", "tilted": "one tilted weight", "averaged": "average of the tilted weights"}


def _angles(report: Report, details: Details) -> str:
    if not details.angles:
        return ""
    charts = []
    for title, of in (
        ("Vector of the predicted class", lambda a: a.predicted),
        ("Vectors of the other classes", lambda a: a.others),
    ):
        charts.append(_figure(_angle_chart(details.angles, title, of), title))
    rows = [
        [_WEIGHTS[a.weight], f"{_mean_angle(a.predicted):.1f}", f"{_mean_angle(a.others):.1f}", f"{a.length:.2f}"]
        for a in details.angles
    ]
    tilt = (
        f" Tilting by {report.angle:g}° moves the angles towards 90°, where classes cannot be told apart: confidence "
        "falls. Averaging brings the directions back and leaves shorter vectors."
        if report.angle
        else ""
    )
    keys = [_dash(a.weight, _WEIGHTS[a.weight]) for a in details.angles]
    return (
        f"<p>Angles between the features of {details.angle_samples:,} samples and the class vectors.{tilt} "
        f'{_data_of(details)}</p>{_legend(*keys)}<div class="pair">{"".join(charts)}</div>'
        + _table(["", "predicted, °", "others, °", "length"], rows, "Mean angles, and length of the vectors")
    )


def _angle_chart(angles: Sequence[Angles], title: str, of: Any) -> str:
    bins = len(angles[0].predicted)
    width = 180 / bins
    filled = [j for a in angles for part in (a.predicted, a.others) for j, share in enumerate(part) if share > 0.002]
    low, high = max(0, min(filled, default=0) - 1), min(bins, max(filled, default=bins) + 2)
    series = [
        Series(_WEIGHTS[a.weight], tuple(((j + 0.5) * width, 100 * of(a)[j]) for j in range(low, high)), a.weight)
        for a in angles
    ]
    return line_chart(series, title, "angle, degrees", f"share per {width:g}°, %", x_range=(low * width, high * width))


def _mean_angle(shares: Sequence[float]) -> float:
    width = 180 / len(shares)
    return sum((j + 0.5) * width * share for j, share in enumerate(shares)) / (sum(shares) or 1)


def _samples(details: Details) -> str:
    parts = [
        ("Wrong, and confident", "Wrong predictions with the highest confidence after.", details.overconfident),
        ("Right, and unsure", "Right predictions with the lowest confidence after.", details.underconfident),
    ]
    shown = "".join(
        f'<h3>{title}</h3><p>{text}</p><ul class="samples">{"".join(map(_sample, samples))}</ul>'
        for title, text, samples in parts
        if samples
    )
    return f"<p>{_data_of(details)} Rows count from 0.</p>{shown}" if shown else ""


def _sample(sample: Sample) -> str:
    name = f"row {sample.row}" + (f", {sample.file}" if sample.file else "")
    image = f'<img src="{sample.thumbnail}" alt="Sample of {escape(name)}">' if sample.thumbnail else ""
    truth = "" if sample.label == sample.predicted else f", is <b>{escape(sample.label)}</b>"
    return (
        f"<li>{image}says <b>{escape(sample.predicted)}</b>{truth}<br>{100 * sample.before:.1f} % &rarr; "
        f'{100 * sample.after:.1f} %<br><span class="soft">{escape(name)}</span></li>'
    )


def _changes(report: Report, details: Details) -> str:
    rows = _change_rows(details.changes)
    strange = sum(not d.explained for d in details.changes)
    verdict = (
        "Only the head, the appended block and the provenance differ; every other byte is the input's."
        if not strange
        else f"{strange} differences are not of the head or its map."
    )
    v = report.verification
    weight = "the original weight" if not report.angle else _weight_text(report)
    folded = ", folded into weight and bias" if report.folded else ", appended as nodes"
    fitted = ", ".join(f"{name} {_plain(value)}" for name, value in report.parameters.items())
    terms = [
        ("Head", f"{report.head}: weight ({report.classes:,}, {report.features:,})" if report.head else "none"),
        ("Weight", weight),
        ("Map", report.map + ("" if report.map == "none" else folded) + (f" ({fitted})" if fitted else "")),
        ("File", report.output or "none written"),
        (
            "Verified",
            f"{v.samples:,} samples run through the written file: largest |p - p'| {v.max_difference:.1e} "
            f"(bound {v.bound:.1e})",
        ),
    ]
    texts = map(_Text, ("name", "change", "before and after"))
    heads = ["part", *texts, "largest |change|", _Text("explained by")]
    table = _table(heads, rows, "Differences between the files")
    return f"<p>{verdict}</p>{_terms(terms)}" + (table if len(rows) <= 12 else _more(f"All {len(rows):,}", table))


def _change_rows(changes: Sequence[Difference]) -> list[list[str]]:
    """One row for each change; what was added for one reason shares a row."""
    rows, added = [], dict[tuple[str, str], list[Difference]]()
    for d in changes:
        if d.change == "added" and d.explained:
            added.setdefault((d.part, d.explained), []).append(d)
            continue
        largest = "" if d.largest is None else f"{d.largest:.3g}"
        rows.append([d.part, *map(_Text, (d.name, d.change, d.detail)), largest, _Text(d.explained or "not explained")])
    for (part, why), group in added.items():
        name = group[0].name if len(group) == 1 else f"{group[0].name} to {group[-1].name}"
        kinds = Counter(d.detail for d in group).most_common(_MOST_KINDS + 1)
        detail = ", ".join(f"{count} x {kind}" if count > 1 else kind for kind, count in kinds[:_MOST_KINDS])
        more = ", ..." if len(kinds) > _MOST_KINDS else ""
        rows.append([part, *map(_Text, (name, f"{len(group):,} added", detail + more)), "", _Text(why)])
    return rows


def _weight_text(report: Report) -> str:
    if not report.ensemble_size:
        return f"limit of many members at {report.angle:g}°: the original times cos({report.angle:g}°)"
    return (
        f"average of {report.ensemble_size} members, mRC {report.reached:.3g}° (target {report.angle:g}°), "
        f"{report.rotations:.0f} rotations each"
    )


def _run(report: Report, details: Details, command: str) -> str:
    recipe = report.preprocessing
    settings = {k: v for k, v in report.settings.items() if k not in ("seed", "tilt")}
    tilt = report.settings.get("tilt")
    settings.update(tilt if isinstance(tilt, dict) else {})
    terms = [
        ("Model", report.model),
        ("SHA-256", _Code(report.model_sha256)),
        ("Calibration data", f"{report.calibration.data} (N = {report.calibration.before.n:,})"),
        ("Reported on", f"{report.comparison.data} ({report.comparison.how})"),
        ("Preprocessing", _recipe_text(recipe)),
        ("Search", f"{report.search}, objective {report.objective.upper()}"),
        ("Seed", str(report.settings["seed"])),
        ("Settings", ", ".join(f"{k} {_plain(v)}" for k, v in settings.items())),
        ("Device asked", details.device),
        ("Provider obtained", report.provider),
        ("Versions", ", ".join(f"{k} {v}" for k, v in report.versions.items())),
    ]
    if details.preprocessing != recipe:
        terms.insert(5, ("Preprocessing, held-out", _recipe_text(details.preprocessing)))
    if report.map_nll:
        values = ", ".join(f"{name} {value:.4f}" for name, value in report.map_nll.items())
        terms.append(("Maps compared", f"cross-validated NLL: {values}"))
    if command:
        terms.insert(0, ("Command", _Code(command)))
    return _terms(terms)


def _recipe_text(recipe: dict[str, object] | None) -> str:
    if recipe is None:
        return "none, used as stored"
    return ", ".join(f"{name} {_plain(value)}" for name, value in recipe.items() if value is not None)


class _Raw(str):
    """HTML that is not to be escaped."""


class _Code(str):
    """Text in the font of code."""


class _Text(str):
    """Text of a cell that may wrap."""


def _table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str, look: str = "", chosen: int | None = None
) -> str:
    """Return a table whose first column names the rows; it scrolls sideways on its own."""
    head = "".join(map(_head, heads))
    body = []
    for k, (first, *rest) in enumerate(rows):
        row = '<tr class="chosen">' if k == chosen else "<tr>"
        body.append(f'{row}<th scope="row">{escape(first)}</th>{"".join(map(_cell, rest))}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table class="{look}">'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _head(text: str) -> str:
    look = ' class="text"' if isinstance(text, _Text) else ""
    return f'<th scope="col"{look}>{escape(text)}</th>' if text else "<td></td>"


def _cell(text: str) -> str:
    if isinstance(text, _Raw):
        return f"<td>{text}</td>"
    return f'<td class="text">{escape(text)}</td>' if isinstance(text, _Text) else f"<td>{escape(text)}</td>"


def _bins_table(bins: Bins, word: str) -> str:
    width = 1 / len(bins.count)
    rows = [
        [f"{j * width:.3f} to {(j + 1) * width:.3f}", f"{n:,}", *((f"{c:.4f}", f"{a:.4f}") if n else ("", ""))]
        for j, (n, c, a) in enumerate(zip(bins.count, bins.confidence, bins.accuracy, strict=True))
    ]
    return _table(["bin", "samples", "mean confidence", "accuracy"], rows, f"Bins {word}")


def _figure(drawing: str, caption: str = "") -> str:
    return f"<figure>{f'<figcaption>{escape(caption)}</figcaption>' if caption else ''}{drawing}</figure>"


def _more(summary: str, body: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def _terms(pairs: Iterable[tuple[str, str]]) -> str:
    items = (
        f"<dt>{escape(name)}</dt><dd>{f'<code>{escape(text)}</code>' if isinstance(text, _Code) else escape(text)}</dd>"
        for name, text in pairs
    )
    return f"<dl>{''.join(items)}</dl>"


def _list(texts: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def _legend(*items: str) -> str:
    return f'<ul class="legend">{"".join(f"<li>{item}</li>" for item in items)}</ul>'


def _key(look: str, text: str) -> str:
    return (
        f'<svg viewBox="0 0 28 12" aria-hidden="true"><rect class="{look}" width="28" height="12"/></svg>{escape(text)}'
    )


def _dash(look: str, text: str) -> str:
    line = f'<line class="line {look}" x1="0" x2="28" y1="6" y2="6"/>'
    return f'<svg viewBox="0 0 28 12" aria-hidden="true">{line}</svg>{escape(text)}'


def _data_of(details: Details) -> str:
    return f"Data: {escape(details.data)}, {'held out' if details.held_out else 'which were fitted'}."


def _plain(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(map(_plain, value)) + ")"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
