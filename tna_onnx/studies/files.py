"""Studies as files: CSV, JSON and LaTeX; and a study read back from its JSON.

Cells of names and sentences must not act in a spreadsheet: one that begins with =, +, -, @ or a control character gets
an apostrophe before it. Numbers are written with all their digits, in stored units.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from tna_onnx.errors import ResultError
from tna_onnx.files import open_regular, write_file
from tna_onnx.results.as_json import to_json
from tna_onnx.results.study import Cell, Chart, Column, Line, Study
from tna_onnx.studies.latex import latex

__all__ = ["read_study", "to_csv", "write_study"]

_ACTING = ("=", "+", "-", "@", "\t", "\r", "\n")

# A study's JSON is a few megabytes at most; what is larger is none.
_MAX_BYTES = 2**28


def write_study(folder: Path, study: Study) -> None:
    """Write a study's files; the JSON comes last, because a later run reads it.

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
    writer.writerow([column.name for column in study.columns])
    writer.writerows([[_cell(value) for value in row] for row in study.rows])
    return text.getvalue()


def _cell(value: Cell) -> str | int | float:
    if value is None:
        return ""
    if isinstance(value, str) and value.startswith(_ACTING):
        return f"'{value}"
    return value


def read_study(folder: Path, name: str) -> Study | None:
    """Return a study that a folder holds; None if there is none that can be read."""
    try:
        with open_regular(folder / f"{name}.json") as stream:
            values = json.loads(stream.read(_MAX_BYTES))
        return _study(values)
    # whatever stands there was not written by this version: it is made again
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _study(values: dict[str, Any]) -> Study:
    columns = tuple(Column(**{**each, "beside": tuple(each["beside"])}) for each in values["columns"])
    rows = tuple(tuple(row) for row in values["rows"])
    if any(len(row) != len(columns) for row in rows):
        raise ValueError("rows and columns differ")
    own = {key: values[key] for key in ("name", "title", "element", "sentence", "digest")}
    charts = tuple(_chart(each) for each in values["charts"])
    return Study(columns=columns, rows=rows, charts=charts, notes=tuple(values["notes"]), **own)


def _chart(values: dict[str, Any]) -> Chart:
    lines = tuple(_line(each) for each in values["lines"])
    y_range = None if values["y_range"] is None else tuple(values["y_range"])
    return Chart(**{**values, "lines": lines, "y_range": y_range, "x_names": tuple(values["x_names"])})


def _line(values: dict[str, Any]) -> Line:
    own: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return Line(**own)
