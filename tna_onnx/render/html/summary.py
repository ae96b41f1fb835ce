"""Tables, terms and sentences of pages on results: metrics, methods, changes of the file, and how it was made."""

import base64
import gzip
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from tna_onnx.data.images.preprocess import plain
from tna_onnx.graph.options import Difference
from tna_onnx.numerics.metric import JUDGED, METRICS
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.render import wording
from tna_onnx.render.html import blocks
from tna_onnx.render.html.blocks import Table, Term, capital
from tna_onnx.render.html.svg import element, interval_bar
from tna_onnx.results.as_json import to_json
from tna_onnx.results.details import Details
from tna_onnx.results.measured import ComparedModel, Evaluation, ModelComparison
from tna_onnx.results.report import Report
from tna_onnx.results.study import Studies, Study

HOW = {
    "held-out": "held-out samples, which neither the search nor the fit has seen",
    "cross-fitted": "the calibration samples, cross-fitted: each is scored by a fit that has not seen it",
    "fitted": "the calibration samples, which were used for fitting",
    "unchanged": "the calibration samples; nothing was changed",
}
"""What samples a page says that it measured on, by `Comparison.how`."""

# Longer tables are folded away until they are asked for.
_MAX_ROWS = 12


def result_tables(report: Report) -> list[Table]:
    """Return metrics, P(positive), the thresholds that keep decisions, and the recall of each class."""
    c = report.comparison
    level = next(iter(c.differences.values())).level
    heads = ("", "before", "after", f"difference ({100 * level:g} %)", blocks.DIRECTIONS)
    rows = []
    for row in wording.change_rows(c, report.recall):
        title, *cells = row.cells
        # a scale of its own in each row: metrics have different units
        bar = blocks.interval_cell(row.metric, row.d, blocks.reach_of(row.d), "no significant change")
        rows.append((capital(title), *cells, bar))
    return [
        blocks.table(heads, rows, f"{c.data}: {wording.size_text(c.before)}", "metrics changes"),
        *positive_tables(("before", "after"), (c.before, c.after)),
        *blocks.text_table(wording.threshold_table(report)),
        *_recalls(report),
    ]


def part_tables(result: Report | Evaluation) -> list[Table]:
    """Return metrics of each label, and of subgroups; none for one class a sample without subgroups."""
    difference = ""  # of one model there is none
    if isinstance(result, Report):
        difference = "after minus before"
    labels = blocks.text_table(wording.label_table(result.labels), "sortable numbers")
    return [*labels, *blocks.subgroup_blocks(result.subgroups, difference=difference)]


def positive_tables(heads: Sequence[str], metrics: Sequence[Metrics]) -> list[Table]:
    """Return the table of P(positive); none for more than two classes."""
    text_table = wording.positive_table(heads, metrics)
    if text_table is None:
        return []
    title, columns, rows = text_table
    return blocks.text_table((title, columns, [(capital(name), *cells) for name, *cells in rows]))


def _recalls(report: Report) -> Iterable[Table]:
    """Yield the recall of each class, where predictions change."""
    if not report.changed_predictions:
        return
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
    caption = f"Recall of each {report.kind}: the largest loss first"
    folded = ""
    if len(rows) > _MAX_ROWS:
        folded = caption
    yield blocks.table(heads, rows, caption, "numbers dots recalls", folded=folded)


def choice(report: Report) -> Table:
    """Return the methods that were compared as a dot plot, the lowest NLL first."""
    methods = wording.best_methods(report)
    looks = {"none": "input", report.method: "chosen"}
    # an input that is far off would leave no room for the others: its number stands beside it
    near = [method for method in methods if method.method != "none"] or methods
    low = min(method.metrics.nll - method.error for method in near)
    high = max(method.metrics.nll + method.error for method in near)
    # beside a huge number a hundredth would be lost
    room = 0.03 * (high - low) or 0.01 * max(1.0, abs(low))
    reach = (low - room, high + room)
    rows: list[tuple[str, ...]] = []
    names, texts = wording.method_table(report)
    for method, (name, nll, error, *remaining) in zip(methods, texts, strict=True):
        look = looks.get(method.method, "open")
        loss = method.metrics.nll
        ends = (loss - method.error, loss + method.error)
        bar = interval_bar(loss, *ends, reach, look, "", mark=methods[0].metrics.nll, wide=True)
        rows.append((name, f"{nll} ± {error}" if error else nll, bar, *remaining))
    place = next((k for k, method in enumerate(methods) if method.method == report.method), None)
    digits = max(2, math.ceil(-math.log10(reach[1] - reach[0])))
    heads = (names[0], "NLL, nats", f"{reach[0]:.{digits}f} to {reach[1]:.{digits}f} nats", *names[3:])
    caption = f"{len(rows)} methods, cross-validated on {report.calibration.before.n:,} samples"
    if len(rows) < len(report.methods):
        caption += ", one strength of each"
    return blocks.table(heads, rows, caption, "numbers dots", stressed=place)


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


