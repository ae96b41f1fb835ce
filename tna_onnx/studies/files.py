r"""Studies as files: CSV, JSON and a LaTeX table; and a study read back from its JSON.

Names and sentences must not act as formulas in a spreadsheet: a CSV cell that begins with =, +, -, @ or a control
character gets an apostrophe before it. Numbers are written with all their digits, in stored units.

The LaTeX table uses the commands of booktabs: means with the deviation as a subscript, the best in bold.

Method & ECE, \%            $1.66_{.10}$            \textbf{$0.66_{.14}$}
"""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

from tna_onnx.errors import ResultError
from tna_onnx.files import open_regular, write_file
from tna_onnx.results.as_json import from_json, to_json
from tna_onnx.results.study import Cell, Column, Study

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}

_ARROWS = {1: r" ($\uparrow$)", -1: r" ($\downarrow$)", 0: ""}


_PRINTED = {"table": ("method", "accuracy", "ece", "adaece")}
"""Columns of the paper's own tables, where a study has more."""


def latex(study: Study) -> str:
    """Return the table of a study in LaTeX; it needs the package booktabs."""
    printed = _PRINTED.get(study.name, ())
    columns = [column for column in study.shown if not printed or column.name in printed]
    best = {column.name: study.best(column) for column in columns}
    heads = " & ".join(escaped(column.title) + _ARROWS[column.better] for column in columns)
    lines = [
        f"% {study.title}; written by tna-onnx, needs \\usepackage{{booktabs}}",
        f"\\begin{{tabular}}{{{''.join('l' if k == 0 else 'c' for k in range(len(columns)))}}}",
        "\\toprule",
        heads + r" \\",
        "\\midrule",
    ]
    for row in range(len(study.rows)):
        cells = [_latex_number(study, row, column, row in best[column.name]) for column in columns]
        if marks := study.marks(row):
            cells[0] += f"$^{{{_latex_marks(marks)}}}$"
        lines.append(" & ".join(cells) + r" \\")
    lines.append("\\bottomrule")
    for footnote in study.footnotes:
        text = f"$^{{{_latex_marks(footnote.mark)}}}$ {escaped(footnote.text)}"
        lines.append(f"\\multicolumn{{{len(columns)}}}{{p{{\\linewidth}}}}{{\\footnotesize {text}}} \\\\")
    return "\n".join([*lines, "\\end{tabular}", ""])


def _latex_marks(marks: str) -> str:
    return marks.replace("†", "\\dagger").replace("‡", "\\ddagger")


def escaped(text: str) -> str:
    r"""Escape the special characters of LaTeX.

    >>> escaped("a_b & 5 %")
    'a\\_b \\& 5 \\%'
    """
    # control characters have no place in a line of a table
    plain = re.sub(r"[\x00-\x1f\x7f]", " ", text)
    return "".join(_SPECIAL.get(letter, letter) for letter in plain)


def _latex_number(study: Study, row: int, column: Column, best: bool) -> str:
    value = study.values(column.name)[row]
    if value is None or isinstance(value, str):
        return escaped(value or "")
    number = column.number(value)
    extras = [study.values(name)[row] for name in column.beside]
    if len(extras) == 1 and extras[0] is not None:
        # the paper writes no zero before the point of a deviation
        number = f"{number}_{{{re.sub('^0(?=[.])', '', column.number(extras[0]))}}}"
    if len(extras) == 2 and None not in extras:
        number = f"{number}\\;[{column.number(extras[0])}, {column.number(extras[1])}]"
    if best:
        return f"$\\mathbf{{{number}}}$"
    return f"${number}$"


_ACTING = ("=", "+", "-", "@", "\t", "\r", "\n")

# A study's JSON is a few megabytes at most; what is larger is none.
_MAX_BYTES = 2**28


def write_study(folder: Path, study: Study) -> None:
    """Write a study's files; the JSON comes last, because a later run takes it for complete.

    Raises:
        ResultError: one cannot be written.
    """
    texts = {"csv": to_csv(study), "tex": latex(study), "json": to_json(study)}
    for ending, text in texts.items():
        path = folder / f"{study.name}.{ending}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_file(path, text.encode())
        except OSError as error:
            raise ResultError(f"{path}: cannot be written: {error.strerror}") from error


def to_csv(study: Study) -> str:
    """Return the rows as CSV with a head of column names."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*(column.name for column in study.columns), *(("footnotes",) if study.footnotes else ())])
    for k, row in enumerate(study.rows):
        remarks = [footnote.text for footnote in study.footnotes if k in footnote.rows]
        writer.writerow([*map(_csv_cell, row), *((" ".join(remarks),) if study.footnotes else ())])
    return text.getvalue()


def _csv_cell(value: Cell) -> str | int | float:
    if value is None:
        return ""
    if isinstance(value, str) and value.startswith(_ACTING):
        return f"'{value}"
    return value


def read_study(folder: Path, name: str) -> Study | None:
    """Read a study from a folder; return None if there is none that can be read."""
    try:
        with open_regular(folder / f"{name}.json") as stream:
            study = from_json(Study, json.loads(stream.read(_MAX_BYTES)))
    # whatever is there, this version did not write it: the study is computed again
    except (OSError, ValueError, RecursionError):
        return None
    if any(len(row) != len(study.columns) for row in study.rows):
        return None
    return study
