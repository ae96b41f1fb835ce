"""The written file as a model of MLflow, flavour `onnx`, and the data sets of a run.

MLflow's own `mlflow.onnx.log_model` writes the graph anew; here the bytes stay those that were verified, and a file
`MLmodel` beside them says what they are. `mlflow.onnx.load_model("runs:/ID/model")` and `mlflow.register_model` take
it.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tna_onnx.graph.limits import NO_MODEL_LIMITS
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.own_names import provenance
from tna_onnx.results.report import Report

__all__ = ["FOLDER", "log_data_sets", "log_model"]

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
