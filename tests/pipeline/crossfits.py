"""A classifier whose logits are twice too large, and maps that are cross-fitted on it."""

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.engine.logits import HeadLogits
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.maps import MAPS
from tna_onnx.maps.base import CalibrationMap
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline.crossfit import Fit, Scores, cross_scores
from tna_onnx.pipeline.methods import Method

Array = NDArray[Any]

SEED = 4
N = 603
TS = Method(tilted=False, map="ts")
BIAS = Method(tilted=False, map="bias")


def data(samples: int = N, n: int = 16, classes: int = 4) -> tuple[Array, NDArray[np.int64], Array, Array]:
    """Features, labels, weight and bias of a classifier whose logits are twice too large."""
    rng = np.random.default_rng([samples, n, classes])
    features = rng.normal(size=(samples, n))
    honest = 2 * rng.normal(size=(classes, n)) / math.sqrt(n)
    labels = (features @ honest.T + rng.gumbel(size=(samples, classes))).argmax(axis=1)
    return features.astype(np.float32), labels, (2 * honest).astype(np.float32), np.zeros(classes, np.float32)


def logits_of(labels: NDArray[np.int64] | None = None) -> HeadLogits:
    features, drawn, weight, bias = data()
    return HeadLogits(FeatureTable(features, drawn if labels is None else labels), weight, bias)


class Maps:
    """Fits of maps by name, which keeps what was fitted for each fold."""

    def __init__(self, *names: str, labels: NDArray[np.int64] | None = None) -> None:
        self.names = names
        self.logits = logits_of(labels)
        self.fitted: dict[tuple[str, int], CalibrationMap | None] = {}
        self.masks: list[Array] = []

    def __call__(self, k: int, train: Array) -> Iterator[tuple[Method, Iterator[Fit]]]:
        self.masks.append(train)
        for name in self.names:
            yield Method(tilted=False, map=name), self._one(name, k, train)

    def _one(self, name: str, k: int, train: Array) -> Iterator[Fit]:
        fitted = None if name == "none" else MAPS[name].fit(self.logits.reduce(train))
        self.fitted[name, k] = fitted
        yield Method(tilted=False, map=name), self.logits, fitted

    def scores(self) -> Scores:
        return cross_scores(N, SEED, self)


@functools.cache
def plain() -> Maps:
    maps = Maps("none", "ts", "bias")
    maps.scores()
    return maps


def equal(one: SampleScores, other: SampleScores) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True))
