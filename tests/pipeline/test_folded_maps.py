"""Maps that go into weight and bias, written into heads of every kind, against ONNX Runtime and their formulas.

Parameters are given, so that the formula is the test's own; the head's numbers are those that built the model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.builders import small_model, tensor_info
from tests.conftest import Small
from tests.corpus.forms import Graph
from tests.graph.samples import FEATURES, Array, Builder, run, softmax
from tests.pipeline.samples import job_of, outcome_of, recalibrated
from tests.support import outputs_of
from tna_onnx.graph.options import ModelOptions
from tna_onnx.graph.rewrite import Rewritten
from tna_onnx.maps.base import CalibrationMap
from tna_onnx.maps.linear import Bias, MatrixScaling, VectorScaling
from tna_onnx.maps.refit import Refit
from tna_onnx.maps.two_classes import Platt
from tna_onnx.pipeline.checking import FileCheck, check_file, checked_samples
from tna_onnx.pipeline.job import Task
from tna_onnx.pipeline.opening import open_task
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.writing import Writing, provenance_entries
from tna_onnx.progress import silent

SAMPLES = 200


@dataclass(frozen=True, eq=False)
class Built:
    """A model, and logits = features @ weight.T + bias, (N, C), with all constant factors in them."""

    proto: onnx.ModelProto
    weight: Array
    bias: Array
    kind: str = "logits"
    dtype: str = "float32"

    @property
    def classes(self) -> int:
        return max(2, len(self.bias))

    def inputs(self) -> Array:
        return np.random.default_rng(1).standard_normal((SAMPLES, FEATURES)).astype(self.dtype)

    def features(self, x: Array) -> Array:
        trunk = next(t for t in self.proto.graph.initializer if t.name == "trunk")
        wide = onnx.numpy_helper.to_array(trunk).astype(np.float64)
        return np.maximum(x.astype(np.float64) @ wide, 0)

    def logits(self, x: Array) -> Array:
        s = self.features(x) @ self.weight.T.astype(np.float64) + self.bias
        if s.shape[1] > 1:
            return s
        return np.hstack([np.zeros_like(s), s])

    def probabilities(self, output: Array) -> Array:
        """(N, C) of what the model's output holds."""
        flat = output.astype(np.float64).reshape(len(output), -1)
        if self.kind == "logits":
            return softmax(flat)
        if self.kind == "sigmoid":
            return np.hstack([1 - flat, flat])
        return flat


def finished(b: Builder, kind: str = "logits", scale: Any = 1.0, bias_scale: Any = 1.0, **fields: Any) -> Built:
    shape = ["N", len(b.bias)]
    proto = b.proto("y")
    proto.graph.output[0].CopyFrom(tensor_info("y", shape, b.dtype))
    factor = np.asarray(scale, np.float64)
    weight = b.weight.astype(np.float64) * (factor[:, None] if factor.ndim else factor)
    return Built(proto, weight, b.bias.astype(np.float64) * bias_scale, kind, b.dtype.name, **fields)


def gemm(dtype: str = "float32", classes: int = 3, activation: str = "Softmax") -> Built:
    b = Builder(dtype, classes=classes)
    b.linear("scores")
    flags = {} if activation == "Sigmoid" else {"axis": -1}
    b.node(activation, "scores", out="y", **flags)
    return finished(b, activation.lower())


def without_bias(classes: int = 3) -> Built:
    b = Builder(classes=classes)
    if classes == 1:
        b.node("Sigmoid", b.product("scores"), out="y")
        return finished(b, "sigmoid", bias_scale=0.0)
    b.product("y")
    return finished(b, bias_scale=0.0)


def one_number(per_class: bool) -> Built:
    """A bias of one number for all classes, which a factor per class makes uneven."""
    b = Builder()
    b.bias = np.full(3, 0.75, np.float32)
    factors = np.array([0.5, -2.0, 3.0]) if per_class else np.ones(3)
    b.node("Add", b.product("product"), b.store("bias", [0.75]), out="biased")
    b.node("Mul", "biased", b.store("factor", factors), out="y")
    return finished(b, scale=factors, bias_scale=factors)


def convolution(bias: bool) -> Built:
    b = Builder()
    image = b.node("Reshape", "features", b.store("to", [-1, FEATURES, 1, 1], np.int64), out="image")
    kernel = b.store("weight", b.weight[:, :, None, None])
    b.node("Conv", image, kernel, *([b.store("bias", b.bias)] if bias else []), out="maps", name="head")
    b.node("Flatten", "maps", out="y")
    return finished(b, bias_scale=float(bias))


def tied() -> Built:
    """The weight is also an embedding, the bias also an offset of something else."""
    b = Builder()
    b.linear("y")
    b.node("Gather", "weight", b.store("ids", [0, 2], np.int64), out="other")
    b.node("Neg", "bias", out="third")
    built = finished(b)
    built.proto.graph.output.extend([tensor_info("other", [2, FEATURES]), tensor_info("third", [3])])
    return built


