"""The record of a file, what it says of its own making, and the proof that this is the truth: the file, rebuilt.

A written file is its source and a list of changes with all their numbers, in its metadata:

    tna_onnx.change    {"format": 1, "steps": [...]}, a step for each command on the way from the first source
    tna_onnx.seal      SHA-256 of all other entries of this tool

Large arrays (a tilted weight, a covariance) are taken from the file, and their digests compared with those in the step.
The proof leaves these numbers open, where someone has computed digests and seal anew (SECURITY.md).
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError, UnsupportedModel
from tna_onnx.graph import decisions
from tna_onnx.graph.difference import (
    PLACEHOLDER_INT,
    NotRebuilt,
    OfAnother,
    WrittenValues,
    content_digest,
    differences,
    is_plainly_encoded,
    same_models,
)
from tna_onnx.graph.load import PARSER_ERROR, PREFIX, Model, head_key
from tna_onnx.graph.nodes import annotate
from tna_onnx.graph.options import OUTPUT_KINDS, Difference
from tna_onnx.graph.readers import UNCHANGED, OutputChange
from tna_onnx.graph.readout import ClassOutput, Head, Layout, Readout, requantized
from tna_onnx.graph.rewrite import Rewritten, rewrite
from tna_onnx.graph.scores import class_output, find_readout
from tna_onnx.maps import map_of_class
from tna_onnx.maps.atypicality import FeatureSpace
from tna_onnx.maps.base import Folding
from tna_onnx.maps.clamp import Clamped
from tna_onnx.maps.isotonic import TopVersusAll
from tna_onnx.numerics import operating_points, outliers
from tna_onnx.numerics.ops import Ops, ShapeOps

_FORMAT = 1
_MOST_STEPS = 100  # a file says no more of itself: each step is a command that somebody ran
_CHANGE = "change"
_SEAL = "seal"

# Numbers of one array, and of all, that the metadata hold; whole numbers are shorter.
_MAX_ARRAY = 1024
_MAX_NUMBERS = 2**14
_MAX_INTEGERS = 2**16


@dataclass(frozen=True, eq=False)
class Added:
    """Logits plus one number a class: what is left of a change where the file has no place for a bias."""

    bias: NDArray[np.floating]  # (C,) numbers

    def __post_init__(self) -> None:
        """Refuse infinite numbers; NaN stands for those that only a file has."""
        if np.isinf(self.bias).any():
            raise DataError("added: bias is not finite")

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002 - as every map is called
        """Return s + c."""
        return op.add(logits, op.const(self.bias))

    def folded(self) -> Folding:
        """Return the shift."""
        return Folding(1.0, np.asarray(self.bias, np.float64))


@dataclass(frozen=True, eq=False)
class Change:
    """What is done to a head, or behind the tensor of scores."""

    weight: NDArray[Any] | None = None  # (C, n) new class vectors; None where they stay, or are computed
    bias: NDArray[Any] | None = None  # (C,) new bias, where the head holds one; None likewise
    bias_factor: float = 1.0  # what the bias that the file has is multiplied by
    folded: Any = None  # a map in weight and bias that are computed from those of the source; see `can_recompute`
    maps: tuple[Any, ...] = ()  # formulas that are appended, the first one first
    shape: tuple[int, ...] | Layout = (0,)  # of one sample's logits (`graph.rewrite`)
    block: str = PREFIX  # how names of appended nodes begin
    other_outputs: OutputChange = UNCHANGED  # what becomes of other outputs where maps are appended


@dataclass(frozen=True, eq=False)
class DecisionStep:
    """Decisions that were added again."""

    source: str  # SHA-256 of the file that it says they were added to
    model: Model  # what they were added to
    guarded: decisions.Guarded  # formulas of the scores
    thresholds: Mapping[str, NDArray[np.float32]]  # what these are compared with
    names: Mapping[str, str]  # role -> output


class Encoder:
    """Values as JSON, to the last bit; of an array that is too large, its type and shape."""

    def __init__(self) -> None:
        self._left = {"f": _MAX_NUMBERS, "i": _MAX_INTEGERS}
        self.left_out = 0

    def encoded(self, value: Any, limit: int = _MAX_ARRAY) -> Any:
        """Return a value that JSON has; `limit` numbers of an array."""
        if isinstance(value, np.ndarray):
            array: dict[str, Any] = {"dtype": value.dtype.name, "shape": list(value.shape)}
            fits = self._fits("i" if value.dtype.kind in "iu" else "f", value.size, limit)
            if fits:
                array["values"] = value.reshape(-1).tolist()
            return array
        if isinstance(value, (list, tuple)):
            numbers = bool(value) and all(isinstance(item, float) for item in value)
            if numbers and not self._fits("f", len(value), limit):
                return {"numbers": len(value)}
            return [self.encoded(item) for item in value]
        if dataclasses.is_dataclass(value):
            # what was measured on the samples is for the fit alone
            fields = [field.name for field in dataclasses.fields(value)]
            names = [name for name in fields if not (isinstance(value, FeatureSpace) and name == "measured")]
            # costs of a few classes are an entry of their own, too
            limit = _MAX_NUMBERS if isinstance(value, operating_points.DecisionRule) else _MAX_ARRAY
            return {"is": type(value).__name__, **{name: self.encoded(getattr(value, name), limit) for name in names}}
        if isinstance(value, Mapping):
            return {"entries": {key: self.encoded(item) for key, item in value.items()}}
        return value.item() if isinstance(value, np.generic) else value

    def _fits(self, kind: str, count: int, limit: int) -> bool:
        if count > min(_MAX_INTEGERS if kind == "i" else limit, self._left[kind]):
            self.left_out += 1
            return False
        self._left[kind] -= count
        return True


class Decoder:
    """The way back, with placeholders for the numbers of large arrays.

    Args:
        size: most numbers of all arrays together.
    """

    def __init__(self, size: int) -> None:
        self._left = size
        self.placeholders = 0

    def decoded(self, value: Any) -> Any:
        """Return the value."""
        if isinstance(value, list):
            return tuple(self.decoded(item) for item in value)
        if not isinstance(value, dict):
            return value
        if "shape" in value:
            return self._array(np.dtype(value["dtype"]), tuple(map(int, value["shape"])), value.get("values"))
        if "numbers" in value:
            return tuple(self._array(np.dtype(np.float64), (int(value["numbers"]),), None).tolist())
        if "entries" in value:
            return {key: self.decoded(item) for key, item in value["entries"].items()}
        cls = _CLASSES.get(value["is"]) or map_of_class(value["is"])
        if cls is None:
            raise NotRebuilt(f"this version of tna-onnx does not know {value['is']!r}")
        fields = {key: self.decoded(item) for key, item in value.items() if key != "is"}
        unknown = sorted(fields.keys() - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise NotRebuilt(f"this version of tna-onnx does not know {unknown[0]!r} of {cls.__name__}")
        numbers = {field.name for field in dataclasses.fields(cls) if field.type in ("float", float)}
        if any(not isinstance(fields[name], (float, int)) for name in numbers & fields.keys()):
            raise NotRebuilt(f"expected one number in each of {sorted(numbers)} of {cls.__name__}")
        return cls(**fields)

    def _array(self, dtype: np.dtype[Any], shape: tuple[int, ...], values: Any) -> NDArray[Any]:
        count = 1
        for length in shape:
            count *= length
        if dtype.kind not in "fi" or not 0 <= count <= self._left:
            raise NotRebuilt(f"expected an array of numbers that the file can hold, found {dtype} {shape}")
        self._left -= count
        if values is not None:
            return np.array(values, dtype).reshape(shape)
        self.placeholders += 1
        return np.full(shape, np.nan if dtype.kind == "f" else PLACEHOLDER_INT, dtype)


_CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        Added, OutputChange, FeatureSpace, TopVersusAll, Layout, ClassOutput, outliers.Energy,
        outliers.Mahalanobis, outliers.Residual, decisions.Guarded, decisions.OutlierInput, decisions.SetScore,
        operating_points.DecisionRule,
    )
}  # fmt: skip
"""Classes that metadata may name, besides those of maps."""


def can_recompute(folding: Folding) -> bool:
    """Return whether weight and bias with a map in them are the same bits everywhere: no products are added up."""
    return np.ndim(folding.scale) < 2 and folding.delta is None


def write_change(
    model: Model, readout: Readout, change: Change, metadata: Mapping[str, str], *, aside: bool = False
) -> Rewritten:
    """Write a change into a copy of a model, and into its metadata how that was done."""
    earlier = _earlier(model, metadata)
    # the bias that an earlier step has put there is not in this file any more, and of too many classes the metadata do
    # not hold the map, so nothing can be computed of it
    lost = isinstance(readout, Head) and any(
        step["step"] == "head" and step["readout"]["node"] == readout.node and step["bias"] == "file"
        for step in earlier
    )
    if change.folded is not None and (lost or not _is_held(change.folded)):
        # in place of the map, the numbers that it gives
        assert isinstance(readout, Head)  # noqa: S101 - a map folds into a head alone
        change = _with_numbers(readout, change)
        if change.bias is None and readout.holds_bias:
            bias = readout.bias * readout.working_type.type(change.bias_factor)
            change = replace(change, bias=bias, bias_factor=1.0)
    if change.folded is None:
        change = _in_place(readout, change)
    result = _applied(model, readout, change, None, aside=aside)
    step = _head_words(model.sha256, readout, change, result.digests)
    annotate(result.proto, _with_steps(_without_recorded(metadata, readout.output, change), [*earlier, step]))
    return result


def _without_recorded(metadata: Mapping[str, str], output: str, change: Change) -> dict[str, str]:
    """Return entries without the numbers of maps that the record holds: each number stands there alone."""
    recorded = {key for fitted in (change.folded, *change.maps) for key in getattr(fitted, "brief", ())}
    return {key: value for key, value in metadata.items() if key.removeprefix(head_key(output)) not in recorded}


def recorded_numbers(file: Model) -> dict[str, str]:
    """Return what the record of a file says of its maps (a temperature, slopes), as entries of each output."""
    numbers: dict[str, str] = {}
    with contextlib.suppress(NotRebuilt), _not_rebuilt():
        for step in _steps(file.provenance):
            decoder = Decoder(file.total_bytes)
            fitted = [decoder.decoded(step.get("folded")), *decoder.decoded(step.get("maps", []))]
            if decoder.placeholders:
                continue
            output = ""
            if step["step"] == "head":
                output = step["readout"]["output"]
            start = ""
            if output in file.calibrated_heads:
                start = head_key(output)
            for applied in fitted:
                brief = getattr(applied, "brief", {})
                numbers |= {f"{start}{key}": json.dumps(value) for key, value in brief.items()}
    return numbers


def _head_words(source: str, readout: Readout, change: Change, digests: Mapping[str, str]) -> dict[str, Any]:
    """Return what the metadata say of a change of the scores."""
    encoder = Encoder()
    return {
        "step": "head",
        "source": source,
        "readout": _readout_entries(readout),
        "weight": change.weight is not None,
        "bias": _stated_bias(readout, change, encoder),
        "folded": encoder.encoded(change.folded),
        "maps": encoder.encoded(change.maps),
        "shape": encoder.encoded(change.shape),
        "block": change.block,
        "digests": dict(digests),
        **({} if change.other_outputs == UNCHANGED else {"beside": encoder.encoded(change.other_outputs)}),
    }


def _stated_bias(readout: Readout, change: Change, encoder: Encoder) -> Any:
    """Return a new bias as a step states it: its numbers, its factor, None where it stays; `file` where it is taken
    from there, because it is large, or stored as integers whose scale comes from the weight.
    """
    if change.bias is None:
        if change.bias_factor == 1:
            return None
        return change.bias_factor
    assert isinstance(readout, Head)  # noqa: S101 - a bias is of a head
    if readout.stored_bias is None or readout.stored_bias.quantized is not None:
        return "file"
    stated = encoder.encoded(change.bias)
    if "values" in stated:
        return stated
    return "file"


def write_decisions(step: DecisionStep, metadata: Mapping[str, str], from_file: Model | None = None) -> Any:
    """Return the protobuf of a model with decisions, and in its metadata how they were added; see `add_decisions`."""
    proto, words = _with_decisions(step, from_file, step.model.large_values)
    annotate(proto, _with_steps(metadata, [*_earlier(step.model, metadata), words]))
    return proto


def _with_decisions(
    step: DecisionStep, from_file: Model | None, large_values: Mapping[bytes, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the protobuf of a model with decisions, and what the metadata say of them."""
    model = step.model
    proto = decisions.add_decisions(model, step.guarded, step.thresholds, step.names, from_file)
    file = Model(proto, "", model.path, large_values=dict(large_values))
    digest = hashlib.sha256()
    for name in file.producers:
        tensor = file.constant_tensor(name)
        if tensor is not None and name.startswith(f"{decisions.GUARD}/"):
            digest.update(name.encode() + content_digest(file, tensor))
    encoder = Encoder()
    return proto, {
        "step": "decisions",
        "source": step.source,
        "guarded": encoder.encoded(step.guarded),
        "thresholds": encoder.encoded(dict(step.thresholds)),
        "names": dict(step.names),
        "digests": {decisions.GUARD: digest.hexdigest()},
    }


