"""Guarded files in other runtimes: `GUARDED` says what is added, `DECIDERS` give every output of a file.

`test_decisions.py` asserts on them; `benchmarks/guarded_runtimes.py` prints the matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tna_onnx
from tests.runtimes.matrix import DoesNotRun, Source, missing_module, ort_session

__all__ = ["DECIDERS", "GUARDED", "Outputs", "decided", "disagreements", "missing", "write_guarded"]

Outputs = dict[str, np.ndarray]
"""Output -> values of some samples."""

LEVELS = {"risk": 20.0, "coverage": 90.0, "device": "cpu"}

GUARDED: dict[str, dict[str, Any]] = {
    "confidence, accept": {"add": ["confidence", "accept"]},
    "set (lac)": {"add": ["set"]},
    "set (aps)": {"add": ["set"], "set_score": "aps", "set_temperature": 3.0},
    "set (raps)": {"add": ["set"], "set_score": "raps", "set_temperature": 3.0},
    "set (per class)": {"add": ["set"], "per_class": True},
    "ood (energy)": {"add": ["ood"], "ood_score": "energy"},
    "ood (mahalanobis)": {"add": ["ood"], "ood_score": "mahalanobis"},
    "ood (residual)": {"add": ["ood"], "ood_score": "residual"},
    "dials, left alone": {"add": ["accept", "set"], "dials": True},
    "dials, turned": {"add": ["accept", "set"], "dials": True},
}

TURNED = {"coverage": 0.8, "risk": 0.3}


def write_guarded(name: str, source: Source, folder: Path) -> Path:
    """Write a file of `GUARDED`."""
    path = folder / f"{name.replace(' ', '-').replace(',', '')}.onnx"
    tna_onnx.guard(source.model, source.calib, output=path, **LEVELS, **GUARDED[name])
    return path


def decided(runtime: str, name: str, path: Path, x: np.ndarray) -> Outputs:
    """Run a guarded file.

    Raises:
        DoesNotRun: the runtime refuses it.
    """
    dials = {key: np.array(value, np.float32) for key, value in TURNED.items()} if "turned" in name else {}
    return DECIDERS[runtime][1](path, x, dials)


def disagreements(found: Outputs, expected: Outputs) -> tuple[float, int]:
    """Return the largest relative difference of a number, and how many decisions are other ones."""
    largest = 0.0
    others = 0
    for name, values in expected.items():
        if values.dtype == bool:
            others += int(np.sum(found[name].astype(bool).reshape(values.shape) != values))
        else:
            scale = np.maximum(1.0, np.abs(values))
            largest = max(largest, float(np.max(np.abs(found[name].reshape(values.shape) - values) / scale)))
    return largest, others


def _names(path: Path) -> tuple[str, list[str]]:
    graph = onnx.load(path).graph
    return graph.input[0].name, [info.name for info in graph.output]


def run_ort(path: Path, x: np.ndarray, dials: Outputs) -> Outputs:
    """Run with ONNX Runtime."""
    given, outputs = _names(path)
    return dict(zip(outputs, ort_session(path).run(outputs, {given: x, **dials}), strict=True))


def run_reference(path: Path, x: np.ndarray, dials: Outputs) -> Outputs:
    """Run with the reference evaluator of the onnx package."""
    from onnx.reference import ReferenceEvaluator

    given, outputs = _names(path)
    try:
        return dict(zip(outputs, ReferenceEvaluator(str(path)).run(outputs, {given: x, **dials}), strict=True))
    except (RuntimeError, KeyError, TypeError) as error:
        raise DoesNotRun(str(error)) from error


def run_openvino(path: Path, x: np.ndarray, dials: Outputs) -> Outputs:
    """Run with OpenVINO on the CPU, in float32."""
    import openvino

    given, outputs = _names(path)
    core = openvino.Core()
    try:
        model = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        found = model({given: x, **dials})
    except RuntimeError as error:
        raise DoesNotRun(str(error)) from error
    return {name: np.array(found[name]) for name in outputs}


def run_opencv(path: Path, x: np.ndarray, dials: Outputs, engine: str = "ENGINE_NEW") -> Outputs:
    """Run with OpenCV's dnn module."""
    import cv2

    given, outputs = _names(path)
    chosen = [getattr(cv2.dnn, engine)] if hasattr(cv2.dnn, engine) else []
    try:
        net = cv2.dnn.readNetFromONNX(str(path), *chosen)
        net.setInput(x, given)
        for name, value in dials.items():
            net.setInput(value, name)
        return {name: np.array(values) for name, values in zip(outputs, net.forward(outputs), strict=True)}
    except cv2.error as error:
        raise DoesNotRun(str(error)) from error


Decider = Callable[[Path, np.ndarray, Outputs], Outputs]

DECIDERS: dict[str, tuple[str, Decider]] = {
    "ONNX Runtime": ("onnxruntime", run_ort),
    "onnx reference evaluator": ("onnx", run_reference),
    "OpenVINO": ("openvino", run_openvino),
    "OpenCV classic engine": ("cv2", lambda path, x, dials: run_opencv(path, x, dials, "ENGINE_CLASSIC")),
    "OpenCV new engine": ("cv2", run_opencv),
}


def missing(runtime: str) -> str | None:
    """Say what is not installed."""
    return missing_module(DECIDERS[runtime][0])
