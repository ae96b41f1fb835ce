"""Results as JSON and back, and in notebooks (`Displayed`: a page, figures, plain values, a data frame).

JSON holds the fields of the dataclasses by name, plus `schema`, `kind`, and the verdict. Numbers that are not finite
become null, and null becomes NaN again where a field must hold a number.
"""

from __future__ import annotations

import dataclasses
import html
import importlib
import json
import math
import types
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from tna_onnx.errors import UsageError, writing
from tna_onnx.files import write_file
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Interval, Metrics

SCHEMA = 1
"""Raised when a field changes its meaning or goes away."""


def to_json(result: Any, *, details: bool = False) -> str:
    """Return a result dataclass as a JSON text, with the details of a report if asked; floats keep all their digits."""
    kind = type(result).__name__.lower()
    entries: dict[str, Any] = {"schema": f"tna-onnx/{kind}/{SCHEMA}", "kind": kind}
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        if field.repr or (details and field.name == "details" and value is not None):  # without repr: no plain values
            entries[field.name] = _plain(value)
    if hasattr(result, "verdict"):
        entries["verdict"] = result.verdict
    # allow_nan: should one have slipped through, fail rather than write what no parser reads
    return json.dumps(entries, indent=2, allow_nan=False) + "\n"


def _plain(content: Any) -> Any:
    """Dataclasses become objects, tuples arrays, numbers that are not finite null."""
    if dataclasses.is_dataclass(content) and not isinstance(content, type):
        return {field.name: _plain(getattr(content, field.name)) for field in dataclasses.fields(content)}
    if isinstance(content, dict):
        return {key: _plain(item) for key, item in content.items()}
    if isinstance(content, (tuple, list)):
        return [_plain(item) for item in content]
    # NumPy's scalars are no JSON numbers
    if isinstance(content, np.generic):
        content = content.item()
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content


Result = TypeVar("Result")


def from_json(kind: type[Result], values: Any) -> Result:
    """Return the dataclass that `to_json` wrote as `values`; keys that are no fields are ignored.

    Raises:
        ValueError: a field is missing or has another type; the message says which.
    """
    result: Result = _read(kind, values, kind.__name__)
    return result


_hints = cache(get_type_hints)


def _read(hint: Any, content: Any, where: str) -> Any:
    """Return a JSON value as the type of its field."""
    origin = get_origin(hint)
    parts = get_args(hint)
    if hint in (Any, object) or (origin is Literal and content in parts):
        return content
    if dataclasses.is_dataclass(hint) and isinstance(content, dict):
        return _read_fields(hint, content, where)
    if origin in (Union, types.UnionType):
        return _read_union(parts, content, where)
    if origin is tuple and isinstance(content, list):
        return _read_items(parts, content, where)
    if origin in (dict, Mapping) and isinstance(content, dict):
        return {name: _read(parts[1], item, f"{where}.{name}") for name, item in content.items()}
    return _read_scalar(hint, content, where)


def _read_scalar(hint: Any, content: Any, where: str) -> Any:
    if hint is float and content is None:
        return math.nan
    if hint is float and type(content) is int:
        return float(content)
    if hint in (str, int, float, bool) and type(content) is hint:
        return content
    raise ValueError(f"{where}: expected {getattr(hint, '__name__', hint)}, found {content!r}")


def _read_items(hints: tuple[Any, ...], values: list[Any], where: str) -> tuple[Any, ...]:
    if hints[-1] is Ellipsis:
        hints = hints[:1] * len(values)
    if len(hints) != len(values):
        raise ValueError(f"{where}: expected {len(hints)} values, found {len(values)}")
    pairs = zip(hints, values, strict=True)
    return tuple(_read(hint, value, f"{where}[{k}]") for k, (hint, value) in enumerate(pairs))


def _read_fields(kind: Any, values: dict[str, Any], where: str) -> Any:
    read = {}
    for field in dataclasses.fields(kind):
        if field.name in values:
            read[field.name] = _read(_hints(kind)[field.name], values[field.name], f"{where}.{field.name}")
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where}: '{field.name}' is missing")
    return kind(**read)


def _read_union(choices: tuple[Any, ...], content: Any, where: str) -> Any:
    """Return a value as the first type that it fits; null is None before it is NaN."""
    if content is None and type(None) in choices:
        return None
    errors = []
    for choice in choices:
        if choice is not type(None):
            try:
                return _read(choice, content, where)
            except ValueError as error:
                errors.append(error)
    raise errors[-1]


Record = dict[str, Any]
"""A row by the names of its columns; numbers in the units that arguments have, as a reader sees them."""


class Displayed(ABC):
    """Base class of results that display themselves in a notebook."""

    @abstractmethod
    def records(self) -> list[Record]:
        """Return the rows of `to_pandas` as plain values in the units of arguments: per cent, points, nats, degrees."""

    def to_dict(self) -> dict[str, Any]:
        """Return what `--json` writes, as plain values: shares are fractions there, as in the fields of a result."""
        values: dict[str, Any] = json.loads(to_json(self, details=getattr(self, "details", None) is not None))
        return values

    def to_pandas(self) -> Any:
        """Return `records()` as a pandas DataFrame; of several studies one for each, by its name.

        Raises:
            UsageError: pandas is not installed.
        """
        try:
            # no dependency of this package
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise UsageError(
                f"to_pandas needs pandas, which cannot be imported ({error}); run pip install pandas, or use records()"
            ) from error
        return pandas.DataFrame(self.records())

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: a page in a frame of its own, which loads nothing."""
        style = "width:100%;height:40rem;border:0"
        return f'<iframe title="tna-onnx" style="{style}" srcdoc="{html.escape(self._page())}"></iframe>'

    def save_figures(self, folder: str | Path) -> tuple[Path, ...]:
        """Write the figures as SVG files into a folder, which is made if it is missing, and return their paths.

        Raises:
            ResultError: a file cannot be written.
        """
        # what draws lies above, and loads for what somebody looks at
        figures = importlib.import_module("tna_onnx.render.figures")
        return tuple(figures.write_figures(self, Path(folder)))

    def save_html(self, path: str | Path) -> Path:
        """Write the page, one file with its drawings inside, and return its path.

        Raises:
            UsageError: it cannot be written.
        """
        with writing(path, UsageError):
            write_file(Path(path), self._page().encode())
        return Path(path)

    def _page(self) -> str:
        return str(importlib.import_module("tna_onnx.render.html.pages").page_of(self))


def metric_record(name: str, **values: float | None) -> Record:
    """Return the name of a metric, its unit, and values in that unit."""
    metric = METRICS[name]
    converted = {key: None if value is None else metric.factor * value for key, value in values.items()}
    return {"metric": name, "unit": metric.unit, **converted}


def difference_record(name: str, differences: Mapping[str, Interval]) -> Record:
    """Return the difference of a metric with the ends of its interval, and their unit; None where there is none."""
    metric = METRICS[name]
    difference = differences.get(name)
    ends = {"difference": None, "low": None, "high": None}
    if difference is not None:
        ends = {key: metric.factor * getattr(difference, key) for key in ends}
    return {**ends, "difference_unit": metric.change_unit}


def values_text(*stages: Metrics) -> str:
    """Write accuracy, ECE and NLL, from one stage to the next."""
    texts = []
    for name in ("accuracy", "ece", "nll"):
        metric = METRICS[name]
        numbers = " -> ".join(metric.number(getattr(stage, name)) for stage in stages)
        texts.append(f"{metric.label} {numbers} {metric.unit}".rstrip())
    return ", ".join(texts)