def before_decisions(file: Model, entries: Mapping[str, str]) -> Model:
    """Take back the last change of a file, which added decisions, and return the model before; nothing is proved."""
    *earlier, step = _steps(file.provenance)
    if step["step"] != "decisions":
        raise NotRebuilt("something else was changed after decisions were added")
    with _not_rebuilt():
        proto = decisions.without_decisions(file, step["names"].values())
    if earlier:
        entries = _with_steps(entries, earlier)
    annotate(proto, entries)
    return Model(proto, step["source"], file.path, large_values=file.large_values)


def _earlier(model: Model, metadata: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the steps to a source of which the new entries keep some: those of a recalibration, or of another head."""
    if not any(key == _CHANGE or key.startswith("head/") for key in metadata):
        return []
    try:
        return _steps(model.provenance)
    except NotRebuilt:
        return []


def _is_held(value: Any) -> bool:
    """Return whether metadata hold all numbers of a value."""
    encoder = Encoder()
    encoder.encoded(value)
    return not encoder.left_out


def _with_steps(metadata: Mapping[str, str], steps: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    entries = {key: value for key, value in metadata.items() if key.rpartition("/")[2] not in (_CHANGE, _SEAL)}
    entries[_CHANGE] = _text_of(steps)
    return {**entries, _SEAL: _seal(entries)}


def _text_of(steps: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps({"format": _FORMAT, "steps": steps}, separators=(",", ":"))


def _seal(entries: Mapping[str, str]) -> str:
    rest = [[key, value] for key, value in entries.items() if key != _SEAL]
    return hashlib.sha256(json.dumps(rest).encode()).hexdigest()


def _steps(entries: Mapping[str, str]) -> list[dict[str, Any]]:
    text = entries.get(_CHANGE)
    if text is None:
        writer = "; it was written by another version of tna-onnx" if entries else ""
        raise NotRebuilt(f"it does not say how it was made{writer}")
    try:
        steps = list(json.loads(text, parse_constant=_infinite)["steps"])
        valid = all(isinstance(step["source"], str) and step["step"] in ("head", "decisions") for step in steps)
        if 0 < len(steps) <= _MOST_STEPS and valid and _text_of(steps) == text:
            return steps
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise NotRebuilt("it says how it was made in a form that this version of tna-onnx does not know")


def _infinite(word: str) -> float:
    """Refuse NaN, which is a placeholder here for the numbers of the file."""
    if word == "NaN":
        raise ValueError(word)
    return float(word)


def _applied(
    model: Model, readout: Readout, change: Change, from_file: WrittenValues | None, *, aside: bool = False
) -> Rewritten:
    if change.folded is not None:
        assert isinstance(readout, Head)  # noqa: S101 - a map folds into a head alone
        change = _in_place(readout, _with_numbers(readout, change))
    maps = change.maps
    return rewrite(
        model,
        readout,
        change.weight,
        bias=change.bias,
        bias_factor=change.bias_factor,
        write_map=functools.partial(_forward, maps) if maps else None,
        keeps_order=all(getattr(applied, "keeps_order", False) and applied.for_classes for applied in maps),
        other_outputs=change.other_outputs,
        logits_shape=change.shape,
        block=change.block,
        metadata={},
        aside=aside,
        from_file=from_file,
    )


def _in_place(readout: Readout, change: Change) -> Change:
    """Return a change whose bias is added behind the head, where the file has no place for it."""
    if change.bias is None:
        return change
    assert isinstance(readout, Head)  # noqa: S101 - only a head has a bias
    if readout.holds_bias:
        return change
    # a number for all classes stays in the file: what is added comes on top of it
    return replace(change, bias=None, maps=(Added(change.bias - readout.bias), *change.maps))


def _with_numbers(head: Head, change: Change) -> Change:
    """Return a change with weight and bias, computed from those of the source, in place of the map in them."""
    folding = change.folded.folded()
    weight = None
    if folding.delta is not None or np.ndim(folding.scale) or folding.scale != 1:
        weight = head.anchored(folding.weight(head.weight))
    if folding.factor is not None:
        return replace(change, folded=None, weight=weight, bias_factor=folding.factor)
    return replace(change, folded=None, weight=weight, bias=head.anchored(folding.bias(head.bias)))


def _forward(maps: Sequence[Any], op: Ops, logits: Any, features: Any) -> Any:
    for applied in maps:
        logits = applied.forward(op, logits, features)
    return logits


@dataclass(frozen=True)
class Proof:
    """Whether a file is its source and a change that this tool writes."""

    unexplained: tuple[Difference, ...] = ()  # in what the file differs from its source that is not of such a change
    reason: str = ""  # why the file could not be made again; empty where it was
    decisions: DecisionStep | None = None  # that were added; None where there are none
    # gives the differences of the change; called where they are looked at, as it reads every tensor again
    explained: Callable[[], tuple[Difference, ...]] = tuple

    @functools.cached_property
    def differences(self) -> tuple[Difference, ...]:
        """Everything in which the file differs from its source; `explained` where it is of the change."""
        return (*self.explained(), *self.unexplained)

    @property
    def intact(self) -> bool:
        """Whether the file, made again, is the same."""
        return not self.reason and not self.unexplained


def prove(source: Model, file: Model) -> Proof:
    """Make a file again, of its source and what it says of its making, and compare."""
    same = same_models(source, file)
    if same and (source.sha256 == file.sha256 or (not file.inlined and is_plainly_encoded(file))):
        return Proof()  # the same file, however it is encoded, or the same model
    if file.inlined:
        added = tuple(Difference("function", name, "added") for name in file.inlined)
        return Proof(added, "it holds functions, which are never written")
    if not is_plainly_encoded(file):
        reason = "its bytes are not those that its model is written in, so others may read another model in it"
        return Proof(differences(source, file), reason)
    try:
        return _rebuilt(source, file)
    except OfAnother as reason:  # what differs from the source would say nothing
        return Proof(reason=str(reason))
    except NotRebuilt as reason:
        return Proof(differences(source, file), str(reason))


def _explained(source: Model, rebuilt: Model, roles: Mapping[str, str]) -> tuple[Difference, ...]:
    """Return the differences between a source and the file that was made of it, and say what each is.

    `roles`: name of a tensor or node -> what is new in it.
    """
    entries = differences(source, rebuilt)
    rest = [replace(entry, explained=_reason_for(entry, roles)) for entry in entries if entry.part != "metadata"]
    if len(rest) < len(entries):
        count = len(rebuilt.provenance)
        rest.insert(0, Difference("metadata", f"{PREFIX}.*", "values", f"{count} entries", "provenance"))
    return tuple(rest)


def _reason_for(difference: Difference, roles: Mapping[str, str]) -> str:
    if difference.part in ("input", "output") or difference.name.startswith(f"{decisions.GUARD}/"):
        return "decisions"
    if difference.name in roles:
        return roles[difference.name]
    if difference.name.startswith(f"{PREFIX}/") or difference.part == "opset" or difference.change == "output":
        return "appended block"
    if difference.change == "added" and difference.part == "tensor":
        return "decisions"
    return "head"


def _rebuilt(source: Model, file: Model) -> Proof:
    """Make a file again, a step after the other, and compare."""
    entries = file.provenance
    steps = _steps(entries)
    sources = [step["source"] for step in steps]
    if source.sha256 not in sources:
        raise OfAnother(
            f"it was made of another model, with sha256 {sources[0][:12]}..., and {source.name} has "
            f"{source.sha256[:12]}..."
        )
    first = sources.index(source.sha256)
    if first and steps[:first] != _steps(source.provenance):
        raise NotRebuilt(f"it says that {source.name} was made in another way than that says itself")
    model = source
    decided: DecisionStep | None = None
    roles: dict[str, str] = {}
    wrong: list[Difference] = []
    with _not_rebuilt():
        for step in steps[first:]:
            if step["step"] == "decisions":
                decided = _stated_decisions(model, step, file)
                large_values: Mapping[bytes, Any] = {**model.large_values, **file.large_values}
                proto, words = _with_decisions(decided, file, large_values)
            else:
                result, words = _replayed(model, step, file)
                proto, large_values = result.proto, result.large_values
                roles |= result.roles
            if json.dumps({**words, "digests": step["digests"]}) != json.dumps(step):
                raise NotRebuilt("it is not in the words that this version of tna-onnx writes")
            # what is read of the next step's model, as its output's kind, stands in these entries
            annotate(proto, entries)
            model = Model(proto, "", source.path, large_values=large_values)
            names = sorted(name for name, _ in {*words["digests"].items()} ^ {*step["digests"].items()})
            wrong += [Difference("tensor", name, "values", "not those of its making") for name in dict.fromkeys(names)]
    if entries.get(_SEAL) != _seal(entries):
        wrong.append(Difference("metadata", f"{PREFIX}.{_SEAL}", "changed", "entries are not those that were written"))
    unexplained = (*differences(model, file), *wrong)
    return Proof(unexplained, decisions=decided, explained=functools.partial(_explained, source, model, roles))


@contextlib.contextmanager
def _not_rebuilt() -> Iterator[None]:
    """Turn what a record that someone else wrote, which may hold anything, does to its reader into a reason."""
    try:
        yield
    except (
        ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError, StopIteration,
        TypeError, ValueError, DataError, UnsupportedModel, PARSER_ERROR,
    ) as error:  # fmt: skip
        raise NotRebuilt(f"what it says of its making cannot be done ({type(error).__name__}: {error})") from error


def _replayed(model: Model, step: Mapping[str, Any], file: Model) -> tuple[Rewritten, dict[str, Any]]:
    """Do a step to the scores again; return what was done, and the words of the step."""
    readout = _readout_of(model, step["readout"])
    decoder = Decoder(file.total_bytes)
    bias = decoder.decoded(step["bias"])
    change = Change(
        folded=decoder.decoded(step["folded"]),
        maps=decoder.decoded(step["maps"]),
        shape=decoder.decoded(step["shape"]),
        block=step["block"],
        other_outputs=decoder.decoded(step.get("beside")) or UNCHANGED,
    )
    for fitted in (change.folded, *change.maps):
        _require_shape(readout, fitted, file)
    if change.folded is not None and not can_recompute(change.folded.folded()):
        raise NotRebuilt("it names a map in weight and bias that is not written in this way")
    from_file = []
    # in place of numbers that come from the file, those of the source
    if step["weight"]:
        assert isinstance(readout, Head)  # noqa: S101 - a weight is of a head
        change = replace(change, weight=readout.weight)
        from_file.append("weight")
    if step["bias"] == "file":
        assert isinstance(readout, Head)  # noqa: S101 - a bias is of a head
        change = replace(change, bias=readout.bias)
        from_file.append("bias")
    elif isinstance(bias, float):
        change = replace(change, bias_factor=bias)
    elif bias is not None:
        change = replace(change, bias=bias)
    result = _applied(model, readout, change, WrittenValues(file, tuple(from_file)), aside=True)
    return result, _head_words(step["source"], readout, change, result.digests)


def _require_shape(readout: Readout, fitted: Any, file: Model) -> None:
    """Refuse a map that gives one sample logits of another shape, or has more constants than a file can hold."""
    logits, features = (1, readout.n_classes), None
    if isinstance(readout, Head):
        features = (1, readout.n_features)
    classes = 0
    if not readout.multi_label:
        classes = readout.n_classes
    if isinstance(fitted, Clamped) and fitted.classes != classes:
        raise NotRebuilt(f"it keeps predictions of {fitted.classes} classes; expected {classes}")
    if fitted is not None and fitted.forward(ShapeOps(file.total_bytes), logits, features) != logits:
        raise NotRebuilt("it names a map that gives one sample logits of another shape")


def _stated_decisions(model: Model, step: Mapping[str, Any], file: Model) -> DecisionStep:
    """Return the decisions that a step states, on an output that the graph has, with a score of each sample."""
    decoder = Decoder(file.total_bytes)
    guarded, thresholds = (decoder.decoded(step[key]) for key in ("guarded", "thresholds"))
    output, outlier = guarded.output, guarded.outlier
    if not any(replace(meant, quantum=output.quantum) == output for meant in _outputs_called(model, output.name)):
        raise NotRebuilt(f"{model.name} has no such output '{output.name}' that classifies")
    if outlier is not None:
        shapes = [(1, output.n_classes), (1, outlier.width)]
        if outlier.formula.score(ShapeOps(file.total_bytes), *shapes) != (1, 1):
            raise NotRebuilt("it states an outlier score that is not one number a sample")
    return DecisionStep(step["source"], model, guarded, thresholds, step["names"])


def _outputs_called(model: Model, name: str) -> Iterator[ClassOutput]:
    """Yield an output with each meaning that it may be said to have, where the graph does not tell."""
    for kind in (None, *OUTPUT_KINDS):
        with contextlib.suppress(UnsupportedModel):
            yield class_output(model, None, name, kind)


def _readout_entries(readout: Readout) -> dict[str, Any]:
    """Return the entries of the metadata by which a readout is found again."""
    return {
        "output": readout.output,
        "logits": readout.logits,
        "holds": readout.holds,
        "binary": readout.binary,
        "multi_label": readout.multi_label,
        "classes": readout.n_classes,
        "class_axis": readout.class_axis,
        "node": readout.node or None,
        "own_weight": isinstance(readout, Head) and readout.stored_weight.shared,
        "type": readout.logits_type,
        "quantum": readout.quantum,
    }


def _readout_of(model: Model, words: Mapping[str, Any]) -> Readout:
    """Find a head, or a tensor of scores, again, by each word on what an output holds."""
    output, node = words["output"], words["node"]
    for kind in (None, *OUTPUT_KINDS):
        with contextlib.suppress(UnsupportedModel):
            readout = find_readout(model, node, output, kind)
            if isinstance(readout, Head):
                readout = _as_written(model, readout, words)
            readout = replace(readout, quantum=words["quantum"])  # which samples may have shown
            if _readout_entries(readout) == words:
                return readout
    raise NotRebuilt(f"{model.name} has no such head or scores at output '{output}'")


def _as_written(model: Model, head: Head, words: Mapping[str, Any]) -> Readout:
    if words["node"] is None:
        return head.without_head()
    if words["own_weight"]:
        return head.kept_in_float()
    return requantized(model, head)
