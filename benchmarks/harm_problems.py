"""The problems of the harm benchmark: what a model makes of a pool, kept on disk, and random splits of it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harm_data import make_table, shift
from harm_models import Scored, fit
from harm_pairs import Pair
from numpy.typing import NDArray
from problems import open_head
from scipy.special import log_softmax, softmax

from tna_onnx.data import Recipe

__all__ = ["Part", "Problem", "build", "probabilities", "split", "stratified"]

# As many as the largest calibration set: an ECE compares only between equal numbers of samples.
_TEST = 5_000
_DEMO = Path(__file__).resolve().parent.parent / "models" / "digits"
_CIFAR10 = Recipe(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


@dataclass(frozen=True, eq=False)
class Part:
    """Samples to calibrate or to test on.

    Attributes:
        features: (N, n) float32; the logits (N, C) of a model without a head.
        logits: (N, C) float32.
        labels: (N,) int64.
    """

    features: NDArray[np.float32]
    logits: NDArray[np.float32]
    labels: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Problem:
    """One split of a pair.

    Attributes:
        weight: (C, n) float32 of the head; None for a model without one.
        bias: (C,) float32 of the head; None for a model without one.
        calibration: samples to fit on.
        test: others.
        seed: for what is drawn in a method.
    """

    weight: NDArray[np.float32] | None
    bias: NDArray[np.float32] | None
    calibration: Part
    test: Part
    seed: int


def probabilities(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return softmax(logits) in float64, (N, C); none is zero, as some calibrators take the logarithm."""
    p = np.maximum(softmax(logits.astype(np.float64), axis=1), np.finfo(np.float64).eps)
    normalised: NDArray[np.float64] = p / p.sum(1, keepdims=True)
    return normalised


def seed_of(name: str) -> int:
    """Return a number that depends on a name only, in every process."""
    return zlib.crc32(name.encode())


def build(pair: Pair, work: Path, cifar10: Path | None) -> Path:
    """Train the model of a pair and score its pool, unless that is on disk already; return the file."""
    path = work / "pools" / f"{pair.source}.npz"
    if path.exists():
        return path
    scored, labels = _scored(pair, work, cifar10)
    arrays: dict[str, Any] = {"features": scored.features, "labels": labels}
    if scored.weight is not None and scored.bias is not None:
        arrays |= {"weight": scored.weight, "bias": scored.bias}
    path.parent.mkdir(parents=True, exist_ok=True)
    # beside it first: whoever interrupts leaves no half of a file
    beside = path.with_suffix(".part.npz")
    np.savez(beside, **arrays)
    beside.replace(path)
    return path


def split(pair: Pair, path: Path, number: int) -> Problem:
    """Split a pool at random, with the same share of every class in both parts."""
    with np.load(path) as kept:
        features, labels = kept["features"], kept["labels"]
        weight, bias = (kept.get(name) for name in ("weight", "bias"))
    rng = np.random.default_rng([seed_of(pair.name), number])
    logits = features if weight is None else features @ weight.T + bias
    if pair.drawn:
        # the largest of log p plus Gumbel noise is a draw from p
        labels = np.argmax(log_softmax(logits.astype(np.float64), axis=1) + rng.gumbel(size=logits.shape), axis=1)
    first, second = stratified(labels, pair.calibration, rng)
    # in random order: a part of the test data is a random part
    rows = first, rng.permutation(second)[:_TEST]
    calibration, test = (Part(features[part], logits[part], labels[part]) for part in rows)
    return Problem(weight, bias, calibration, test, number)


def stratified(
    labels: NDArray[np.int64], count: int, rng: np.random.Generator
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return `count` random rows, with every class's share of them up to one sample, and the other rows."""
    shuffled = rng.permutation(len(labels))
    rows = shuffled[np.argsort(labels[shuffled], kind="stable")]
    # evenly spaced in the order of classes
    chosen = np.diff(np.arange(len(rows) + 1) * count // len(rows)) > 0
    return rows[chosen], rows[~chosen]


def _scored(pair: Pair, work: Path, cifar10: Path | None) -> tuple[Scored, NDArray[np.int64]]:
    if pair.data == "demo":
        return _of_file(pair, _DEMO / "model.onnx", _DEMO / "calib.npz", _DEMO / "test.npz", None, work)
    if pair.data == "cifar10":
        if cifar10 is None:
            raise ValueError(f"{pair.name}: needs the folder of CIFAR-10")
        return _of_file(pair, cifar10 / f"{pair.model}.onnx", cifar10 / "calib", cifar10 / "test", _CIFAR10, work)
    seed = seed_of(pair.source)
    table = make_table(pair.data, pair.moved, seed)
    x, y = table.pool
    return fit(pair.model, *table.train, seed % 2**31)(x), y


def _of_file(
    pair: Pair, model: Path, calib: Path, test: Path, recipe: Recipe | None, work: Path
) -> tuple[Scored, NDArray[np.int64]]:
    """Collect the features of both data sets of a model in a file, as `tna-onnx calibrate` does."""
    task, head = open_head(model, calib, test, recipe, cache=work / "features")
    assert task.held_out is not None
    tables = [task.calibration.table, task.held_out.table]
    features, labels = (np.concatenate([getattr(table, name) for table in tables]) for name in ("features", "labels"))
    features, labels = shift(features, labels, pair.moved, np.random.default_rng(seed_of(pair.source)))
    return Scored(features, head.weight, head.bias), labels
