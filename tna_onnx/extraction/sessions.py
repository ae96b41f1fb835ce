"""Sessions on all or part of a model: `Classifier` has one on the whole of it, `OpenModel` one up to its scores, and
`Runner` runs samples that hold tensors from inside the graph.

Several predictions a sample are brought into rows right behind the network (`PositionSession`): all that follows sees
(rows x numbers).

(N, T, C), (N, H, W, C)    classes last: rows in the order of the positions
(N, C, H, W)               classes first: the class axis goes last
(N, T)                     one number a position
(N T, C)                   rows already
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Batch, InputSpec, Source
from tna_onnx.data.options import Data
from tna_onnx.data.positions import POSITIONS, SHAPE, PositionSource
from tna_onnx.errors import DataError
from tna_onnx.extraction.preparation import Preparation
from tna_onnx.files import temporary_folder
from tna_onnx.graph.bounds import all_tensors
from tna_onnx.graph.cut import ModelProto, cut_at, cut_between, read_beside
from tna_onnx.graph.load import Model
from tna_onnx.graph.outputs import ClassOutput, output_of
from tna_onnx.graph.readout import CLASSES_FIRST, CLASSES_LAST, Head, Layout, Readout
from tna_onnx.graph.tensors import is_external, pieces, place_of
from tna_onnx.runtime import AT_ONCE, Device, Session, open_session

_log = logging.getLogger("tna_onnx")

# Logits that are compared where a sample has several predictions; a few float64 arrays of them are held.
_CHECKED = 2**22
_MIN_ROWS = 64


class Classifier:
    """A model, its output that classifies, and its session, which is opened at the first use and serves the whole run.

    Args:
        model: as read.
        output: the output that classifies.
        device: where to run.
        data: may name the classes.
        session: opened already, on the model or on a part of it.

    Attributes:
        names: of the classes, if known.
    """

    def __init__(
        self,
        model: Model,
        output: ClassOutput,
        device: Device,
        data: Data | None = None,
        session: Session | None = None,
    ) -> None:
        self.model = model
        self.output = output
        self.device = device
        self.names = None if data is None else names_of(model, output, data)
        self._session = session

    @property
    def session(self) -> Session:
        """The session from the model's inputs; it gives one row a prediction."""
        if self._session is None:
            self._session = self._open()
        return self._session

    def _open(self) -> Session:
        session = in_rows(open_model(self.model, self.device), self.output, self.model.name)
        _log.info("open: %s, provider %s", self.model.name, session.provider)
        return session

    @functools.cached_property
    def preparation(self) -> Preparation:
        """How images become the model's inputs: the same for all samples of a run."""
        return Preparation(self.model, self.output, self.session)

    @functools.cached_property
    def inputs(self) -> tuple[InputSpec, ...]:
        """What a data source has to fill."""
        return input_specs(self.session)


class OpenModel(Classifier):
    """A model that is run up to its head, or to its scores.

    The session gives the features, the logits, what the nodes between them read, and the output that classifies: the
    head check and the collection of all data share it. Other outputs are left out, because ONNX Runtime computes all
    that a session has, asked for or not.

    Args:
        model: as read.
        readout: its head, or the tensor of logits or probabilities.
        device: where to run.
        data: may name the classes.
        output: that classifies; by default the one behind the readout.
    """

    def __init__(
        self,
        model: Model,
        readout: Readout,
        device: Device,
        data: Data | None = None,
        output: ClassOutput | None = None,
    ) -> None:
        super().__init__(model, output or output_of(readout), device, data)
        self.readout = readout
        self._at_once = 1

    def _open(self) -> Session:
        cut = cut_at(self.model, self._tensors(), self.readout.joined)
        session = open_part(self.model, cut, self.device, at_once=self._at_once)
        return in_rows(session, self.readout, self.model.name, self._tensors())

    def without_head(self) -> OpenModel:
        """Return the model with the scores as they are in place of its head, on the same session."""
        plain = copy.copy(self)
        plain.readout = self.readout.without_head()
        return plain

    def close(self) -> None:
        """Give back what the session holds, weights of the network among it; it is opened again where it is needed."""
        self._session = None
        self.__dict__.pop("preparation", None)  # it holds the session too

    def divide_cores(self, batches: int) -> None:
        """Let several batches run at a time, on some of the cores each: until then a batch has all of them.

        On the CPU the session is opened again, in place of the old one, if there are cores and memory for that.
        """
        if batches < AT_ONCE or self._at_once == AT_ONCE:
            return
        if self._session is not None and self._session.most_at_once == 1:
            return
        self._at_once = AT_ONCE
        if self._session is not None:
            remembered = self._session.remembered
            self.close()
            self.session.remembered = remembered

    def is_whole(self, session: Session) -> bool:
        """Whether a session starts at the model's inputs."""
        return session is self._session

    @property
    def main(self) -> str:
        """The tensor that is collected: the features, or the logits of a model without a head."""
        if isinstance(self.readout, Head):
            return self.readout.features
        return self.readout.logits

    def session_from(self, dtypes: Mapping[str, np.dtype[Any]]) -> Session | None:
        """Return a session from tensors that samples hold, of some dtypes, to the logits.

        None if these are the logits; the whole session if they are nothing, or nothing but the model's inputs.
        """
        if set(dtypes) <= set(self.model.inputs):
            return self.session
        if self.readout.logits in dtypes:
            return None
        cut = cut_between(self.model.proto, dtypes, [self.readout.logits], self.readout.joined)
        return open_part(self.model, cut, self.device)

    def computed(self, names: Iterable[str]) -> list[str]:
        """Return those of some tensors that nodes compute, each once; the others are inputs or constants."""
        # one tensor can be the logits and the output
        computing = (self.model.producers, self.readout.joined)
        return list(dict.fromkeys(name for name in names if any(name in nodes for nodes in computing)))

    def _tensors(self) -> list[str]:
        names = [self.readout.logits, self.readout.output]
        if isinstance(self.readout, Head):
            names = [self.readout.features, *read_beside(self.model, self.readout), *names]
        return self.computed(names)


