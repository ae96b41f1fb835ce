"""A report as one MLflow run: parameters, metrics, the search curve, the files of the run, and the model.

MLflow decides where runs go, as always: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, MLFLOW_RUN_ID and so on.

    parameters   settings.seed, map, angle, preprocessing.mean, ...: words and settings; fitted.temperature, ...
    metrics      before.ece, after.ece, difference.ece and difference.ece.low, .high; the same on the calibration
                 data, which were fitted, under calibration.*; fractions, NLL in nats, as in the JSON;
                 before.kuiper, before.kuiper_p, before.ece_debiased, ... without bins
    curve        curve.angle, curve.reached, curve.members, curve.objective, curve.accuracy; step k is candidate k
    tags         tna_onnx.verdict, tna_onnx.missed (gates), tna_onnx.version.PACKAGE
    data sets    what was fitted on (context `calibration`), what was measured on (`evaluation`)
    artifacts    report.json, what else was written (the HTML report, figures/), model/: a model of flavour `onnx`

MLflow's own `mlflow.onnx.log_model` writes the graph anew; here the bytes stay those that were verified, and a file
`MLmodel` next to them describes them. `mlflow.onnx.load_model("runs:/ID/model")` and `mlflow.register_model` accept it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tna_onnx.data.foreign import optional
from tna_onnx.errors import TrackingError
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.nodes import provenance
from tna_onnx.graph.options import NO_MODEL_LIMITS
from tna_onnx.numerics.metric import METRICS
from tna_onnx.results.as_json import to_json
from tna_onnx.results.report import Report

if TYPE_CHECKING:
    from tna_onnx.results.report import Comparison

FOLDER = "model"
"""Place of the model among the artifacts of a run."""

# MLflow's limit on the length of a digest.
_DIGEST = 36


def log_model(mlflow: Any, run_id: str, report: Report) -> Model | None:
    """Log the written file, its external data, and what MLflow needs to load them; None if no file was written."""
    if not report.output:
        return None
    path = Path(report.output)
    if not path.is_file():
        return None
    model = load_model(path, NO_MODEL_LIMITS)
    # a large model keeps its tensors in a file beside it, and does not load without that
    for file in (path, *(path.with_name(name) for name in model.external_files)):
        mlflow.log_artifact(str(file), FOLDER)
    for name, text in _description(run_id, path.name, report):
        mlflow.log_text(text, f"{FOLDER}/{name}")
    return model


def log_data_sets(mlflow: Any, run_id: str, report: Report, model: Model | None) -> None:
    """Log what the calibration was fitted on, and what the metrics were measured on."""
    entities = mlflow.entities
    sha256 = provenance(model).get("calibration_sha256", "") if model else ""
    used = [("calibration", report.calibration.data, sha256)]
    # cross-fitted, the metrics come from the calibration data
    if report.comparison.how == "held-out":
        used.append(("evaluation", report.comparison.data, ""))
    inputs = []
    for context, data, digest in used:
        # where the content has no digest, that of its description, as MLflow does for data that it does not read
        short = (digest or hashlib.sha256(data.encode()).hexdigest())[:_DIGEST]
        source = json.dumps({"description": data, "sha256": digest or None})
        tag = entities.InputTag("mlflow.data.context", context)
        inputs.append(entities.DatasetInput(entities.Dataset(data, short, "local", source), [tag]))
    mlflow.MlflowClient().log_inputs(run_id, inputs)


def _description(run_id: str, file: str, report: Report) -> Iterator[tuple[str, str]]:
    """Give the names and texts of the files that describe the model."""
    from mlflow.models import Model as Described  # noqa: PLC0415 - an extra

    python = platform.python_version()
    requirements = "requirements.txt"
    environment = "python_env.yaml"
    described = Described(artifact_path=FOLDER, run_id=run_id)
    loader = {"loader_module": "mlflow.onnx", "python_version": python, "env": {"virtualenv": environment}}
    described.add_flavor("onnx", onnx_version=version("onnx"), data=file, providers=["CPUExecutionProvider"])
    described.add_flavor("python_function", data=file, **loader)
    yield "MLmodel", described.to_yaml()
    needed = ["mlflow", *(f"{name}=={report.versions[name]}" for name in ("numpy", "onnx", "onnxruntime"))]
    yield requirements, "\n".join([*needed, ""])
    # the form of MLflow: what makes an environment, and then what goes into it
    yield environment, f"python: {python}\nbuild_dependencies: [pip]\ndependencies: [-r {requirements}]\n"


# Fields of a report that are logged as parameters under their own names.
_FIELDS = (
    "model", "model_sha256", "output", "head", "classes", "features", "search", "map", "folded", "angle", "reached",
    "ensemble_size", "rotations", "objective", "provider",
)  # fmt: skip


def tags_of(report: Report) -> dict[str, str]:
    """Return the verdict, missed gates and versions."""
    tags = {"tna_onnx.verdict": report.verdict}
    if report.missed:
        tags["tna_onnx.missed"] = "\n".join(report.missed)
    for package, installed in report.versions.items():
        tags[f"tna_onnx.version.{package}"] = installed
    return tags


def parameters_of(report: Report) -> Iterator[tuple[str, str]]:
    """Give name and value as text; what is not a string as JSON."""
    values = {
        **{name: getattr(report, name) for name in _FIELDS},
        "data": report.comparison.data,
        "how": report.comparison.how,
        "calibration_data": report.calibration.data,
        **_flat("fitted", report.parameters),
        **_flat("settings", report.settings),
        **_flat("preprocessing", report.preprocessing or {}),
    }
    for name, value in values.items():
        text = value
        if not isinstance(value, str):
            text = json.dumps(value)
        yield name, text


def _flat(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Join nested names with dots.

    >>> _flat("settings", {"seed": 3, "tilt": {"theta_s": 0.9}})
    {'settings.seed': 3, 'settings.tilt.theta_s': 0.9}
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(f"{prefix}.{name}", value)
        else:
            flat[f"{prefix}.{name}"] = value
    return flat


def metrics_of(report: Report) -> Iterator[tuple[str, float, int]]:
    """Give name, value, step."""
    for prefix, comparison in (("", report.comparison), ("calibration.", report.calibration)):
        for name, value in _comparison_metrics(comparison):
            yield prefix + name, value, 0
    for name, value in _bin_free_metrics(report):
        yield name, value, 0
    for step, point in enumerate(report.curve):
        yield "curve.angle", point.angle, step
        yield "curve.reached", point.reached, step
        # metrics of MLflow are floats
        yield "curve.members", float(point.ensemble_size), step
        yield "curve.objective", point.objective, step
        yield "curve.accuracy", point.accuracy, step


def _bin_free_metrics(report: Report) -> Iterator[tuple[str, float]]:
    """Calibration without bins, where it is known: some scores have no p-value (`BinFree.of`)."""
    for stage, bin_free in (("before", report.bin_free_before), ("after", report.bin_free_after)):
        values = {
            "ece_debiased": bin_free.ece_debiased,
            "ece_expected": bin_free.ece_expected,
            "kuiper": bin_free.cumulative.kuiper,
            "kuiper_p": bin_free.cumulative.kuiper_p,
            "nll_miscalibration": bin_free.corp.nll.miscalibration,
        }
        for name, value in values.items():
            if value is not None:
                yield f"{stage}.{name}", value


def _comparison_metrics(c: Comparison) -> Iterator[tuple[str, float]]:
    yield "samples", float(c.before.n)
    for name in METRICS:
        d = c.differences[name]
        yield f"before.{name}", getattr(c.before, name)
        yield f"after.{name}", getattr(c.after, name)
        yield f"difference.{name}", d.difference
        yield f"difference.{name}.low", d.low
        yield f"difference.{name}.high", d.high


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
    """
    silence = _silence(optional("mlflow", "mlflow", "logging to MLflow"))
    if silence:
        return f"{silence}; the run goes on, and asks again at its end"
    return ""


