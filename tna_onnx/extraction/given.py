"""Where samples enter a model: at its inputs, or at a tensor that was computed before, the features or the logits.

Features and logits that someone has stored, in a feature store of this package or in arrays, need neither the data nor
a run of the network: the part of the graph behind them is all that is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Batch, InputSpec, Source, open_precomputed
from tna_onnx.data.digest import arrays_sha256
from tna_onnx.data.options import DataOptions
from tna_onnx.data.request import Request
from tna_onnx.data.sources.columns import open_columns
from tna_onnx.errors import DataError, UsageError
from tna_onnx.extraction.keys import model_key
from tna_onnx.extraction.mapped import ReadOnce
from tna_onnx.extraction.sessions import input_specs, open_model, open_part
from tna_onnx.extraction.store import find_stores, read_stored
from tna_onnx.graph.cut import cut_between
from tna_onnx.graph.load import Model, load_model
from tna_onnx.graph.nodes import PREFIX
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.numerics.ops import softmax
from tna_onnx.runtime import Device, Session, open_session

__all__ = ["Entered", "Runner", "open_samples"]


@dataclass(frozen=True, eq=False)
class Entered:
    """Samples, and where they enter the graph.

    Attributes:
        source: the samples.
        given: tensors that the samples hold, with their dtypes; empty where they are the model's inputs.
        readout: what is to be calibrated: without a head where logits were given.
    """

    source: Source
    readout: Readout
    given: Mapping[str, np.dtype[Any]] = field(default_factory=dict)

    def runner(self, model: Model, path: Path | None, output: str, device: Device) -> Runner:
        """Open the part of a model from the samples to its output.

        Args:
            model: the source model; its folder and name are those of the written one as well.
            path: a written file; None opens the source model itself.
            output: graph output.
            device: where to run.
        """
        if not self.given:
            return Runner(open_model(model, device) if path is None else open_session(path, str(path.name), device))
        loaded = model if path is None else load_model(path)
        names = {name: name for name in self.given}
        inner = f"{PREFIX}/logits"
        if self.readout.logits in names and inner in loaded.producers:
            names[self.readout.logits] = inner  # an appended map reads the logits under this name
        if names.get(output) == output:
            return Runner(None)
        feeds = {names[name]: dtype for name, dtype in self.given.items()}
        return Runner(open_part(loaded, cut_between(loaded.proto, feeds, [output]), device), names)


class Runner:
    """A session whose inputs go by the samples' names; without one, an output is what the samples hold already."""

    def __init__(self, session: Session | None, names: Mapping[str, str] | None = None) -> None:
        self._session, self._names = session, names

    @property
    def provider(self) -> str:
        """ONNX Runtime's execution provider; `none` without a session."""
        return self._session.provider if self._session else "none"

    def run(self, outputs: list[str], batch: Batch) -> list[NDArray[Any]]:
        """Run one batch.

        Raises:
            DataError: ONNX Runtime refuses the data.
        """
        if self._session is None:
            return [batch[name] for name in outputs]
        feeds = batch if self._names is None else {self._names[name]: array for name, array in batch.items()}
        return self._session.run(outputs, feeds)


def open_samples(
    model: Model,
    readout: Readout,
    data: Any,
    options: DataOptions,
    names: tuple[str, ...] | None,
    labels: Any,
    probe: Callable[[], Session],
) -> Entered:
    """Open samples: a feature store, features or logits in arrays, or data for the model's inputs.

    Args:
        model: the model.
        readout: its head, or its logits.
        data: what `tna_onnx.data.open_source` takes, or a folder of features.
        options: how they are to be read.
        names: of the classes, if known.
        labels: labels that stand apart from the samples.
        probe: opens a session that has the model's inputs.

    Raises:
        UsageError, DataError: see `tna_onnx.data.open_source`; or the features do not belong to the model.
        UnsupportedModel, DeviceError: see `tna_onnx.runtime.open_session`.
    """
    if isinstance(data, (str, Path)) and options.format is None and find_stores(Path(data)):
        if labels is not None:
            raise UsageError(f"{data}: the feature store has its own labels; leave --labels out")
        return _stored(model, readout, Path(data), options, names)
    specs = input_specs(probe())
    if options.format in (None, "npz", "npy"):
        found = open_precomputed(data, specs, readout.n_classes, labels=labels, class_names=names)
        if found is not None:
            values: dict[str, NDArray[Any]] = {found.kind: found.values}
            return _enter(readout, values, found.labels, found.kind, options, names, found.source.title)
    return Entered(options.open(data, specs, readout.n_classes, names, labels), readout)


