r"""A study's table in LaTeX, with the commands of booktabs: mean with the deviation as a subscript, best in bold.

Method & ECE, \%            $1.66_{.10}$            \textbf{$0.66_{.14}$}
"""

from __future__ import annotations

import re

from tna_onnx.results.study import Column, Study

__all__ = ["escaped", "latex"]

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
    """Return the table; it needs the package booktabs."""
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
        cells = (_cell(study, row, column, row in best[column.name]) for column in columns)
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def escaped(text: str) -> str:
    r"""Escape what LaTeX would act on.

    >>> escaped("a_b & 5 %")
    'a\\_b \\& 5 \\%'
    """
    # control characters have no place in a line of a table
    plain = re.sub(r"[\x00-\x1f\x7f]", " ", text)
    return "".join(_SPECIAL.get(letter, letter) for letter in plain)


def _cell(study: Study, row: int, column: Column, best: bool) -> str:
    value = study.values(column.name)[row]
    if value is None or isinstance(value, str):
        return escaped(value or "")
    number = column.number(value)
    beside = [study.values(name)[row] for name in column.beside]
    if len(beside) == 1 and beside[0] is not None:
        # the paper writes no zero before the point of a deviation
        number = f"{number}_{{{re.sub('^0(?=[.])', '', column.number(beside[0]))}}}"
    if len(beside) == 2 and None not in beside:
        number = f"{number}\\;[{column.number(beside[0])}, {column.number(beside[1])}]"
    if best:
        return f"$\\mathbf{{{number}}}$"
    return f"${number}$"
