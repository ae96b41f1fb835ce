"""A model card as the Hugging Face Hub reads it: a header of YAML with the metrics, then Markdown.

YAML holds JSON: every text of the header is a JSON string, which no content can leave. In Markdown, what came out of a
file stands in code spans or has its marks escaped.
"""

import json
import math
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from tna_onnx.files import printable
from tna_onnx.numerics.metric import METRICS
from tna_onnx.render.rows import change_rows, change_text
from tna_onnx.results.report import Report

MARK = "<!-- written by tna-onnx card -->"
"""Tells a card that this module wrote from one that a person did."""

TASKS = ("image-classification", "text-classification", "tabular-classification", "audio-classification", "other")
"""Tasks of the Hub that a classifier may have."""

# Files of `--figures` and what they show; the Hub draws PNG everywhere, SVG not in every place.
_FIGURES = {
    "reliability": "Reliability before and after",
    "confidence": "Confidences before and after",
    "risk-coverage": "Error of the answers that are kept, by the share that is kept",
}
_ENDINGS = (".png", ".svg")


@dataclass(frozen=True)
class CardWords:
    """What a report does not know of its model."""

    task: str | None = None  # one of `TASKS`; None for what the report tells
    license: str | None = None  # identifier of the licence, as the Hub has it
    base_model: str | None = None  # name of the input model on the Hub


def model_card(report: Report, words: CardWords, figures: Sequence[str] = ()) -> str:
    """Return the text of a card."""
    header = "".join(_yaml(_header(report, words)))
    body = "\n".join(_body(report, figures))
    return f"---\n{header}---\n\n{MARK}\n\n{body}\n"


def figures_of(folder: Path, card: Path | None) -> list[str]:
    """Return links to the pictures in a folder, each once, relative to the card's folder or to this one."""
    files = [
        next((file for ending in _ENDINGS if (file := folder / f"{stem}{ending}").is_file()), None) for stem in _FIGURES
    ]
    start = card.parent if card else Path()
    return [PurePath(os.path.relpath(file, start)).as_posix() for file in files if file]


def _header(report: Report, words: CardWords) -> dict[str, Any]:
    # what the Hub takes for the id of a data set
    slug = re.sub(r"[^\w.]+", "-", report.comparison.data.partition(" (")[0]).strip("-") or "data"
    # a report knows of images alone
    task = words.task or ("image-classification" if report.preprocessing else "other")
    optional = {"license": words.license, "base_model": words.base_model}
    if words.base_model:
        # of the Hub's words the nearest: the same network, with other numbers in its last layer or nodes behind it
        optional["base_model_relation"] = "finetune"
    if task != "other":
        optional["pipeline_tag"] = task
    return {
        **{name: value for name, value in optional.items() if value},
        "library_name": "onnx",
        "tags": ["onnx", "calibration", "tna-onnx"],
        "model-index": [
            {
                "name": Path(report.output or report.model).stem,
                "results": [
                    {
                        "task": {"type": task, "name": "Classification"},
                        "dataset": {"type": slug, "name": printable(report.comparison.data)},
                        "metrics": [_metric(name, report) for name in _finite_metrics(report)],
                    }
                ],
            }
        ],
    }


def eval_results(report: Report, dataset: str) -> str:
    """Return the metrics in the form of the Hub's `.eval_results/NAME.yaml`, one task of the data set for each.

    Source: https://huggingface.co/docs/hub/eval-results
    """
    entries = []
    for name in _finite_metrics(report):
        metric = _metric(name, report)
        notes = metric["name"]
        if "args" in metric:
            notes += f", {metric['args']['bins']} bins"
        entries.append(
            {
                "dataset": {"id": dataset, "task_id": name},
                "value": metric["value"],
                "notes": f"{notes}; after recalibration with tna-onnx",
            }
        )
    return "".join(_yaml(entries))


def _finite_metrics(report: Report) -> list[str]:
    """Return the names of the metrics that are finite; a card has no word for the others."""
    c = report.comparison
    return [
        name
        for name, d in c.differences.items()
        if all(map(math.isfinite, (getattr(c.before, name), getattr(c.after, name), d.difference, d.low, d.high)))
    ]


