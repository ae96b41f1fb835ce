"""Samples to fit maps on, and the `reduce` that a fit asks for."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.special import log_softmax

from tna_onnx.engine.logits import sum_chunks
from tna_onnx.maps.base import Reduce

Array = np.ndarray


def sample(classes: int = 5, n: int = 12, size: int = 900, seed: int = 0, scale: float = 3.0) -> tuple[Array, ...]:
    """Return (logits, labels, features): classes drawn at the softmax, reported `scale` times too sharp."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((size, n)) * rng.gamma(3, 0.4, (size, 1))
    logits = features @ rng.standard_normal((n, classes)) * 0.7
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    return scale * logits, labels.astype(np.int64), features


def drawn(
    classes: int = 10, n: int = 1500, temperature: float = 2.5, shift: float = 0.0, seed: int = 0
) -> tuple[Array, Array]:
    """Logits too sharp by a temperature, and labels of classes that are, by a shift, more or less frequent."""
    rng = np.random.default_rng([classes, n, seed])
    honest = 2 * rng.normal(size=(n, classes))
    frequency = shift * rng.normal(size=classes) if shift else 0.0
    return temperature * honest, (honest + frequency + rng.gumbel(size=honest.shape)).argmax(axis=1)


def without(label: int, **options: Any) -> tuple[Array, Array]:
    """Drawn logits and labels without the samples of a class."""
    logits, labels = drawn(**options)
    return logits[labels != label], labels[labels != label]


def huge(**options: Any) -> tuple[Array, Array]:
    """Logits up to +-1e4, a few of them exactly."""
    logits, labels = drawn(temperature=2500.0, **options)
    return np.clip(logits, -1e4, 1e4), labels


def nll(logits: Array, labels: Array) -> float:
    return float(-np.mean(log_softmax(logits.astype(np.float64), axis=1)[np.arange(len(labels)), labels]))


def reduce_of(logits: Any, labels: Any, features: Any = None, cuts: Sequence[int] = ()) -> Reduce:
    """Reduce over chunks that end at `cuts`."""
    borders = [0, *cuts, len(labels)]

    def run(of: Callable[..., Any], *aligned: Array) -> Any:
        arrays = (logits, labels, features, *aligned)
        return sum_chunks(
            of, [tuple(None if x is None else x[a:b] for x in arrays) for a, b in itertools.pairwise(borders)]
        )

    return run
