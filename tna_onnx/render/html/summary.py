"""Sections on the result: the verdict with metrics and notes, use of the file, its changes, how it was made."""

import base64
import gzip
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath
from types import SimpleNamespace

from tna_onnx.data.images.preprocess import plain
from tna_onnx.graph.options import Difference
from tna_onnx.numerics.metric import JUDGED, METRICS
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.render import wording
from tna_onnx.render.html import blocks
from tna_onnx.render.html.svg import interval_bar
from tna_onnx.results.as_json import to_json
from tna_onnx.results.details import Details, LabelMetrics
from tna_onnx.results.measured import ComparedModel, Evaluation
from tna_onnx.results.report import Comparison, Report
from tna_onnx.results.verdict import Recall

_HOW = {
    "held-out": "held-out samples, which neither the search nor the fit has seen",
    "cross-fitted": "the calibration samples, cross-fitted: each is scored by a fit that has not seen it",
    "fitted": "the calibration samples, which were used for fitting",
    "unchanged": "the calibration samples; nothing was changed",
}


def result(report: Report) -> SimpleNamespace:
    """Return the values of the section."""
    c = report.comparison
    look = blocks.LOOKS[report.word]
    if report.missed:
        # red above green would contradict itself
        look = "open"
    return SimpleNamespace(
        missed=tuple(map(blocks.capital, report.missed)),
        dry_run=report.dry_run,
        summary=report.summary.replace(" -> ", " → "),
        look=look,
        measured_on=_HOW[c.how],
        metrics=_metrics(c, report.recall),
        recalls=_recalls(report),
        positive=positive_block(("before", "after"), (c.before, c.after)),
        thresholds=text_block(wording.threshold_table(report)),
        labels=_labels_table(report.labels, c.before),
        subgroups=blocks.subgroup_blocks(report.subgroups, "Subgroups: ", "after minus before"),
        notes=report.notes,
    )


def positive_block(heads: Sequence[str], metrics: Sequence[Metrics]) -> blocks.Table | None:
    """Return the table of P(positive); None for more than two classes."""
    text_table = wording.positive_table(heads, metrics)
    if text_table is None:
        return None
    title, columns, rows = text_table
    return text_block((title, columns, [(blocks.capital(name), *cells) for name, *cells in rows]))


def text_block(text_table: wording.TextTable | None) -> blocks.Table | None:
    """Return a table that the terminal has too; None for none."""
    if text_table is None:
        return None
    title, columns, rows = text_table
    return blocks.table(columns, rows, blocks.capital(title), "metrics")


def _labels_table(labels: Sequence[LabelMetrics], metrics: Metrics) -> blocks.Table | None:
    """Return the metrics of each label; None for one class a sample."""
    text_table = wording.label_table(labels, len(labels))
    if text_table is None:
        return None
    return blocks.table(*text_table[1:], f"Each label: N = {metrics.n:,}, {metrics.bins} bins", "sortable numbers")


def _metrics(c: Comparison, recall: Recall) -> blocks.Table:
    level = next(iter(c.differences.values())).level
    heads = ("", "before", "after", f"difference ({100 * level:g} %)", blocks.DIRECTIONS)
    caption = f"{c.data}: {wording.size_text(c.before)}"
    rows = []
    for name, title, *sides, d in wording.change_rows(c, recall):
        # a scale of its own in each row: metrics have different units
        bar = blocks.interval_cell(name, d, blocks.reach_of(d), "no significant change")
        rows.append((blocks.capital(title), *map(JUDGED[name].number, sides), wording.change_text(name, d), bar))
    return blocks.table(heads, rows, caption, "metrics changes")


def _recalls(report: Report) -> blocks.Table | None:
    """Return the recall of each class, where predictions change."""
    if not report.changed_predictions:
        return None
    level = report.recall.balanced.level
    heads = (report.kind, "samples", "recall, %", f"change ({100 * level:g} % interval)", blocks.DIRECTIONS)
    classes = sorted(report.recall.classes, key=lambda one: one.difference.difference)
    # one scale, so that classes can be compared by eye
    reach = blocks.reach_of(*(class_recall.difference for class_recall in classes))
    metric = METRICS["accuracy"]
    rows = []
    for class_recall in classes:
        d = class_recall.difference
        bar = blocks.interval_cell("accuracy", d, reach, "no significant change", wide=True)
        sides = f"{metric.number(class_recall.before)} → {metric.number(class_recall.after)}"
        rows.append((class_recall.name, f"{class_recall.samples:,}", sides, wording.change_text("accuracy", d), bar))
    return blocks.table(heads, rows, f"Recall of each {report.kind}: the largest loss first", "numbers dots recalls")


