"""A pass of Olive (`olive-ai`): recalibrate the classifier that the passes before it made.

Olive finds a pass by a package configuration, which `register` writes: `olive run --package-config`. The pass gives
the recalibrated model on, with `report.json` beside it. A missed gate ends the workflow with its message.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from olive.hardware import AcceleratorSpec
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.package_config import OlivePackageConfig
from olive.passes import Pass
from olive.passes.pass_config import BasePassConfig, PassConfigParam

import tna_onnx


def register(path: str | Path) -> None:
    """Write Olive's package configuration with this pass added to those that Olive has.

    Raises OSError: the file cannot be written.
    """
    values = json.loads(Path(OlivePackageConfig.get_default_config_path()).read_text("utf-8"))
    values["passes"][TnaCalibration.__name__] = {
        "module_path": f"{__name__}.{TnaCalibration.__name__}",
        "supported_providers": ["*"],
        "supported_accelerators": ["*"],
        "supported_precisions": ["*"],
    }
    Path(path).write_text(json.dumps(values, indent=2), "utf-8")


class TnaCalibration(Pass):  # type: ignore[misc]  # Olive has no types
    """Recalibrate an ONNX classifier on labelled data."""

    @classmethod
    def _default_config(cls, accelerator_spec: AcceleratorSpec) -> dict[str, PassConfigParam]:  # noqa: ARG003
        return {
            "calib": PassConfigParam(
                type_=str, required=True, description="Labelled calibration data: file, folder or URL."
            ),
            "eval": PassConfigParam(
                type_=str, default_value=None, description="Held-out data for the report; cross-fitted without them."
            ),
            "options": PassConfigParam(
                type_=dict,
                default_value=None,
                description="Further keywords of `tna_onnx.calibrate`, such as map, max_ece or preset.",
            ),
        }

    def _run_for_config(
        self, model: ONNXModelHandler, config: BasePassConfig, output_model_path: str
    ) -> ONNXModelHandler:
        """Write the recalibrated model and its report."""
        output = Path(resolve_onnx_path(output_model_path, Path(model.model_path).name))
        output.parent.mkdir(parents=True, exist_ok=True)
        words: dict[str, Any] = config.options or {}
        report = tna_onnx.calibrate(
            model.model_path, config.calib, eval=config.eval, output=output, json=output.parent / "report.json", **words
        )
        # the folder: large models have their tensors in a file beside them
        return ONNXModelHandler(
            model_path=str(output.parent),
            onnx_file_name=output.name,
            inference_settings=model.inference_settings,
            model_attributes={**(model.model_attributes or {}), "tna_onnx_verdict": report.verdict},
        )
