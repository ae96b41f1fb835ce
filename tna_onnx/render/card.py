"""A model card as the Hugging Face Hub reads it, from the template `card.md`: a header of YAML, then Markdown.

In YAML every text is a JSON string, which no content can leave. In Markdown, what came out of a file stands in code
spans or has its marks escaped.
"""

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from tna_onnx.files import printable
from tna_onnx.numerics.metric import JUDGED, POSITIVE_ECE
from tna_onnx.render.rows import change_rows, change_text
from tna_onnx.results.report import Report

MARK = "<!-- written by tna-onnx card -->"
"""Tells a card that this module wrote from one that a person did."""


def model_card(report: Report, header: Mapping[str, str | None], figures: Mapping[str, str] | None = None) -> str:
    """Return the text of a card.

    `header`: entries of the Hub that a report does not know, such as `license`, `base_model` and `pipeline_tag`; None
    is left out. `figures`: links to pictures, and what they show.
    """
    environment = Environment(  # not HTML: the filters escape what JSON and Markdown would take for marks
        loader=PackageLoader("tna_onnx.render", "."),
        autoescape=False,  # noqa: S701
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"json": _json, "plain": _plain, "code": _code}
    name, c = Path(report.output or report.model).name, report.comparison
    finite = {
        metric
        for metric, d in c.differences.items()
        if all(map(math.isfinite, (c.before.value(metric), c.after.value(metric), d.difference, d.low, d.high)))
    }
    return environment.get_template("card.md").render(
        report=report,
        c=c,
        header=header,
        # a report knows of images alone
        task=header.get("pipeline_tag") or ("image-classification" if report.preprocessing else "other"),
        name=name,
        stem=Path(name).stem,
        source=Path(report.model).name,
        # what the Hub takes for the id of a data set
        slug=re.sub(r"[^\w.]+", "-", c.data.partition(" (")[0]).strip("-") or "data",
        metrics=[_metric(metric, report) for metric in c.differences if metric in finite],
        rows=list(_rows(report, finite)),
        figures=figures or {},
        quoted=shlex.quote(printable(name)),
        mark=MARK,
    )


def _metric(name: str, report: Report) -> dict[str, str]:
    row, c = JUDGED[name], report.comparison
    # fractions and nats, as in the JSON of the report
    words = [c.how, f"N = {c.before.n}", "fraction" if row.unit == "%" else row.unit, f"{c.before.bins} bins"]
    if report.labels:
        words.insert(0, "worst label" if name == POSITIVE_ECE else "mean over labels")
    if name not in ("ece", "adaece", POSITIVE_ECE):
        words.pop()
    # YAML 1.1 takes 1e-07 for a text
    value = np.format_float_positional(c.after.value(name), trim="0")
    return {"type": name, "value": value, "name": f"{row.label} ({', '.join(filter(None, words))})"}


def _rows(report: Report, finite: set[str]) -> Iterator[tuple[str, ...]]:
    for name, title, *sides, d in change_rows(report.comparison, report.recall):
        if name in finite:
            yield title, *map(JUDGED[name].number, sides), change_text(name, d)


def _json(value: Any) -> str:
    return json.dumps(printable(value) if isinstance(value, str) else value, ensure_ascii=False)


def _code(text: str) -> str:
    return f"`{printable(text).replace('`', chr(39))}`"


def _plain(text: str) -> str:
    r"""Escape what Markdown or HTML would take for marks.

    >>> _plain("a_b <i>")
    'a\\_b \\<i\\>'
    """
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", printable(text))
