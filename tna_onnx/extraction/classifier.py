"""A model that is opened: `Classifier` has a session on the whole of it, `OpenModel` one up to its scores."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tna_onnx.data.labelfile import model_class_names
from tna_onnx.data.options import Data
from tna_onnx.data.source import InputSpec, Source
from tna_onnx.data.sources.image_files import folder_names
from tna_onnx.extraction.preparation import Preparation
from tna_onnx.extraction.sessions import in_rows, input_specs, open_model, open_part
from tna_onnx.extraction.store import is_store, stored_class_names
from tna_onnx.graph.cut import cut_at, cut_between
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.graph.readers import LabelOutput, answer_of
from tna_onnx.graph.readout import ClassOutput, Readout
from tna_onnx.graph.scores import class_output
from tna_onnx.runtime import AT_ONCE, Device, Session, require_address_space

_log = logging.getLogger("tna_onnx")


def read_classifier(source: ModelSource, options: ModelOptions) -> tuple[Model, ClassOutput]:
    """Read a model, and find the output that classifies."""
    model = load_model(source, options.model_limits)
    return model, class_output(model, options.head, options.output_name, options.output_kind)


@dataclass(eq=False)
class Classifier:
    """A model, its output that classifies, and its session, which is opened when it is first used."""

    model: Model  # as read
    output: ClassOutput  # the output that classifies
    device: Device  # where to run
    data: InitVar[Data | None] = None  # may name the classes
    _session: Session | None = None  # on the model, or on a part of it
    names: tuple[str, ...] | None = field(init=False, default=None)  # of the classes, if known

    def __post_init__(self, data: Data | None) -> None:
        if data is not None:
            self.names = names_of(self.model, self.output, data)

    @property
    def names_or_numbers(self) -> tuple[str, ...]:
        """Names of the classes; their numbers where they have none."""
        return self.names or tuple(map(str, range(self.output.n_classes)))

    def class_names(self, source: Source) -> tuple[str, ...]:
        """Return names as given; else of the folders, where each holds the images of one class; else numbers."""
        if self.names is not None:
            return self.names
        folders = folder_names(source)
        return tuple(folders.get(k, str(k)) for k in range(self.output.n_classes))

    @property
    def session(self) -> Session:
        """The session from the model's inputs; it gives one row a prediction."""
        if self._session is None:
            require_address_space()
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

    The session gives the features, the logits and the output that classifies: the head check and the collection of all
    data share it. Other outputs are left out, because ONNX Runtime computes all that a session has, asked for or not.
    `readout` is the head, or the tensor of logits or probabilities.
    """

    def __init__(
        self,
        model: Model,
        readout: Readout,
        device: Device,
        data: Data | None = None,
        output: ClassOutput | None = None,
    ) -> None:
        super().__init__(model, output or readout.class_output, device, data)
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

    @functools.cached_property
    def decided(self) -> LabelOutput | None:
        """The output with a classifier's own decisions, which need not be the likeliest classes; None without one."""
        answer = answer_of(self.model, self.output)
        return None if answer is None or answer.first else answer

    def _tensors(self) -> list[str]:
        decided = []
        if self.decided is not None:
            decided = [self.decided.name]
        return self.computed([self.readout.main, self.readout.logits, self.readout.output, *decided])


def names_of(model: Model, scores: Readout | ClassOutput, data: Data) -> tuple[str, ...] | None:
    """Return the names of a model's classes, if its file or `data` say them, or a feature store does."""
    names = model_class_names(data, model.said_of_classes, scores.labels, scores.n_classes)
    if names is None and is_store(data):
        names = stored_class_names(Path(data.samples))
    if names is not None and len(names) != scores.n_classes:  # of another model, which is refused later
        return None
    return names
