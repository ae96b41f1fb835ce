"""Runtimes that a written file has to survive: each runs a file on batches of samples, and gives all its outputs.

`TOOLS` names them. The tests of this folder assert on them; `benchmarks/runtimes.py` prints the matrix.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

HERE = Path(__file__).resolve().parent

Outputs = dict[str, np.ndarray]
"""Output -> values of some samples; in the order of the graph."""

Run = Callable[[Path, list[np.ndarray]], list[Outputs]]
"""(path, batches of the first input, further inputs) -> the outputs of each batch."""


class DoesNotRun(Exception):
    """A runtime refuses a file; the message is its own."""


@dataclass(frozen=True)
class Runtime:
    """What runs a file.

    Attributes:
        run: see `Run`; raises `DoesNotRun`.
        package: distribution that it comes from.
        module: what Python imports, or None for a package of Node.js.
        attribute: what a module has only in a version that has this runtime.
    """

    run: Callable[..., Any]
    package: str
    module: str | None = None
    attribute: str | None = None

    def missing(self) -> str | None:
        """Say what is not installed."""
        return missing_module(self.module, self.attribute) if self.module else missing_node_package(self.package)

    def version(self) -> str:
        """Return the version of the package."""
        if self.module:
            return metadata.version(self.package)
        return str(json.loads((node_modules() / self.package / "package.json").read_text("utf-8"))["version"])


def missing_module(name: str, attribute: str | None = None) -> str | None:
    """Say that a module cannot be imported, or is of a version without an attribute."""
    try:
        with quiet():
            module = import_module(name)
    except (ImportError, RuntimeError) as error:  # RuntimeError: torchvision beside a torch of another build
        return f"{name} cannot be imported: {error}"
    return f"this {name} has no {attribute}" if attribute and not hasattr(module, attribute) else None


def node_modules() -> Path:
    """Return the folder of the Node.js packages; RUNTIMES_NODE_MODULES names another one."""
    return Path(os.environ.get("RUNTIMES_NODE_MODULES") or HERE / "web/node_modules").resolve()


def missing_node_package(name: str) -> str | None:
    """Say that Node.js or a package of it is not installed."""
    if shutil.which("node") is None:
        return f"{name}: node is not installed"
    if not (node_modules() / name / "package.json").exists():
        return f"{name} is not installed; run `npm install --ignore-scripts` in tests/runtimes/web"
    return None


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what other packages warn of when they are imported or clip values for float16."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def ends(path: Path) -> tuple[str, list[str]]:
    """Return the names of the first input and of all outputs of a file."""
    graph = onnx.load(path).graph
    return graph.input[0].name, [info.name for info in graph.output]


def ort_session(path: Path, level: str = "ENABLE_ALL", optimized: Path | None = None) -> onnxruntime.InferenceSession:
    """Open a file at a graph optimisation level; write the optimised graph, if asked to."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run_ort(path: Path, batches: list[np.ndarray], level: str = "ENABLE_ALL") -> list[Outputs]:
    """Run with ONNX Runtime."""
    session = ort_session(path, level)
    given, outputs = ends(path)
    return [dict(zip(outputs, session.run(outputs, {given: x}), strict=True)) for x in batches]


def run_reference(path: Path, batches: list[np.ndarray]) -> list[Outputs]:
    """Run with the reference evaluator of the onnx package."""
    from onnx.reference import ReferenceEvaluator

    given, outputs = ends(path)
    try:
        evaluator = ReferenceEvaluator(str(path))
        return [dict(zip(outputs, evaluator.run(outputs, {given: x}), strict=True)) for x in batches]
    except (RuntimeError, KeyError, TypeError) as error:
        raise DoesNotRun(str(error)) from error


def run_openvino(path: Path, batches: list[np.ndarray]) -> list[Outputs]:
    """Run with OpenVINO on the CPU, in float32 also where the processor is faster in bfloat16."""
    import openvino

    given, outputs = ends(path)
    core = openvino.Core()
    results = []
    try:
        model = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        for x in batches:
            found = model({given: x})
            results.append({name: np.array(found[name]) for name in outputs})
    except RuntimeError as error:
        raise DoesNotRun(str(error)) from error
    return results


def run_opencv(path: Path, batches: list[np.ndarray], engine: str) -> list[Outputs]:
    """Run with OpenCV's dnn module; a net per shape, as the classic engine infers shapes once."""
    import cv2

    given, outputs = ends(path)
    chosen = [getattr(cv2.dnn, engine)] if hasattr(cv2.dnn, engine) else []  # OpenCV 4 has the classic one only
    results = []
    try:
        nets = {shape: cv2.dnn.readNetFromONNX(str(path), *chosen) for shape in {x.shape for x in batches}}
        for x in batches:
            net = nets[x.shape]
            net.setInput(x, given)
            found = zip(outputs, net.forward(outputs), strict=True)
            results.append({name: np.array(values) for name, values in found})
    except cv2.error as error:
        raise DoesNotRun(str(error)) from error
    return results


