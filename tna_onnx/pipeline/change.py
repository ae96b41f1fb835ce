"""What a file says of its own making, and the proof that it says the truth: the file, made again.

A written file is its source and a list of changes. Each change is in its metadata: what is done, with all numbers where
they are few, so that the same writer makes the same bytes of the source again:

    tna_onnx.change    {"format": 1, "steps": [...]}, a step for each command on the way from the first source
    tna_onnx.seal      SHA-256 of all other entries of this tool

A large array (a tilted weight, a covariance) is not in the metadata. The writer takes it from the file, in the one
place where it may be, and compares its digest with that in the step. So what a proof leaves open is the numbers in
these arrays, where someone has computed digests and seal anew; SECURITY.md says what follows from that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, get_args

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph import decisions, dials, outputs
from tna_onnx.graph.decisions import Guarded, add_decisions
from tna_onnx.graph.dials import Dials
from tna_onnx.graph.difference import content_digest, differences, same_models
from tna_onnx.graph.head import choose_head
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import PREFIX, NodeOps, annotate, head_key, provenance
from tna_onnx.graph.options import OUTPUT_KINDS
from tna_onnx.graph.parts import Difference
from tna_onnx.graph.readout import Head, Readout, requantized
from tna_onnx.graph.rewrite import Rewritten, rewrite
from tna_onnx.graph.scores import choose_readout
from tna_onnx.graph.several import Layout
from tna_onnx.graph.written_values import PLACEHOLDER_INT, NotRebuilt, WrittenValues
from tna_onnx.maps import MAPS
from tna_onnx.maps.base import Folding
from tna_onnx.maps.feature_space import FeatureSpace
from tna_onnx.maps.isotonic import TopVersusAll
from tna_onnx.numerics import operating_points, outliers
from tna_onnx.numerics.ops import Ops
from tna_onnx.numerics.prior_shift import log_ratio

__all__ = [
    "Added",
    "Change",
    "OriginalClass",
    "Proof",
    "can_recompute",
    "make_again",
    "prove",
    "write_change",
    "write_decisions",
]

_FORMAT = 1
_CHANGE = "change"
_SEAL = "seal"
_SHIFT = "shift"
_DECISION = "guard_decision"

_NAMED = 100  # classes up to which their thresholds are in the metadata
_SUM = 1e-6  # by which weights of distributions may miss 1

# Words of a step: with any more it is not what this version writes.
_WORDS = {
    "head": {
        "step",
        "source",
        "readout",
        "weight",
        "bias",
        "folded",
        "maps",
        "keeps_order",
        "shape",
        "block",
        "digests",
    },
    "decisions": {"step", "source", "guarded", "thresholds", "names", "dials", "digests"},
}

# Numbers of one array, and of all, that the metadata hold; whole numbers are shorter.
_MAX_ARRAY = 1024
_MAX_NUMBERS = 2**14
_MAX_INTEGERS = 2**16


@dataclass(frozen=True, eq=False)
class Added:
    """Logits plus one number a class: what is left of a change where the file has no place for a bias.

    Attributes:
        bias: (C,) numbers.
    """

    bias: NDArray[np.floating]

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002 - as every map is called
        """Return s + c."""
        return op.add(logits, op.const(self.bias))

    def folded(self) -> Folding:
        """Return the shift."""
        return Folding(1.0, np.asarray(self.bias, np.float64))


@dataclass(frozen=True)
class OriginalClass:
    """The class that the input predicts, as a further output (N,) of integers; logits stay as they are.

    Attributes:
        output: its name.
    """

    output: str = "original_class"

    keeps_order: ClassVar[bool] = True
    for_classes: ClassVar[bool] = True

    def forward(self, op: NodeOps, logits: str, features: str = "") -> str:  # noqa: ARG002 - as every map is called
        """Write the output, and return the logits."""
        op.class_output(logits, self.output)
        return logits


@dataclass(frozen=True, eq=False)
class Change:
    """What is done to a head, or behind the tensor of scores.

    Attributes:
        weight: (C, n) new class vectors; None where they stay, or are computed.
        bias: (C,) new bias, where the head holds one; None likewise.
        bias_factor: what the bias that the file has is multiplied by.
        folded: a map in weight and bias that are computed from those of the source; see `can_recompute`.
        maps: formulas that are appended, the first one first.
        keeps_order: none of these changes which class comes first.
        shape: of one sample's logits (`graph.rewrite`).
        block: how names of appended nodes begin.
    """

    weight: NDArray[Any] | None = None
    bias: NDArray[Any] | None = None
    bias_factor: float = 1.0
    folded: Any = None
    maps: tuple[Any, ...] = ()
    keeps_order: bool = True
    shape: tuple[int, ...] | Layout = (0,)
    block: str = PREFIX


def can_recompute(folding: Folding) -> bool:
    """Return whether weight and bias with a map in them are the same bits everywhere: no products are added up."""
    return np.ndim(folding.scale) < 2 and folding.delta is None


def write_change(
    model: Model, readout: Readout, change: Change, metadata: Mapping[str, str], *, aside: bool = False
) -> Rewritten:
    """Write a change into a copy of a model, and into its metadata how that was done.

    Args:
        model: the source.
        readout: its head, or its tensor of scores.
        change: what is done.
        metadata: all entries of this tool, but for those on the change.
        aside: see `graph.rewrite`.

    Raises:
        UnsupportedModel: see `graph.rewrite`.
    """
    earlier = _earlier(model, metadata)
    if change.folded is not None and any(_is_of(step, readout) for step in earlier):
        # what an earlier step has put there is not in this file any more, so nothing can be computed of it
        change = _with_numbers(readout, change)
    if change.folded is None:
        change = _in_place(readout, change)
    result = _applied(model, readout, change, None, aside=aside)
    encoder = _Encoder()
    bias: Any = None if change.bias_factor == 1 else change.bias_factor
    step = {
        "step": "head",
        "source": model.sha256,
        "readout": _words_of(readout),
        "weight": change.weight is not None,
        "bias": "file" if change.bias is not None else bias,
        "folded": encoder.encoded(change.folded),
        "maps": encoder.encoded(change.maps),
        "keeps_order": change.keeps_order,
        "shape": encoder.encoded(change.shape),
        "block": change.block,
        "digests": result.digests,
    }
    annotate(result.proto, _with_step(metadata, [*earlier, step]))
    return result


def write_decisions(
    model: Model,
    guarded: Guarded,
    thresholds: Mapping[str, NDArray[np.float32]],
    names: Mapping[str, str],
    metadata: Mapping[str, str],
    dialled: Dials,
) -> Any:
    """Return the protobuf of a model with decisions, and in its metadata how they were added; see `add_decisions`."""
    proto = add_decisions(model, guarded, thresholds, names, {}, dialled)
    encoder = _Encoder()
    step = {
        "step": "decisions",
        "source": model.sha256,
        "guarded": encoder.encoded(guarded),
        "thresholds": encoder.encoded(dict(thresholds)),
        "names": dict(names),
        "dials": encoder.encoded(dialled),
        "digests": _decision_digests(Model(proto, "", model.path, apart=model.apart)),
    }
    annotate(proto, _with_step(metadata, [*_earlier(model, metadata), step]))
    return proto


def _earlier(model: Model, metadata: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the steps to a source of which the new entries keep some: those of a recalibration, or of another head."""
    if not any(key == _CHANGE or key.startswith("head/") for key in metadata):
        return []
    try:
        return _steps(provenance(model))
    except NotRebuilt:
        return []


