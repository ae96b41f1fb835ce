"""Provenance: command line, files and their digests, preprocessing, settings, device, versions."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from tna_onnx.render.html.blocks import Term
from tna_onnx.render.html.words import plain, recipe_text, versions_text
from tna_onnx.results.as_json import to_json
from tna_onnx.results.details import Details
from tna_onnx.results.report import Report

__all__ = ["Run", "run"]

# Settings that have a line of their own.
_ELSEWHERE = ("seed", "search", "objective", "tilt", "gates", "device", "computed_on", "ensemble_size_asked")


@dataclass(frozen=True)
class Run:
    """What the section shows; `numbers` is the whole report as JSON, gzipped, in base64, and `name` its file's."""

    terms: tuple[Term, ...]
    numbers: str
    name: str


def run(report: Report, details: Details, command: str, sources: Mapping[str, str] | None = None) -> Run:
    """Return the values of the section; the arguments are those of `_terms`."""
    # mtime: the same report gives the same page
    packed = gzip.compress(to_json(report, details=True).encode(), mtime=0)
    name = f"{PurePath(report.model).stem}.report.json.gz"
    return Run(_terms(report, details, command, sources), base64.b64encode(packed).decode(), name)


def _terms(report: Report, details: Details, command: str, sources: Mapping[str, str] | None) -> tuple[Term, ...]:
    """Return what was run, on what, and when.

    Args:
        report: made with details.
        details: its details.
        command: command line that made it, if there was one.
        sources: settings that are not on it -> their values, and where these come from.
    """
    made = details.made
    terms = [
        Term("Date", f"{made.date.replace('T', ' ').replace('+00:00', ' UTC')}, took {_duration(made.seconds)}"),
        Term("Model", report.model),
        Term("SHA-256", report.model_sha256, code=True),
        Term("Calibration data", f"{report.calibration.data} (N = {report.calibration.before.n:,})"),
        Term("SHA-256 of calibration data", made.calibration_sha256, code=True),
        Term("Reported on", f"{report.comparison.data} ({report.comparison.how})"),
    ]
    if made.held_out_sha256:
        terms.append(Term("SHA-256 of held-out data", made.held_out_sha256, code=True))
    terms.append(Term("Preprocessing", recipe_text(report.preprocessing)))
    if sources:
        values = ", ".join(f"{flag} {value}" for flag, value in sources.items())
        terms.insert(0, Term("From files and the environment", values))
    if command:
        terms.insert(0, Term("Command to repeat it", command, code=True))
    # held-out data can have a recipe of their own
    if details.preprocessing != report.preprocessing:
        terms.append(Term("Preprocessing, held-out", recipe_text(details.preprocessing)))
    terms += [
        Term("Search", f"{report.search}, objective {report.objective.upper()}, on {report.settings['computed_on']}"),
        Term("Seed", str(report.settings["seed"])),
        Term("Settings", _settings_text(report)),
        Term("Gates", _gates_text(report)),
        Term("Device asked for", details.device),
        Term("Provider obtained", report.provider),
        Term("Versions", versions_text(report.versions)),
    ]
    if report.methods:
        values = ", ".join(f"{each.method} {each.metrics.nll:.4f}" for each in report.methods)
        terms.append(Term("Methods compared", f"cross-validated NLL: {values}"))
    return tuple(terms)


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
    return ", ".join(f"{name.replace('_', '-')} {_setting(name, value)}" for name, value in settings.items())


def _setting(name: str, value: object) -> str:
    # 0 stands for the limit of many
    if name.endswith("ensemble_size") and value == 0:
        return "inf"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return plain(value)


def _gates_text(report: Report) -> str:
    """Write the gates that were set: flags alone, limits with their values."""
    gates = report.settings.get("gates")
    if not isinstance(gates, dict):
        return "none"
    texts = []
    for name, value in gates.items():
        flag = name.replace("_", "-")
        if value is True:
            texts.append(flag)
        elif value is not None and value is not False:
            texts.append(f"{flag} {plain(value)}")
    return ", ".join(texts) or "none"
