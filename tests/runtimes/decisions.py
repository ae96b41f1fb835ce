"""Guarded files in other runtimes: `GUARDED` says what is added, `DECIDERS` give every output of a file.

`test_decisions.py` asserts on them; `benchmarks/runtimes.py` prints the matrix.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tna_onnx
from tests.runtimes.matrix import (
    DoesNotRun,
    Source,
    missing_module,
    missing_node_package,
    node_modules,
    ort_session,
    quiet,
    run_in_node,
)

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
    "decision (one class)": {"decide": "f1", "positive": "1"},
    "decision (all classes)": {"decide": "balanced-accuracy"},
    "decision (or none)": {"decide": "fpr<=0.5", "per_class": True},
    "decision (roll-up)": {"decide": "roll-up="},
    "dials, left alone": {"add": ["accept", "set"], "dials": True},
    "dials, turned": {"add": ["accept", "set"], "dials": True},
    "dials per class, left alone": {"add": ["set"], "dials": True, "per_class": True},
    "dials per class, turned": {"add": ["set"], "dials": True, "per_class": True},
}

TURNED = {"coverage": 0.8, "risk": 0.3, "class_prior": [0.05, 0.4, 0.3, 0.05, 0.2]}


def write_guarded(name: str, source: Source, folder: Path) -> Path:
    """Write a file of `GUARDED`."""
    path = folder / f"{name.replace(' ', '-').replace(',', '')}.onnx"
    words = {**LEVELS, **GUARDED[name]}
    if "roll-up" in name:
        groups = folder / "groups.csv"
        groups.write_text("class,group\n0,a\n1,b\n2,a\n3,b\n4,b\n", "utf-8")
        words |= {"decide": f"roll-up={groups}", "risk": 40.0}
    tna_onnx.guard(source.model, source.calib, output=path, **words)
    return path


def decided(runtime: str, name: str, path: Path, x: np.ndarray) -> Outputs:
    """Run a guarded file.

    Raises:
        DoesNotRun: the runtime refuses it.
    """
    dials = {}
    if "turned" in name:
        names = [info.name for info in onnx.load(path).graph.input]
        dials = {key: np.array(value, np.float32) for key, value in TURNED.items() if key in names}
    return DECIDERS[runtime].run(path, x, dials)


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


def run_node(path: Path, x: np.ndarray, dials: Outputs, package: str) -> Outputs:
    """Run in Node.js."""
    given, outputs = _names(path)
    job = {
        "model": str(path),
        "input": given,
        "outputs": outputs,
        "dials": {name: {"shape": value.shape, "data": value.ravel().tolist()} for name, value in dials.items()},
        "batches": [{"shape": x.shape, "data": x.ravel().tolist()}],
    }
    (found,) = run_in_node(package, job)
    return {name: np.array(values) for name, values in zip(outputs, found, strict=True)}


def run_tvm(path: Path, x: np.ndarray, dials: Outputs) -> Outputs:
    """Compile with TVM for this processor and run."""
    if dials:
        raise DoesNotRun(f"an input with an initializer is a constant: {', '.join(dials)}")
    with quiet():
        import tvm
        from tvm.relax.frontend.onnx import from_onnx

        try:
            module = tvm.relax.build(from_onnx(onnx.load(path)), target=tvm.target.Target("llvm"))
            found = tvm.relax.VirtualMachine(module, tvm.cpu())["main"](tvm.runtime.tensor(x))
        # of operators that it does not know, each part of it raises what it likes
        except Exception as error:
            raise DoesNotRun(str(error)) from error
    # of one output a tensor, of several a list
    each = [found] if hasattr(found, "numpy") else found
    return {name: values.numpy() for name, values in zip(_names(path)[1], each, strict=True)}


def run_onnx2torch(path: Path, x: np.ndarray, dials: Outputs) -> Outputs:
    """Convert to a torch module and run that."""
    import onnx2torch
    import torch

    if dials:
        raise DoesNotRun(f"an input with an initializer is a constant: {', '.join(dials)}")
    try:
        module = onnx2torch.convert(str(path)).eval()
        with torch.no_grad():
            found = module(torch.from_numpy(x))
    # likewise
    except Exception as error:
        raise DoesNotRun(str(error)) from error
    # of one output a tensor, of several a list
    each = [found] if isinstance(found, torch.Tensor) else found
    return {name: values.numpy() for name, values in zip(_names(path)[1], each, strict=True)}


def run_tract(path: Path, x: np.ndarray, dials: Outputs) -> Outputs:
    """Run with tract."""
    import tract

    if dials:
        raise DoesNotRun(f"an input with an initializer is a constant: {', '.join(dials)}")
    try:
        model = tract.onnx().load(str(path))
        model.set_input_fact(0, ",".join([*map(str, x.shape), "f32"]))
        found = model.into_model().into_runnable().run([x])
    except tract.TractError as error:
        raise DoesNotRun(str(error)) from error
    # whole numbers are dimensions to it, which NumPy does not know
    whole = [info.type.tensor_type.elem_type == onnx.TensorProto.INT64 for info in onnx.load(path).graph.output]
    found = [
        values.convert_to(tract.DatumType.I64) if each else values for values, each in zip(found, whole, strict=True)
    ]
    return {name: values.to_numpy() for name, values in zip(_names(path)[1], found, strict=True)}


@dataclass(frozen=True)
class Decider:
    """What runs a guarded file.

    Attributes:
        run: (path, samples, dials) gives all outputs.
        needs: what Python imports; or a package of Node.js.
        package: distribution that it comes from; empty for Node.js.
    """

    run: Callable[[Path, np.ndarray, Outputs], Outputs]
    needs: str
    package: str = ""


DECIDERS: dict[str, Decider] = {
    "ONNX Runtime": Decider(run_ort, "onnxruntime", "onnxruntime"),
    "ONNX Runtime for Node.js": Decider(partial(run_node, package="onnxruntime-node"), "onnxruntime-node"),
    "ONNX Runtime Web (WASM)": Decider(partial(run_node, package="onnxruntime-web"), "onnxruntime-web"),
    "onnx reference evaluator": Decider(run_reference, "onnx", "onnx"),
    "OpenVINO": Decider(run_openvino, "openvino", "openvino"),
    "OpenCV classic engine": Decider(partial(run_opencv, engine="ENGINE_CLASSIC"), "cv2", "opencv-python-headless"),
    "OpenCV new engine": Decider(run_opencv, "cv2", "opencv-python-headless"),
    "TVM": Decider(run_tvm, "tvm", "apache-tvm"),
    "tract": Decider(run_tract, "tract", "tract"),
    "onnx2torch": Decider(run_onnx2torch, "onnx2torch", "onnx2torch"),
}


def missing(runtime: str) -> str | None:
    """Say what is not installed."""
    decider = DECIDERS[runtime]
    return missing_module(decider.needs) if decider.package else missing_node_package(decider.needs)


def version(runtime: str) -> str:
    """Return the version of the package."""
    decider = DECIDERS[runtime]
    if decider.package:
        return metadata.version(decider.package)
    return str(json.loads((node_modules() / decider.needs / "package.json").read_text(encoding="utf-8"))["version"])
