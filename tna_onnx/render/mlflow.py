"""A report as one MLflow run: parameters, metrics, the search curve, the files of the run, and the model.

MLflow decides where runs go, as always: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, MLFLOW_RUN_ID and so on.

    parameters   settings.seed, map, angle, preprocessing.mean, ...: words and settings; fitted.temperature, ...
    metrics      before.ece, after.ece, difference.ece and difference.ece.low, .high; the same on the calibration
                 data, which were fitted, under calibration.*; fractions, NLL in nats, as in the JSON;
                 before.kuiper, before.kuiper_p, before.ece_debiased, ... without bins
    curve        curve.angle, curve.reached, curve.members, curve.objective, curve.accuracy; step k is candidate k
    tags         tna_onnx.verdict, tna_onnx.missed (gates), tna_onnx.version.PACKAGE; tna_onnx.head, one of several
    data sets    what was fitted on (context `calibration`), what was measured on (`evaluation`)
    artifacts    report.json, what else was written (the HTML report, figures/), model/: a model of flavour `onnx`
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tna_onnx.data.optional import optional
from tna_onnx.render.logged import TrackingError, metrics_of, parameters_of, tags_of
from tna_onnx.render.mlflow_model import log_data_sets, log_model
from tna_onnx.results.as_json import to_json
from tna_onnx.results.report import Report

__all__ = ["TrackingError", "log_report", "require_mlflow"]

_PROBE_SECONDS = 5
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
# MLflow's limits. Some servers refuse longer parameters; report.json has what is left out here.
_MAX_CHARACTERS = 500
# Metrics and parameters in one request.
_MAX_METRICS = 1000
_MAX_PARAMETERS = 100


def require_mlflow() -> str:
    """Check that runs can be logged, and return a warning if the server does not answer now; empty if it does.

    A server that is down must not cost the model: it is asked again when there is something to log.

    Raises:
        UsageError: MLflow cannot be imported; the message names the extra.
    """
    silence = _silence(optional("mlflow", "mlflow", "logging to MLflow"))
    if silence:
        return f"{silence}; the run goes on, and asks again at its end"
    return ""


def log_report(
    report: Report,
    experiment: str | None = None,
    artifacts: Mapping[str, Sequence[str | Path]] | None = None,
    head: str | None = None,
) -> str:
    """Log a report as a run, and return the run's id and the tracking URI in one line.

    Args:
        report: of a calibration; its model file is logged if one was written.
        experiment: name; MLflow's default without it.
        artifacts: folder in the run ("" is the top) -> files.
        head: which of several heads the report is about, by its output; it goes into the name and the tags of the run.

    Raises:
        UsageError: MLflow is missing.
        TrackingError: MLflow or its server did not take the run.
    """
    mlflow = optional("mlflow", "mlflow", "logging to MLflow")
    # Both report every table of a new database at level INFO.
    for name in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        silence = _silence(mlflow)
        if silence:
            raise ConnectionError(silence)
        _patience()
        experiment_id = _experiment_id(mlflow, experiment)
        name = Path(report.model).stem
        tags = tags_of(report)
        if head is not None:
            name = f"{name}: {head}"
            tags["tna_onnx.head"] = head
        with mlflow.start_run(experiment_id=experiment_id, run_name=name) as run:
            _log_values(mlflow, run.info.run_id, report, tags)
            _log_files(mlflow, artifacts or {})
            model = log_model(mlflow, run.info.run_id, report)
            log_data_sets(mlflow, run.info.run_id, report, model)
        return f"run {run.info.run_id} in {mlflow.get_tracking_uri()}"
    except Exception as error:
        # MLflow and its stores raise exceptions of many libraries. The message says that the model is safe.
        message = f"MLflow did not take the run: {_first_line(error)}"
        if report.output:
            message += f"; {report.output} is written"
        raise TrackingError(message) from error


def _silence(mlflow: Any) -> str:
    """Ask the tracking server for a sign of life; return what is wrong, nothing if it answers or there is none.

    MLflow itself would try for five minutes without a word.
    """
    import urllib.error  # noqa: PLC0415 - takes as long to load as a small run, and most have no server
    import urllib.request  # noqa: PLC0415

    uri = str(mlflow.get_tracking_uri())
    if not uri.lower().startswith(("http://", "https://")):
        return ""
    try:
        # any answer will do, a refusal too: what it means is MLflow's business
        urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=_PROBE_SECONDS).close()  # noqa: S310 - see above
    except urllib.error.HTTPError as error:
        error.close()
    except Exception as error:  # noqa: BLE001 - urllib and http.client have many
        return f"MLflow's server at {uri} does not answer within {_PROBE_SECONDS} seconds ({_first_line(error)})"
    return ""


def _patience() -> None:
    """Let MLflow try a lost request for a minute, unless the user says otherwise; its own default is five."""
    for name, value in _PATIENCE.items():
        os.environ.setdefault(name, value)


def _experiment_id(mlflow: Any, name: str | None) -> str | None:
    """Return the id of an experiment, which is created if there is none of that name; None leaves it to MLflow."""
    if name is None:
        return None
    # looked up and not set: MLflow's active experiment is the whole process's
    experiment = mlflow.get_experiment_by_name(name)
    if experiment is None:
        return str(mlflow.create_experiment(name))
    return str(experiment.experiment_id)


def _log_values(mlflow: Any, run_id: str, report: Report, named: Mapping[str, str]) -> None:
    """Log tags, parameters and metrics in as few requests as MLflow allows, and the report as JSON."""
    entities = mlflow.entities
    client = mlflow.MlflowClient()
    now = mlflow.utils.time.get_current_time_millis()
    tags = [entities.RunTag(name, value) for name, value in named.items()]
    parameters = [entities.Param(name, value) for name, value in parameters_of(report) if len(value) <= _MAX_CHARACTERS]
    metrics = [entities.Metric(name, value, now, step) for name, value, step in metrics_of(report)]
    # Tags first: if a later request fails, the run still says what it was.
    client.log_batch(run_id, tags=tags)
    for start in range(0, len(parameters), _MAX_PARAMETERS):
        client.log_batch(run_id, params=parameters[start : start + _MAX_PARAMETERS])
    for start in range(0, len(metrics), _MAX_METRICS):
        client.log_batch(run_id, metrics=metrics[start : start + _MAX_METRICS])
    mlflow.log_text(to_json(report, details=True), "report.json")


def _log_files(mlflow: Any, artifacts: Mapping[str, Sequence[str | Path]]) -> None:
    for folder, files in artifacts.items():
        for file in files:
            mlflow.log_artifact(str(file), folder or None)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0]}"
