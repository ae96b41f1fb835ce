"""Sessions on a model, or on a part of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tna_onnx.data import InputSpec
from tna_onnx.graph.cut import ModelProto, cut_at, cut_between
from tna_onnx.graph.external import real_places
from tna_onnx.graph.load import Model
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.runtime import Device, Session, open_session

__all__ = ["input_specs", "open_cut", "open_model", "open_part", "open_probe"]


def input_specs(session: Session) -> tuple[InputSpec, ...]:
    """What a data source has to fill, from the session's inputs."""
    return tuple(InputSpec(i.name, i.shape, i.dtype) for i in session.inputs)


def open_probe(
    model: Model, readout: Readout, device: Device, given: Mapping[str, np.dtype[Any]] | None = None
) -> Session:
    """Open the whole model with the logits, and the features if there are any, as outputs.

    With tensors that are given, of some dtypes, it is opened from there to the logits.
    """
    if given:
        cut = cut_between(model.proto, given, [readout.logits])
        return open_part(model, cut, device)
    wanted = [readout.features, readout.logits] if isinstance(readout, Head) else [readout.logits]
    return open_cut(model, [*dict.fromkeys(name for name in wanted if name in model.producers)], device)


def open_model(model: Model, device: Device) -> Session:
    """Open the source model itself.

    Raises:
        DeviceError, UnsupportedModel: see `tna_onnx.runtime.open_session`.
    """
    if model.path is not None:
        return open_session(model.path, model.name, device)
    return open_session(model.proto.SerializeToString(), model.name, device)


def open_part(model: Model, cut: ModelProto, device: Device, fixed_batch: int | None = None) -> Session:
    """Open a part of a model, which the caller gives away.

    Raises:
        DeviceError, UnsupportedModel: see `tna_onnx.runtime.open_session`.
    """
    folder = real_places(model, cut)
    return open_session(cut.SerializeToString(), model.name, device, folder=folder, fixed_batch=fixed_batch)


def open_cut(model: Model, outputs: list[str], device: Device) -> Session:
    return open_part(model, cut_at(model, outputs), device)
