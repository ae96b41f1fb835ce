"""What the benchmarks search on: the features of a model's calibration data, or a random problem of any size."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from tna_onnx.calibration.job import Job
from tna_onnx.calibration.opening import open_task
from tna_onnx.calibration.task import Task
from tna_onnx.data import Recipe
from tna_onnx.data.options import Data
from tna_onnx.engine.logits import HeadLogits, score_all
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.graph.readout import Head
from tna_onnx.progress import silent
from tna_onnx.search.candidates import Candidate
from tna_onnx.search.scored import Scored
from tna_onnx.search.settings import SearchSettings
from tna_onnx.search.sparse import search_sparse

__all__ = ["bare_products", "make", "open_head", "sparse_search"]


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
    scored = Scored(
        settings.ensemble(weight),
        lambda weights: score_all([HeadLogits(table, w, bias) for w in weights]),
        original.scaled_scores,
    )
    return search_sparse(scored, settings, lambda *_: None)