def names_of(model: Model, scores: Readout | ClassOutput, data: Data) -> tuple[str, ...] | None:
    """Return the names of a model's classes, if its file or `data` say them."""
    return data.class_names(model.said_of_classes, scores.labels, scores.n_classes)


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
        self._closed = False

    def close(self) -> None:
        """Give back what the session holds; it runs nothing any more."""
        self._session = None
        self._closed = True

    def run(self, outputs: list[str], batch: Batch) -> list[NDArray[Any]]:
        """Run one batch."""
        if self._closed:
            raise RuntimeError("a session that has been closed cannot run")
        if self._session is None:
            return [batch[name] for name in outputs]
        if self._names is None:
            return self._session.run(outputs, batch)
        return self._session.run(outputs, {self._names[name]: array for name, array in batch.items()})


class PositionSession(Session):
    """A session whose tensors come as rows: those positions of its samples that a batch names.

    Args:
        network: a session on the model.
        class_axis: where the classes are, if a tensor's shape leaves that open; 1 or -1.
        needed: tensors that have to have values for each position; others are returned as they are.
        name: of the model, for messages.
        wide: those of them that hold more than one number a position.

    Attributes:
        layouts: of the tensors that were run.
    """

    def __init__(
        self, network: Session, class_axis: int, needed: Iterable[str], name: str, wide: Iterable[str] = ()
    ) -> None:
        self._network = network
        self._class_axis = class_axis
        self._needed = frozenset(needed)
        self._wide = frozenset(wide)
        self._name = name
        self.provider = network.provider
        self.fallback = network.fallback
        self.elsewhere = network.elsewhere
        self.device = network.device
        self.inputs = network.inputs
        self.fixed_batch = network.fixed_batch
        self.at_once = network.at_once
        self.most_at_once = network.most_at_once
        self.layouts: dict[str, Layout] = {}

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return self._network.outputs

    def _compute(self, outputs: Sequence[str], feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Run a batch of samples with their positions (`tna_onnx.data.positions`); return the rows that it names."""
        feeds = dict(feeds)
        places = feeds.pop(POSITIONS)
        shape = tuple(feeds.pop(SHAPE).tolist())
        samples = len(next(iter(feeds.values())))
        values = self._network.run(outputs, feeds)
        return [self._rows(name, array, samples, shape, places) for name, array in zip(outputs, values, strict=True)]

    def in_rows(self, batch: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the arrays of a batch as rows, where they have the positions: a head may read an input."""
        shape = tuple(batch[SHAPE].tolist())
        samples = len(next(array for name, array in batch.items() if name not in (POSITIONS, SHAPE)))
        places = batch[POSITIONS]
        of_batch = (POSITIONS, SHAPE)
        return {
            name: array if name in of_batch else self._rows(name, array, samples, shape, places)
            for name, array in batch.items()
        }

    def _rows(
        self, name: str, values: NDArray[Any], samples: int, shape: tuple[int, ...], places: NDArray[np.int64]
    ) -> NDArray[Any]:
        layout = layout_of(values.shape, samples, shape, self._class_axis)
        if layout is None or (layout.class_axis == 0 and name in self._wide):
            if name not in self._needed:
                return values
            raise DataError(
                f"{self._name}: '{name}' has shape {values.shape} for {samples} samples, and their labels have shape "
                f"{(samples, *shape)}; expected a label for each position of '{name}'"
            )
        self.layouts[name] = layout
        return rows_of(values, layout)[places]


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


def first_rows(n_classes: int, source: Source, batch_size: int) -> NDArray[np.int64] | None:
    """Return rows of the samples of the first batch, where these may have too many to compare; None for all of them."""
    if not isinstance(source, PositionSource):
        return None
    return source.first_rows(batch_size, max(_MIN_ROWS, _CHECKED // n_classes))


def layout_of(values: tuple[int, ...], samples: int, positions: tuple[int, ...], class_axis: int) -> Layout | None:
    """Return how a tensor of a shape holds its positions; None if it has others.

    >>> layout_of((8, 5, 32, 32), 8, (32, 32), -1).class_axis
    1
    """
    axes = len(positions) + 2
    if values == (samples, *positions):
        return Layout(axes - 1, 0)
    first = len(values) == axes and values[0] == samples and values[2:] == positions
    last = len(values) == axes and values[:-1] == (samples, *positions)
    if first and (class_axis == CLASSES_FIRST or not last):
        return Layout(axes, CLASSES_FIRST)
    if last:
        return Layout(axes, CLASSES_LAST)
    if len(values) == 2 and values[0] == samples * math.prod(positions):
        return Layout(2, CLASSES_LAST)
    return None


def rows_of(values: NDArray[Any], layout: Layout) -> NDArray[Any]:
    """Return all positions of a tensor as rows, (N P, C), or (N P,) of one number a position."""
    if layout.class_axis == 0:
        return values.reshape(-1)
    if layout.class_axis == CLASSES_FIRST:
        values = np.moveaxis(values, 1, -1)
    return values.reshape(-1, values.shape[-1])


def _real_places(model: Model, proto: ModelProto) -> Path | None:
    """Let a part of a model refer to its external data behind all links, which ONNX Runtime does not follow elsewhere.

    Gives the folder that the new places are relative to; None without external data.
    """
    tensors = [tensor for tensor in all_tensors(proto.graph) if is_external(tensor)]
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
