"""What studies compute on: features of calibration and held-out samples, and the linear layer behind them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.engine.logits import HeadLogits
from tna_onnx.engine.placement import Host, Placement
from tna_onnx.errors import UnsupportedModel
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.numerics.averages import kept_part
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline.job import Task


@dataclass(frozen=True, eq=False)
class StudyData:
    """Features of two sets of samples, and the layer s = W z + b."""

    weight: NDArray[Any]  # (C, n) class vectors, float32 or float64
    bias: NDArray[Any]  # (C,) in the dtype of the weight
    calibration: FeatureTable  # samples to search and fit on
    held_out: FeatureTable  # samples to score
    tilt_bias: bool = True  # whether the bias is scaled by what is left of a tilted weight
    # where products are computed
    placement: Placement = Host()  # noqa: RUF009 - a frozen value

    def logits(self, table: FeatureTable, weight: NDArray[Any] | None = None) -> HeadLogits:
        """Logits of samples under a (C, n) weight; the original one by default."""
        if weight is None or weight is self.weight:
            return HeadLogits(table, self.weight, self.bias, self.placement)
        bias = self.bias
        if self.tilt_bias:
            bias = bias * self.bias.dtype.type(kept_part(self.weight, weight))
        return HeadLogits(table, weight, bias, self.placement)

    def scores(self, weight: NDArray[Any] | None = None) -> SampleScores:
        """Scores of the held-out samples under a weight."""
        return self.logits(self.held_out, weight).scores()

    def split(self, repeat: int, seed: int) -> StudyData:
        """Return all samples split anew into sets of the same sizes, stratified by class."""
        features = np.concatenate([self.calibration.features, self.held_out.features])
        labels = np.concatenate([self.calibration.labels, self.held_out.labels])
        rng = np.random.default_rng([seed, repeat])
        rows = stratified(labels, len(self.calibration), rng)
        remaining = np.setdiff1d(np.arange(len(labels)), rows)
        joined = FeatureTable(features, labels)
        return replace(self, calibration=rows_of(joined, rows), held_out=rows_of(joined, remaining))

    def fewer(self, samples: int, rng: np.random.Generator) -> StudyData:
        """Return a stratified draw of the calibration samples, and all held-out ones."""
        rows = stratified(self.calibration.labels, samples, rng)
        return replace(self, calibration=rows_of(self.calibration, rows))


def rows_of(table: FeatureTable, rows: NDArray[Any]) -> FeatureTable:
    """Return some rows of a table."""
    return FeatureTable(np.asarray(table.features)[rows], table.labels[rows])


def stratified(labels: NDArray[np.int64], samples: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw rows, ascending, so that each class keeps its share within about one sample."""
    order = rng.permutation(len(labels))
    place = np.empty(len(labels))
    for label in np.unique(labels):
        rows = order[labels[order] == label]
        # evenly spaced in [0, 1): the first m of all places hold the share m / N of every class
        place[rows] = (np.arange(len(rows)) + rng.random()) / len(rows)
    return np.sort(np.argsort(place, kind="stable")[:samples])


def data_of_task(task: Task) -> StudyData:
    """Return the features and the head of an opened task."""
    head = task.head
    if head is None or task.probed.tail is not None or task.held_out is None:
        raise UnsupportedModel(
            f"{task.model.name}: {task.where}: logits that only the graph can compute; use calibrate"
        )
    if head.weight.shape[1] < 2 or not np.any(head.weight):
        raise UnsupportedModel(
            f"{task.model.name}: {task.where}: a weight with one feature, or of zeros, cannot be tilted"
        )
    tables = (task.calibration.table, task.held_out.table)
    # a study goes over them hundreds of times, and splits them
    calibration, held_out = (FeatureTable(np.asarray(table.features), table.labels) for table in tables)
    return StudyData(head.weight, head.bias, calibration, held_out, task.settings.tilt_bias, task.placement)
