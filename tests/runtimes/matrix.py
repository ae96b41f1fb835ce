"""Runtimes and conversions that a written file has to survive, and the models that it is written from.

`SOURCES` build classifiers, `FILES` say what `tna_onnx.calibrate` does to them, `RUNTIMES` run a file, `CONVERSIONS`
turn a file into another one. `test_runtimes.py` asserts on them; `benchmarks/runtimes.py` prints the matrix.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import tna_onnx
from tests.builders import nodes_of, small_model, tensor_info
from tests.conftest import ROOT
from tests.runtimes.tools import TOOLS, Run, Runtime, ort_session, quiet, run_ort
from tests.support import with_options

DIGITS = ROOT / "models/digits"

BATCH = 33


# Models


@dataclass(frozen=True)
class Source:
    """A classifier with calibration and held-out data, `.npz` each."""

    model: Path
    calib: Path
    test: Path


def digits(folder: Path) -> Source:
    """Return the embedded demo: convolutions, ten logits, opset 17."""
    return Source(DIGITS / "model.onnx", DIGITS / "calib.npz", DIGITS / "test.npz")


def small(folder: Path) -> Source:
    """Write x (N, 8) -> Relu(x A) (32) -> `logits` (N, 5), opset 17."""
    rng = np.random.default_rng(5)
    tensors = {
        "hidden": rng.standard_normal((8, 32)),
        "weight": rng.standard_normal((5, 32)),
        "bias": rng.standard_normal(5),
    }
    nodes = nodes_of(
        "MatMul x hidden > h name=hidden; Relu h > features name=relu; "
        "Gemm features weight bias > logits name=head transB=1"
    )
    inputs, outputs = [tensor_info("x", ["N", 8])], [tensor_info("logits", ["N", 5])]
    onnx.save(small_model(nodes, inputs, outputs, _single(tensors)), folder / "model.onnx")
    return _with_data(folder, lambda n: rng.standard_normal((n, 8)), rng)


def binary(folder: Path) -> Source:
    """Write x (N, 8) -> Relu(x A) (32) -> one logit -> Sigmoid, `p` (N, 1), opset 9: bounds of Clip are attributes."""
    rng = np.random.default_rng(11)
    tensors = {"hidden": rng.standard_normal((8, 32)), "weight": rng.standard_normal((32, 1)), "bias": np.array([0.4])}
    nodes = nodes_of(
        "MatMul x hidden > h name=hidden; Relu h > features name=relu; Gemm features weight bias > s name=head; "
        "Sigmoid s > p name=sigmoid"
    )
    inputs, outputs = [tensor_info("x", ["N", 8])], [tensor_info("p", ["N", 1])]
    onnx.save(small_model(nodes, inputs, outputs, _single(tensors), opset=9, ir_version=4), folder / "model.onnx")
    return _with_data(folder, lambda n: rng.standard_normal((n, 8)), rng)


def cnn(folder: Path) -> Source:
    """Export image (N, 3, 12, 12) -> convolutions, pixel means (64) -> Softmax, `p` (N, 6), opset 18, with torch."""
    import torch
    from torch import nn

    generator = torch.random.get_rng_state()
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 64, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 6),
        nn.Softmax(1),
    ).eval()
    torch.random.set_rng_state(generator)
    with torch.no_grad():  # random layers hardly tell images apart; a steep head makes the classifier sure of itself
        net[7].weight *= 150
        net[7].bias *= 0
    names = {0: "N"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the other exporter needs onnxscript
        torch.onnx.export(
            net, (torch.zeros(2, 3, 12, 12),), folder / "model.onnx", dynamo=False, opset_version=18,
            input_names=["image"], output_names=["p"], dynamic_axes={"image": names, "p": names},
        )  # fmt: skip
    rng = np.random.default_rng(13)

    def images(n: int) -> np.ndarray:
        """Noise with a mean and a contrast of its own per channel."""
        mean, contrast = rng.standard_normal((n, 3, 1, 1)), rng.uniform(0.1, 2, (n, 3, 1, 1))
        return mean + contrast * rng.standard_normal((n, 3, 12, 12))

    return _with_data(folder, images, rng)


SOURCES: dict[str, Callable[[Path], Source]] = {"digits": digits, "small": small, "binary": binary, "cnn": cnn}


def _single(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}


def _with_data(folder: Path, draw: Callable[[int], np.ndarray], rng: np.random.Generator) -> Source:
    """Write 1,500 samples a split; labels are drawn from the model's probabilities at temperature 3."""
    model = folder / "model.onnx"
    for name in ("calib", "test"):
        x = draw(1500).astype(np.float32)
        (y,) = ort_session(model).run(None, {onnx.load(model).graph.input[0].name: x})
        logits = np.log(np.maximum(as_probabilities(model, y), 1e-12))
        labels = np.argmax(logits / 3 + rng.gumbel(size=logits.shape), axis=1)
        np.savez(folder / f"{name}.npz", labels=labels, **{onnx.load(model).graph.input[0].name: x})
    return Source(model, folder / "calib.npz", folder / "test.npz")


