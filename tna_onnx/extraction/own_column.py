"""Features that the samples hold themselves, in an array: nothing is computed, and nothing is copied."""

from __future__ import annotations

import numpy as np

from tna_onnx.data import Source
from tna_onnx.data.marked import LabelSource
from tna_onnx.data.sources.columns import ArraySource
from tna_onnx.extraction.mapped import release
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.extraction.tensors import Tensors, require_finite
from tna_onnx.graph.readout import Head, Readout

__all__ = ["own_column"]

# Rows checked at a time: their flags fit into the cache.
_FINITE_ROWS = 4096


def own_column(readout: Readout, source: Source, tensors: Tensors, batch_size: int) -> FeatureTable | None:
    """Return the samples' own array of features where that is all there is to keep.

    None where something has to be computed or converted, or the samples are no arrays.

    Args:
        readout: what the features are for.
        source: the samples.
        tensors: what is to be kept.
        batch_size: samples per run.

    Raises:
        DataError: features are NaN or infinite.
    """
    arrays = source.source if isinstance(source, LabelSource) else source
    if not isinstance(readout, Head) or not readout.linear or tensors.computed or not isinstance(arrays, ArraySource):
        return None
    column = arrays.columns[tensors.main]
    wanted = next(spec.dtype for spec in arrays.inputs if spec.name == tensors.main)
    if not isinstance(column, np.ndarray) or column.dtype != wanted:  # a conversion copies
        return None
    features = column.reshape(len(source), readout.n_features)
    for start in range(0, len(features), _FINITE_ROWS):
        block = slice(start, start + _FINITE_ROWS)
        require_finite(source, "features", features[block], start)
        release(features, block)
    return FeatureTable(features, source.labels, batch_size)