def choice(report: Report) -> blocks.Table:
    """Return the methods that were compared as a dot plot, the lowest NLL first."""
    methods = wording.best_methods(report)
    losses = {method.method: method.metrics.nll for method in methods}
    looks = {"none": "input", report.method: "chosen"}
    # an input that is far off would leave no room for the others: its number stands beside it
    near = [method for method in methods if method.method != "none"] or methods
    ends = [end for m in near for end in (m.metrics.nll - m.error, m.metrics.nll + m.error)]
    # beside a huge number a hundredth would be lost
    room = 0.03 * (max(ends) - min(ends)) or 0.01 * max(1.0, abs(ends[0]))
    reach = (min(ends) - room, max(ends) + room)
    rows: list[tuple[str, ...]] = []
    names, texts = wording.method_table(report)
    for method, (name, nll, error, *remaining) in zip(methods, texts, strict=True):
        look = looks.get(method.method, "open")
        loss = losses[method.method]
        bar = interval_bar(
            loss, loss - method.error, loss + method.error, reach, look, "", mark=min(losses.values()), wide=True
        )
        shown_loss = nll
        if error:
            shown_loss += f" ± {error}"
        rows.append((name, shown_loss, bar, *remaining))
    place = next((k for k, method in enumerate(methods) if method.method == report.method), None)
    digits = max(2, math.ceil(-math.log10(reach[1] - reach[0])))
    heads = (names[0], "NLL, nats", f"{reach[0]:.{digits}f} to {reach[1]:.{digits}f} nats", *names[3:])
    caption = f"{len(rows)} methods, cross-validated on {report.calibration.before.n:,} samples"
    if len(rows) < len(report.methods):
        caption += ", one strength of each"
    return blocks.table(heads, rows, caption, "numbers dots", place)


def checks(report: Report) -> str:
    """Say whether the file can be shipped: what was written and checked, and whom it costs most."""
    if report.missed or not report.files:
        return ""
    parts = [f"{' and '.join(PurePath(path).name for path in report.files)}"]
    parts.append(f"verified on {report.verification.samples:,} samples")
    if report.gates_met:
        parts.append(f"gates met: {', '.join(report.gates_met)}")
    if report.changed_predictions:
        parts.append(f"{100 * report.changed_predictions:.1f} % of predictions change")
    else:
        parts.append("no prediction changes")
    lowest = report.recall.lowest
    if lowest.difference.difference < 0:
        recalls = f"{100 * lowest.before:.1f} → {100 * lowest.after:.1f} %"
        chance = ""
        if not lowest.loses:
            chance = ", which may be chance"
        parts.append(f"{report.kind} {lowest.name} loses most recall: {recalls}{chance}")
    return " · ".join(parts)


def data_text(details: Details) -> str:
    """Name the shown data in a sentence."""
    if details.held_out:
        return f"Data: {details.data}, held-out."
    return f"Data: {details.data}, which were used for fitting."


_SCORES = {
    "logits": "logits: their softmax along axis AXIS has the probabilities",
    "log_probabilities": "logarithms of the probabilities",
    "probabilities": "the probabilities of the classes",
    "positive_probability": "the probability of the second class",
    "positive_logit": "the logit of the second class: 1 / (1 + exp(-scores)) is its probability",
    "label_probabilities": "the probability of each label",
    "label_logits": "a logit for each label: 1 / (1 + exp(-scores)) has the probabilities",
}


def use(report: Report, details: Details) -> SimpleNamespace | None:
    """Return the values of the section: three lines that run the written file; None if none was written, or a copy."""
    if not report.output or (report.already_calibrated and report.guard is None):
        return None
    origin = details.made
    file = PurePath(report.output).name
    axis = {"last": "-1"}.get(origin.several, "1")
    meaning = _SCORES[origin.output_kind].replace("AXIS", axis)
    if origin.mapped:
        meaning = "for each sample a dictionary from class to probability"
    # names of a model may hold anything: JSON's string literals are Python's
    names = ", ".join(f"{json.dumps(port.name)}: ..." for port in origin.inputs)
    lines = (
        "import onnxruntime as ort",
        f'session = ort.InferenceSession({json.dumps(file)}, providers=["CPUExecutionProvider"])',
        f"(scores,) = session.run([{json.dumps(origin.output)}], {{{names}}})  # {meaning}",
    )
    weights = ", ".join(PurePath(path).name for path in report.files[1:])
    return SimpleNamespace(file=file, weights=weights, code="\n".join(lines))