def mirrored() -> Built:
    """ai.onnx.ml's LinearClassifier for two classes, with a label."""
    b = Builder(classes=1)
    b.nodes.append(
        helper.make_node(
            "LinearClassifier",
            ["features"],
            ["label", "y"],
            name="head",
            domain="ai.onnx.ml",
            coefficients=np.concatenate([-b.weight, b.weight]).reshape(-1).tolist(),
            intercepts=np.concatenate([-b.bias, b.bias]).tolist(),
            classlabels_ints=[0, 1],
            multi_class=0,
            post_transform="LOGISTIC",
        )
    )
    built = finished(b, "softmax")
    built.proto.graph.output[0].CopyFrom(tensor_info("y", ["N", 2]))
    built.proto.graph.output.append(tensor_info("label", ["N"], np.int64))
    built.proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return built


MODELS: dict[str, Callable[[], Built]] = {
    "gemm": gemm,
    "log-softmax": lambda: gemm(activation="LogSoftmax"),
    "float16": lambda: gemm("float16"),
    "float64": lambda: gemm("float64"),
    "no bias": without_bias,
    "one number": lambda: one_number(per_class=False),
    "one number, uneven": lambda: one_number(per_class=True),
    "convolution": lambda: convolution(bias=True),
    "convolution without bias": lambda: convolution(bias=False),
    "tied": tied,
    "two classes": lambda: gemm(classes=2),
    "one logit": lambda: gemm(classes=1, activation="Sigmoid"),
    "one logit without bias": lambda: without_bias(classes=1),
    "mirrored": mirrored,
}

# heads for which what would be a bias is an Add behind the logits
ADDED = {"no bias", "one number", "one number, uneven", "convolution without bias", "one logit without bias"}


def maps_of(classes: int) -> dict[str, tuple[CalibrationMap, Callable[[Array, Array], Array]]]:
    """Maps for so many classes, and their formulas on (N, C) logits and (N, n) features."""
    rng = np.random.default_rng(9)
    c, v = rng.normal(0, 1, classes), rng.normal(0, 0.3, classes)
    matrix = rng.normal(0, 0.2, (classes, classes))
    delta = rng.normal(0, 0.3, (classes, FEATURES)).astype(np.float32)

    def centred(s: Array) -> Array:
        return (s - s.mean(axis=1, keepdims=True)) / 1.5

    sms = MatrixScaling(1.5, matrix, c)
    found: dict[str, tuple[CalibrationMap, Callable[[Array, Array], Array]]] = {
        "bias": (Bias(1.5, c), lambda s, z: s / 1.5 + c),
        "svs": (VectorScaling(1.5, v, c), lambda s, z: (1 + v) * centred(s) + c),
        "sms": (sms, lambda s, z: centred(s) @ (np.eye(classes) + matrix).T + c),
        "refit": (Refit(1.5, 1.0, delta, np.float32(c)), lambda s, z: s / 1.5 + z @ delta.T + np.float32(c)),
    }
    if classes == 2:
        found["platt"] = (Platt(0.7, -0.4), lambda s, z: 0.7 * s + np.array([0.0, -0.4]))
    return found


# Two maps for each model, by turns.
CASES = [
    (model, names[(2 * k + j) % len(names)])
    for k, (model, build) in enumerate(MODELS.items())
    for names in [[*maps_of(build().classes)]]
    for j in range(2)
]


def task_of(small: Small, built: Built, folder: Path) -> Task:
    path = folder / "model.onnx"
    onnx.save(built.proto, path)
    x = built.inputs()
    labels = np.random.default_rng(2).integers(0, built.classes, SAMPLES)
    settings = Settings(predictions="change")  # or labels stay those of the source, in front of an appended map
    job = job_of(small, path, {"x": x, "labels": labels}, options=ModelOptions(output_name="y"), settings=settings)
    return open_task(job, silent)


def write(task: Task, fitted: CalibrationMap, weight: Array | None = None) -> tuple[Rewritten, Path]:
    """Write a map into a model, and let the tool check the file as it does before it is moved to its place."""
    outcome = outcome_of(task, fitted, weight, angle=0.0 if weight is None else 20.0)
    writing = Writing(task)
    assert fitted.name in writing.maps
    rewritten = writing.write(outcome, provenance_entries(writing, outcome))
    path = task.model.path.with_name("written.onnx")
    path.write_bytes(rewritten.proto.SerializeToString())
    checked = checked_samples(task)
    shipped = writing.shipped(outcome, checked)
    assert shipped.fitted is None
    FileCheck(task, checked, shipped).run(path, checker=check_file(task.model, path))
    return rewritten, path