def code_of(report: Report, details: Details) -> str:
    """Return three lines of Python that run the written file."""
    origin = details.made
    axis = {"last": "-1"}.get(origin.several, "1")
    meaning = _SCORES[origin.output_kind].replace("AXIS", axis)
    if origin.mapped:
        meaning = "for each sample a dictionary from class to probability"
    # names of a model may hold anything: JSON's string literals are Python's
    file = json.dumps(PurePath(report.output).name)
    names = ", ".join(f"{json.dumps(port.name)}: ..." for port in origin.inputs)
    return (
        "import onnxruntime as ort\n"
        f'session = ort.InferenceSession({file}, providers=["CPUExecutionProvider"])\n'
        f"(scores,) = session.run([{json.dumps(origin.output)}], {{{names}}})  # {meaning}"
    )


# Kinds of added nodes that a row names.
_MAX_KINDS = 6


def file_terms(report: Report) -> list[Term]:
    """Return head, weight, map and file, and how it was checked."""
    checked = report.verification
    verified = f"{checked.samples:,} samples run through the new file, up to {checked.batch:,} together: "
    return [
        Term("Head", wording.head_text(report)),
        Term("Weight", wording.weight_text(report)),
        Term("Map", wording.map_text(report)),
        Term("File", _file_text(report)),
        Term("Verified", verified + wording.checked_text(checked).replace("p - p", "p \N{MINUS SIGN} p")),
    ]


def differences_tables(differences: Sequence[Difference]) -> Iterable[Table]:
    """Yield what differs between the files; nothing for a copy."""
    rows = _rows(differences)
    if not rows:
        return
    name, change, detail, reason = (
        blocks.PageColumn(head, wraps=True) for head in ("name", "change", "before and after", "explained by")
    )
    heads = ("part", name, change, detail, "largest |change|", reason)
    folded = ""
    if len(rows) > _MAX_ROWS:
        folded = f"All {len(rows):,}"
    yield blocks.table(heads, rows, "Differences between the files", folded=folded)


def changed_text(report: Report, differences: Sequence[Difference]) -> str:
    """Say in a sentence what differs between the files."""
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


def packed(result: Report | Evaluation) -> str:
    """Return the JSON of a result, gzipped, as a link holds it."""
    # mtime: the same result gives the same page
    text = to_json(result, details=getattr(result, "details", None) is not None)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def run_terms(report: Report, details: Details | None, command: str) -> list[Term]:
    """Return what was run, on what, and when."""
    dated: list[Term] = []
    held_out: list[Term] = []
    device: list[Term] = []
    if details is not None:
        origin = details.made
        when = f"{origin.date.replace('T', ' ').replace('+00:00', ' UTC')}, took {_duration(origin.seconds)}"
        digests = {"calibration": origin.calibration_sha256, "held-out": origin.held_out_sha256}
        dated.append(Term("Date", when))
        dated += [Term(f"SHA-256 of {kind} data", digest, code=True) for kind, digest in digests.items() if digest]
        # held-out data can have a recipe of their own
        if details.preprocessing != report.preprocessing:
            held_out.append(Term("Preprocessing, held-out", blocks.preprocessing_text(details.preprocessing)))
        device.append(Term("Device asked for", details.device))
    teacher: list[Term] = []
    if report.teacher is not None:
        teacher.append(Term("Teacher", f"{report.teacher.model}. {report.teacher.sentence}."))
    limits = report.settings.get("gates")
    gates = "none"
    if isinstance(limits, dict):
        stated = {name.replace("_", "-"): limit for name, limit in limits.items() if limit is not None}
        gates = ", ".join(f"{name} {plain(limit)}" for name, limit in stated.items())
    searched = f"{report.search}, objective {report.objective.upper()}, on {report.settings['computed_on']}"
    return [
        *blocks.command_terms(command, "Command to repeat it"),
        *dated,
        Term("Model", report.model),
        Term("SHA-256", report.model_sha256, code=True),
        Term("Calibration data", f"{report.calibration.data} (N = {report.calibration.before.n:,})"),
        Term("Reported on", f"{report.comparison.data} ({report.comparison.how})"),
        *teacher,
        Term("Preprocessing", blocks.preprocessing_text(report.preprocessing)),
        *held_out,
        Term("Search", searched),
        Term("Seed", str(report.settings["seed"])),
        Term("Settings", _settings_text(report)),
        Term("Gates", gates),
        *device,
        Term("Provider obtained", report.provider),
        Term("Versions", blocks.versions_text(report.versions)),
    ]


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


