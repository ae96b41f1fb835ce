"""A report as one MLflow run: parameters, metrics, the search curve, the files of the run, and the model.

MLflow decides where runs go, as always: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, MLFLOW_RUN_ID and so on.

    parameters   settings.seed, map, angle, preprocessing.mean, ...: words and settings; fitted.temperature, ...
    metrics      before.ece, after.ece, difference.ece and difference.ece.low, .high; the same on the calibration
                 data, which were fitted, under calibration.*; fractions, NLL in nats, as in the JSON
    curve        curve.angle, curve.reached, curve.members, curve.objective, curve.accuracy; step k is candidate k
    tags         tna_onnx.verdict, tna_onnx.missed (gates), tna_onnx.version.PACKAGE
    artifacts    report.json, what else was written (the HTML report, figures/), model/ with its external data
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tna_onnx.data.optional import optional
from tna_onnx.errors import TnaError
from tna_onnx.numerics.metric import METRICS
from tna_onnx.results.as_json import to_json
from tna_onnx.results.report import Comparison, Report

__all__ = ["TrackingError", "log_report", "require_mlflow"]

# MLflow's limits: characters of a parameter, metrics and parameters in one request.
_MOST_CHARACTERS, _MOST_METRICS, _MOST_PARAMETERS = 500, 1000, 100


class TrackingError(TnaError):
    """The run could not be logged; what it wrote is there."""

    exit_code = 6


def require_mlflow() -> None:
    """Check that runs can be logged.

    Raises:
        UsageError: MLflow cannot be imported; the message names the extra.
    """
    optional("mlflow", "mlflow", "logging to MLflow")


def log_report(
    report: Report, experiment: str | None = None, artifacts: Mapping[str, Sequence[str | Path]] | None = None
) -> str:
    """Log a report as a run, and return where it is.

    Args:
        report: of a calibration; its model file is logged if one was written.
        experiment: name; MLflow's default without it.
        artifacts: folder in the run ("" is the top) -> files.

    Raises:
        UsageError: MLflow is missing.
        TrackingError: MLflow or its server did not take the run.
    """
    mlflow = optional("mlflow", "mlflow", "logging to MLflow")
    for speaker in ("alembic", "mlflow.store.db.utils"):  # they speak of every table of a new database
        logging.getLogger(speaker).setLevel(logging.WARNING)
    try:
        where = None if experiment is None else _experiment(mlflow, experiment)
        with mlflow.start_run(experiment_id=where, run_name=Path(report.model).stem) as run:
            _log(mlflow, run.info.run_id, report)
            for folder, files in {**(artifacts or {}), "model": _model_files(report)}.items():
                for file in files:
                    mlflow.log_artifact(str(file), folder or None)
        return f"run {run.info.run_id} in {mlflow.get_tracking_uri()}"
    except Exception as error:  # whatever MLflow and its stores raise must not look like a lost model
        written = f"; {report.output} is written" if report.output else ""
        raise TrackingError(f"MLflow did not take the run: {_first_line(error)}{written}") from error


def _experiment(mlflow: Any, name: str) -> str:
    """Return the id of an experiment, which is made if there is none of that name."""
    found = mlflow.get_experiment_by_name(name)
    return str(mlflow.create_experiment(name) if found is None else found.experiment_id)


def _log(mlflow: Any, run: str, report: Report) -> None:
    entities, client = mlflow.entities, mlflow.MlflowClient()
    now = mlflow.utils.time.get_current_time_millis()
    parameters = [entities.Param(name, value) for name, value in _parameters(report) if len(value) <= _MOST_CHARACTERS]
    metrics = [entities.Metric(name, value, now, step) for name, value, step in _metrics(report)]
    tags = {
        "tna_onnx.verdict": report.verdict,
        **({"tna_onnx.missed": "\n".join(report.missed)} if report.missed else {}),
        **{f"tna_onnx.version.{package}": version for package, version in report.versions.items()},
    }
    client.log_batch(run, tags=[entities.RunTag(name, value) for name, value in tags.items()])
    for start in range(0, len(parameters), _MOST_PARAMETERS):
        client.log_batch(run, params=parameters[start : start + _MOST_PARAMETERS])
    for start in range(0, len(metrics), _MOST_METRICS):
        client.log_batch(run, metrics=metrics[start : start + _MOST_METRICS])
    mlflow.log_text(to_json(report, details=True), "report.json")


_WORDS = (
    "model", "model_sha256", "output", "head", "classes", "features", "search", "map", "folded", "angle", "reached",
    "ensemble_size", "rotations", "objective", "provider",
)  # fmt: skip


def _parameters(report: Report) -> Iterator[tuple[str, str]]:
    values = {
        **{name: getattr(report, name) for name in _WORDS},
        "data": report.comparison.data,
        "how": report.comparison.how,
        "calibration_data": report.calibration.data,
        **_flat("fitted", report.parameters),
        **_flat("settings", report.settings),
        **_flat("preprocessing", report.preprocessing or {}),
    }
    for name, value in values.items():
        yield name, value if isinstance(value, str) else json.dumps(value)


def _flat(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested names -> dotted ones."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flat(f"{prefix}.{name}", value) if isinstance(value, Mapping) else {f"{prefix}.{name}": value}
    return found


def _metrics(report: Report) -> Iterator[tuple[str, float, int]]:
    """Name, value, step."""
    for prefix, comparison in (("", report.comparison), ("calibration.", report.calibration)):
        for name, value in _compared(comparison):
            yield prefix + name, value, 0
    for k, point in enumerate(report.curve):
        members = float(point.ensemble_size)
        values = {"angle": point.angle, "reached": point.reached, "members": members}
        for name, value in {**values, "objective": point.objective, "accuracy": point.accuracy}.items():
            yield f"curve.{name}", value, k


def _compared(c: Comparison) -> Iterator[tuple[str, float]]:
    yield "samples", float(c.before.n)
    for name in METRICS:
        yield f"before.{name}", getattr(c.before, name)
        yield f"after.{name}", getattr(c.after, name)
        d = c.differences[name]
        yield f"difference.{name}", d.difference
        yield f"difference.{name}.low", d.low
        yield f"difference.{name}.high", d.high


def _model_files(report: Report) -> list[Path]:
    """Return the written model, and its external data."""
    if not report.output:
        return []
    path = Path(report.output)
    return [file for file in (path, path.with_name(f"{path.name}.data")) if file.is_file()]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
