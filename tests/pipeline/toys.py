"""A small classifier whose logits are three times too large, the strategies that look for what repairs it, and fits."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.engine.logits import HeadLogits, StoredLogits
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.maps.base import CalibrationMap
from tna_onnx.pipeline.crossfit import Fit
from tna_onnx.pipeline.methods import Method
from tna_onnx.pipeline.strategy import DataPart, Outcome, Strategy
from tna_onnx.search.candidates import SearchSettings

SETTINGS = SearchSettings(angle_step=30.0, ensemble_size=4, max_ensemble_size=8, max_accuracy_drop=0.01, seed=1)
BY_NLL = replace(SETTINGS, objective="nll")

N = 300
TNA = Method(tilted=True, map="none")
TS = Method(tilted=False, map="ts")


class Fits:
    """Logits and map of each method for a fold and its training samples, as `cross_scores` asks for them."""

    def __init__(self, made: Mapping[Method, Callable[[int, Any], tuple[Any, CalibrationMap | None]]]) -> None:
        self.made = made
        self.counts = dict.fromkeys(made, 0)  # of the fits

    def __call__(self, k: int, train: Any) -> Iterator[tuple[Method, Iterator[Fit]]]:
        for method in self.made:
            yield method, self._one(method, k, train)

    def _one(self, method: Method, k: int, train: Any) -> Iterator[Fit]:
        self.counts[method] += 1
        yield method, *self.made[method](k, train)


def toy(
    search: str,
    name: str,
    *,
    head: bool = True,
    temperature: float = 3.0,
    relabelled: Any = None,
    settings: SearchSettings = SETTINGS,
    seen: NDArray[np.intp] | None = None,
    **fields: Any,
) -> Strategy:
    """Labels drawn at a temperature, on features (300, 12) or on their logits alone; some can be drawn anew.

    Searches and fits of folds see those of the rows `seen`, or all.
    """
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((4, 12)).astype(np.float32)
    features = rng.standard_normal((N, 12)).astype(np.float32)
    logits = features @ weight.T
    labels = np.argmax(logits / temperature + rng.gumbel(size=logits.shape), axis=1)
    if relabelled is not None:
        labels[relabelled] = rng.integers(0, 4, int(np.sum(relabelled)))
    if not head:
        stored = StoredLogits(FeatureTable(logits, labels, 64))
        return Strategy(lambda _: stored, None, search, name, settings, **fields)
    table = FeatureTable(features, labels, 64)
    bias = np.zeros(4, np.float32)
    if seen is not None:
        few = table.part(seen)
        fields["part"] = DataPart(seen, lambda w: HeadLogits(few, w, bias))
    return Strategy(lambda w: HeadLogits(table, w, bias), weight, search, name, settings, **fields)


def run(strategy: Strategy) -> Outcome:
    return strategy.run(lambda *_: None)
