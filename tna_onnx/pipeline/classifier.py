"""A classifier that is ready to run over samples, as `evaluate`, `compare`, `guard` and `shift` open it.

The opening goes from the cheapest check to the dearest: the graph, the samples and their labels, the preprocessing of
images, the batch size, and whether the scores of a sample depend on the others of its batch.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import InputSpec, Source
from tna_onnx.data.choices import BatchSize
from tna_onnx.data.options import Data
from tna_onnx.data.source import NO_LABELS
from tna_onnx.data.suspicion import Suspicion
from tna_onnx.errors import UsageError
from tna_onnx.extraction.batch_size import batch_size_notes, choose_batch_size
from tna_onnx.extraction.independence import require_independence
from tna_onnx.extraction.isolation import open_source
from tna_onnx.extraction.opened_samples import Samples, computed_kind, open_samples
from tna_onnx.extraction.preparation import Preparation
from tna_onnx.extraction.sessions import OpenModel, in_rows, input_specs, names_of, open_model, open_part
from tna_onnx.graph.cut import before_map, cut_between
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import calibrations, provenance
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.graph.outputs import ClassOutput, class_output
from tna_onnx.graph.scores import find_readout
from tna_onnx.pipeline.sample_checks import DigestedSamples
from tna_onnx.runtime import Device, Session

_log = logging.getLogger("tna_onnx")

# Samples that the model should not know may have more classes than the model; none of their numbers is read.
_CLASSES = 1 << 31


def read_classifier(source: ModelSource, options: ModelOptions) -> tuple[Model, ClassOutput]:
    """Read a model, and find the output that classifies."""
    model = open_source(source, options)
    return model, class_output(model, options.head, options.output_name, options.output_kind)


@dataclass(frozen=True, eq=False)
class Classifier:
    """A model with a session on its inputs and its output that classifies.

    Attributes:
        model: as read.
        output: the output that classifies.
        device: where to run.
        session: gives that output, one row a prediction.
        inputs: what samples have to fill.
        names: of the classes, if known.
        preparation: how images become the inputs, the same for all samples of a run.
    """

    model: Model
    output: ClassOutput
    device: Device
    session: Session
    inputs: tuple[InputSpec, ...]
    names: tuple[str, ...] | None
    preparation: Preparation

    @classmethod
    def of(cls, model: Model, output: ClassOutput, device: Device, data: Data) -> Classifier:
        """Open a session on a model."""
        names = names_of(model, output, data)
        session = in_rows(open_model(model, device), output, model.name)
        _log.info("open: %s, provider %s", model.name, session.provider)
        return cls(model, output, device, session, input_specs(session), names, Preparation(model, output, session))

    @classmethod
    def of_computed(
        cls, model: Model, output: ClassOutput, device: Device, data: Data, options: ModelOptions, *further: str
    ) -> tuple[Classifier, Samples] | None:
        """Open the part of a model behind features or logits that were computed before, and these.

        Gives None where the samples are for the model's inputs.
        """
        # labels of features in tables are a column of these, of one class each
        in_tables = data.labels is None and not output.multi_label
        if output.several or not computed_kind(data, model.inputs, in_tables=in_tables):
            return None
        kind = options.output_kind
        if kind is None and output.kind == "positive_logit":
            kind = "logit"
        if kind is None and output.kind == "label_logits":
            kind = "label-logits"
        options = replace(options, output_name=output.name, output_kind=kind)
        before, options = before_map(model, output.name, options)
        readout = find_readout(before, options.head, options.output_name, options.output_kind)
        if before is not model:  # a part, which still has to say what it was made of
            before.proto.metadata_props.extend(model.proto.metadata_props)
        names = names_of(model, output, data)
        opened = OpenModel(before, readout, device, names)
        samples = open_samples(opened, data)
        opened.close()
        if samples.form == "logits" and (calibrations(model) or "shift" in provenance(model)):
            raise UsageError(
                f"{samples.source.describe()}: {model.name} is a recalibrated file, and logits do not say whether they "
                "are from before or behind what was changed; give features, or samples for its inputs"
            )
        cut = cut_between(model.proto, samples.given, [output.name, *further], readout.joined)
        session = open_part(model, cut, device)
        _log.info("open: %s behind %s, provider %s", model.name, samples.form, session.provider)
        inputs = input_specs(session)
        return cls(model, output, device, session, inputs, names, Preparation(model, output, session)), samples

    def open(self, data: Data, *, labels: bool = True) -> tuple[Data, Source]:
        """Return samples, and their description with the preprocessing that was found for them."""
        described = data if labels else replace(data, labels=NO_LABELS)
        return self.preparation.settle(described, self.read(described))

    def read(self, data: Data) -> Source:
        """Return samples for the model's inputs, images not yet prepared."""
        kind = "" if self.output.several else computed_kind(data, [spec.name for spec in self.inputs])
        if kind:
            holds = "is a feature store" if kind == "store" else f"{kind!r} holds {kind}"
            where = "arrays" if isinstance(data.samples, Mapping) else data.samples
            raise UsageError(
                f"{where}: {holds}, as calibrate and evaluate take them, and here the whole model is run; give samples "
                "for its inputs. If this is one of them, rename it to that input, or name it with --columns"
            )
        return data.open(
            self.inputs,
            self.output.n_classes,
            self.names,
            model_file=self.model.path,
            several=self.output.several,
            multi_label=self.output.multi_label,
        )

    def open_if(self, data: Data | None, *, labels: bool = True) -> Source | None:
        """Return samples, if there are any."""
        if data is None:
            return None
        return self.open(data, labels=labels)[1]

    def open_unknown(self, data: Data, familiar: Source) -> Source:
        """Open samples that the model should not know, prepared like the others; see the function `open_unknown`."""
        return self.preparation.settle(data, open_unknown(data, self.inputs, familiar))[1]

    def batch_size(self, wanted: BatchSize, source: Source, outputs: Sequence[str] = ()) -> tuple[int, tuple[str, ...]]:
        """Return the samples per run, and notes on it and on what the model makes of a batch."""
        size = choose_batch_size(wanted, self.session, [self.output.name], source)
        _log.debug("open: output %s (%s), samples per run: %d", self.output.name, self.output.kind, size)
        _log.info("data: %s", source.describe())
        notes = require_independence(self.model, self.session, self.output, source, size, outputs)
        return size, (*batch_size_notes(wanted, size), *notes, *self.model.class_notes(self.names))


