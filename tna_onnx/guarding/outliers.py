"""The outlier score: which tensors it reads, and its fit to features."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Source
from tna_onnx.errors import DataError, UnsupportedModel
from tna_onnx.extraction.sessions import open_part
from tna_onnx.graph.cut import cut_at
from tna_onnx.graph.decisions import OutlierInput
from tna_onnx.graph.head import choose_head
from tna_onnx.graph.load import Model
from tna_onnx.graph.options import ModelOptions
from tna_onnx.graph.scores import find_readout
from tna_onnx.guarding.settings import OodScore
from tna_onnx.numerics.outliers import Energy, Mahalanobis, Residual
from tna_onnx.progress import Progress
from tna_onnx.runtime import Device

__all__ = ["outlier_of", "reads_features"]

_FITTED: dict[str, type[Mahalanobis | Residual]] = {"mahalanobis": Mahalanobis, "residual": Residual}


def reads_features(score: OodScore) -> bool:
    """Whether a score is fitted to features."""
    return score in _FITTED


def outlier_of(
    score: OodScore,
    model: Model,
    options: ModelOptions,
    source: Source,
    rows: NDArray[np.int64],
    batch_size: int,
    device: Device,
    progress: Progress,
) -> OutlierInput:
    """Return the score, fitted to the features of some samples if it is one of features.

    Raises:
        UnsupportedModel: the model has no logits of all classes, or no linear head.
        DataError: features of another shape than (N, n).
    """
    if not reads_features(score):
        readout = find_readout(model, options.head, options.output_name, options.output_kind)
        if readout.holds != "logits" or readout.binary:
            raise UnsupportedModel(
                f"{model.name}: the energy needs a tensor of logits of all classes, and '{readout.logits}' holds "
                f"{'one number a sample' if readout.binary else readout.holds}; use --ood-score mahalanobis"
            )
        return OutlierInput(Energy(), readout.logits, "", 0)
    head = choose_head(model, options.head, options.output_name)
    session = open_part(model, cut_at(model, [head.features]), device)
    parts = []
    done = 0
    for batch in source.batches(batch_size, rows):
        (values,) = session.run([head.features], batch)
        size = len(next(iter(batch.values())))
        if values.size != size * head.weight.shape[1]:
            raise DataError(
                f"{source.describe()}: features '{head.features}' have shape {values.shape} for {size} samples; "
                f"expected ({size}, {head.weight.shape[1]}); use --ood-score energy"
            )
        parts.append(np.asarray(values, np.float32).reshape(size, -1))
        done += size
        progress("fit outlier score", done, len(rows))
    fitted = _FITTED[score].fit(np.concatenate(parts), source.labels[rows])
    return OutlierInput(fitted, "", head.features, head.weight.shape[1])
