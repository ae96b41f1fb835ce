"""What a file says of its own making, and the proof that it says the truth: the file, rebuilt.

A written file is its source and a list of changes with all their numbers, in its metadata:

    tna_onnx.change    {"format": 1, "steps": [...]}, a step for each command on the way from the first source
    tna_onnx.seal      SHA-256 of all other entries of this tool

Large arrays (a tilted weight, a covariance) are taken from the file, and their digests compared with those in the step.
The proof leaves these numbers open, where someone has computed digests and seal anew (SECURITY.md).
"""

import contextlib
import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError, UnsupportedModel
from tna_onnx.graph import decisions
from tna_onnx.graph.bounds import MAX_AXES
from tna_onnx.graph.cut import before_map
from tna_onnx.graph.decisions import add_decisions
from tna_onnx.graph.difference import (
    NotRebuilt,
    OfAnother,
    WrittenValues,
    content_digest,
    differences,
    is_plainly_encoded,
    same_models,
)
from tna_onnx.graph.head import choose_head, find_heads
from tna_onnx.graph.labels import UNCHANGED, OutputChange, label_candidates, label_outputs
from tna_onnx.graph.load import PARSER_ERROR, Model
from tna_onnx.graph.nodes import PREFIX, PRIOR_BLOCK, annotate, block_of, calibrated_heads, head_key, provenance
from tna_onnx.graph.options import OUTPUT_KINDS, Difference, ModelOptions
from tna_onnx.graph.outputs import ClassOutput, class_output
from tna_onnx.graph.readout import CLASSES_FIRST, CLASSES_LAST, ONE, Head, Layout, Readout, requantized
from tna_onnx.graph.rewrite import Rewritten, rewrite
from tna_onnx.graph.scores import choose_readout, shown_sizes
from tna_onnx.maps.base import Folding
from tna_onnx.numerics.ops import Ops, ShapeOps
from tna_onnx.pipeline.steps import (
    Added,
    Change,
    DecisionStep,
    Decoder,
    Encoder,
)

_FORMAT = 1
_MOST_STEPS = 100  # a file says no more of itself: each step is a command that somebody ran
_CHANGE = "change"
_SEAL = "seal"


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
        weight, bias, factor = _with_map(readout, change.folded.folded())
        if bias is None and readout.holds_bias:
            bias, factor = readout.bias * readout.working_type.type(factor), 1.0
        change = replace(change, folded=None, weight=weight, bias=bias, bias_factor=factor)
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
        for step in _steps(provenance(file)):
            decoder = Decoder(file.total_bytes)
            fitted = [decoder.decoded(step.get("folded")), *decoder.decoded(step.get("maps", []))]
            if decoder.placeholders:
                continue
            output = step["readout"]["output"] if step["step"] == "head" else ""
            start = head_key(output) if output in calibrated_heads(file) else ""
            brief = {key: value for each in fitted for key, value in getattr(each, "brief", {}).items()}
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
    proto = add_decisions(model, step.guarded, step.thresholds, step.names, {}, from_file)
    file = Model(proto, "", model.path, large_values=dict(large_values))
    digest = hashlib.sha256()
    for name in file.producers:
        tensor = file.constant_tensor(name) if name.startswith(f"{decisions.GUARD}/") else None
        if tensor is not None:
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
    *earlier, step = _steps(provenance(file))
    if step["step"] != "decisions":
        raise NotRebuilt("something else was changed after decisions were added")
    with _not_rebuilt():
        proto = decisions.without_decisions(file, step["names"].values())
    annotate(proto, _with_steps(entries, earlier) if earlier else entries)
    return Model(proto, step["source"], file.path, large_values=file.large_values)


