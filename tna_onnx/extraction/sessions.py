"""Sessions on a model: the whole of it once, with everything that a run reads as an output, or a part of it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tna_onnx.data import Batch, InputSpec
from tna_onnx.extraction.positions import PositionSession
from tna_onnx.files import temporary_folder, write_new
from tna_onnx.graph.apart import pieces
from tna_onnx.graph.cut import ModelProto, cut_at, cut_between, read_beside
from tna_onnx.graph.external import real_places
from tna_onnx.graph.load import Model
from tna_onnx.graph.outputs import ClassOutput
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.runtime import AT_ONCE, Device, Session, open_session

__all__ = ["OpenModel", "in_rows", "input_specs", "open_model", "open_part"]


@dataclass(eq=False)
class OpenModel:
    """A source model and its session, which is opened at the first use and serves the whole run.

    The session gives the features, the logits, what the nodes between them read, and the output that classifies: the
    head check and the collection of all data share it. Other outputs are left out, because ONNX Runtime computes all
    that a session has, asked for or not.

    Attributes:
        model: the source.
        readout: its head, or the tensor of logits or probabilities.
        device: where to run.
    """

    model: Model
    readout: Readout
    device: Device
    _whole: Session | None = field(default=None, repr=False)
    _inputs: tuple[InputSpec, ...] | None = field(default=None, repr=False)
    _checked: tuple[Batch, Batch] | None = field(default=None, repr=False)

    @property
    def session(self) -> Session:
        """The session from the model's inputs.

        Raises:
            DeviceError, UnsupportedModel: see `tna_onnx.runtime.open_session`.
        """
        if self._whole is None:
            whole = open_part(self.model, cut_at(self.model, self._tensors()), self.device, at_once=AT_ONCE)
            self._whole = in_rows(whole, self.readout, self.model.name, self._tensors())
        return self._whole

    def close(self) -> None:
        """Give back what the session holds, weights of the network among it; it is opened again where it is needed."""
        self._whole = None
        self._checked = None

    def remember(self, batch: Batch, results: Batch) -> None:
        """Keep what the session gave for a batch that was run to check the head: the collection begins with it."""
        self._checked = (batch, results)

    def run(self, session: Session, names: Collection[str], batch: Batch) -> Batch:
        """Run a batch; one that is remembered is not run again.

        Args:
            session: on this model.
            names: tensors to return.
            batch: the samples.
        """
        checked = self._checked
        # the first batch of a collection, or none
        self._checked = None
        if checked is not None and self.is_whole(session) and _holds(*checked, names, batch):
            return {name: checked[1][name] for name in names}
        return dict(zip(names, session.run(list(names), batch), strict=True))

    def is_whole(self, session: Session) -> bool:
        """Whether a session starts at the model's inputs."""
        return session is self._whole

    @property
    def main(self) -> str:
        """The tensor that is collected: the features, or the logits of a model without a head."""
        return self.readout.features if isinstance(self.readout, Head) else self.readout.logits

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """What a data source has to fill."""
        if self._inputs is None:
            self._inputs = input_specs(self.session)
        return self._inputs

    def session_from(self, given: Mapping[str, np.dtype[Any]]) -> Session | None:
        """Return a session from tensors that are given, of some dtypes, to the logits.

        None if the logits are given; the whole session if nothing is, or nothing but the model's inputs.

        Raises:
            DeviceError, UnsupportedModel: see `tna_onnx.runtime.open_session`.
        """
        if set(given) <= set(self.model.inputs):
            return self.session
        if self.readout.logits in given:
            return None
        return open_part(self.model, cut_between(self.model.proto, given, [self.readout.logits]), self.device)

    def computed(self, names: Iterable[str]) -> list[str]:
        """Return those of some tensors that nodes compute, each once; the others are inputs or constants."""
        # one tensor can be the logits and the output
        return list(dict.fromkeys(name for name in names if name in self.model.producers))

    def _tensors(self) -> list[str]:
        names = [self.readout.logits, self.readout.output]
        if isinstance(self.readout, Head):
            names = [self.readout.features, *read_beside(self.model, self.readout), *names]
        return self.computed(names)


def _holds(samples: Batch, results: Batch, names: Collection[str], batch: Batch) -> bool:
    """Whether results are those of a batch, and all of the tensors are among them."""
    if not set(names) <= set(results) or set(batch) != set(samples):
        return False
    # by content: a source may give its samples in another order the next time
    return all(np.array_equal(array, samples[name]) for name, array in batch.items())


def in_rows(session: Session, scores: Readout | ClassOutput, name: str, needed: Iterable[str] | None = None) -> Session:
    """Return a session that gives several predictions a sample as rows; the same one where there is one prediction.

    Args:
        session: on a model.
        scores: what the model gives.
        name: of the model, for messages.
        needed: tensors that have to have a value for each position; the output that classifies by default.
    """
    if not scores.several:
        return session
    output = scores.output if isinstance(scores, Readout) else scores.name
    single = scores.binary if isinstance(scores, Readout) else scores.width == 1
    return PositionSession(session, scores.class_axis, needed or (output,), name, () if single else (output,))


def input_specs(session: Session) -> tuple[InputSpec, ...]:
    """What a data source has to fill, from the session's inputs."""
    return tuple(InputSpec(i.name, i.shape, i.dtype) for i in session.inputs)


def open_model(model: Model, device: Device) -> Session:
    """Open a model as it is.

    Raises:
        DeviceError, UnsupportedModel: see `tna_onnx.runtime.open_session`.
    """
    # by its path: external data lie beside the file
    if model.path is not None:
        return open_session(model.path, model.name, device)
    return open_session(model.proto.SerializeToString(), model.name, device)


def open_part(
    model: Model, cut: ModelProto, device: Device, fixed_batch: int | None = None, at_once: int = 1
) -> Session:
    """Open a part of a model, which the caller gives away.

    Raises:
        DeviceError, UnsupportedModel: see `tna_onnx.runtime.open_session`.
    """
    folder = real_places(model, cut)
    if not model.apart:
        serialized = cut.SerializeToString()
        del cut  # a copy of all weights: the session makes its own
        return open_session(serialized, model.name, device, folder=folder, fixed_batch=fixed_batch, at_once=at_once)
    parts = pieces(cut, model.apart)
    # from a file the session reads large weights once; as bytes, they would lie beside its own
    with contextlib.suppress(OSError), temporary_folder(None) as temporary:
        if folder is None:  # places of external data are relative to one
            path = temporary / "part.onnx"
            write_new(path, *parts)
            return open_session(path, model.name, device, fixed_batch=fixed_batch, at_once=at_once)
    return open_session(b"".join(parts), model.name, device, folder=folder, fixed_batch=fixed_batch, at_once=at_once)