@dataclass(frozen=True, eq=False)
class Opened:
    """A classifier with the samples that a command runs it over.

    Attributes:
        classifier: ready to run.
        data: the description of `source`, with the preprocessing that was found for it.
        source: labelled samples that something is chosen, fitted or measured on.
        held_out: labelled samples for the report; None without.
        batch_size: samples per run.
        notes: on the data, and on what the model makes of a batch.
        form: what digests of samples are of, where these are features or logits; empty for samples of its inputs.
    """

    classifier: Classifier
    data: Data
    source: Source
    held_out: Source | None
    batch_size: int
    notes: tuple[str, ...]
    form: str = field(default="", kw_only=True)

    @property
    def model(self) -> Model:
        """The model as it was read."""
        return self.classifier.model

    @property
    def output(self) -> ClassOutput:
        """The output that classifies."""
        return self.classifier.output

    @property
    def session(self) -> Session:
        """The session on the model."""
        return self.classifier.session

    @property
    def device(self) -> Device:
        """The device that runs it."""
        return self.classifier.device

    @functools.cached_property
    def digested(self) -> DigestedSamples:
        """Digests of the samples of `source`, by which equal ones are found in other data."""
        if self.form:
            return DigestedSamples(self.source, self.form)
        return DigestedSamples.of(self.source)

    def suspicion(self, predicted: NDArray[np.int64]) -> Suspicion | None:
        """Compare the labels of `source` with the model's predictions, and return what looks wrong about them."""
        return self.data.check(predicted, self.source.labels, self.classifier.names, self.output.n_classes)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes; their numbers where they have none."""
        return self.classifier.names or tuple(map(str, range(self.output.n_classes)))


def open_unknown(data: Data, inputs: Sequence[InputSpec], known: Source) -> Source:
    """Open samples that a model should not know: only the inputs count, their labels may be any numbers or names."""
    opened = replace(data, classes=None, labels=NO_LABELS).open(inputs, _CLASSES, None)
    if opened.recipe() is not None and known.recipe() is None and data.preprocessing is None:
        raise UsageError(
            f"--ood-data: {opened.describe()}: are images, and {known.describe()}: hold values as the model takes "
            "them, so how these images become such values is not known; give arrays, or images for both"
        )
    return opened
