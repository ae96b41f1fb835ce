"""What the benchmarks run on: the features of a model's calibration data, a random problem, a very large head."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.data.options import Data
from tna_onnx.engine.logits import HeadLogits, score_all
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.graph.readout import Head
from tna_onnx.pipeline.job import Job, Task
from tna_onnx.pipeline.opening import open_task
from tna_onnx.progress import silent
from tna_onnx.search.candidates import Candidate, Scorer, SearchSettings
from tna_onnx.search.sparse import search_sparse

# Sizes of the classifier with a very large head.
INPUTS, FEATURES, CLASSES = 64, 1280, 21_843
SAMPLES = 2000
SHARPNESS = 1.5


def open_head(
    model: str | Path,
    calib: str | Path,
    held_out: str | Path | None = None,
    recipe: Recipe | None = None,
    cache: str | Path | None = None,
) -> tuple[Task, Head]:
    """Open a model and collect its features on the CPU, as `tna-onnx calibrate` does before it searches."""
    job = Job(
        model=model,
        calib=Data(calib, preprocessing=recipe),
        held_out=None if held_out is None else Data(held_out, preprocessing=recipe),
        # Nothing is written. The default lies beside the model, whose folder may be read-only.
        output=Path(tempfile.gettempdir()) / "benchmark.onnx",
        device="cpu",
        cache=cache,
    )
    task = open_task(job, silent)
    assert task.head is not None  # the default search refuses a model without one
    return task, task.head


def make(
    samples: int, n: int, classes: int, lean: float, sharpness: float, *, seed: int = 0, wrong_labels: float = 0.0
) -> tuple[FeatureTable, np.ndarray, np.ndarray]:
    """Return features, weight and bias of an overconfident classifier.

    Class vectors are random; features lean towards the vector of their label, which sets the accuracy. A share of the
    labels is then drawn anew: errors that no weight mends, however noisy it is.
    """
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((classes, n), np.float32)
    labels = rng.integers(0, classes, samples)
    features = np.maximum(rng.standard_normal((samples, n), np.float32) + np.float32(lean) * weight[labels], 0)
    weight *= np.float32(sharpness)
    drawn_anew = rng.random(samples) < wrong_labels
    labels[drawn_anew] = rng.integers(0, classes, int(drawn_anew.sum()))
    return FeatureTable(features, labels.astype(np.int64)), weight, np.zeros(classes, np.float32)


def bare_products(table: FeatureTable, weight: np.ndarray, times: int) -> None:
    """Multiply all features with a weight, in the row blocks of the search: the arithmetic it cannot do without."""
    for _ in range(times):
        for features, _labels in table.chunks(len(weight)):
            features @ weight.T


def sparse_search(
    table: FeatureTable, weight: np.ndarray, bias: np.ndarray, settings: SearchSettings
) -> tuple[Candidate, ...]:
    """Run the sparse search with everything that it does."""
    original = HeadLogits(table, weight, bias)
    scored = Scorer(
        settings.ensemble(weight),
        lambda weights: score_all([HeadLogits(table, w, bias) for w in weights]),
        original.scaled_scores,
    )
    return search_sparse(scored, settings, lambda *_: None)


def write_large_head(folder: Path, *, seed: int = 0) -> int:
    """Write a classifier with a head of 21,843 classes, and samples that it labels itself, into a folder.

    Most labels are the most likely class, so that accuracy is that of a trained network; its logits are too large by a
    factor of `SHARPNESS`, which is what there is to find. Files: `model.onnx`, `calib.npz`, `eval.npz`.

    Returns:
        Bytes of the head's weight.
    """
    rng = np.random.default_rng(seed)
    hidden = (rng.standard_normal((INPUTS, FEATURES)) / INPUTS**0.5).astype(np.float32)
    weight = (rng.standard_normal((CLASSES, FEATURES)) * 12 / FEATURES**0.5).astype(np.float32)
    for name in ("calib", "eval"):
        x = rng.standard_normal((SAMPLES, INPUTS)).astype(np.float32)
        honest = np.maximum(x @ hidden, 0) @ weight.T
        labels = np.argmax(honest + rng.gumbel(size=honest.shape).astype(np.float32), axis=1)
        np.savez(folder / f"{name}.npz", x=x, labels=labels)
    weight *= np.float32(SHARPNESS)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "hidden"], ["h"]),
            helper.make_node("Relu", ["h"], ["z"]),
            helper.make_node("Gemm", ["z", "weight", "bias"], ["logits"], name="head", transB=1),
        ],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", INPUTS])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", CLASSES])],
        [
            numpy_helper.from_array(hidden, "hidden"),
            numpy_helper.from_array(weight, "weight"),
            numpy_helper.from_array(np.zeros(CLASSES, np.float32), "bias"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    return int(weight.nbytes)
