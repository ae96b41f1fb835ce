"""Provenance: command line, files and their digests, preprocessing, settings, device, versions."""

from __future__ import annotations

from collections.abc import Mapping

from tna_onnx.render.html.blocks import Code, plain, terms
from tna_onnx.results.details import Details
from tna_onnx.results.report import Report

__all__ = ["run"]


def run(report: Report, details: Details, command: str, sources: Mapping[str, str] | None = None) -> str:
    """Write the section.

    Args:
        report: made with details.
        details: its details.
        command: command line that made it, if there was one.
        sources: settings that are not on it -> their values, and where these come from.
    """
    recipe = report.preprocessing
    listed = [
        ("Model", report.model),
        ("SHA-256", Code(report.model_sha256)),
        ("Calibration data", f"{report.calibration.data} (N = {report.calibration.before.n:,})"),
        ("Reported on", f"{report.comparison.data} ({report.comparison.how})"),
        ("Preprocessing", _recipe_text(recipe)),
        ("Search", f"{report.search}, objective {report.objective.upper()}, on {report.settings['computed_on']}"),
        ("Seed", str(report.settings["seed"])),
        ("Settings", _settings_text(report)),
        ("Gates", _gates_text(report)),
        ("Device asked for", details.device),
        ("Provider obtained", report.provider),
        ("Versions", ", ".join(f"{k} {v}" for k, v in report.versions.items())),
    ]
    if details.preprocessing != recipe:
        listed.insert(5, ("Preprocessing, held-out", _recipe_text(details.preprocessing)))
    if report.map_nll:
        values = ", ".join(f"{name} {value:.4f}" for name, value in report.map_nll.items())
        listed.append(("Maps compared", f"cross-validated NLL: {values}"))
    if sources:
        listed.insert(0, ("From files and the environment", ", ".join(f"{k} {v}" for k, v in sources.items())))
    if command:
        listed.insert(0, ("Command", Code(command)))
    return terms(listed)


# Settings that have a line of their own.
_ELSEWHERE = ("seed", "search", "objective", "tilt", "gates", "device", "computed_on", "ensemble_size_asked")


def _settings_text(report: Report) -> str:
    """Write the settings in the words of the command line, accuracy in percentage points as there."""
    settings = {k: v for k, v in report.settings.items() if k not in _ELSEWHERE}
    if report.settings["ensemble_size_asked"] == "auto":
        settings["ensemble_size"] = f"auto (from {report.settings['ensemble_size']})"
    tilt = report.settings.get("tilt")
    settings.update(tilt if isinstance(tilt, dict) else {})
    return ", ".join(f"{name.replace('_', '-')} {_setting(name, value)}" for name, value in settings.items())


def _gates_text(report: Report) -> str:
    gates = report.settings.get("gates")
    given = {k: v for k, v in gates.items() if v is not None and v is not False} if isinstance(gates, dict) else {}
    return ", ".join(k.replace("_", "-") + ("" if v is True else f" {plain(v)}") for k, v in given.items()) or "none"


def _setting(name: str, value: object) -> str:
    if name == "max_accuracy_drop" and isinstance(value, float):
        return plain(100 * value)
    if name.endswith("ensemble_size") and value == 0:
        return "inf"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else plain(value)


def _recipe_text(recipe: dict[str, object] | None) -> str:
    if recipe is None:
        return "none, used as stored"
    return ", ".join(f"{name} {plain(value)}" for name, value in recipe.items() if value is not None)
