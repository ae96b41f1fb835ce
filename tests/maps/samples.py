"""Samples to fit maps on, and the `reduce` that a fit asks for."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

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


def reduce_of(logits: Any, labels: Any, features: Any = None, cuts: Sequence[int] = ()) -> Reduce:
    """Reduce over chunks that end at `cuts`."""
    borders = [0, *cuts, len(labels)]

    def run(of: Callable[..., Any], *aligned: Array) -> Any:
        arrays = (logits, labels, features, *aligned)
        return sum_chunks(
            of, [tuple(None if x is None else x[a:b] for x in arrays) for a, b in itertools.pairwise(borders)]
        )

    return run
