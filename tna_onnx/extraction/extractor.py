"""A model up to its features as a function of batches, {column: array}, for Ray Data, Spark, Dask or `datasets`.

1. Columns that the model reads are replaced by the features; all others, labels and keys among them, pass through.
2. The network sees batches of one size, filled up with copies of the last sample, so that the numbers of a sample do
   not depend on how an engine has cut the data.
3. The first batch checks the head: features @ weight.T + bias are the model's logits.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from tna_onnx import __version__
from tna_onnx.data.choices import BATCH_SIZE, DEFAULT_LIMITS
from tna_onnx.data.foreign import any_array
from tna_onnx.data.images.decode import image_of
from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.data.images.recipe_files import read_recipe
from tna_onnx.data.options import Request, names_of
from tna_onnx.data.source import NO_LABELS, Batch, InputSpec
from tna_onnx.data.sources.arrays import ArraySource, Kind, open_columns, stack
from tna_onnx.data.sources.feature_files import features_table
from tna_onnx.data.sources.tables import column_array
from tna_onnx.errors import DataError, UnsupportedModel, UsageError
from tna_onnx.extraction.classifier import OpenModel
from tna_onnx.extraction.collect import Collector, require_finite
from tna_onnx.extraction.head_check import check_readout
from tna_onnx.extraction.store import model_key
from tna_onnx.fields import check_batch_size, check_choice
from tna_onnx.graph.load import IN_MEMORY, Model, load_model
from tna_onnx.graph.options import ModelOptions, ModelSource, OutputKind
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.scores import find_readout
from tna_onnx.runtime import parse_device

# Threads of one process share its extractor: one of them opens the session.
_OPENING = threading.Lock()


class FeatureExtractor:
    """Replaces the columns that a model reads by its features, or by its logits.

    Args:
        model: as for `tna_onnx.calibrate`. A path is opened by each worker, so all must see the file; bytes travel.
        head: node, weight or output of the head, where there are several.
        output_name: output that classifies, where there are several.
        output_kind: what that output holds, where the graph does not say.
        kind: `features` of a linear head, or `logits`, (N, C); None gives features where there is such a head.
        preprocessing: recipe for images, or the path of one; their column holds encoded files or uint8 pixels.
        columns: columns that fill the model's inputs, in the model's order; empty takes those of the inputs' names. One
            input of n numbers may be filled by n columns of one number each.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run of the network.

    Raises:
        UsageError: a setting that cannot be used. What is wrong with the model is raised by the first call.
    """

    limits = DEFAULT_LIMITS  # how many pixels an image may have
    model_name = IN_MEMORY  # what messages call a model that is no path

    def __init__(
        self,
        model: ModelSource,
        *,
        head: str | None = None,
        output_name: str | None = None,
        output_kind: OutputKind | None = None,
        kind: Kind | None = None,
        preprocessing: Recipe | str | Path | None = None,
        columns: Sequence[str] = (),
        device: str = "auto",
        batch_size: int = BATCH_SIZE,
    ) -> None:
        if kind is not None:
            check_choice("kind", kind, get_args(Kind))
        check_batch_size(batch_size)
        if isinstance(preprocessing, (str, Path)):
            preprocessing = read_recipe(Path(preprocessing))
        parse_device(device)
        self.model = model
        self.options = ModelOptions(head=head, output_name=output_name, output_kind=output_kind)
        self.kind: Kind | None = kind
        self.preprocessing = preprocessing
        self.columns = names_of(columns)
        self.device = device
        self.batch_size = batch_size
        self._opened: OpenModel | None = None
        self._collector: Collector | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what travels: no session."""
        return {**self.__dict__, "_opened": None, "_collector": None}

    def __repr__(self) -> str:
        model = self.model if isinstance(self.model, (str, Path)) else type(self.model).__name__
        return f"FeatureExtractor({str(model)!r}, head={self.options.head!r})"

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch with `features` (B, n), or `logits` (B, C), in place of what the model reads.

        Raises:
            DataError: columns are missing, do not fit the model, or make features that are NaN or infinite.
            UnsupportedModel: the model is no classifier that can be read.
            DeviceError: ONNX Runtime or the device is missing.
        """
        with _OPENING:
            if self._opened is None:
                self._opened = OpenModel(*self._loaded(), parse_device(self.device))
        opened = self._opened
        kind = self.kind or _kind_of(opened.readout)
        used = _columns_of(opened.inputs, self.columns, batch)
        read = {name for names in used.values() for name in names}
        passed = {name: column for name, column in batch.items() if name not in read}
        if kind in passed:
            raise DataError(f"batch: has a column {kind!r} already, which the model does not read; rename it")
        source = self._samples(opened, used, batch)
        if not len(source):
            raise DataError("batch: has no rows; leave empty batches out")
        with _OPENING:
            if self._collector is None:
                self._collector = self._checked(opened, kind, source)
        return {**passed, kind: self._values(self._collector, kind, source)}

    def describe(self) -> dict[str, Any]:
        """Return what tells the features from others: digests of the model, its head, the tensor; JSON-able.

        Raises:
            UnsupportedModel: the model is no classifier that can be read.
        """
        model, readout = self._loaded()
        kind = self.kind or _kind_of(readout)
        head, tensor = None, readout.logits
        if kind == "features" and isinstance(readout, Head):
            head, tensor = readout.node, readout.features
        return {**model_key(model), "head": head, "kind": kind, "tensor": tensor, "version": __version__}

    def _loaded(self) -> tuple[Model, Readout]:
        options = self.options
        model = replace(load_model(self.model, options.model_limits), title=self.model_name)
        readout = find_readout(model, options.head, options.output_name, options.output_kind)
        if readout.several:
            raise UnsupportedModel(f"{model.name}: has several predictions a sample, whose features are not extracted")
        if self.kind == "features" and not isinstance(readout, Head):
            raise UnsupportedModel(f"{model.name}: has no linear head that reads features; use kind='logits'")
        return model, readout

    def _samples(self, opened: OpenModel, used: Mapping[str, tuple[str, ...]], batch: Mapping[str, Any]) -> ArraySource:
        """Return the samples of a batch as the model's inputs."""
        inputs = opened.inputs
        images = [spec for spec in inputs if len(spec.shape) == 4]
        if self.preprocessing is not None and len(images) != 1:
            raise UsageError(
                f"preprocessing is for a model with one input of images (N, C, H, W), this one has {len(images)}"
            )
        arrays: dict[str, Any] = {}
        for spec in inputs:
            parts = [batch[name] for name in used[spec.name]]
            if spec in images and self.preprocessing is not None:
                recipe = self.preprocessing.resolve(spec)
                decoded = (image_of(value, spec.name, self.limits) for value in parts[0])
                arrays[spec.name] = _array([recipe(image, self.limits) for image in decoded], spec)
            elif len(parts) == 1:
                array = _array(parts[0], spec)
                one_number = array.ndim == 1 and spec.shape[1:] == (1,)
                arrays[spec.name] = stack("batch", spec, {used[spec.name][0]: array}) if one_number else array
            else:
                arrays[spec.name] = stack("batch", spec, {name: any_array(batch[name]) for name in used[spec.name]})
        request = Request(inputs=inputs, n_classes=opened.readout.n_classes, labels=NO_LABELS)
        return open_columns("batch", "batch", request, arrays, NO_LABELS, noun="column")

    def _checked(self, opened: OpenModel, kind: Kind, source: ArraySource) -> Collector:
        """Check the head with the first batch, and return what keeps the rows of all batches."""
        # at every place of the batches to come, although the first one may be a short one
        rows = np.minimum(np.arange(self.batch_size), len(source) - 1)
        columns = {name: column[rows] for name, column in source.columns.items()}
        first = replace(source, columns=columns, labels=source.labels[rows])
        probed = check_readout(opened, opened.readout, opened.session, first, self.batch_size)
        readout: Readout = probed.readout
        if kind == "features" and probed.tail is not None:
            raise UnsupportedModel(
                f"{opened.model.name}: only the graph computes the logits from these features; use kind='logits'"
            )
        if kind == "logits" and isinstance(readout, Head):
            readout = readout.without_head()
        return Collector(opened.model, readout, source, self.batch_size, opened.session)

    def _values(self, collector: Collector, kind: Kind, source: ArraySource) -> NDArray[Any]:
        parts = []
        for batch in source.batches(self.batch_size):
            count = len(next(iter(batch.values())))
            rows = collector.rows(filled_up(batch, self.batch_size)).features
            parts.append(rows[:count].reshape(count, -1))
        values = np.concatenate(parts)
        require_finite(source, kind, values, 0)
        return values


