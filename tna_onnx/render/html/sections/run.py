"""Provenance: command line, files and their digests, preprocessing, settings, device, versions."""

from __future__ import annotations

from collections.abc import Mapping

from tna_onnx.render.html.blocks import Term
from tna_onnx.render.html.words import plain, recipe_text, versions_text
from tna_onnx.results.details import Details
from tna_onnx.results.report import Report

__all__ = ["run"]

# Settings that have a line of their own.
_ELSEWHERE = ("seed", "search", "objective", "tilt", "gates", "device", "computed_on", "ensemble_size_asked")


def run(report: Report, details: Details, command: str, sources: Mapping[str, str] | None = None) -> tuple[Term, ...]:
    """Return the terms of the section.

    Args:
        report: made with details.
        details: its details.
        command: command line that made it, if there was one.
        sources: settings that are not on it -> their values, and where these come from.
    """
    terms = [
        Term("Model", report.model),
        Term("SHA-256", report.model_sha256, code=True),
        Term("Calibration data", f"{report.calibration.data} (N = {report.calibration.before.n:,})"),
        Term("Reported on", f"{report.comparison.data} ({report.comparison.how})"),
        Term("Preprocessing", recipe_text(report.preprocessing)),
    ]
    if sources:
        values = ", ".join(f"{flag} {value}" for flag, value in sources.items())
        terms.insert(0, Term("From files and the environment", values))
    if command:
        terms.insert(0, Term("Command", command, code=True))
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