def _stored(
    model: Model, readout: Readout, folder: Path, options: DataOptions, names: tuple[str, ...] | None
) -> Entered:
    stored = read_stored(folder)
    if any(stored.key.get(name) != value for name, value in model_key(model).items()):
        raise DataError(
            f"{stored.folder}: the features were computed with another model, or other external data (SHA-256 "
            f"{str(stored.key.get('model_sha256'))[:12]}..., now {model.sha256[:12]}...); collect them again"
        )
    kind = "features" if isinstance(readout, Head) else "logits"
    tensor = readout.features if isinstance(readout, Head) else readout.logits
    if stored.key.get("features") != tensor:
        raise DataError(
            f"{stored.folder}: holds the tensor '{stored.key.get('features')}', but the {kind} are '{tensor}'; choose "
            "the same --head, or collect them again"
        )
    if kind == "logits" and stored.key.get("holds") != readout.holds:
        raise DataError(
            f"{stored.folder}: '{tensor}' was collected as {stored.key.get('holds')}, not as {readout.holds}; say the "
            "same --output-kind"
        )
    beside = stored.key.get("beside", [])
    unfit = [name for name in beside if _by_place(model, name)]
    if isinstance(readout, Head) and "Gemm" in readout.op_type and stored.arrays["features"].ndim != 2:
        unfit.append(tensor)  # several rows a sample, one after the other
    if unfit:
        raise DataError(
            f"{stored.folder}: the head reads '{unfit[0]}', whose rows depend on the place of a sample in its batch; "
            "give the data themselves, with --cache for the features"
        )
    values = {kind: stored.arrays["features"]}
    values.update({name: stored.arrays[f"beside_{k}"] for k, name in enumerate(beside)})
    return _enter(readout, values, stored.labels, kind, options, names, f"feature store {stored.folder.name}")


# Operators that number samples: what they give one sample depends on the others.
_NUMBERING = frozenset({"CumSum", "EyeLike", "NonZero", "Range"})


def _by_place(model: Model, tensor: str) -> bool:
    """Whether a tensor may depend on where in the batch a sample stands."""
    todo, seen = [tensor], {tensor}
    while todo:
        node = model.producer(todo.pop())
        if node is not None and node.op_type in _NUMBERING:
            return True
        new = set(node.input) - seen if node is not None else set()
        todo += new
        seen |= new
    return False


def _enter(
    readout: Readout,
    values: dict[str, NDArray[Any]],
    labels: NDArray[np.int64],
    kind: str,
    options: DataOptions,
    names: tuple[str, ...] | None,
    title: str,
) -> Entered:
    """Take arrays by the names of the tensors that they are."""
    if options.preprocessing is not None:
        raise UsageError(f"{title}: {kind} are used as they are; leave the preprocessing out")
    main = values.pop(kind)
    entered: Readout
    if kind == "features":
        if not isinstance(readout, Head):
            raise DataError(f"{title}: holds features, but the model has no linear head to give them to")
        if readout.features_transposed:
            raise DataError(f"{title}: holds features, but the head reads them transposed; give the data themselves")
        if main.ndim == 2 and main.shape[1] != readout.n_features:
            raise DataError(
                f"{title}: features have {main.shape[1]} columns; expected {readout.n_features}, those of head "
                f"'{readout.node}'"
            )
        if main.ndim == 2 and readout.op_type in ("Conv", "FusedConv"):
            main = main.reshape(*main.shape, *[1] * (readout.stored_weight.value.ndim - 2))
        entered, tensor, wanted = readout, readout.features, readout.stored_weight.value.dtype
        if readout.op_type == "LinearClassifier":  # its weight is float32, its features need not be
            wanted = main.dtype
    else:
        main, entered = _as_held(readout, main), _without_head(readout)
        tensor, wanted = readout.logits, np.dtype(readout.logits_type)
    values[tensor] = main
    dtypes = {**{name: array.dtype for name, array in values.items()}, tensor: wanted}
    specs = [InputSpec(name, (None, *array.shape[1:]), dtypes[name]) for name, array in values.items()]
    request = Request(specs, readout.n_classes, class_names=names)

    def digest(found: NDArray[np.int64]) -> str:
        return arrays_sha256(cast("Any", {name: ReadOnce(array) for name, array in values.items()}), found)

    source = open_columns(title, title, request, values, labels, hashed=digest)
    return Entered(source, entered, dtypes)


def _as_held(readout: Readout, logits: NDArray[Any]) -> NDArray[Any]:
    """Return class logits (N, C), or (N, 1) of a binary head, as the model's own tensor has them."""
    if readout.binary and logits.shape[1] == 2:
        logits = logits[:, 1:] - logits[:, :1]
    if readout.holds == "logits":
        return logits
    both = np.concatenate([np.zeros_like(logits), logits], axis=1) if readout.binary else logits
    held: NDArray[Any] = softmax(both).astype(logits.dtype)
    return held[:, 1:] if readout.binary else held


def _without_head(readout: Readout) -> Readout:
    fields = {name: getattr(readout, name) for name in Readout.__dataclass_fields__}
    return Readout(**fields)
