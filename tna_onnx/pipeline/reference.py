"""The reference of a calibration (`numerics.reference`) as an entry of the metadata, and back."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.several import PositionSource
from tna_onnx.errors import DataError, UnsupportedModel
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import head_provenance, provenance
from tna_onnx.maps import MAPS
from tna_onnx.maps.base import apply_map
from tna_onnx.numerics.ops import to_host
from tna_onnx.numerics.prior_shift import Observed, invertible
from tna_onnx.numerics.reference import LEAST, MOST_CLASSES, Reference, projections
from tna_onnx.pipeline.job import Task
from tna_onnx.pipeline.strategy import Outcome
from tna_onnx.pipeline.writing import Shipped, Writing

_ENTRY = "reference"

# More labelled samples make no interval narrower that matters.
_MOST = 50_000


def reference_entry(writing: Writing, outcome: Outcome, shipped: Shipped) -> dict[str, str]:
    """Return the entry; empty where samples without labels could not be judged by it.

    `shipped`: what the written file computes for the samples of the report.
    """
    task = writing.task
    if not _is_usable(task, outcome) or (writing.keeps_labels and not outcome.keeps_predictions):
        return {}
    # `evaluate` asks the written file for the features, which a node has to compute
    tensor = ""
    if task.head is not None and task.head.features in task.model.producers:
        tensor = task.head.features
    rows = _independent_rows(task.reported.table.clusters, len(task.reported.table))
    parts: list[list[NDArray[Any]]] = []
    try:
        for logits, labels, z in shipped.logits.chunks(rows, features=True):
            mapped = to_host(apply_map(shipped.fitted, logits, z))
            columns: list[NDArray[Any]] = [task.readout.probabilities(mapped).astype(np.float32), np.asarray(labels)]
            if tensor:
                columns.append(projections(to_host(z)))
            parts.append(columns)
        p, y, *projected = (np.concatenate(values) for values in zip(*parts, strict=True))
        counts = np.bincount(y, minlength=p.shape[1])
        if counts.min() < LEAST or invertible(Observed(y, p, p, counts / len(y), counted=True), task.settings.seed):
            return {}
        return {_ENTRY: Reference.fit(p, y, *projected, name=tensor).text()}
    except (DataError, np.linalg.LinAlgError):
        return {}


def _is_usable(task: Task, outcome: Outcome) -> bool:
    """Return whether the samples of the report are labelled, and as new to the map as others will be."""
    readout = task.readout
    fitted = outcome.fitted
    independent = not (readout.multi_label or isinstance(task.source, PositionSource))
    labelled = task.teacher is None and task.reported.table.weights is None
    # a map of many numbers looks better on the samples that it was fitted to than it is
    new = task.held_out is not None or fitted is None or MAPS[fitted.name].few_parameters
    return readout.n_classes <= MOST_CLASSES and independent and labelled and new


def _independent_rows(clusters: NDArray[np.int64] | None, n: int) -> NDArray[np.bool_]:
    """Return a mask of one sample of each cluster; of very many, of every so many."""
    rows = np.arange(n)
    if clusters is not None:
        rows = np.sort(np.unique(clusters, return_index=True)[1])
    mask = np.zeros(n, bool)
    mask[rows[:: -(-len(rows) // _MOST)]] = True
    return mask


def read_reference(model: Model, output: str) -> Reference:
    """Return what a file records of the calibration of an output.

    Raises UnsupportedModel: nothing, or nothing that holds of the file as it is.
    """
    text = head_provenance(model, output).get(_ENTRY)
    if text is None:
        raise UnsupportedModel(
            f"{model.name} records no reference of its calibration; give labels, or calibrate it, or its source "
            f"again, with --eval or --map bias, on {LEAST} samples or more of each class, one class a sample, "
            f"of at most {MOST_CLASSES} classes that the model tells apart"
        )
    if "shift" in provenance(model):
        raise UnsupportedModel(f"{model.name} was shifted after its calibration; give labels, or the file before that")
    try:
        return Reference.read(text)
    except DataError as error:
        raise UnsupportedModel(f"{model.name}: {error}; give labels, or calibrate its source again") from error