def as_probabilities(model: Path, y: np.ndarray) -> np.ndarray:
    """Return (N, C) probabilities of what one of these models, or a file written from it, gives."""
    y = np.asarray(y, np.float64).reshape(len(y), -1)
    if y.shape[1] == 1:
        return np.concatenate([1 - y, y], axis=1)
    if onnx.load(model).graph.output[0].name == "p":
        return y
    weights = np.exp(y - y.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


# Files


# Every map on every model but ts twice: folded and as a node; half of them on a tilted weight.
FILES: dict[str, dict[str, Any]] = {
    "digits none tilted": {"map": "none", "search": "sparse"},
    "digits ts tilted": {"map": "ts", "search": "sparse"},
    "digits ts-node": {"map": "ts", "search": "none", "fold": False},
    "digits ets": {"map": "ets", "search": "none"},
    "digits isotonic tilted": {"map": "isotonic", "search": "sparse"},
    "digits aar": {"map": "aar", "search": "none"},
    "small ts-node tilted": {"map": "ts", "search": "sparse", "fold": False},
    "small isotonic": {"map": "isotonic", "search": "none"},
    "small aar tilted": {"map": "aar", "search": "sparse"},
    "binary ts": {"map": "ts", "search": "none"},
    "binary ets tilted": {"map": "ets", "search": "sparse"},
    "binary isotonic": {"map": "isotonic", "search": "none"},
    "binary aar": {"map": "aar", "search": "none"},
    "cnn none tilted": {"map": "none", "search": "sparse"},
    "cnn ts-node": {"map": "ts", "search": "none", "fold": False},
    "cnn ets tilted": {"map": "ets", "search": "sparse"},
    "cnn isotonic": {"map": "isotonic", "search": "none"},
    "cnn aar tilted": {"map": "aar", "search": "sparse"},
}


@dataclass
class Matrix:
    """Builds sources and files on demand, in one folder, and compares on the first held-out samples."""

    folder: Path
    n_samples: int = 199  # the first one is run alone, the others in batches of 33
    _sources: dict[str, Source] = field(default_factory=dict)
    _expected: dict[Path, np.ndarray] = field(default_factory=dict)

    def source(self, name: str) -> Source:
        """Return the source of a file."""
        kind = name.split(maxsplit=1)[0]
        if kind not in self._sources:
            place = self.folder / kind
            place.mkdir()
            self._sources[kind] = SOURCES[kind](place)
        return self._sources[kind]

    def file(self, name: str) -> Path:
        """Return the path of a file of `FILES`, written on first use."""
        source, path = self.source(name), self.folder / f"{name.replace(' ', '-')}.onnx"
        if not path.exists():
            settings = {"angle_step": 10.0, "max_ensemble_size": 40, "device": "cpu", **FILES[name]}
            with_options(tna_onnx.calibrate, source.model, source.calib, eval=source.test, output=path, **settings)
        return path

    def samples(self, name: str) -> np.ndarray:
        """Return the held-out samples that a file is compared on."""
        arrays = np.load(self.source(name).test)
        return arrays[next(key for key in arrays.files if key != "labels")][: self.n_samples]

    def expected(self, name: str, path: Path) -> np.ndarray:
        """Return the probabilities of an unconverted file by ONNX Runtime at its default settings, (N, C)."""
        if path not in self._expected:
            self._expected[path] = probabilities(run_ort, path, self.samples(name))
        return self._expected[path]

    def ran(self, runtime: Runtime, name: str, path: Path) -> Drift:
        """Run a file, or its source, in a runtime and compare.

        Raises:
            DoesNotRun: the runtime refuses the file.
        """
        return Drift.between(probabilities(runtime.run, path, self.samples(name)), self.expected(name, path))

    def converted(self, conversion: Conversion, name: str, path: Path) -> Drift:
        """Convert a file, or its source, and compare the result with the unconverted one, both by ONNX Runtime."""
        target = self.folder / "converted.onnx"
        conversion.run(path, target)
        return Drift.between(probabilities(run_ort, target, self.samples(name)), self.expected(name, path))


@dataclass(frozen=True)
class Drift:
    """Largest and mean difference of two sets of probabilities, and the share of equal predictions."""

    largest: float
    mean: float
    agreement: float

    @classmethod
    def between(cls, found: np.ndarray, expected: np.ndarray) -> Drift:
        """Compare (N, C) with (N, C)."""
        apart = np.abs(found - expected)
        same = found.argmax(axis=1) == expected.argmax(axis=1)
        return cls(float(apart.max()), float(apart.mean()), float(same.mean()))


def probabilities(run: Run, path: Path, x: np.ndarray) -> np.ndarray:
    """Run the first sample alone and the others in batches, and return (N, C) probabilities."""
    batches = [x[:1], *(x[i : i + BATCH] for i in range(1, len(x), BATCH))]
    results = [next(iter(outputs.values())) for outputs in run(path, batches)]
    assert [len(y) for y in results] == [len(b) for b in batches]
    return as_probabilities(path, np.concatenate(results))


# Runtimes


ORT_LEVELS = [
    name.removeprefix("ORT_")
    for name in ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_LAYOUT", "ORT_ENABLE_ALL")
    if hasattr(onnxruntime.GraphOptimizationLevel, name)
]

RUNTIMES: dict[str, Runtime] = {
    **{f"ONNX Runtime {lvl}": Runtime(partial(run_ort, level=lvl), "onnxruntime", "onnxruntime") for lvl in ORT_LEVELS},
    **{name: tool for name, tool in TOOLS.items() if name not in ("ONNX Runtime", "tract")},
}


# Conversions


@dataclass(frozen=True)
class Conversion(Runtime):
    """What turns a file into another one that ONNX Runtime runs: `run` takes the source and the target, and writes it.

    Attributes:
        exact: keeps float32; otherwise the drift is compared with that of the original model.
    """

    exact: bool = field(kw_only=True)


def to_optimized(source: Path, target: Path) -> None:
    """Save the graph as ONNX Runtime optimises it; the layout level would tie it to this processor."""
    ort_session(source, "ENABLE_EXTENDED", target)


def to_float16(source: Path, target: Path, *, module: str, exclude: bool = False) -> None:
    """Convert to float16 inside; inputs and outputs stay float32, with `exclude` the appended nodes too."""
    with quiet():
        convert = import_module(module).convert_float_to_float16
        blocked = appended_nodes(source) if exclude else []
        onnx.save(convert(onnx.load(source), keep_io_types=True, node_block_list=blocked), target)


def to_simplified(source: Path, target: Path) -> None:
    """Simplify with onnxsim, which also runs both files on random input."""
    import onnxsim

    model, same = onnxsim.simplify(onnx.load(source))
    assert same
    onnx.save(model, target)


def to_slim(source: Path, target: Path) -> None:
    """Simplify with onnxslim."""
    import onnxslim

    onnx.save(onnxslim.slim(onnx.load(source)), target)


def to_int8(source: Path, target: Path, *, exclude: bool) -> None:
    """Quantise weights to 8 bits, activations as they come; with `exclude` not in the appended nodes."""
    with quiet():
        from onnxruntime.quantization import quantize_dynamic

        quantize_dynamic(source, target, nodes_to_exclude=appended_nodes(source) if exclude else [])


def appended_nodes(path: Path) -> list[str]:
    """Return the names of the nodes that tna-onnx appended."""
    return [node.name for node in onnx.load(path).graph.node if node.name.startswith("tna_onnx")]


_ORT_HALF = "onnxruntime.transformers.float16"
_ORT_INT8 = "onnxruntime.quantization"
_COMMON_HALF = "onnxconverter_common.float16"
CONVERSIONS: dict[str, Conversion] = {
    "ONNX Runtime, optimised graph saved": Conversion(to_optimized, "onnxruntime", "onnxruntime", exact=True),
    "onnxsim": Conversion(to_simplified, "onnxsim", "onnxsim", exact=True),
    "onnxslim": Conversion(to_slim, "onnxslim", "onnxslim", exact=True),
    "float16 by ONNX Runtime": Conversion(partial(to_float16, module=_ORT_HALF), "onnxruntime", _ORT_HALF, exact=False),
    "float16 by onnxconverter-common": Conversion(
        partial(to_float16, module=_COMMON_HALF), "onnxconverter-common", _COMMON_HALF, exact=False
    ),
    # its namesake in ONNX Runtime gives two casts one name where a tensor feeds two nodes that are left out
    "float16 by onnxconverter-common, map left out": Conversion(
        partial(to_float16, module=_COMMON_HALF, exclude=True), "onnxconverter-common", _COMMON_HALF, exact=False
    ),
    "dynamic int8": Conversion(partial(to_int8, exclude=False), "onnxruntime", _ORT_INT8, exact=False),
    "dynamic int8, map left out": Conversion(partial(to_int8, exclude=True), "onnxruntime", _ORT_INT8, exact=False),
}


# Known limits of others, by tool and file: why the comparison fails there.
_OPENCV = (
    "this engine of OpenCV 5.0.0 cannot reduce a 2-D tensor whose batch is dynamic; the new one and OpenCV 4.14 can"
)
_ONNX2TORCH = "version 1.5.15 has no reductions of opset 18"
LIMITS: dict[tuple[str, str], str] = {
    ("OpenCV classic engine", "small isotonic"): _OPENCV,
    ("OpenCV classic engine", "small aar tilted"): _OPENCV,
    ("OpenCV classic engine", "binary isotonic"): _OPENCV,
    ("OpenCV classic engine", "binary aar"): _OPENCV,
    ("onnx2torch", "cnn isotonic"): _ONNX2TORCH,
    ("onnx2torch", "cnn aar tilted"): _ONNX2TORCH,
}
