"""A model card as the Hugging Face Hub reads it, from the template `card.md`: a header of YAML, then Markdown.

In YAML every text is a JSON string, which no content can leave. In Markdown, what came out of a file stands in code
spans or has its marks escaped.
"""

import json
import math
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from tna_onnx.files import printable
from tna_onnx.render.wording import change_rows
from tna_onnx.results.report import Report


def model_card(report: Report, header: Mapping[str, str | None]) -> str:
    """Return the text of a card.

    `header`: entries of the Hub that a report does not know, such as `license` and `base_model`; None is left out.
    """
    environment = Environment(  # not HTML: the filters escape what JSON and Markdown would take for marks
        loader=PackageLoader("tna_onnx.render", "."),
        autoescape=False,  # noqa: S701
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["json"] = lambda text: json.dumps(printable(text), ensure_ascii=False)
    environment.filters["code"] = lambda text: f"`{printable(text).replace('`', chr(39))}`"
    environment.filters["plain"] = lambda text: re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", printable(text))
    environment.filters["quote"] = lambda text: shlex.quote(printable(text))
    # YAML 1.1 takes 1e-07 for a text
    environment.filters["number"] = lambda value: np.format_float_positional(value, trim="0")
    rows = [
        row
        for row in change_rows(report.comparison, report.recall)
        if all(map(math.isfinite, (row.before, row.after, row.d.low, row.d.high)))
    ]
    name = Path(report.output or report.model).name
    return environment.get_template("card.md").render(report=report, header=header, rows=rows, name=name)
