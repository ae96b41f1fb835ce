"""The outlier score: which tensors it reads, and its fit to features."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError, UnsupportedModel
from tna_onnx.extraction.sessions import open_part
from tna_onnx.graph.before_map import before_map
from tna_onnx.graph.cut import cut_at
from tna_onnx.graph.guarded import OutlierInput
from tna_onnx.graph.head import choose_head
from tna_onnx.graph.options import ModelOptions
from tna_onnx.graph.readout import Head
from tna_onnx.graph.scores import find_readout
from tna_onnx.guarding.opening import Opened
from tna_onnx.guarding.settings import OodScore
from tna_onnx.numerics.outliers import Energy, Mahalanobis, Residual
from tna_onnx.progress import Progress

__all__ = ["outlier_of"]

_FITTED: dict[str, type[Mahalanobis | Residual]] = {"mahalanobis": Mahalanobis, "residual": Residual}


def outlier_of(score: OodScore, opened: Opened, options: ModelOptions, progress: Progress) -> OutlierInput:
    """Return the score, fitted to the features of some samples if it is one of features.

    Raises:
        UnsupportedModel: the model has no logits of all classes, or no linear head.
        DataError: features of another shape than (N, n).
    """
    model, options = before_map(opened.model, options)
    if score not in _FITTED:
        readout = find_readout(model, options.head, options.output_name, options.output_kind)
        if readout.holds != "logits" or readout.binary:
            raise UnsupportedModel(
                f"{model.name}: the energy needs a tensor of logits of all classes, and '{readout.logits}' holds "
                f"{'one number a sample' if readout.binary else readout.holds}; use --ood-score mahalanobis"
            )
        return OutlierInput(Energy(), readout.logits, "", 0)
    head = choose_head(model, options.head, options.output_name)
    fitted = _FITTED[score].fit(*_features(opened, head, progress))
    return OutlierInput(fitted, "", head.features, head.n_features)


def _features(opened: Opened, head: Head, progress: Progress) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the features (N, n) of the samples that the score is fitted to, and their labels.

    Raises:
        DataError: features of another shape than (N, n).
    """
    source = opened.fit
    rows = opened.fit_rows
    session = open_part(opened.model, cut_at(opened.model, [head.features]), opened.device)
    parts = []
    done = 0
    for batch in source.batches(opened.batch_size, rows):
        (values,) = session.run([head.features], batch)
        size = len(next(iter(batch.values())))
        if values.size != size * head.n_features:
            raise DataError(
                f"{source.describe()}: features '{head.features}' have shape {values.shape} for {size} samples; "
                f"expected ({size}, {head.n_features}); use --ood-score energy"
            )
        parts.append(np.asarray(values, np.float32).reshape(size, -1))
        done += size
        progress("fit outlier score", done, len(rows))
    return np.concatenate(parts), source.labels[rows]
