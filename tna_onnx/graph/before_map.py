"""A recalibrated model as it is in front of the map that was appended: its head is a head again."""

from __future__ import annotations

import dataclasses

from tna_onnx.graph.cut import cut_at
from tna_onnx.graph.load import Model
from tna_onnx.graph.options import ModelOptions
from tna_onnx.graph.own_names import RAW_LOGITS

__all__ = ["before_map"]


def before_map(model: Model, options: ModelOptions) -> tuple[Model, ModelOptions]:
    """Return a model whose output is what an appended map reads, and options on it; without such a map, the same.

    Tensors keep their names, so that what is found in the one can be read in the other.
    """
    if RAW_LOGITS not in model.producers:
        return model, options
    cut = dataclasses.replace(model, proto=cut_at(model, [RAW_LOGITS]))
    # what the file's own output holds says nothing of this one
    return cut, dataclasses.replace(options, output_name=RAW_LOGITS, output_kind=None)