def _metric(name: str, report: Report) -> dict[str, Any]:
    row = METRICS[name]
    c = report.comparison
    # fractions and nats, as in the JSON of the report
    unit = "fraction" if row.unit == "%" else row.unit
    words = [c.how, f"N = {c.before.n}", *([unit] if unit else [])]
    if report.labels:
        words.insert(0, "mean over labels")
    entry: dict[str, Any] = {"type": name, "value": getattr(c.after, name), "name": f"{row.label} ({', '.join(words)})"}
    if name in ("ece", "adaece"):
        entry["args"] = {"bins": c.before.bins}
    return entry


def _yaml(value: Any, indent: str = "", first: str | None = None) -> Iterator[str]:
    """Write mappings and lists as YAML blocks, everything else as JSON."""
    start = indent if first is None else first
    if isinstance(value, dict):
        for name, item in value.items():
            if isinstance(item, (dict, list)):
                yield f"{start}{name}:\n"
                yield from _yaml(item, f"{indent}  ")
            else:
                yield f"{start}{name}: {_scalar(item)}\n"
            start = indent
        return
    for item in value:
        if isinstance(item, dict):
            yield from _yaml(item, f"{indent}  ", f"{indent}- ")
        else:
            yield f"{indent}- {_scalar(item)}\n"


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        # YAML reads the escapes of JSON, but not two of them as one character
        return json.dumps(printable(value), ensure_ascii=False)
    text = json.dumps(value)
    # YAML 1.1 takes 1e-07 for a text, as it has no point
    if isinstance(value, float) and "." not in text:
        return text.replace("e", ".0e")
    return text


def _body(report: Report, figures: Sequence[str]) -> Iterator[str]:
    name = Path(report.output or report.model).name
    yield f"# {_plain(Path(name).stem)}\n"
    yield f"{_code(name)} is {_code(Path(report.model).name)} with recalibrated confidences. Programs that use the"
    yield "original need no change: all its inputs and outputs are there, with their names and shapes.\n"
    if report.guard is not None:
        names = ", ".join(_code(output.name) for output in report.guard.outputs)
        yield f"It has further outputs that decide: {names}.\n"
    yield f"**{_plain(report.verdict)}**\n"
    yield "## Measured\n"
    yield from _table(report)
    for link in figures:
        yield f"![{_FIGURES[PurePath(link).stem]}](<{link}>)\n"
    yield "## Use\n"
    yield "```python\nimport onnxruntime\n"
    yield f"session = onnxruntime.InferenceSession({json.dumps(printable(name), ensure_ascii=False)})"
    yield "print([(i.name, i.type, i.shape) for i in session.get_inputs()])\n```\n"
    yield "## How it was made\n"
    yield from _making(report)
    yield "## Limits\n"
    yield "The numbers hold for data like those above. Where data shift, measure again:\n"
    yield f"```bash\ntna-onnx evaluate {shlex.quote(printable(name))} --data NEW_DATA\n```\n"
    yield "Confidences are right on average over samples, not for each group of them or each single sample."


def _table(report: Report) -> Iterator[str]:
    c = report.comparison
    level = 100 * report.recall.balanced.level
    yield f"On {_code(c.data)}, {c.how}: N = {c.before.n:,}, {c.before.bins} bins.\n"
    if report.labels:
        yield "A sample has several labels; each metric is the mean over the labels.\n"
    yield f"| metric | before | after | difference ({level:g}% interval) |\n|---|---|---|---|"
    finite = _finite_metrics(report)
    for name, title, *sides, d in change_rows(c, report.recall):
        if name in finite:
            before, after = map(METRICS[name].number, sides)
            yield f"| {title} | {before} | {after} | {change_text(name, d)} |"
    yield ""


def _making(report: Report) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield f"- Input: {_code(report.model)}, SHA-256 {_code(report.model_sha256 or 'unknown')}"
    yield f"- Calibration data: {_code(report.calibration.data)}"
    if report.teacher is not None:
        yield f"- Teacher, in place of labels: {_code(report.teacher.model)}. {_plain(report.teacher.sentence)}."
    yield f"- Method: {_code(report.method)}, map {_code(report.map)}, seed {report.settings['seed']}"
    if report.preprocessing:
        yield f"- Preprocessing: {_code(json.dumps(report.preprocessing))}"
    yield f"- Versions: {_plain(versions)}"
    for note in report.notes:
        yield f"- Note: {_plain(note)}"
    yield ""


def _code(text: str) -> str:
    return f"`{printable(text).replace('`', chr(39))}`"


def _plain(text: str) -> str:
    r"""Escape what Markdown or HTML would take for marks.

    >>> _plain("a_b <i>")
    'a\\_b \\<i\\>'
    """
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", printable(text))