class TableExtractor:
    """A `FeatureExtractor` of Arrow tables (`tna_onnx.data.sources.slices`): features, label and key remain.

    Args:
        extractor: the model.
        writer: what files say of the features: what its `describe` returns.
    """

    def __init__(self, extractor: FeatureExtractor, writer: Mapping[str, Any]) -> None:
        self.extractor = extractor
        self.writer = dict(writer)

    def __call__(self, table: Any) -> Any:
        """Return an Arrow table with `features` or `logits`, as lists of one length."""
        kind: Kind = self.writer["kind"]
        columns = {name: column_array(table.column(name), f"batch: column {name!r}") for name in table.column_names}
        batch = self.extractor(columns)
        # what passes is taken from the table: its types stay
        passed = {name: table.column(name) for name in batch if name != kind}
        return features_table(kind, batch[kind], passed, self.writer)


def _kind_of(readout: Readout) -> Kind:
    if isinstance(readout, Head) and readout.linear:
        return "features"
    return "logits"


def _columns_of(
    inputs: Sequence[InputSpec], columns: Sequence[str], batch: Mapping[str, Any]
) -> dict[str, tuple[str, ...]]:
    """Return the columns of a batch that fill each input."""
    if not hasattr(batch, "items"):
        raise DataError(f"batch: expected columns by name, a mapping or a data frame, got {type(batch).__name__}")
    names = tuple(columns) or tuple(spec.name for spec in inputs)
    missing = [name for name in names if name not in batch]
    if missing:
        present = ", ".join(map(str, batch)) or "no column"
        raise DataError(
            f"batch: has no column {missing[0]!r}; expected {', '.join(names)}, got {present}; name those that fill "
            "the model's inputs with columns=[...]"
        )
    if len(inputs) == 1:
        return {inputs[0].name: names}
    if len(names) != len(inputs):
        raise DataError(f"batch: {len(names)} columns for the {len(inputs)} inputs of the model; name one for each")
    return {spec.name: (name,) for spec, name in zip(inputs, names, strict=True)}


def _array(column: Any, spec: InputSpec) -> NDArray[Any]:
    """Return a column as an array; engines give rows of several numbers as an array of arrays, too."""
    array = any_array(column)
    if array.dtype == object and len(array):
        try:
            return np.stack([np.asarray(row) for row in array])
        except ValueError as error:
            raise DataError(f"batch: column for input '{spec.name}' has rows of different shapes ({error})") from error
    return array


def filled_up(batch: Batch, size: int) -> Batch:
    """Return a batch of `size` samples: copies of the last one behind the others (rule 2)."""
    count = len(next(iter(batch.values())))
    if count == size:
        return batch
    return {name: np.concatenate([rows, np.repeat(rows[-1:], size - count, axis=0)]) for name, rows in batch.items()}
