"""Reports read back from the JSON of `calibrate --json`, and the result of `card`.

Only the fields that describe a model are required.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tna_onnx.errors import UsageError
from tna_onnx.files import open_regular
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Interval
from tna_onnx.results.as_json import SCHEMA, to_json
from tna_onnx.results.report import Report

_KIND = f"tna-onnx/report/{SCHEMA}"
_MAX_BYTES = 2**28  # the details of a report of many classes are a few megabytes
_ADVICE = "write one with `tna-onnx calibrate --json FILE`"


@dataclass(frozen=True)
class Change:
    """A metric on the samples of the comparison.

    Attributes:
        metric: its name, a key of `METRICS`.
        before: of the input model, in the unit of the metric.
        after: of the recalibrated model, in the unit of the metric.
        interval: of the paired difference after - before.
    """

    metric: str
    before: float
    after: float
    interval: Interval


@dataclass(frozen=True)
class StoredReport:
    """What a report says of the written model.

    Fields are those of `Report` of the same name, or of its `comparison`, but these.

    Attributes:
        samples: number of samples N.
        bins: of ECE and AdaECE.
        changes: metrics before and after; one that is not finite is left out.
        calibration_data: what the calibration samples are, in one line.
        seed: of all random draws.
        balanced: balanced accuracy before and after, fractions; None in reports of earlier versions.
        decisions: names of the outputs that decide; empty without.
        labels: whether a sample has several labels, over which metrics are means.
    """

    model: str
    model_sha256: str
    output: str
    verdict: str
    method: str
    map: str
    classes: int
    data: str
    how: str
    samples: int
    bins: int
    changes: tuple[Change, ...]
    calibration_data: str
    preprocessing: dict[str, Any] | None
    versions: dict[str, str]
    notes: tuple[str, ...]
    seed: int
    balanced: Change | None = None
    decisions: tuple[str, ...] = ()
    labels: bool = False


def stored_report(result: Report | str | Path) -> StoredReport:
    """Read a report.

    Args:
        result: path of what `--json` wrote, or the report itself.

    Raises:
        UsageError: no such file, not the JSON of a calibration, or of one that wrote no model.
    """
    if isinstance(result, Report):
        where = "the report"
        values = json.loads(to_json(result))
    else:
        where = str(result)
        values = _read(Path(result))
    if values["missed"] or values["dry_run"]:
        raise UsageError(f"{where}: is of a run that wrote no model; expected one that did, so run it without the gate")
    try:
        return _report(values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{where}: is not a whole report ({type(error).__name__}: {error}); {_ADVICE}") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        with open_regular(path.resolve()) as stream:
            values = json.loads(stream.read(_MAX_BYTES))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}; {_ADVICE}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is not JSON; {_ADVICE}") from error
    kind = values.get("schema") if isinstance(values, dict) else None
    if kind != _KIND:
        raise UsageError(f"{path}: expected the JSON of a calibration ({_KIND}), found {kind!r}; {_ADVICE}")
    return {"missed": [], "dry_run": False, **values}


def _report(values: dict[str, Any]) -> StoredReport:
    comparison = values["comparison"]
    before = comparison["before"]
    preprocessing = values["preprocessing"]
    return StoredReport(
        **{name: _text(values[name]) for name in ("model", "model_sha256", "output", "verdict", "method", "map")},
        classes=int(values["classes"]),
        data=_text(comparison["data"]),
        how=_text(comparison["how"]),
        samples=int(before["n"]),
        bins=int(before["bins"]),
        changes=tuple(_changes(comparison)),
        calibration_data=_text(values["calibration"]["data"]),
        preprocessing=None if preprocessing is None else dict(preprocessing),
        versions={_text(name): _text(version) for name, version in values["versions"].items()},
        notes=tuple(_text(note) for note in values["notes"]),
        seed=int(values["settings"]["seed"]),
        balanced=_balanced(values.get("recall")),
        decisions=tuple(_text(output["name"]) for output in (values.get("guard") or {}).get("outputs", ())),
        labels=bool(values.get("labels")),
    )


def _balanced(recall: dict[str, Any] | None) -> Change | None:
    if recall is None:
        return None
    before, after = float(recall["balanced_before"]), float(recall["balanced_after"])
    return Change("accuracy", before, after, Interval(**recall["balanced"]))


def _changes(comparison: dict[str, Any]) -> list[Change]:
    changes = []
    for name in METRICS:
        before = comparison["before"][name]
        after = comparison["after"][name]
        ends = comparison["differences"][name]
        numbers = (before, after, ends["difference"], ends["low"], ends["high"])
        # JSON has null for what is not finite, and a card has no word for it
        if all(isinstance(value, (int, float)) and math.isfinite(value) for value in numbers):
            changes.append(Change(name, float(before), float(after), Interval(**ends)))
    return changes


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, found {value!r}")
    return value


@dataclass(frozen=True)
class Card:
    """What describes a recalibrated model to others.

    Attributes:
        text: the model card: Markdown behind a header of YAML, as the Hugging Face Hub reads it.
    """

    text: str