def model_terms(measured: Evaluation | ComparedModel) -> list[Term]:
    """Return what was measured, and how it was run."""
    return [
        Term("Model", measured.model),
        Term("SHA-256", measured.model_sha256, code=True),
        Term("Output", f"{measured.output} ({measured.output_kind.replace('_', ' ')})"),
        Term("Preprocessing", blocks.preprocessing_text(measured.preprocessing)),
        Term("Provider obtained", measured.provider),
    ]


def evaluation_tables(evaluation: Evaluation) -> list[Table]:
    """Return metrics, or what is known without labels, and P(positive)."""
    rows = [(capital(title), text) for title, text in wording.evaluation_rows(evaluation)]
    numbers = blocks.table(("", "value"), rows, "Metrics", "metrics")
    return [numbers, *positive_tables(("value",), (evaluation.metrics,))]


def comparison_tables(comparison: ModelComparison) -> list[Table]:
    """Return the metrics of each model, and P(positive)."""
    models = comparison.models
    heads = ("model", *map(blocks.metric_title, METRICS), "Agreement, %")
    rows = [(model.name, *wording.metric_cells(model, comparison.baseline)) for model in models]
    numbers = blocks.table(heads, rows, f"{comparison.data}: {wording.size_text(models[0].metrics)}")
    return [numbers, *positive_tables([model.name for model in models], [model.metrics for model in models])]


def comparison_differences(comparison: ModelComparison) -> list[Table]:
    """Return one table, the models of a metric below each other and on one scale, and tables of subgroups."""
    rows: list[tuple[str, ...]] = []
    for name, metric in JUDGED.items():
        if name not in comparison.others[0].differences:
            continue
        # one scale a metric, so that models can be compared by eye
        reach = blocks.reach_of(*(model.differences[name] for model in comparison.others))
        for model in comparison.others:
            d = model.differences[name]
            bar = blocks.interval_cell(name, d, reach, "no significant difference")
            title = capital(wording.metric_title(name, model.metrics))
            rows.append((title, model.name, wording.difference_text(name, d), metric.ends(d.low, d.high), bar))
    interval = f"{comparison.confidence_level:g} % interval"
    heads = ("metric", blocks.PageColumn("model", wraps=True), "difference", interval, blocks.DIRECTIONS)
    tables = [blocks.table(heads, rows, f"Differences to {comparison.baseline}", "metrics changes")]
    for model in comparison.models:
        tables += blocks.subgroup_blocks(model.subgroups, f"Subgroups, {model.name}: ")
    return tables


def comparison_terms(comparison: ModelComparison, command: str) -> list[Term]:
    """Return what was compared on what data."""
    versions = blocks.versions_text(comparison.versions)
    return [*blocks.command_terms(command), Term("Data", comparison.data), Term("Versions", versions)]


def study_terms(studies: Studies, command: str) -> list[Term]:
    """Return how studies were made."""
    calibration, held_out = studies.samples
    return [
        *blocks.command_terms(command),
        Term("Model", studies.model),
        Term("SHA-256", studies.model_sha256, code=True),
        Term("Head", f"{studies.features:,} features, {studies.classes:,} classes"),
        Term("Calibration", f"{studies.calibration}: N = {calibration:,}"),
        Term("Held-out", f"{studies.held_out}: N = {held_out:,}"),
        Term("Settings", ", ".join(f"{name} {plain(value)}" for name, value in studies.settings.items())),
        Term("Versions", blocks.versions_text(studies.versions)),
    ]


# Rows of a study's table that stand open.
_OPEN_ROWS = 40


def study_table(study: Study) -> Table:
    """Return the rows of a study; the best of a column stands out."""
    columns = study.shown
    best = {column.name: study.best(column) for column in columns}
    rows = []
    for k in range(len(study.rows)):
        cells: list[str] = []
        for column in columns:
            text = study.text(k, column)
            if column is columns[0] and (marks := study.marks(k)):
                text += f" {marks}"
            cells.append(element("strong", text) if k in best[column.name] else text)
        rows.append(cells)
    texts = {column.name for column in columns if any(isinstance(value, str) for value in study.values(column.name))}
    heads = [blocks.PageColumn(column.title, wraps=k > 0 and column.name in texts) for k, column in enumerate(columns)]
    caption = f"{study.title}: {len(rows):,} rows"
    return blocks.table(heads, rows, caption, "numbers", folded=caption if len(rows) > _OPEN_ROWS else "")


def study_notes(study: Study) -> list[str]:
    """Return footnotes and notes."""
    return [*(f"{footnote.mark} {footnote.text}" for footnote in study.footnotes), *study.notes]