def run_node(path: Path, batches: list[np.ndarray], package: str) -> list[Outputs]:
    """Run in Node.js; `web/run.mjs` says what a job holds."""
    given, outputs = ends(path)
    job = {"model": str(path), "input": given, "outputs": outputs, "batches": [_as_json(x) for x in batches]}
    done = subprocess.run(
        ["node", HERE / "web/run.mjs", package, node_modules()],
        input=json.dumps(job), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    if done.returncode:
        raise DoesNotRun(done.stderr)
    results = []
    for x, found in zip(batches, json.loads(done.stdout), strict=True):
        arrays = [np.array(values).reshape(len(x), -1) for values in found]
        results.append(dict(zip(outputs, arrays, strict=True)))
    return results


def _as_json(values: np.ndarray) -> dict[str, Any]:
    return {"shape": values.shape, "data": values.ravel().tolist()}


def run_tvm(path: Path, batches: list[np.ndarray]) -> list[Outputs]:
    """Compile with TVM for this processor and run."""
    with quiet():
        import tvm
        from tvm.relax.frontend.onnx import from_onnx

        try:
            module = tvm.relax.build(from_onnx(onnx.load(path)), target=tvm.target.Target("llvm"))
            machine = tvm.relax.VirtualMachine(module, tvm.cpu())
            found = [machine["main"](tvm.runtime.tensor(x)) for x in batches]
        # of operators that it does not know, each part of it raises what it likes
        except Exception as error:
            raise DoesNotRun(str(error)) from error
    return [_named(path, each, hasattr(each, "numpy")) for each in found]


def run_onnx2torch(path: Path, batches: list[np.ndarray]) -> list[Outputs]:
    """Convert to a torch module and run that."""
    import onnx2torch
    import torch

    try:
        module = onnx2torch.convert(str(path)).eval()
        with torch.no_grad():
            found = [module(torch.from_numpy(x)) for x in batches]
    # likewise
    except Exception as error:
        raise DoesNotRun(str(error)) from error
    return [_named(path, each, isinstance(each, torch.Tensor)) for each in found]


def _named(path: Path, found: Any, single: bool) -> Outputs:
    """Name tensors: of one output there is a tensor, of several a list."""
    tensors = [found] if single else found
    return {name: values.numpy() for name, values in zip(ends(path)[1], tensors, strict=True)}


def run_tract(path: Path, batches: list[np.ndarray]) -> list[Outputs]:
    """Run with tract."""
    import tract

    # whole numbers are dimensions to it, which NumPy does not know
    whole = [info.type.tensor_type.elem_type == onnx.TensorProto.INT64 for info in onnx.load(path).graph.output]
    results = []
    try:
        for x in batches:
            model = tract.onnx().load(str(path))
            model.set_input_fact(0, ",".join([*map(str, x.shape), "f32"]))
            found = model.into_model().into_runnable().run([x])
            arrays = [
                (each.convert_to(tract.DatumType.I64) if number else each).to_numpy()
                for each, number in zip(found, whole, strict=True)
            ]
            results.append(dict(zip(ends(path)[1], arrays, strict=True)))
    except tract.TractError as error:
        raise DoesNotRun(str(error)) from error
    return results


def _opencv(engine: str, needs: str | None) -> Runtime:
    return Runtime(partial(run_opencv, engine=engine), "opencv-python-headless", "cv2.dnn", needs)


TOOLS: dict[str, Runtime] = {
    "ONNX Runtime": Runtime(run_ort, "onnxruntime", "onnxruntime"),
    "ONNX Runtime for Node.js": Runtime(partial(run_node, package="onnxruntime-node"), "onnxruntime-node"),
    "ONNX Runtime Web (WASM)": Runtime(partial(run_node, package="onnxruntime-web"), "onnxruntime-web"),
    "onnx reference evaluator": Runtime(run_reference, "onnx", "onnx"),
    "OpenVINO": Runtime(run_openvino, "openvino", "openvino"),
    "OpenCV classic engine": _opencv("ENGINE_CLASSIC", None),
    "OpenCV new engine": _opencv("ENGINE_NEW", "ENGINE_NEW"),
    "TVM": Runtime(run_tvm, "apache-tvm", "tvm"),
    "tract": Runtime(run_tract, "tract", "tract"),
    "onnx2torch": Runtime(run_onnx2torch, "onnx2torch", "onnx2torch"),
}


def outputs_in(tool: str, path: Path, x: np.ndarray) -> Outputs:
    """Run a file in a tool of `TOOLS` on some samples at once."""
    (found,) = TOOLS[tool].run(path, [x])
    return found


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
