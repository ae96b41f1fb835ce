"""Sessions on all or part of a model; `Runner` runs samples that hold tensors from inside the graph.

Several predictions a sample become rows behind the network (`PositionSession`): (N, T, C), (N, H, W, C), (N, C, H, W),
(N, T) or (N T, C).
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.several import POSITIONS, SHAPE, PositionSource
from tna_onnx.data.source import Batch, InputSpec, Source
from tna_onnx.errors import DataError
from tna_onnx.files import temporary_folder
from tna_onnx.graph.bounds import all_tensors
from tna_onnx.graph.cut import ModelProto
from tna_onnx.graph.load import Model
from tna_onnx.graph.readout import CLASSES_FIRST, CLASSES_LAST, ClassOutput, Layout, Readout
from tna_onnx.graph.tensors import is_external, pieces, place_of
from tna_onnx.runtime import Device, Session, open_session

_log = logging.getLogger("tna_onnx")

# Logits that are compared where a sample has several predictions; a few float64 arrays of them are held.
_CHECKED = 2**22
_MIN_ROWS = 64
_OF_BATCH = (POSITIONS, SHAPE)  # what a batch of positions holds beside its samples


def in_rows(session: Session, scores: Readout | ClassOutput, name: str, needed: Iterable[str] | None = None) -> Session:
    """Return a session that gives a row per prediction; the same session where each sample has one prediction.

    `needed`: tensors that have to have a value for each position; the output that classifies by default.
    """
    if not scores.several:
        return session
    if isinstance(scores, Readout):
        output, single = scores.output, scores.binary
    else:
        output, single = scores.name, scores.width == 1
    return PositionSession(session, scores.class_axis, needed or (output,), name, () if single else (output,))


def input_specs(session: Session) -> tuple[InputSpec, ...]:
    """What a data source has to fill, from the session's inputs."""
    return tuple(InputSpec(i.name, i.shape, i.dtype) for i in session.inputs)


def open_model(model: Model, device: Device) -> Session:
    """Open a model as it is."""
    # by its path: external data lie beside the file
    if model.path is not None:
        return open_session(model.path, model.name, device)
    return open_session(model.proto.SerializeToString(), model.name, device)


def open_part(
    model: Model, cut: ModelProto, device: Device, fixed_batch: int | None = None, at_once: int = 1
) -> Session:
    """Open a part of a model, which the caller gives away."""
    folder = _real_places(model, cut)
    if not model.large_values:
        serialized = cut.SerializeToString()
        del cut  # a copy of all weights: the session makes its own
        return open_session(serialized, model.name, device, folder=folder, fixed_batch=fixed_batch, at_once=at_once)
    parts = pieces(cut, model.large_values)
    # from a file the session reads large weights once; as bytes, they would lie beside its own
    with contextlib.suppress(OSError), temporary_folder(None) as temporary:
        if folder is None:  # places of external data are relative to one
            path = temporary / "part.onnx"
            with path.open("xb") as stream:  # need not reach the disk
                stream.writelines(parts)
            return open_session(path, model.name, device, fixed_batch=fixed_batch, at_once=at_once)
    return open_session(b"".join(parts), model.name, device, folder=folder, fixed_batch=fixed_batch, at_once=at_once)


class Runner:
    """A session that takes inputs by their names in the samples; without one, samples hold the outputs already."""

    def __init__(self, session: Session | None, names: Mapping[str, str] | None = None) -> None:
        self._session = session
        self._names = names

    def close(self) -> None:
        """Give back what the session holds; it runs nothing any more."""
        self._session = None

    def run(self, outputs: list[str], batch: Batch) -> list[NDArray[Any]]:
        """Run one batch."""
        if self._session is None:
            return [batch[name] for name in outputs]
        if self._names is None:
            return self._session.run(outputs, batch)
        return self._session.run(outputs, {self._names[name]: array for name, array in batch.items()})