def _is_of(step: Mapping[str, Any], readout: Readout) -> bool:
    """Return whether a step has changed weight and bias of a head."""
    return isinstance(readout, Head) and step["step"] == "head" and step["readout"]["node"] == readout.node


def _with_numbers(readout: Readout, change: Change) -> Change:
    """Return a change with weight and bias in place of the map that is folded into them."""
    assert isinstance(readout, Head)  # noqa: S101 - a map folds into a head alone
    weight, bias, factor = _with_map(readout, change.folded.folded())
    if bias is None and readout.holds_bias:
        bias, factor = readout.bias * readout.working_type.type(factor), 1.0
    return replace(change, folded=None, weight=weight, bias=bias, bias_factor=factor)


def _with_step(metadata: Mapping[str, str], steps: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return all entries with the steps, and sealed."""
    text = json.dumps({"format": _FORMAT, "steps": steps}, separators=(",", ":"))
    entries = {key: value for key, value in metadata.items() if key.rpartition("/")[2] not in (_CHANGE, _SEAL)}
    entries[_CHANGE] = text
    return {**entries, _SEAL: _seal(entries)}


def _seal(entries: Mapping[str, str]) -> str:
    rest = [[key, value] for key, value in entries.items() if key != _SEAL]
    return hashlib.sha256(json.dumps(rest).encode()).hexdigest()


def _steps(entries: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the steps that entries hold.

    Raises:
        NotRebuilt: none, or in a form that this version does not know.
    """
    text = entries.get(_CHANGE)
    if text is None:
        made = "; it was written by another version of tna-onnx" if entries else ""
        raise NotRebuilt(f"it does not say how it was made{made}")
    try:
        change = json.loads(text)
        steps = list(change["steps"])
        known = all(isinstance(step["source"], str) and set(step) == _WORDS[step["step"]] for step in steps)
        if set(change) == {"format", "steps"} and change["format"] == _FORMAT and steps and known:
            return steps
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise NotRebuilt("it says how it was made in a form that this version of tna-onnx does not know")


def _applied(
    model: Model, readout: Readout, change: Change, from_file: WrittenValues | None, *, aside: bool = False
) -> Rewritten:
    weight, bias, factor = change.weight, change.bias, change.bias_factor
    maps = change.maps
    keeps_order = change.keeps_order
    if change.folded is not None:
        assert isinstance(readout, Head)  # noqa: S101 - a map folds into a head alone
        weight, bias, factor = _with_map(readout, change.folded.folded())
        placed = _in_place(readout, replace(change, bias=bias))
        bias, maps, keeps_order = placed.bias, placed.maps, placed.keeps_order
    return rewrite(
        model,
        readout,
        weight,
        bias=bias,
        bias_factor=factor,
        write_map=functools.partial(_each, [each.forward for each in maps]) if maps else None,
        keeps_order=keeps_order,
        logits_shape=change.shape,
        block=change.block,
        metadata={},
        aside=aside,
        from_file=from_file,
    )


def _in_place(readout: Readout, change: Change) -> Change:
    """Return a change whose bias is added behind the head, where the file has no place for it."""
    if change.bias is None or _holds_bias(readout):
        return change
    assert isinstance(readout, Head)  # noqa: S101 - only a head has a bias
    # a number for all classes stays in the file: what is added comes on top of it, and may change the first class
    return replace(change, bias=None, maps=(Added(change.bias - readout.bias), *change.maps), keeps_order=False)


def _holds_bias(readout: Readout) -> bool:
    return isinstance(readout, Head) and readout.holds_bias


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
    """Whether a file is its source and a change that this tool writes.

    Attributes:
        differences: everything in which the file differs from its source; `explained` where it is of the change.
        reason: why the file could not be made again; empty where it was.
    """

    differences: tuple[Difference, ...]
    reason: str = ""

    @property
    def unexplained(self) -> tuple[Difference, ...]:
        """Return what is not of a change that this tool writes."""
        return tuple(each for each in self.differences if not each.explained)

    @property
    def intact(self) -> bool:
        """Whether the file, made again, is the same."""
        return not self.reason and not self.unexplained


def prove(source: Model, file: Model) -> Proof:
    """Make a file again, of its source and what it says of its making, and compare.

    Args:
        source: what the file was made of.
        file: the file.

    Raises:
        UnsupportedModel: external data of one of them cannot be read.
    """
    if file.inlined:
        added = tuple(Difference("function", name, "added") for name in file.inlined)
        return Proof(added, "it holds functions, which are never written")
    if same_models(source, file):
        return Proof(())
    try:
        rebuilt = _rebuilt(source, file)
    except NotRebuilt as reason:
        return Proof(differences(source, file), str(reason))
    wrong = (*differences(rebuilt.model, file), *rebuilt.wrong)
    made = _explained(differences(source, rebuilt.model), rebuilt)
    return Proof((*made, *wrong))


def make_again(source: Model, file: Model) -> Model:
    """Return a file that is made of its source, of what it says of its making, and of values that only it has.

    Raises:
        NotRebuilt: there is no way to, or something of it is not so.
    """
    rebuilt = _rebuilt(source, file)
    if rebuilt.wrong:
        raise NotRebuilt("; ".join(f"{each.part} {each.name}: {each.change}" for each in rebuilt.wrong))
    return rebuilt.model


@dataclass(frozen=True, eq=False)
class _Rebuilt:
    """A file that was made again.

    Attributes:
        model: the file.
        roles: name of a tensor or node -> what is new in it.
        wrong: what the file says of itself and is not so.
    """

    model: Model
    roles: dict[str, str] = field(default_factory=dict)
    wrong: tuple[Difference, ...] = ()


def _explained(found: Sequence[Difference], rebuilt: _Rebuilt) -> tuple[Difference, ...]:
    """Say what each difference between a source and the file that was made of it is."""
    told = [each for each in found if each.part == "metadata"]
    rest = tuple(replace(each, explained=_reason_for(each, rebuilt.roles)) for each in found if each not in told)
    if not told:
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
    return "decisions" if difference.change == "added" and difference.part == "tensor" else "head"


def _rebuilt(source: Model, file: Model) -> _Rebuilt:
    """Make a file again.

    Raises:
        NotRebuilt: there is no way to, and the text says why.
    """
    entries = provenance(file)
    steps = _steps(entries)
    sources = [step["source"] for step in steps]
    if source.sha256 not in sources:
        raise NotRebuilt(f"it was made of another file, with sha256 {sources[0]}; {source.name} has {source.sha256}")
    steps = steps[sources.index(source.sha256) :]
    size = _size(file)
    model = source
    roles: dict[str, str] = {}
    digests: dict[str, str] = {}
    stated: dict[str, str] = {}
    try:
        _require_order(steps)
        for step in steps:
            proto, new_roles, new_digests = _STEPS[step["step"]](model, step, file, size)
            annotate(proto, entries)
            model = Model(proto, "", source.path, apart={**source.apart, **file.apart})
            roles |= new_roles
            digests |= new_digests
            stated |= step["digests"]
    # a record that someone else wrote may hold anything
    except (
        ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError, StopIteration,
        TypeError, ValueError, UnsupportedModel,
    ) as error:  # fmt: skip
        raise NotRebuilt(f"what it says of its making cannot be done ({type(error).__name__}: {error})") from error
    wrong = [Difference("tensor", name, "values", "not those of its making") for name in digests
             if digests[name] != stated.get(name)]  # fmt: skip
    if entries.get(_SEAL) != _seal(entries):
        wrong.append(Difference("metadata", f"{PREFIX}.{_SEAL}", "changed", "entries are not those that were written"))
    wrong += _false_words(steps, entries, size)
    return _Rebuilt(model, roles, tuple(wrong))


def _require_order(steps: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a change of scores behind decisions on them, which this tool refuses to make.

    Raises:
        NotRebuilt: there is one.
    """
    decided = set()
    for step in steps:
        if step["step"] == "decisions":
            decided.add(step["guarded"]["output"]["name"])
        elif step["readout"]["output"] in decided:
            raise NotRebuilt("it says that its scores were changed after decisions were added to them")


def _require_words(step: Mapping[str, Any], keys: Sequence[str], size: int) -> None:
    """Refuse values that are not in the words of this version, such as small arrays without their numbers.

    Raises:
        NotRebuilt: such a value.
    """
    decoder, encoder = _Decoder(size), _Encoder()
    for key in keys:
        again = encoder.encoded(decoder.decoded(step[key]))
        if json.dumps(again, sort_keys=True) != json.dumps(step[key], sort_keys=True):
            raise NotRebuilt(f"its '{key}' is not in the words that this version of tna-onnx writes")


def _require_input_class(change: Change, step: Mapping[str, Any]) -> None:
    """Refuse an output for the class of the input that reads something else.

    Raises:
        NotRebuilt: it is not in front of all that is changed.
    """
    places = [place for place, fitted in enumerate(change.maps) if isinstance(fitted, OriginalClass)]
    if not places:
        return
    changed = change.folded is not None or step["weight"] or step["bias"] is not None
    if places != [0] or changed or change.maps[0] != OriginalClass():
        raise NotRebuilt("the class that it calls that of the input is not")


def _again(model: Model, step: Mapping[str, Any], file: Model, size: int) -> tuple[Any, dict[str, str], dict[str, str]]:
    """Do a change of the head again; return the protobuf, roles and digests."""
    readout = _readout_of(model, step["readout"])
    if step["block"] != PREFIX and not step["block"].startswith(f"{PREFIX}/"):
        raise NotRebuilt("it names nodes in a way that this tool does not")
    _require_words(step, ("folded", "maps", "shape"), size)
    decoder = _Decoder(size)
    change = Change(
        folded=decoder.decoded(step["folded"]),
        maps=decoder.decoded(step["maps"]),
        keeps_order=step["keeps_order"],
        shape=decoder.decoded(step["shape"]),
        block=step["block"],
    )
    _require_input_class(change, step)
    if change.keeps_order and not all(_keeps_order(fitted) for fitted in change.maps):
        raise NotRebuilt("it says that predictions stay, and holds a map that may change them")
    taken = []
    # in place of numbers that come from the file, those of the source
    if step["weight"]:
        assert isinstance(readout, Head)  # noqa: S101 - a weight is of a head
        change = replace(change, weight=readout.weight)
        taken.append("weight")
    if step["bias"] == "file":
        assert isinstance(readout, Head)  # noqa: S101 - a bias is of a head
        if not readout.holds_bias:
            raise NotRebuilt("it has a bias where the source has no place for one")
        change = replace(change, bias=readout.bias)
        taken.append("bias")
    elif step["bias"] is not None:
        change = replace(change, bias_factor=float(step["bias"]))
        if not 0 < change.bias_factor < np.inf:
            raise NotRebuilt("it multiplies the bias by a number that no fit gives")
    if change.folded is not None and not can_recompute(change.folded.folded()):
        raise NotRebuilt("it names a map in weight and bias that is not written in this way")
    result = _applied(model, readout, change, WrittenValues(file, tuple(taken)))
    return result.proto, result.roles, result.digests


def _keeps_order(fitted: Any) -> bool:
    """Whether a map never changes which class comes first."""
    return bool(getattr(fitted, "keeps_order", False) and getattr(fitted, "for_classes", False))


def _again_decisions(
    model: Model, step: Mapping[str, Any], file: Model, size: int
) -> tuple[Any, dict[str, str], dict[str, str]]:
    """Add decisions again; return the protobuf, roles and digests."""
    _require_words(step, ("guarded", "thresholds", "dials"), size)
    decoder = _Decoder(size)
    proto = add_decisions(
        model,
        decoder.decoded(step["guarded"]),
        decoder.decoded(step["thresholds"]),
        step["names"],
        {},
        decoder.decoded(step["dials"]),
        file,
    )
    made = Model(proto, "", model.path, apart={**model.apart, **file.apart})
    return proto, {}, _decision_digests(made)


_STEPS = {"head": _again, "decisions": _again_decisions}


def _decision_digests(model: Model) -> dict[str, str]:
    """Return the digest of all constants that decisions read."""
    digest = hashlib.sha256()
    for name in model.producers:
        tensor = model.constant_tensor(name) if name.startswith(f"{decisions.GUARD}/") else None
        if tensor is not None:
            digest.update(name.encode() + content_digest(model, tensor))
    return {decisions.GUARD: digest.hexdigest()}


def _false_words(steps: Sequence[Mapping[str, Any]], entries: Mapping[str, str], size: int) -> Iterator[Difference]:
    """Yield the entries that say another number of a fitted map, or other class frequencies, than were written."""
    added: list[NDArray[Any]] | None = []
    for step in steps:
        decoder = _Decoder(size)
        if step["step"] == "decisions" and not _is_decision_of(entries, step, decoder):
            yield Difference("metadata", f"{PREFIX}.{_DECISION}", "changed", "not the thresholds of the file")
        words = _words_on(step, entries)
        maps = (decoder.decoded(step["folded"]), *decoder.decoded(step["maps"])) if step["step"] == "head" else ()
        if decoder.placeholders or step.get("bias") == "file":
            added = None  # of many classes, or behind another change, the numbers are not in the metadata
        if decoder.placeholders:
            continue
        if added is not None and step["step"] == "head" and not step["weight"]:
            added += [each.bias for each in maps if isinstance(each, Added)]
        for fitted in filter(None, maps):
            for key, value in getattr(fitted, "brief", {}).items():
                if words.get(key, json.dumps(value)) != json.dumps(value):
                    yield Difference("metadata", f"{PREFIX}.{key}", "changed", "not that of the map in the file")
    # of a file that is guarded after it was shifted, the steps are about the decisions alone
    if added and _SHIFT in entries and not _is_among(entries[_SHIFT], added):
        yield Difference("metadata", f"{PREFIX}.{_SHIFT}", "changed", "not the class frequencies of the file")


def _is_decision_of(entries: Mapping[str, str], step: Mapping[str, Any], decoder: _Decoder) -> bool:
    """Whether rule, thresholds and costs that an entry names, if there is one, are those of a step."""
    guarded, thresholds, dialled = (decoder.decoded(step[key]) for key in ("guarded", "thresholds", "dials"))
    rule = guarded.decision
    if rule is None or _DECISION not in entries:
        return rule is None and _DECISION not in entries
    limits = np.atleast_1d(thresholds["decision"])
    dial = getattr(dialled, "decision", None)
    if rule.kind not in get_args(operating_points.RuleKind):
        return False
    if dial is not None and not np.array_equal(np.atleast_1d(dial.default), limits):
        return False
    try:
        words = json.loads(entries[_DECISION])
        named = (words["rule"], words.get("positive"), [*words.get("thresholds", {}).values()], words.get("cost", []))
    except (LookupError, RecursionError, TypeError, ValueError, AttributeError):
        return False
    positive = rule.positive if rule.kind == "positive" else None
    if "thresholds" not in words and limits.size > _NAMED:
        return bool(named[:2] == (rule.kind, positive))
    return bool(named == (rule.kind, positive, limits.tolist(), rule.cost.tolist()))


def _words_on(step: Mapping[str, Any], entries: Mapping[str, str]) -> Mapping[str, str]:
    """Return the entries on the head of a step, which has keys of its own in a file of several calibrated heads."""
    if step["step"] != "head":
        return entries
    start = head_key(step["readout"]["output"])
    return {key.removeprefix(start): value for key, value in entries.items() if key.startswith(start)} or entries


def _is_among(text: str, added: Sequence[NDArray[Any]]) -> bool:
    """Whether class frequencies before and after, as JSON, are those of numbers that are added to the logits."""
    try:
        words = json.loads(text)
        source, target = (np.array(words[name], np.float64) for name in ("source", "target"))
        with np.errstate(all="ignore"):
            ratio = log_ratio(source, target)
    except (LookupError, RecursionError, TypeError, ValueError):
        return False
    # a logarithm may differ by a rounding from one machine to another
    return any(bias.shape == ratio.shape and np.allclose(bias, ratio, rtol=1e-9, atol=1e-12) for bias in added)


def _size(file: Model) -> int:
    """Return the bytes of a file with its external data: no array of it has more numbers."""
    external = sum(file.data_path(name).stat().st_size for name in file.external_files)
    return int(file.proto.ByteSize()) + sum(len(value) for value in file.apart.values()) + external


def _words_of(readout: Readout) -> dict[str, Any]:
    """Return what a readout is found by again."""
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
    }


def _readout_of(model: Model, words: Mapping[str, Any]) -> Readout:
    """Find a head, or a tensor of scores, again.

    Raises:
        NotRebuilt: the model has none of which these words are true.
    """
    for found in _readouts(model, words["output"], words["node"]):
        readout = replace(found, logits_type=words["type"])
        if isinstance(readout, Head):
            readout = requantized(model, readout)
            if words["own_weight"]:
                readout = replace(readout, stored_weight=replace(readout.stored_weight, shared=True, quantized=None))
        if _words_of(readout) == words:
            return readout
    raise NotRebuilt(f"{model.name} has no such head or scores at output '{words['output']}'")


def _readouts(model: Model, output: str, node: str | None) -> Iterator[Readout]:
    """Yield what an output may lead to, by each word on what it holds."""
    for kind in (None, *OUTPUT_KINDS):
        with contextlib.suppress(UnsupportedModel):
            head = choose_head(model, node, output, kind)
            yield head if node is not None else head.without_head()
        if node is None:
            with contextlib.suppress(UnsupportedModel):
                yield choose_readout(model, output, kind)


class _Encoder:
    """Values as JSON, to the last bit; of an array that is too large, its type and shape."""

    def __init__(self) -> None:
        self._left = {"f": _MAX_NUMBERS, "i": _MAX_INTEGERS}

    def encoded(self, value: Any) -> Any:
        """Return a value that JSON has."""
        if isinstance(value, np.ndarray):
            array = {"dtype": value.dtype.name, "shape": list(value.shape)}
            fits = self._fits("i" if value.dtype.kind in "iu" else "f", value.size)
            return array | ({"values": value.reshape(-1).tolist()} if fits else {})
        if isinstance(value, (list, tuple)):
            numbers = bool(value) and all(isinstance(each, float) for each in value)
            if numbers and not self._fits("f", len(value)):
                return {"numbers": len(value)}
            return [self.encoded(each) for each in value]
        if dataclasses.is_dataclass(value):
            # what was measured on the samples is for the fit alone
            fields = [each.name for each in dataclasses.fields(value)]
            names = [name for name in fields if not (isinstance(value, FeatureSpace) and name == "measured")]
            return {"is": type(value).__name__, **{name: self.encoded(getattr(value, name)) for name in names}}
        if isinstance(value, Mapping):
            return {"entries": {key: self.encoded(each) for key, each in value.items()}}
        return value.item() if isinstance(value, np.generic) else value

    def _fits(self, kind: str, count: int) -> bool:
        most = _MAX_INTEGERS if kind == "i" else _MAX_ARRAY
        if count > min(most, self._left[kind]):
            return False
        self._left[kind] -= count
        return True


class _Decoder:
    """The way back, with placeholders for the numbers of large arrays.

    Args:
        size: most numbers of an array.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.placeholders = 0

    def decoded(self, value: Any) -> Any:
        """Return the value.

        Raises:
            NotRebuilt: none that this tool writes.
        """
        if isinstance(value, list):
            return tuple(self.decoded(each) for each in value)
        if not isinstance(value, dict):
            return value
        if "shape" in value:
            return self._array(np.dtype(value["dtype"]), tuple(map(int, value["shape"])), value.get("values"))
        if "numbers" in value:
            return tuple(self._array(np.dtype(np.float64), (int(value["numbers"]),), None).tolist())
        if "entries" in value:
            return {key: self.decoded(each) for key, each in value["entries"].items()}
        cls = _classes().get(value["is"])
        if cls is None:
            raise NotRebuilt(f"this version of tna-onnx does not know {value['is']!r}")
        fitted = cls(**{key: self.decoded(each) for key, each in value.items() if key != "is"})
        _require_fit(fitted)
        return fitted

    def _array(self, dtype: np.dtype[Any], shape: tuple[int, ...], values: Any) -> NDArray[Any]:
        count = 1
        for length in shape:
            count *= length
        if dtype.kind not in "fi" or not 0 <= count <= self._size:
            raise NotRebuilt(f"expected an array of numbers that the file can hold, found {dtype} {shape}")
        if values is not None:
            array = np.array(values, dtype).reshape(shape)
            # a placeholder would take the number of the file
            if dtype.kind == "f" and np.isnan(array).any():
                raise NotRebuilt("it holds values that are no numbers")
            return array
        self.placeholders += 1
        return np.full(shape, np.nan if dtype.kind == "f" else PLACEHOLDER_INT, dtype)


def _require_fit(fitted: Any) -> None:
    """Refuse a map with numbers that no fit gives, which could turn its predictions round.

    Raises:
        NotRebuilt: such a number.
    """
    for name, value in vars(fitted).items():
        if isinstance(fitted, (Added, *MAPS.values())) and isinstance(value, np.ndarray) and np.isinf(value).any():
            raise NotRebuilt(f"it holds a {type(fitted).__name__} with infinite numbers")
        if name not in _RANGES or value is None:
            continue
        low, high = _RANGES[name]
        numbers = np.asarray(value, np.float64)
        if isinstance(fitted, MAPS["ets"]) and name == "weights" and not _is_mixture(numbers):
            raise NotRebuilt("it holds weights of three distributions that no fit gives")
        numbers = numbers[~np.isnan(numbers)] if np.ndim(value) else numbers  # NaN stands for those of the file
        if not np.all((numbers >= low) & (numbers <= high)):
            raise NotRebuilt(f"it holds a {type(fitted).__name__} whose {name} no fit gives")


def _is_mixture(weights: NDArray[np.float64]) -> bool:
    """Whether weights of three distributions add up to 1 and do not leave the uniform one, the last, alone."""
    return bool(abs(weights.sum() - 1) < _SUM and weights[2] < 1)


# Least and largest value of a map's field, by its name.
_RANGES = {
    "temperature": (1e-6, 1e6),
    "temperatures": (1e-6, 1e6),
    "n_classes": (2, np.inf),
    "weights": (0.0, 1.0),
    "share": (0.0, 1.0),
    "slope": (np.finfo(np.float64).tiny, np.finfo(np.float64).max),
}


@functools.cache
def _classes() -> dict[str, type]:
    """Return the classes that metadata may name."""
    named = (
        Added, OriginalClass, FeatureSpace, TopVersusAll, Layout, outputs.ClassOutput, outliers.Energy,
        outliers.Mahalanobis, outliers.Residual, decisions.Guarded, decisions.OutlierInput, decisions.SetScore,
        dials.Dials, dials.RiskDial, dials.SetDial, dials.ClassSetDial, dials.PriorDial, dials.ThresholdDial,
        operating_points.DecisionRule, *MAPS.values(),
    )  # fmt: skip
    return {cls.__name__: cls for cls in named}
