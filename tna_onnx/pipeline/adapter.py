"""A calibration as an adapter of ONNX Runtime: weight and bias of the head, which a run takes in place of others.

The model is prepared once: the head's initializers become inputs, whose defaults are the values that they had. A run
with an active adapter takes these from `NAME.onnx_adapter`, so that one session serves many calibrations. An adapter
holds values alone. So a calibration has to be in weight and bias: no nodes, and no integers, whose scales would change.
"""

from __future__ import annotations

from pathlib import Path

from tna_onnx.errors import CheckFailed, DataError, UnsupportedModel
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import MIN_IR_OF_INITIALIZERS
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.rewrite import with_inputs
from tna_onnx.graph.tensors import numpy_name
from tna_onnx.graph.written_values import new_values
from tna_onnx.runtime import adapter_bytes, read_adapter

__all__ = ["adaptable", "adapter_of", "adapter_tensors"]

_DTYPES = ("float32", "float16", "float64")

# A model version is an int32.
_DIGITS = 7


def adapter_tensors(model: Model, readout: Readout) -> tuple[str, ...]:
    """Return the names of the initializers that an adapter takes the place of: weight, and bias where there is one.

    Raises:
        UnsupportedModel: the head has none of its own in float.
    """
    if not isinstance(readout, Head):
        raise UnsupportedModel(f"{model.name}: an adapter holds weight and bias of a linear head, and there is none")
    if model.proto.ir_version < MIN_IR_OF_INITIALIZERS:
        raise UnsupportedModel(
            f"{model.name}: has IR version {model.proto.ir_version}; an input with a default needs "
            f"{MIN_IR_OF_INITIALIZERS} or newer: convert the model, or write a patch as .npz"
        )
    places = [place for place in (readout.stored_weight, readout.stored_bias) if place is not None]
    for place in places:
        tensor = model.initializers.get(place.name)
        plain = place.overwritten and place.quantized is None
        if tensor is None or not plain or numpy_name(tensor.data_type) not in _DTYPES:
            raise UnsupportedModel(
                f"{model.name}: '{place.name}' of head '{readout.node}' is no initializer of its own in float, which "
                "an adapter could replace; write a patch as .npz"
            )
    return tuple(place.name for place in places)


def adapter_of(source: Model, file: Model, readout: Readout) -> bytes:
    """Return the adapter with which the prepared source computes what a file does.

    Raises:
        UnsupportedModel: the file has more than new weights and biases.
    """
    names = adapter_tensors(source, readout)
    if list(source.proto.graph.node) != list(file.proto.graph.node) or not set(new_values(source, file)) <= set(names):
        raise UnsupportedModel(
            f"{source.name}: the calibration has nodes of its own, and an adapter holds weight and bias alone; use "
            "--map ts, svs, bias or refit, or write a patch as .npz"
        )
    values = {name: file.array(file.initializers[name]) for name in names}
    return adapter_bytes(values, _version_of(source))


def adaptable(source: Model, path: Path) -> Model:
    """Return a model whose initializers are inputs with defaults, as far as an adapter has them.

    Raises:
        CheckFailed: the adapter belongs to another model.
        DataError: it is damaged, or none.
    """
    values, version = read_adapter(path)
    if version != _version_of(source):
        raise CheckFailed(f"{path}: belongs to another model than {source.name}; give the one that was calibrated")
    for name, array in values.items():
        tensor = source.initializers.get(name)
        if tensor is None or (list(tensor.dims), numpy_name(tensor.data_type)) != ([*array.shape], array.dtype.name):
            raise DataError(f"{path}: {source.name} has no initializer '{name}' of type and shape of the adapter's")
    return Model(with_inputs(source, values), "", source.path, apart=source.apart)


def _version_of(model: Model) -> int:
    """Return what an adapter says of its model: the beginning of its digest."""
    return int(model.sha256[:_DIGITS], 16)
