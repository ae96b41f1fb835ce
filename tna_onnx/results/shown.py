"""What results can do in a notebook: a page, pictures, plain values, a data frame.

Drawing lies above the results, so it is loaded by name, and only when it is asked for; so is pandas.
"""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tna_onnx.errors import UsageError
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Interval, Metrics
from tna_onnx.results.as_json import to_json

__all__ = ["Record", "Shown", "difference_record", "metric_record", "values_text"]

_RENDER = "tna_onnx.render.notebook"

Record = dict[str, Any]
"""A row by the names of its columns; numbers in the units that arguments have, as a reader sees them."""


class Shown(ABC):
    """A result that shows itself."""

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
        return data_frame(self.records())

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: a page in a frame of its own, which loads nothing."""
        text: str = importlib.import_module(_RENDER).fragment(self)
        return text

    def plot(self) -> Any:
        """Return a matplotlib figure; of several studies one for each, by its name.

        Raises:
            UsageError: matplotlib is not installed; the message names the extra.
        """
        return importlib.import_module(_RENDER).figure(self)

    def save_html(self, path: str | Path) -> Path:
        """Write the page, one file with its drawings inside, and return its path.

        Raises:
            UsageError: it cannot be written.
        """
        written: Path = importlib.import_module(_RENDER).save_page(self, Path(path))
        return written


def data_frame(records: list[Record]) -> Any:
    """Return a pandas DataFrame.

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
    return pandas.DataFrame(records)


def metric_record(name: str, **values: float | None) -> Record:
    """Return the name of a metric, its unit, and values in that unit."""
    metric = METRICS[name]
    shown = {key: None if value is None else metric.factor * value for key, value in values.items()}
    return {"metric": name, "unit": metric.unit, **shown}


def difference_record(name: str, differences: Mapping[str, Interval]) -> Record:
    """Return the difference of a metric with the ends of its interval, and their unit; None where there is none."""
    metric = METRICS[name]
    found = differences.get(name)
    ends = {"difference": None, "low": None, "high": None}
    if found is not None:
        ends = {key: metric.factor * getattr(found, key) for key in ends}
    return {**ends, "difference_unit": metric.change_unit}


def values_text(*stages: Metrics) -> str:
    """Write accuracy, ECE and NLL, from one stage to the next."""
    texts = []
    for name in ("accuracy", "ece", "nll"):
        metric = METRICS[name]
        numbers = " -> ".join(metric.number(getattr(stage, name)) for stage in stages)
        texts.append(f"{metric.label} {numbers} {metric.unit}".rstrip())
    return ", ".join(texts)