def _earlier(model: Model, metadata: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the steps to a source of which the new entries keep some: those of a recalibration, or of another head."""
    if not any(key == _CHANGE or key.startswith("head/") for key in metadata):
        return []
    try:
        return _steps(provenance(model))
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
        made = "; it was written by another version of tna-onnx" if entries else ""
        raise NotRebuilt(f"it does not say how it was made{made}")
    try:
        steps = list(json.loads(text)["steps"])
        known = all(isinstance(step["source"], str) and step["step"] in ("head", "decisions") for step in steps)
        if 0 < len(steps) <= _MOST_STEPS and known and _text_of(steps) == text:
            return steps
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise NotRebuilt("it says how it was made in a form that this version of tna-onnx does not know")


def _applied(
    model: Model, readout: Readout, change: Change, from_file: WrittenValues | None, *, aside: bool = False
) -> Rewritten:
    weight, bias, factor = change.weight, change.bias, change.bias_factor
    maps = change.maps
    if change.folded is not None:
        assert isinstance(readout, Head)  # noqa: S101 - a map folds into a head alone
        weight, bias, factor = _with_map(readout, change.folded.folded())
        placed = _in_place(readout, replace(change, bias=bias))
        bias, maps = placed.bias, placed.maps
    return rewrite(
        model,
        readout,
        weight,
        bias=bias,
        bias_factor=factor,
        write_map=functools.partial(_each, [applied.forward for applied in maps]) if maps else None,
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


def _with_map(head: Head, folding: Folding) -> tuple[NDArray[Any] | None, NDArray[Any] | None, float]:
    """Return weight, bias, and factor on the bias with a map in them, computed from those of the source."""
    weight = None
    if folding.delta is not None or np.ndim(folding.scale) or folding.scale != 1:
        weight = head.anchored(folding.weight(head.weight))
    if folding.factor is not None:
        return weight, None, folding.factor
    return weight, head.anchored(folding.bias(head.bias)), 1.0


def _each(formulas: Sequence[Callable[..., Any]], op: Ops, logits: Any, features: Any) -> Any:
    for formula in formulas:
        logits = formula(op, logits, features)
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
    if same and source.sha256 == file.sha256:  # however it is encoded
        return Proof()
    if file.inlined:
        added = tuple(Difference("function", name, "added") for name in file.inlined)
        return Proof(added, "it holds functions, which are never written")
    if not is_plainly_encoded(file):
        reason = "its bytes are not those that its model is written in, so others may read another model in it"
        return Proof(differences(source, file), reason)
    if same:
        return Proof()
    try:
        rebuilt = _rebuilt(source, file)
    except NotRebuilt as reason:
        another = isinstance(reason, OfAnother)  # what differs from it would say nothing
        return Proof(() if another else differences(source, file), str(reason))
    wrong = (*differences(rebuilt.model, file), *rebuilt.wrong)
    return Proof(wrong, decisions=rebuilt.decisions, explained=lambda: _explained(source, rebuilt))


@dataclass(frozen=True, eq=False)
class _Rebuilt:
    """A file that was made again."""

    model: Model  # the file
    roles: dict[str, str] = field(default_factory=dict)  # name of a tensor or node -> what is new in it
    wrong: tuple[Difference, ...] = ()  # what the file says of itself and is not so
    decisions: DecisionStep | None = None  # that were added; None where there are none


def _explained(source: Model, rebuilt: _Rebuilt) -> tuple[Difference, ...]:
    """Return the differences between a source and the file that was made of it, and say what each is."""
    entries = differences(source, rebuilt.model)
    metadata_changes = [entry for entry in entries if entry.part == "metadata"]
    others = (entry for entry in entries if entry.part != "metadata")
    rest = tuple(replace(entry, explained=_reason_for(entry, rebuilt.roles)) for entry in others)
    if not metadata_changes:
        return rest
    count = len(provenance(rebuilt.model))
    return (Difference("metadata", f"{PREFIX}.*", "values", f"{count} entries", "provenance"), *rest)


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


def _rebuilt(source: Model, file: Model) -> _Rebuilt:
    entries = provenance(file)
    steps = _steps(entries)
    sources = [step["source"] for step in steps]
    if source.sha256 not in sources:
        raise OfAnother(
            f"it was made of another model, with sha256 {sources[0][:12]}..., and {source.name} has "
            f"{source.sha256[:12]}..."
        )
    first = sources.index(source.sha256)
    if first and steps[:first] != _steps(provenance(source)):
        raise NotRebuilt(f"it says that {source.name} was made in another way than that says itself")
    steps = steps[first:]
    model = source
    decided: DecisionStep | None = None
    roles: dict[str, str] = {}
    wrong: list[Difference] = []
    with _not_rebuilt():
        for step in steps:
            replay = _replay_decisions if step["step"] == "decisions" else _replay
            proto, large_values, new_roles, words, made = replay(model, step, file)
            if json.dumps({**words, "digests": step["digests"]}) != json.dumps(step):
                raise NotRebuilt("it is not in the words that this version of tna-onnx writes")
            decided = made or decided
            # what is read of the next step's model, as its output's kind, stands in these entries
            annotate(proto, entries)
            model = Model(proto, "", source.path, large_values=large_values)
            roles |= new_roles
            names = sorted(name for name, _ in {*words["digests"].items()} ^ {*step["digests"].items()})
            wrong += [Difference("tensor", name, "values", "not those of its making") for name in dict.fromkeys(names)]
    if entries.get(_SEAL) != _seal(entries):
        wrong.append(Difference("metadata", f"{PREFIX}.{_SEAL}", "changed", "entries are not those that were written"))
    return _Rebuilt(model, roles, tuple(wrong), decided)


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


_Replayed: TypeAlias = tuple[Any, dict[bytes, Any], dict[str, str], dict[str, Any], DecisionStep | None]
"""Protobuf, values apart from it, roles, what the metadata say of the step, and the decisions added, if any."""


def _replay(model: Model, step: Mapping[str, Any], file: Model) -> _Replayed:
    readout = _readout_of(model, step["readout"])
    decoder = Decoder(file.total_bytes, 0 if readout.multi_label else readout.n_classes)
    change = Change(
        folded=decoder.decoded(step["folded"]),
        maps=decoder.decoded(step["maps"]),
        shape=decoder.decoded(step["shape"]),
        block=step["block"],
        other_outputs=decoder.decoded(step["beside"]) if "beside" in step else UNCHANGED,
    )
    for fitted in (change.folded, *change.maps):
        _require_shape(readout, fitted, file)
    _require_place(model, readout, change)
    _require_outputs(model, readout, change.other_outputs)
    from_file = []
    # in place of numbers that come from the file, those of the source
    if step["weight"]:
        assert isinstance(readout, Head)  # noqa: S101 - a weight is of a head
        change = replace(change, weight=readout.weight)
        from_file.append("weight")
    change = _with_bias(readout, change, step, decoder)
    if step["bias"] == "file":
        from_file.append("bias")
    if change.folded is not None and not can_recompute(change.folded.folded()):
        raise NotRebuilt("it names a map in weight and bias that is not written in this way")
    result = _applied(model, readout, change, WrittenValues(file, tuple(from_file)), aside=True)
    words = _head_words(step["source"], readout, change, result.digests)
    return result.proto, result.large_values, result.roles, words, None


def _require_shape(readout: Readout, fitted: Any, file: Model) -> None:
    """Refuse a map that gives one sample logits of another shape, or has more constants than a file can hold."""
    logits, features = (1, readout.n_classes), None
    if isinstance(readout, Head):
        features = (1, readout.n_features)
    if fitted is not None and fitted.forward(ShapeOps(file.total_bytes), logits, features) != logits:
        raise NotRebuilt("it names a map that gives one sample logits of another shape")


def _require_place(model: Model, readout: Readout, change: Change) -> None:
    """Refuse names of nodes that no writer gives, and a shape of a sample that the scores do not have."""
    if change.block not in (PREFIX, block_of(readout.output), PRIOR_BLOCK):
        raise NotRebuilt(f"it calls nodes '{change.block}', which are never called so")
    shape, width = change.shape, readout.n_classes
    if readout.binary:
        width = 1
    if isinstance(shape, Layout):
        axes, lengths = shape.axes, {shape.class_axis: width}
        fits = readout.several and 2 <= axes <= MAX_AXES and shape.class_axis in (ONE, CLASSES_FIRST, CLASSES_LAST)
        lengths.pop(ONE, None)
    else:
        axes, lengths = len(shape) + 1, dict(enumerate(shape, 1))
        fits = not readout.several and {*shape, 1} == {width, 1} and math.prod(shape) == width
    shown = shown_sizes(model, readout.logits)
    if fits and shown is not None:
        fits = len(shown) == axes and all(shown[k] in (None, length) for k, length in lengths.items())
    appends = change.maps or not (isinstance(readout, Head) and readout.holds_bias)
    if appends and not fits:
        raise NotRebuilt(f"it states scores of the shape {shape} for a sample, and '{readout.logits}' has others")


def _require_outputs(model: Model, readout: Readout, other_outputs: OutputChange) -> None:
    """Refuse to keep the output that is calibrated, and labels that the graph shows to be others.

    What samples alone show to be a label is not checked.
    """
    if not {*other_outputs.kept} <= {*model.outputs} - {readout.output}:
        raise NotRebuilt(f"it keeps outputs that are none, or '{readout.output}', which it calibrates")
    if not other_outputs.likeliest:
        return
    if not {*other_outputs.likeliest} <= {*label_candidates(model, readout.output)}:
        raise NotRebuilt("it makes an output the likeliest class that can hold no classes")
    if len(other_outputs.classes) != readout.n_classes:
        raise NotRebuilt(f"it names {len(other_outputs.classes)} classes, and the scores are of {readout.n_classes}")
    shown: dict[str, tuple[int | str, ...]] = {}
    for head in find_heads(model)[0]:
        shown |= {label.name: () for label in label_outputs(model, head.output, head.n_classes)}
    own = label_outputs(model, readout.output, readout.n_classes)
    shown |= {label.name: label.classes for label in own}
    for name in other_outputs.likeliest:
        if shown.get(name, other_outputs.classes) != other_outputs.classes:
            raise NotRebuilt(f"it makes output '{name}' the likeliest class, and the graph shows another label there")


def _with_bias(readout: Readout, change: Change, step: Mapping[str, Any], decoder: Decoder) -> Change:
    """Return a change with the bias that a step states."""
    stated = decoder.decoded(step["bias"])
    if stated is None:
        return change
    if isinstance(stated, float):
        if not 0 < stated < np.inf:
            raise NotRebuilt("it multiplies the bias by a number that no fit gives")
        return replace(change, bias_factor=stated)
    assert isinstance(readout, Head)  # noqa: S101 - a bias is of a head
    if not readout.holds_bias:
        raise NotRebuilt("it has a bias where the source has no place for one")
    bias = readout.bias if isinstance(stated, str) else stated
    if bias.shape != readout.bias.shape:
        raise NotRebuilt("it states a bias of another shape than that of the source")
    return replace(change, bias=bias)


def _replay_decisions(model: Model, step: Mapping[str, Any], file: Model) -> _Replayed:
    decoder = Decoder(file.total_bytes)
    guarded, thresholds = (decoder.decoded(step[key]) for key in ("guarded", "thresholds"))
    _require_scores(model, guarded, file)
    if any(np.shape(limit) not in ((), (guarded.output.n_classes,)) for limit in thresholds.values()):
        raise NotRebuilt("it states thresholds that are neither one number nor one for each class")
    decisions = DecisionStep(step["source"], model, guarded, thresholds, step["names"])
    large_values = {**model.large_values, **file.large_values}
    proto, words = _with_decisions(decisions, file, large_values)
    return proto, large_values, {}, words, decisions


def _require_scores(model: Model, guarded: decisions.Guarded, file: Model) -> None:
    """Refuse decisions on another output, or of other scores or features, than the graph has for their output."""
    output, outlier = guarded.output, guarded.outlier
    if not any(replace(found, quantum=output.quantum) == output for found in _outputs_called(model, output.name)):
        raise NotRebuilt(f"{model.name} has no such output '{output.name}' that classifies")
    rule = guarded.decision
    if rule is not None and not (
        0 <= rule.positive < output.n_classes
        and rule.cost.shape in ((0, 0), *((output.n_classes, output.n_classes + k) for k in (0, 1)))
    ):
        raise NotRebuilt(f"it states a decision that is not on {output.n_classes} classes")
    if outlier is None:
        return
    shapes = [(1, output.n_classes), (1, outlier.width)]
    if (outlier.logits, outlier.features, outlier.width) not in {*_outlier_tensors(model, output.name)} or (
        outlier.formula.score(ShapeOps(file.total_bytes), *shapes) != (1, 1)
    ):
        raise NotRebuilt("it states an outlier score of tensors that are not those of its output")


def _outputs_called(model: Model, name: str) -> Iterator[ClassOutput]:
    """Yield an output with each meaning that it may be said to have, where the graph does not tell."""
    for kind in (None, *OUTPUT_KINDS):
        with contextlib.suppress(UnsupportedModel):
            yield class_output(model, None, name, kind)


def _outlier_tensors(model: Model, name: str) -> Iterator[tuple[str, str, int]]:
    """Yield (logits, features, length of these) of the outlier scores that an output may have."""
    part, options = before_map(model, name, ModelOptions(output_name=name))
    name = options.output_name or name
    for kind in (None, *OUTPUT_KINDS):
        readouts: list[Readout] = [head for head in find_heads(part, kind)[0] if head.output == name]
        with contextlib.suppress(UnsupportedModel):
            readouts.append(choose_readout(part, name, kind))
        for readout in readouts:
            if readout.holds == "logits" and not readout.binary:
                yield readout.logits, "", 0
            if isinstance(readout, Head) and not readout.parts:
                yield "", readout.features, readout.n_features


def _readout_entries(readout: Readout) -> dict[str, Any]:
    """Return the entries of the metadata by which a readout is found again."""
    head = readout if isinstance(readout, Head) else None
    return {
        "output": readout.output,
        "logits": readout.logits,
        "holds": readout.holds,
        "binary": readout.binary,
        "multi_label": readout.multi_label,
        "classes": readout.n_classes,
        "class_axis": readout.class_axis,
        "node": None if head is None else head.node,
        "own_weight": head is not None and head.stored_weight.shared,
        "type": readout.logits_type,
        "quantum": readout.quantum,
    }


def _readout_of(model: Model, words: Mapping[str, Any]) -> Readout:
    """Find a head, or a tensor of scores, again, by each word on what an output holds."""
    output, node = words["output"], words["node"]
    stated = _quantum_of(words)
    for kind in (None, *OUTPUT_KINDS):
        with contextlib.suppress(UnsupportedModel):
            head = choose_head(model, node, output, kind)
            readout = head.without_head() if node is None else _head_as_written(model, head, words)
            readout = replace(readout, quantum=stated)
            if _readout_entries(readout) == words:
                return readout
        if node is None:
            with contextlib.suppress(UnsupportedModel):
                readout = replace(choose_readout(model, output, kind), quantum=stated)
                if _readout_entries(readout) == words:
                    return readout
    raise NotRebuilt(f"{model.name} has no such head or scores at output '{output}'")


def _quantum_of(words: Mapping[str, Any]) -> float:
    """Return the step in which probabilities come, which samples may have shown."""
    stated = words["quantum"]
    if not isinstance(stated, float) or not 0 <= stated <= (words["holds"] == "probabilities"):
        raise NotRebuilt("it states a step of probabilities that no output has")
    return stated


def _head_as_written(model: Model, head: Head, words: Mapping[str, Any]) -> Head:
    head = requantized(model, head)
    if words["own_weight"]:
        return replace(head, stored_weight=replace(head.stored_weight, shared=True, quantized=None))
    return head