# Kinds of added nodes that a row names.
_MAX_KINDS = 6
# Longer tables are folded away until they are asked for.
_MAX_ROWS = 12


def changes(report: Report, details: Details) -> SimpleNamespace:
    """Return the values of the section."""
    rows = _rows(details.changes)
    checked = report.verification
    verified = (
        f"{checked.samples:,} samples run through the new file, up to {checked.batch:,} together: largest "
        f"|p \N{MINUS SIGN} p'| {checked.max_difference:.1e} (bound {checked.bound:.1e}){wording.tied(checked)}"
    )
    summary = ""
    if len(rows) > _MAX_ROWS:
        summary = f"All {len(rows):,}"
    heads = (
        "part",
        blocks.PageColumn("name", wraps=True),
        blocks.PageColumn("change", wraps=True),
        blocks.PageColumn("before and after", wraps=True),
        "largest |change|",
        blocks.PageColumn("explained by", wraps=True),
    )
    return SimpleNamespace(
        verdict=_verdict(details.changes, report),
        terms=(
            blocks.Term("Head", wording.head_text(report)),
            blocks.Term("Weight", wording.weight_text(report)),
            blocks.Term("Map", wording.map_text(report)),
            blocks.Term("File", _file_text(report)),
            blocks.Term("Verified", verified),
        ),
        differences=blocks.table(heads, rows, "Differences between the files"),
        summary=summary,
    )


def _verdict(differences: Sequence[Difference], report: Report) -> str:
    unexplained = sum(not d.explained for d in differences)
    if unexplained:
        return f"{unexplained} differences are not of the head or its map."
    if report.guard is not None:
        names = ", ".join(output.name for output in report.guard.outputs)
        return f"The head, the map and the provenance, as below; and {report.guard.nodes} nodes that decide: {names}."
    changed = {d.explained.partition(",")[0] for d in differences}
    parts = list(dict.fromkeys(text for explained, text in _CHANGED.items() if explained in changed))
    if not parts:
        return "Nothing differs: the file is a copy."
    names = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    return f"Only {names} changed; every other byte is the input's."


# What a difference is explained by, as readers of a page call it.
_CHANGED = {
    "weight": "the last layer",
    "bias": "the last layer",
    "head": "the last layer",
    "appended block": "the appended nodes",
    "provenance": "the metadata",
}


def _file_text(report: Report) -> str:
    target = "the model in memory"
    if report.changes and report.changes.target:
        target = report.changes.target
    if report.missed:
        return f"refused, not written: {target}"
    if report.dry_run:
        return f"dry run, not written: {target}"
    return " and ".join(report.files) or "none, the model stays in memory"


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
    texts = [f"{count} x {kind}".removeprefix("1 x ") for kind, count in kinds[:_MAX_KINDS]]
    if len(kinds) > _MAX_KINDS:
        texts.append("...")
    return part, name, f"{len(group):,} added", ", ".join(texts), "", reason


# Settings that have a line of their own.
_ELSEWHERE = ("seed", "search", "objective", "tilt", "gates", "device", "computed_on", "ensemble_size_asked")


def _with_numbers(result: Report | Evaluation, kind: str, terms: tuple[blocks.Term, ...]) -> SimpleNamespace:
    """Return terms, and the JSON of a result as a file to download."""
    # mtime: the same result gives the same page
    packed = gzip.compress(to_json(result, details=getattr(result, "details", None) is not None).encode(), mtime=0)
    name = f"{PurePath(result.model).stem}.{kind}.json.gz"
    return SimpleNamespace(terms=terms, numbers=base64.b64encode(packed).decode(), name=name)


