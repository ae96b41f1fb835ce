"""Where samples enter a model: at its inputs, or at a tensor that was computed before, the features or the logits.

Stored features and logits need no run of the network: only the part of the graph behind them is opened.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.choices import BESIDE
from tna_onnx.data.formats import Copy, open_request, request_of
from tna_onnx.data.options import Data
from tna_onnx.data.sample_info import require_beside, with_prior
from tna_onnx.data.several import LabelSource
from tna_onnx.data.source import NO_LABELS, InputSpec, Source
from tna_onnx.data.sources.arrays import Precomputed, open_columns, open_precomputed, stored_arrays
from tna_onnx.data.sources.feature_files import feature_kind, open_feature_files
from tna_onnx.errors import DataError, UsageError
from tna_onnx.extraction.classifier import Classifier, OpenModel
from tna_onnx.extraction.sessions import Runner, in_rows, open_part
from tna_onnx.extraction.store import is_store, model_key, read_stored
from tna_onnx.files import is_url
from tna_onnx.graph.cut import cut_between
from tna_onnx.graph.load import PREFIX, Model, load_model
from tna_onnx.graph.options import DEFAULT_MODEL_LIMITS, ModelLimits
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.runtime import Device, open_session

# Samples that the model should not know may have more classes than the model; none of their numbers is read.
_CLASSES = 1 << 31


@dataclass(frozen=True, eq=False)
class Samples:
    """Labelled samples, and where they enter the graph."""

    source: Source  # the samples
    readout: Readout  # what is to be calibrated: without a head where logits were given
    # tensors that the samples hold, with their dtypes; empty where they are the model's inputs
    given: Mapping[str, np.dtype[Any]] = field(default_factory=dict)
    store: Path | None = None  # folder of the feature store that they are, if they are one
    data: Data | None = None  # what the user named, with the preprocessing that is used

    @property
    def form(self) -> str:
        """What digests of single samples are of; two data sets can be compared where this is the same."""
        if not self.given:
            return self.source.sample_form
        if isinstance(self.readout, Head):
            return "features"
        return "logits"

    def open_written(
        self, path: Path, output: str, device: Device, limits: ModelLimits = DEFAULT_MODEL_LIMITS
    ) -> Runner:
        """Open a written file, within the limits of its source, from where the samples enter to one of its outputs."""
        if not self.given:
            return Runner(in_rows(open_session(path, path.name, device), self.readout, path.name, (output,)))
        written = load_model(path, limits)
        names = {name: name for name in self.given}
        inner = f"{PREFIX}/logits"
        if self.readout.logits in names and inner in written.producers:
            names[self.readout.logits] = inner  # an appended map reads the logits under this name
        if names.get(output) == output:
            # the output is what the samples hold already: there is nothing to run
            return Runner(None)
        feeds = {names[name]: dtype for name, dtype in self.given.items()}
        return Runner(
            open_part(written, cut_between(written.proto, feeds, [output], self.readout.joined), device), names
        )


def computed_kind(data: Data, inputs: Sequence[str], *, in_tables: bool = True) -> str:
    """Return what samples hold that a model computed: a feature store, features or logits; empty if nothing.

    Arrays and columns under the name of one of the model's inputs are for the whole model. `in_tables`: whether table
    files count, too.
    """
    if is_store(data):
        return "store"
    with stored_arrays(data.samples, data.limits) as stored:
        names = {*stored.names} if stored else set()
    if names.isdisjoint(inputs):
        for kind in ("features", "logits"):
            if kind in names:
                return kind
    if not in_tables or data.columns:
        return ""
    return feature_kind(data.samples, inputs) or ""


def open_samples(opened: OpenModel, data: Data, at_most: int | None = None) -> Samples:
    """Open samples: a feature store, features or logits in arrays, or data for the model's inputs.

    `opened`: the model; its session is opened where the samples are for its inputs. `at_most`: samples to keep of files
    of features or logits; None for all.
    """
    readout = opened.readout
    path = data.samples
    stored = is_store(data) and not readout.several
    request = request_of(
        data,
        () if stored else opened.inputs,  # which open the session
        readout.n_classes,
        opened.names,
        model_file=opened.model.path,
        several=readout.several,
        n_features=readout.n_features if isinstance(readout, Head) else readout.n_classes,
        multi_label=readout.multi_label,
    )
    if readout.several:
        return Samples(open_request(request), readout)
    data = with_prior(data, readout.n_classes, opened.names)
    if stored:
        # two sets of labels could contradict each other
        if data.labels is not None:
            raise UsageError(f"{path}: the feature store has its own labels; leave --labels out")
        request.check_no_table(str(path))
        return _stored(opened, Path(path), data)
    if data.labels is None and not readout.multi_label:
        files = open_feature_files(path, request, at_most)
        if files is not None:
            if data.columns or data.tokenizer is not None:
                raise UsageError(f"{path}: {files.kind} are used as they are; leave --columns and --tokenizer out")
            return _entered(opened, files, data)
    elif not data.columns and (kind := feature_kind(path, [spec.name for spec in opened.inputs])):
        raise _labels_elsewhere(path, kind)
    with local_npz(data) as place:
        computed = open_precomputed(place, request)
        if computed is not None:
            request.check_no_table(computed.source.title)
            return _entered(opened, computed, data)
        source = open_request(replace(request, samples=place))
    data, source = opened.preparation.settle(data, source)
    return Samples(source, readout, data=data)


@contextlib.contextmanager
def local_npz(data: Data) -> Iterator[Any]:
    """Give what `data` name in a block that reads all of it; of a `.npz` file behind a URL, a copy.

    Such a file is looked at before it is opened: both are done on one copy.
    """
    url = data.samples
    if not (isinstance(url, str) and is_url(url) and url.endswith(".npz")):
        yield url
        return
    copy = Copy(url, data.limits)
    with copy.named():
        yield copy.path


def open_inputs(model: Classifier, data: Data, *, labels: bool = True) -> tuple[Data, Source]:
    """Open samples for the inputs of a whole model; also return `data` with the preprocessing that is used.

    `labels`: whether those of the samples are read.
    """
    described = data if labels else replace(data, labels=NO_LABELS)
    return model.preparation.settle(described, read_inputs(model, described))


def read_inputs(model: Classifier, data: Data) -> Source:
    """Open samples for the inputs of a whole model, images not yet prepared."""
    output = model.output
    with local_npz(data) as place:
        local = replace(data, samples=place)
        if not output.several:
            _refuse_computed(model, local)
        request = request_of(
            local,
            model.inputs,
            output.n_classes,
            model.names,
            model_file=model.model.path,
            several=output.several,
            multi_label=output.multi_label,
        )
        return open_request(request)


def _refuse_computed(model: Classifier, data: Data) -> None:
    """Refuse what a model computed, for commands that run all of it."""
    inputs = [spec.name for spec in model.inputs]
    kind = computed_kind(data, inputs)
    if not kind:
        return
    where = "arrays"
    if not isinstance(data.samples, Mapping):
        where = data.samples
    stated = data.labels is not None and data.labels is not NO_LABELS
    if (stated or model.output.multi_label) and not computed_kind(data, inputs, in_tables=False):
        raise _labels_elsewhere(where, kind)
    holds = "is a feature store"
    if kind != "store":
        holds = f"{kind!r} holds {kind}"
    raise UsageError(
        f"{where}: {holds}, which only calibrate and evaluate accept; this command runs the whole "
        "model, so give samples for its inputs. If this array is an input, give it the name of that input, or name it "
        "with --columns"
    )


def _labels_elsewhere(where: object, kind: str) -> UsageError:
    return UsageError(
        f"{where}: holds {kind} in tables, where a column has the class of each sample; leave labels out, store "
        f"{kind} and labels as arrays (.npz), or give samples for the model's inputs"
    )


def open_unknown(model: Classifier, data: Data, labelled: Source) -> Source:
    """Open samples that a model should not know, prepared like those that it does.

    Only the inputs count; labels may be any numbers or names.
    """
    unknown = replace(data, classes=None, labels=NO_LABELS)
    opened = open_request(request_of(unknown, model.inputs, _CLASSES, None))
    if not len(opened):
        raise DataError(f"--ood-data: {opened.describe()}: expected samples, found none")
    if opened.recipe() is not None and labelled.recipe() is None and data.preprocessing is None:
        raise UsageError(
            f"--ood-data: {opened.describe()} are images, but {labelled.describe()} holds arrays as the model takes "
            "them, so the preprocessing of the images is unknown; use arrays or images for both"
        )
    return model.preparation.settle(data, opened)[1]


def _require_origin(opened: OpenModel, where: object, key: Mapping[str, Any], kind: str) -> None:
    """Refuse features or logits of another model, tensor or head, by what their writer says of them."""
    model, readout = opened.model, opened.readout
    if not _computed_with(model, key, kind):
        raise DataError(
            f"{where}: the {kind} were computed with another model, or other external data (SHA-256 "
            f"{str(key.get('model_sha256'))[:12]}..., now {model.sha256[:12]}...); compute them again"
        )
    # heads that read the same features have labels of their own; a store calls the tensor `features`
    expected = {"tensor": readout.main, "head": readout.node if isinstance(readout, Head) else None}
    if kind == "logits":
        expected = {"tensor": readout.logits, "holds": readout.holds}
    stated = {"tensor": key.get("features"), **key}
    for word, value in expected.items():
        if word in stated and stated[word] != value:
            raise DataError(
                f"{where}: the {kind} are of another {word}, '{stated[word]}', not of '{value}'; choose the same "
                "--head and --output-kind, or compute them again"
            )


def _computed_with(model: Model, key: Mapping[str, Any], kind: str) -> bool:
    """Whether features or logits are of a model, by what their writer says.

    Features may be of the model that it is a recalibration of, too: nothing in front of the head has changed.
    """
    calibrated = model.calibrations.values() if kind == "features" else ()
    sources = {entries.get("source_sha256") for entries in calibrated}
    stated = key.get("external_sha256")
    if key.get("model_sha256") not in {model.sha256, *sources} or not isinstance(stated, Mapping):
        return False
    external = model_key(model)["external_sha256"]
    return all(stated.get(location, digest) == digest for location, digest in external.items())


def _entered(opened: OpenModel, computed: Precomputed, data: Data) -> Samples:
    """Take features or logits, where their writer, if it is known, had this model."""
    if computed.writer:
        _require_origin(opened, data.samples, computed.writer, computed.kind)
    source = computed.source
    return _enter(
        opened, computed.values, computed.labels, computed.kind, data, source.title, source.sample_info, source.notes
    )


def _stored(opened: OpenModel, folder: Path, data: Data) -> Samples:
    readout = opened.readout
    stored = read_stored(folder)
    kind = "features" if isinstance(readout, Head) else "logits"
    _require_origin(opened, stored.folder, stored.key, kind)
    if isinstance(readout, Head) and "Gemm" in readout.op_type and stored.features.ndim != 2:
        raise DataError(
            f"{stored.folder}: the head reads several rows of '{readout.main}' a sample, one after the other; give the "
            "data themselves, with --cache for the features"
        )
    further: dict[str, Any] = {}
    for role, column in data.sample_info.items():
        if isinstance(column, str) and column not in stored.columns:
            present = ", ".join(map(repr, stored.columns)) or "none"
            raise DataError(
                f"{stored.folder}: no column {column!r} for {BESIDE[role][1]}; found {present}: collect the features "
                "with --group-column or --weight-column, which are stored as 'group' and 'weight'"
            )
        further[role] = stored.columns[column] if isinstance(column, str) else column
    title = f"feature store {stored.folder.name}"
    entered = _enter(opened, stored.features, stored.labels, kind, data, title, further)
    return replace(entered, store=stored.folder)


def _enter(
    opened: OpenModel,
    main: NDArray[Any],
    labels: NDArray[np.int64],
    kind: str,
    data: Data,
    title: str,
    sample_info: Mapping[str, Any],
    notes: tuple[str, ...] = (),
) -> Samples:
    """Make samples of features or logits, by the name of the tensor at which they enter the graph."""
    # what was asked for and would not be done is refused, not ignored
    if data.preprocessing is not None:
        raise UsageError(f"{title}: {kind} are used as they are; leave the preprocessing out")
    readout = opened.readout
    entered: Readout = readout
    if kind == "features":
        main, tensor, dtype = _as_features(readout, main, title)
    else:
        main = _as_held(readout, main)
        entered = readout.without_head()
        tensor = readout.logits
        dtype = np.dtype(readout.logits_type)
    values = {tensor: main}
    specs = [InputSpec(tensor, (None, *main.shape[1:]), dtype)]
    groups, subgroups, weights = map(sample_info.get, ("group", "by", "weight"))
    data = replace(data, labels=None, groups=groups, by=subgroups, weights=weights)
    request = request_of(data, specs, readout.n_classes, opened.names, multi_label=readout.multi_label)
    source: Source = open_columns(title, title, request, values, labels, notes=notes)
    require_beside(request, source)
    if readout.multi_label:
        source = LabelSource.of(source)
    return Samples(source, entered, {tensor: dtype})


def _as_features(readout: Readout, main: NDArray[Any], title: str) -> tuple[NDArray[Any], str, np.dtype[Any]]:
    """Return features as the head reads them, the tensor that they are, and its dtype."""
    if not isinstance(readout, Head):
        raise DataError(f"{title}: holds features, but the model has no linear head to give them to")
    if readout.features_transposed:
        raise DataError(f"{title}: holds features, but the head reads them transposed; give the data themselves")
    # before the runtime, which would name a node and not the data
    if main.ndim == 2 and main.shape[1] != readout.n_features:
        raise DataError(
            f"{title}: features have {main.shape[1]} columns; expected {readout.n_features}, those of head "
            f"'{readout.node}'"
        )
    # a convolution over one pixel: it reads (N, n, 1, 1)
    if main.ndim == 2 and readout.op_type in ("Conv", "FusedConv"):
        main = main.reshape(*main.shape, *[1] * (readout.stored_weight.value.ndim - 2))
    if readout.op_type == "LinearClassifier":  # its weight is float32, its features need not be
        return main, readout.features, main.dtype
    return main, readout.features, readout.stored_weight.value.dtype


def _as_held(readout: Readout, logits: NDArray[Any]) -> NDArray[Any]:
    """Return class logits (N, C), or (N, 1) of a binary head, as the model's own tensor has them."""
    if readout.binary and logits.shape[1] == 2:
        # a sigmoid of the difference is the softmax of both
        logits = logits[:, 1:] - logits[:, :1]
    if readout.holds == "logits":
        return logits
    if readout.binary:
        logit_pair = np.concatenate([np.zeros_like(logits), logits], axis=1)
        return readout.probabilities(logit_pair).astype(logits.dtype)[:, 1:]
    return readout.probabilities(logits).astype(logits.dtype)