def log_report(report: Report, artifacts: Mapping[str, Sequence[str | Path]]) -> str:
    """Log a report as a run, and return the run's id and the tracking URI in one line.

    `report`: of a calibration; its model file is logged if one was written. Raises TrackingError: MLflow or its server
    did not take the run.
    """
    mlflow = optional("mlflow", "mlflow", "logging to MLflow")
    # Both report every table of a new database at level INFO.
    for name in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        silence = _silence(mlflow)
        if silence:
            raise ConnectionError(silence)
        # a lost request is tried again for a minute, unless the user says otherwise; MLflow's own default is five
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        with mlflow.start_run(run_name=Path(report.model).stem) as run:
            _log_values(mlflow, run.info.run_id, report)
            for folder, files in artifacts.items():
                for file in files:
                    mlflow.log_artifact(str(file), folder or None)
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


def _log_values(mlflow: Any, run_id: str, report: Report) -> None:
    """Log tags, parameters and metrics in as few requests as MLflow allows, and the report as JSON."""
    entities = mlflow.entities
    client = mlflow.MlflowClient()
    now = mlflow.utils.time.get_current_time_millis()
    tags = [entities.RunTag(name, value) for name, value in tags_of(report).items()]
    parameters = [entities.Param(name, value) for name, value in parameters_of(report) if len(value) <= _MAX_CHARACTERS]
    metrics = [entities.Metric(name, value, now, step) for name, value, step in metrics_of(report)]
    # Tags first: if a later request fails, the run still says what it was.
    client.log_batch(run_id, tags=tags)
    for start in range(0, len(parameters), _MAX_PARAMETERS):
        client.log_batch(run_id, params=parameters[start : start + _MAX_PARAMETERS])
    for start in range(0, len(metrics), _MAX_METRICS):
        client.log_batch(run_id, metrics=metrics[start : start + _MAX_METRICS])
    mlflow.log_text(to_json(report, details=True), "report.json")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0]}"