def run(report: Report, details: Details | None, command: str) -> SimpleNamespace:
    """Return what was run, on what, and when."""
    terms = [
        blocks.Term("Model", report.model),
        blocks.Term("SHA-256", report.model_sha256, code=True),
        blocks.Term("Calibration data", f"{report.calibration.data} (N = {report.calibration.before.n:,})"),
        blocks.Term("Reported on", f"{report.comparison.data} ({report.comparison.how})"),
    ]
    if details is not None:
        origin = details.made
        when = f"{origin.date.replace('T', ' ').replace('+00:00', ' UTC')}, took {_duration(origin.seconds)}"
        digests = {"calibration": origin.calibration_sha256, "held-out": origin.held_out_sha256}
        terms[:0] = [
            blocks.Term("Date", when),
            *(blocks.Term(f"SHA-256 of {kind} data", digest, code=True) for kind, digest in digests.items() if digest),
        ]
    if report.teacher is not None:
        terms.append(blocks.Term("Teacher", f"{report.teacher.model}. {report.teacher.sentence}."))
    terms.append(blocks.Term("Preprocessing", blocks.preprocessing_text(report.preprocessing)))
    terms[:0] = blocks.command_terms(command, "Command to repeat it")
    # held-out data can have a recipe of their own
    if details is not None and details.preprocessing != report.preprocessing:
        terms.append(blocks.Term("Preprocessing, held-out", blocks.preprocessing_text(details.preprocessing)))
    limits = report.settings.get("gates")
    gates = "none"
    if isinstance(limits, dict):
        stated = {name.replace("_", "-"): limit for name, limit in limits.items() if limit is not None}
        gates = ", ".join(f"{name} {plain(limit)}" for name, limit in stated.items())
    terms += [
        blocks.Term(
            "Search", f"{report.search}, objective {report.objective.upper()}, on {report.settings['computed_on']}"
        ),
        blocks.Term("Seed", str(report.settings["seed"])),
        blocks.Term("Settings", _settings_text(report)),
        blocks.Term("Gates", gates),
        blocks.Term("Provider obtained", report.provider),
        blocks.Term("Versions", blocks.versions_text(report.versions)),
    ]
    if details is not None:
        terms.insert(-2, blocks.Term("Device asked for", details.device))
    return _with_numbers(report, "report", tuple(terms))


def _duration(seconds: float) -> str:
    """Write a time in two units at most.

    >>> _duration(4.23), _duration(200), _duration(7300)
    ('4.2 s', '3 min 20 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"


def _settings_text(report: Report) -> str:
    """Write the settings in the words and units of the command line."""
    settings = {name: value for name, value in report.settings.items() if name not in _ELSEWHERE}
    if report.settings["ensemble_size_asked"] == "auto":
        settings["ensemble_size"] = f"auto (from {report.settings['ensemble_size']})"
    tilt = report.settings.get("tilt")
    if isinstance(tilt, dict):
        # nested in the report, flat on the command line
        settings.update(tilt)
    for name, value in settings.items():
        if isinstance(value, bool):
            settings[name] = {True: "yes", False: "no"}[value]
        elif name.endswith("ensemble_size") and value == 0:
            settings[name] = "inf"  # 0 stands for the limit of many
    return ", ".join(f"{name.replace('_', '-')} {plain(value)}" for name, value in settings.items())


def measured(evaluation: Evaluation) -> SimpleNamespace:
    """Return the values of the first section of an evaluation."""
    metrics = evaluation.metrics
    rows = wording.expected_rows(evaluation)
    if not rows:
        rows = [(blocks.metric_title(name), METRICS[name].number(getattr(metrics, name))) for name in METRICS]
    data = f"{evaluation.data}: {wording.size_text(metrics)}"
    numbers = blocks.table(("", "value"), rows, "Metrics", "metrics")
    return SimpleNamespace(
        missed=tuple(map(blocks.capital, evaluation.missed)),
        summary=evaluation.summary,
        look="worse" if evaluation.off else "",
        data=data,
        bins=metrics.bins,
        metrics=numbers,
        notes=evaluation.notes,
        positive=positive_block(("value",), (metrics,)),
        labels=_labels_table(evaluation.labels, metrics),
        subgroups=blocks.subgroup_blocks(evaluation.subgroups, "Subgroups: "),
    )


def measured_run(evaluation: Evaluation, command: str) -> SimpleNamespace:
    """Return what was evaluated, on what, by which command."""
    terms = (*blocks.command_terms(command), *model_terms(evaluation), blocks.Term("Data", evaluation.data))
    return _with_numbers(evaluation, "evaluation", terms)


def model_terms(measured: Evaluation | ComparedModel) -> tuple[blocks.Term, ...]:
    """Return what was measured, and how it was run."""
    return (
        blocks.Term("Model", measured.model),
        blocks.Term("SHA-256", measured.model_sha256, code=True),
        blocks.Term("Output", f"{measured.output} ({measured.output_kind.replace('_', ' ')})"),
        blocks.Term("Preprocessing", blocks.preprocessing_text(measured.preprocessing)),
        blocks.Term("Provider obtained", measured.provider),
    )
