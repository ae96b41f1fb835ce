"""A bill of materials of a recalibrated model: CycloneDX 1.6 as JSON, with a model card (an ML-BOM).

The library writes components, digests, pedigree and tools, and its schema checks the whole. It has no model cards yet,
so `modelCard` is put into its JSON here. Values are texts there, in the unit that the report shows; each metric is
followed by its paired difference, which has the interval.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tna_onnx.data.optional import optional
from tna_onnx.errors import CheckFailed
from tna_onnx.graph.limits import NO_MODEL_LIMITS
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.own_names import provenance
from tna_onnx.numerics.metric import METRICS
from tna_onnx.results.stored import StoredReport

__all__ = ["model_bom", "require_cyclonedx"]

_TASK = "classification"
_LIMITS = (
    "The numbers hold for data like those measured; where data shift, measure again.",
    "Confidences are right on average over samples, not for each group of them or each single sample.",
)


def require_cyclonedx() -> Any:
    """Return the library.

    Raises:
        UsageError: it cannot be imported; the message names the extra.
    """
    return optional("cyclonedx.validation.json", "bom", "writing a bill of materials")


def model_bom(report: StoredReport) -> str:
    """Return the bill of materials of the written model as a text of JSON, checked by the library's schema.

    Args:
        report: of the calibration. The digest of the written file is there if the file is.

    Raises:
        UsageError: the library is missing.
        CheckFailed: what was made is not valid, which is a bug.
    """
    validation = require_cyclonedx()
    from cyclonedx.model.bom import Bom  # noqa: PLC0415 - an extra
    from cyclonedx.output.json import JsonV1Dot6  # noqa: PLC0415
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415

    path = Path(report.output)
    model = load_model(path, NO_MODEL_LIMITS) if report.output and path.is_file() else None
    # another run may have written a file of that name since
    if model is not None and not _is_written(report, model):
        model = None
    bom = Bom()
    bom.metadata.component = _component(report, model)
    _tools(bom, report)
    values = json.loads(JsonV1Dot6(bom).output_as_string())
    values["metadata"]["component"]["modelCard"] = _card(report, provenance(model) if model else {})
    text = json.dumps(values, indent=2, allow_nan=False) + "\n"
    wrong = validation.JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if wrong is not None:
        raise CheckFailed(f"the bill of materials is not valid CycloneDX 1.6: {str(wrong).splitlines()[0]}")
    return text


def _is_written(report: StoredReport, model: Model) -> bool:
    """Whether a file is the one that the report is about."""
    if report.output_sha256:
        return model.sha256 == report.output_sha256
    # reports of earlier versions tell no more than what it was made of
    return provenance(model).get("source_sha256", model.sha256) == report.model_sha256


def _component(report: StoredReport, model: Model | None) -> Any:
    """Return the written model, and the input as its ancestor."""
    from cyclonedx.model import Property  # noqa: PLC0415
    from cyclonedx.model.component import Component, ComponentType, Pedigree  # noqa: PLC0415

    kind = ComponentType.MACHINE_LEARNING_MODEL
    source = Component(type=kind, name=Path(report.model).name, hashes=_hashes(report.model_sha256))
    values = {"method": report.method, "map": report.map, "seed": str(report.seed), "verdict": report.verdict}
    return Component(
        type=kind,
        name=Path(report.output or report.model).name,
        bom_ref="model",
        hashes=_hashes(model.sha256 if model else ""),
        pedigree=Pedigree(ancestors=[source]),
        properties=[Property(name=f"tna_onnx:{name}", value=value) for name, value in values.items()],
    )


def _hashes(sha256: str) -> list[Any]:
    from cyclonedx.model import HashAlgorithm, HashType  # noqa: PLC0415

    return [HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else []


def _tools(bom: Any, report: StoredReport) -> None:
    from cyclonedx.model.component import Component, ComponentType  # noqa: PLC0415

    for name, version in report.versions.items():
        bom.metadata.tools.components.add(Component(type=ComponentType.APPLICATION, name=name, version=version))


def _card(report: StoredReport, entries: dict[str, str]) -> dict[str, Any]:
    digest = entries.get("calibration_sha256", "")
    calibration: dict[str, Any] = {
        "type": "dataset",
        "name": report.calibration_data,
        "description": "what the calibration was fitted on",
    }
    if digest:
        calibration["contents"] = {"properties": [{"name": "sha256", "value": digest}]}
    measured = {
        "type": "dataset",
        "name": report.data,
        "description": f"what the metrics were measured on: {report.how}",
    }
    return {
        "modelParameters": {
            "approach": {"type": "supervised"},
            "task": _TASK,
            "datasets": [calibration, measured],
        },
        "quantitativeAnalysis": {"performanceMetrics": list(_metrics(report))},
        "considerations": {"technicalLimitations": list(_LIMITS)},
    }


def _metrics(report: StoredReport) -> Iterator[dict[str, Any]]:
    part = f"{report.how}, N = {report.samples}"
    for change in report.changes:
        row = METRICS[change.metric]
        ends = change.interval
        yield {"type": row.title, "value": row.number(change.after), "slice": part}
        unit = f", {row.change_unit}" if row.change_unit else ""
        yield {
            "type": f"{row.label}, change from the input model{unit} ({100 * ends.level:g} % interval)",
            "value": row.change(ends.difference),
            "slice": part,
            "confidenceInterval": {"lowerBound": row.change(ends.low), "upperBound": row.change(ends.high)},
        }