@pytest.mark.parametrize(("model", "name"), CASES)
def test_the_written_file_computes_the_map(model: str, name: str, small: Small, tmp_path: Path) -> None:
    built = MODELS[model]()
    fitted, formula = maps_of(built.classes)[name]
    task = task_of(small, built, tmp_path)
    rewritten, path = write(task, fitted)
    added = [node.op_type for node in rewritten.proto.graph.node if node.name in rewritten.nodes]
    if model in ADDED:
        assert "Add" in added
        assert not set(added) - {"Add", "MatMul", "Reshape", "Cast"}  # the last ones around the logit of a binary head
    else:
        assert not added

    x = built.inputs()
    z = built.features(x)
    expected = softmax(formula(built.logits(x), z))
    found = (
        built.probabilities(run(path, ["y"], x)[0]) if built.kind != "logsoftmax" else np.exp(run(path, ["y"], x)[0])
    )
    # a logit of size s moves by some 2^-24 s, with features rounded to float32 before; 2^-11 s in float16
    eps = np.finfo(built.dtype).eps if built.dtype != "float64" else 1e-8  # parameters of refit are float32
    size = (np.abs(z) @ np.abs(built.weight).T + np.abs(built.bias)).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=32 * eps * size)


@pytest.mark.parametrize("model", ["gemm", "no bias", "one number, uneven", "one logit", "mirrored"])
def test_with_a_new_weight(model: str, small: Small, tmp_path: Path) -> None:
    built = MODELS[model]()
    task = task_of(small, built, tmp_path)
    weight = task.head.anchored(np.random.default_rng(3).standard_normal((built.classes, FEATURES)).astype(np.float32))
    for name, (fitted, formula) in maps_of(built.classes).items():
        _, path = write(task, fitted, weight)
        x = built.inputs()
        z = built.features(x)
        bias = built.bias if len(built.bias) > 1 else np.append(0.0, built.bias)
        bias = task.bias_factor(weight) * bias
        expected = softmax(formula(z @ weight.T.astype(np.float64) + bias, z))
        found = built.probabilities(run(path, ["y"], x)[0])
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5, err_msg=name)  # logits below 20 in float32


def test_tied_constants_stay(small: Small, tmp_path: Path) -> None:
    built = tied()
    rewritten, path = write(task_of(small, built, tmp_path), maps_of(3)["refit"][0])
    assert rewritten.added == {"tna_onnx/weight", "tna_onnx/bias"}
    old, new = (run(p, ["other", "third"], built.inputs()) for p in (tmp_path / "model.onnx", path))
    for before, after in zip(old, new, strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.slow
def test_a_map_of_more_classes_than_metadata_hold(tmp_path: Path) -> None:
    """Its numbers are those of the file, in weight and bias."""
    rng = np.random.default_rng(0)
    classes = 1100
    weight = rng.standard_normal((classes, 16)).astype(np.float32)
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)]
    proto = small_model(nodes, {"x": ["N", 16]}, {"y": ["N", classes]}, {"w": weight, "b": weight[:, 0].copy()})
    labels = rng.integers(0, 300, 800)
    x = weight[labels] / 2 + 0.7 * rng.standard_normal((800, 16)).astype(np.float32)
    report, _ = recalibrated(proto, (x, labels), tmp_path, map="bias", trust_labels=True)
    assert report.folded


# --- Maps that read the features in the graph: of another type than the logits, or quantised


FEATURE_SAMPLES = 600


def _half(g: Graph) -> None:
    """A head in float16, whose logits are cast."""
    g.output(g.text("Cast gemm > y to=FLOAT"), dtype=np.float32)


def _steps(g: Graph) -> None:
    """Quantised features and logits."""
    features = "QuantizeLinear z z_scale zero > q; DequantizeLinear q z_scale zero > v"
    logits = "QuantizeLinear s s_scale zero > q; DequantizeLinear q s_scale zero > y"
    nodes = f"{features}; Gemm v W b > s transB=1; {logits}"
    g.output(g.text(nodes, z_scale=0.05, s_scale=0.1, zero=np.int8(0)))


@pytest.mark.parametrize(("fill", "dtype", "name"), [(_half, "float16", "refit"), (_steps, "float32", "aar")])
def test_a_map_reads_features_of_any_type(fill: Callable[[Graph], None], dtype: str, name: str, tmp_path: Path) -> None:
    graph = Graph(dtype)
    fill(graph)
    feeds: dict[str, Any] = graph.feeds(FEATURE_SAMPLES, np.random.default_rng(1))
    (logits,) = outputs_of(graph.proto(), feeds).values()
    labels = (logits + 3 * np.random.default_rng(2).gumbel(size=logits.shape)).argmax(axis=1)
    report, _ = recalibrated(graph.proto(), {**feeds, "labels": labels}, tmp_path, map=name, max_accuracy_drop=20)
    assert report.map == name
    assert report.verification.max_difference <= report.verification.bound