class PositionSession(Session):
    """A session whose tensors come as rows: those positions of its samples that a batch names."""

    def __init__(
        self, network: Session, class_axis: int, needed: Iterable[str], name: str, wide: Iterable[str] = ()
    ) -> None:
        self._network = network  # on the model
        self._class_axis = class_axis  # where the classes are, if a tensor's shape leaves that open; 1 or -1
        self._needed = frozenset(needed)  # tensors with values for each position; others are returned as they are
        self._wide = frozenset(wide)  # those of them that hold more than one number a position
        self._name = name  # of the model, for messages
        self.layouts: dict[str, Layout] = {}  # of the tensors that were run
        self.provider = network.provider
        self.fallback = network.fallback
        self.device = network.device
        self.inputs = network.inputs
        self.fixed_batch = network.fixed_batch
        self.at_once = network.at_once
        self.most_at_once = network.most_at_once

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return self._network.outputs

    def _compute(self, outputs: Sequence[str], feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Run a batch of samples with their positions (`tna_onnx.data.several`); return the rows that it names."""
        values = self._network.run(outputs, {name: array for name, array in feeds.items() if name not in _OF_BATCH})
        self.fixed_batch, self.alone = self._network.fixed_batch, self._network.alone
        return [self._rows(name, array, feeds) for name, array in zip(outputs, values, strict=True)]

    def in_rows(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the arrays of a batch as rows, where they have the positions: a head may read an input."""
        return {name: array if name in _OF_BATCH else self._rows(name, array, batch) for name, array in batch.items()}

    def _rows(self, name: str, values: NDArray[Any], batch: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        shape = tuple(batch[SHAPE].tolist())
        samples = len(next(array for name, array in batch.items() if name not in _OF_BATCH))
        layout = layout_of(values.shape, samples, shape, self._class_axis)
        if layout is None or (layout.class_axis == 0 and name in self._wide):
            if name not in self._needed:
                return values
            raise DataError(
                f"{self._name}: '{name}' has shape {values.shape} for {samples} samples, and their labels have shape "
                f"{(samples, *shape)}; expected a label for each position of '{name}'"
            )
        self.layouts[name] = layout
        rows: NDArray[Any] = position_rows(values, layout)[batch[POSITIONS]]
        return rows


def batch_in_rows(session: Session | None, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return a new batch whose arrays are rows, if those of the session are; else a copy."""
    if isinstance(session, PositionSession):
        return session.in_rows(batch)
    return dict(batch)


def sample_shape(session: Session | None, tensor: str, values: NDArray[Any]) -> tuple[int, ...] | Layout:
    """Return the shape that one sample has in a tensor which was run; the layout, if it has several predictions."""
    if isinstance(session, PositionSession):
        return session.layouts[tensor]
    return values.shape[1:]


def compared_rows(n_classes: int, source: Source, batch_size: int) -> NDArray[np.int64] | None:
    """Return rows of the samples of the first batch, where these may have too many to compare; None for all of them."""
    if not isinstance(source, PositionSource):
        return None
    return source.first_rows(batch_size, max(_MIN_ROWS, _CHECKED // n_classes))


def layout_of(values: tuple[int, ...], samples: int, positions: tuple[int, ...], class_axis: int) -> Layout | None:
    """Return how a tensor of a shape holds its positions; None if it has others.

    Labels of masks often have an axis for their one channel, (N, 1, H, W), which no tensor of scores need have.

    >>> layout_of((8, 5, 32, 32), 8, (32, 32), -1).class_axis
    1
    >>> layout_of((8, 5, 32, 32), 8, (1, 32, 32), -1).class_axis
    1
    """
    axes = len(positions) + 2
    first = len(values) == axes and values[0] == samples and values[2:] == positions
    last = len(values) == axes and values[:-1] == (samples, *positions)
    if values == (samples, *positions):
        return Layout(axes - 1, 0)
    if first and (class_axis == CLASSES_FIRST or not last):
        return Layout(axes, CLASSES_FIRST)
    if last:
        return Layout(axes, CLASSES_LAST)
    if len(values) == 2 and values[0] == samples * math.prod(positions):
        return Layout(2, CLASSES_LAST)
    if positions[:1] == (1,) and len(positions) > 1:
        return layout_of(values, samples, positions[1:], class_axis)
    return None


def position_rows(values: NDArray[Any], layout: Layout) -> NDArray[Any]:
    """Return all positions of a tensor as rows, (N P, C), or (N P,) of one number a position."""
    if layout.class_axis == 0:
        return values.reshape(-1)
    if layout.class_axis == CLASSES_FIRST:
        values = np.moveaxis(values, 1, -1)
    return values.reshape(-1, values.shape[-1])


def _real_places(model: Model, proto: ModelProto) -> Path | None:
    """Place external data of a part behind all links, and return the folder they are below; None without such data."""
    tensors = [tensor for tensor in all_tensors(proto) if is_external(tensor)]
    if not tensors:
        return None
    locations = {place_of(tensor).location for tensor in tensors}
    real = {location: model.data_path(location) for location in locations}
    # Links, as download caches have them, may lead to two folders; ONNX Runtime takes places below one.
    folder = Path(os.path.commonpath([path.parent for path in real.values()]))
    for tensor in tensors:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = real[entry.value].relative_to(folder).as_posix()
    return folder
