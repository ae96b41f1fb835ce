"""Where a model's scores are: behind its head, or in an output of logits or probabilities (`find_readout`).

The graph or the user says what an output holds; values are never looked at. A walk backwards (`graph.walk`) finds the
head, or the reason why an output has none. `class_output` is the same question of the output that classifies, in a file
that this tool has written as well.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import onnx

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph import purpose
from tna_onnx.graph.cut import cut_at, mapped_logits
from tna_onnx.graph.linear import integer_layer, is_linear, is_quantized
from tna_onnx.graph.load import PREFIX, Model, dims_text, tells_damage
from tna_onnx.graph.options import LABEL_KINDS
from tna_onnx.graph.readout import (
    CLASSES_FIRST,
    CLASSES_LAST,
    KINDS,
    ONE,
    OPEN_AXIS,
    STATED_KINDS,
    ClassOutput,
    Head,
    Readout,
    class_axis_of,
    has_positions,
)
from tna_onnx.graph.stored import Refused
from tna_onnx.graph.tensors import FLOAT_TYPES
from tna_onnx.graph.walk.layer import MULTI_LABEL, ONE_NUMBER, SINGLE_ONLY
from tna_onnx.graph.walk.loop import walk_back
from tna_onnx.graph.walk.output_steps import is_complement, refuse_no_scores, require_little_slack, require_samples_axis
from tna_onnx.graph.walk.steps import Refusal, State

LABELS = "holds class labels, not scores; export the scores that they come from (leave out an ArgMax)"
"""Why an output of labels is no head's."""


class SeveralHeads(UnsupportedModel):
    """There are several heads, or outputs that may have one, and nothing says which one is meant."""


class _AmbiguousScores(Refused):
    """The graph does not tell whether an output holds logits or probabilities."""


@tells_damage
def find_readout(model: Model, head: str | None = None, output: str | None = None, kind: str | None = None) -> Readout:
    """Return the head if there is one, else the tensor of logits or probabilities behind an output.

    `head`: label of its linear node, or its output, where there are several. `kind`: what `--output-kind` says that the
    output holds: `logits` or `probabilities`, whatever computes them; `logit` or `probability` of the second of two
    classes; `label-logits` or `label-probabilities` of several labels a sample.
    """
    if head is not None:
        return choose_head(model, head, output, kind)
    if kind not in (None, "logit", "label-logits"):
        return _choose_scores(model, output, kind)
    try:
        return choose_head(model, None, output, kind)
    except SeveralHeads:
        # one output may hold scores all the same; else which head is meant has to be told
        with contextlib.suppress(UnsupportedModel):
            readout = _choose_scores(model, output, kind)
            with contextlib.suppress(UnsupportedModel):
                return choose_head(model, None, readout.output, kind)
            return readout
        raise
    except UnsupportedModel:  # a map alone needs no head
        return _choose_scores(model, output, kind, guess=True)


def _choose_scores(model: Model, output: str | None, kind: str | None, *, guess: bool = False) -> Readout:
    """Return the tensor of logits or probabilities behind an output, whatever computes it.

    `guess`: take the only output that may hold either for probabilities; the run shows whether each row is a
    distribution, and where one is not, `AMBIGUOUS_SCORES` asks for a kind.
    """
    _require_output(model, output)
    readouts = []
    reasons = []
    untold = []
    for info in model.proto.graph.output:
        if output not in (None, info.name):
            continue
        try:
            readouts.append(_readout(model, info, kind))
        except Refused as refused:
            reasons.append(f"\n  output '{info.name}': {refused}")
            if isinstance(refused, _AmbiguousScores):
                untold.append(info)
    if not readouts:
        if subject := purpose.other_purpose(model):
            raise UnsupportedModel(f"{model.name}: {subject}; only classifiers can be calibrated")
        if guess and len(untold) == 1:
            try:
                guessed = _readout(model, untold[0], "probabilities")
            except Refused as refused:
                reasons = [f"\n  output '{untold[0].name}': {refused}"]
            else:
                if not guessed.several:
                    return guessed
        raise UnsupportedModel(f"{model.name}: no output that can be calibrated{''.join(reasons)}")
    if len({readout.logits for readout in readouts}) > 1:
        names = ", ".join(readout.output for readout in readouts)
        raise SeveralHeads(f"{model.name}: several outputs can be calibrated: {names}; choose one: --output-name")
    return readouts[0]


def _require_output(model: Model, output: str | None) -> None:
    if output is not None and output not in model.outputs:
        raise UnsupportedModel(f"{model.name}: no output '{output}'; the model has {', '.join(model.outputs)}")


def find_heads(model: Model, kind: str | None = None) -> tuple[tuple[Head, ...], tuple[Refusal, ...]]:
    """Walk back from every graph output. Outputs that lead to no head give a refusal."""
    boxes = purpose.box_output(model)
    heads = []
    refusals = []
    for name in model.outputs:
        outcome = walk_back(model, name, kind=kind).outcome
        if isinstance(outcome, Refusal):
            refusals.append(outcome)
        # nobody has labels for each box: which object it belongs to, training decides
        elif boxes and (name == boxes or outcome.several):
            refusals.append(Refusal(name, outcome.node, f"{purpose.BOXES} ('{boxes}')"))
        else:
            heads.append(outcome)
    return tuple(heads), tuple(refusals)


def choose_head(model: Model, node: str | None = None, output: str | None = None, kind: str | None = None) -> Head:
    """Return the one head of a model; of several outputs behind it, the first (logits before probabilities).

    `node`: label of the linear node, where there are several, or its graph output.
    """
    heads, refusals = find_heads(model, kind)
    _require_output(model, output)
    if output is not None:
        heads = tuple(head for head in heads if head.output == output)
        refusals = tuple(refusal for refusal in refusals if refusal.output == output)
    heads = _as_labels(heads, refusals)
    if node is None and output is None:
        heads = _last(model, heads)
        # labels, such as gates and attributes, give way to a head that gives each sample one class
        heads = tuple(head for head in heads if not head.multi_label) or heads
        _refuse_doubt(model, heads, refusals)
    by_node = {head.node: head for head in reversed(heads)}  # reversed: of several outputs, the first stays
    if node is not None:
        if node not in by_node:
            node = next((head.node for head in heads if head.output == node), node)
        if node in by_node:
            return by_node[node]
        # of the output that was named; of all where none of them has a head
        of_node = [refusal for refusal in refusals if node in (refusal.output, refusal.node)]
        if not of_node and not by_node:
            of_node = [*refusals]
        raise UnsupportedModel(
            f"{model.name}: no linear head is called '{node}', and no output of that name has one; the model has "
            f"{', '.join(by_node) or 'none'}{_reasons(of_node)}"
        )
    if not by_node and output is None and (subject := purpose.other_purpose(model)):
        raise UnsupportedModel(f"{model.name}: {subject}; only classifiers can be calibrated{_reasons(refusals)}")
    if not by_node:
        raise UnsupportedModel(
            f"{model.name}: no linear head found (`tna-onnx inspect` shows the same){_reasons(refusals)}\n"
            "  a calibration map alone needs none: --search none"
        )
    if len(by_node) > 1:
        listing = ", ".join(f"{head.node} (output '{head.output}')" for head in by_node.values())
        raise SeveralHeads(
            f"{model.name}: {len(by_node)} heads found: {listing}; choose one with --head NODE, or --output-name NAME"
        )
    return next(iter(by_node.values()))


def _as_labels(heads: tuple[Head, ...], refusals: tuple[Refusal, ...]) -> tuple[Head, ...]:
    """Mark a layer as one of labels for all of its outputs if any of them has a Sigmoid behind it."""
    labelled = {head.node for head in heads if head.multi_label}
    closed = {refusal.node for refusal in refusals if refusal.labels_of_positions}
    heads = tuple(head for head in heads if head.node not in closed)
    # a Softmax beside the Sigmoid says something else
    return tuple(
        replace(head, multi_label=True) if head.node in labelled and head.activation == "none" else head
        for head in heads
    )


def _reasons(refusals: Sequence[Refusal]) -> str:
    return "".join(f"\n  output '{r.output}', at {r.node}: {r.reason}" for r in refusals)


def _last(model: Model, heads: tuple[Head, ...]) -> tuple[Head, ...]:
    """Drop linear layers that another head is computed from: hidden layers whose activations are outputs too."""
    trunk = {k for head in heads for name in head.parts or (head.features,) for k in model.ancestors(name)}
    return tuple(head for head in heads if trunk.isdisjoint(head.readers))


def _refuse_doubt(model: Model, heads: tuple[Head, ...], refusals: tuple[Refusal, ...]) -> None:
    """Refuse to choose while an output that was not understood, with a linear layer of its own, may classify."""
    if not heads:  # the caller says that there is none, with all reasons
        return
    behind_heads = {k for head in heads for k in model.ancestors(head.output)}
    kinds = {info.name: info.type.tensor_type.elem_type for info in model.proto.graph.output}
    # An output without a linear layer of its own, such as features or labels, is not another classifier's.
    boxes = purpose.box_output(model)
    for refusal in refusals:
        if refusal.output == boxes:
            continue
        behind_refusal = model.ancestors(refusal.output)
        linear = any(is_linear(model.proto.graph.node[k]) for k in behind_refusal - behind_heads)
        if (
            linear
            and model.producers.get(refusal.output) not in behind_heads
            and kinds[refusal.output] in (0, *FLOAT_TYPES)
        ):
            raise SeveralHeads(
                f"{model.name}: head '{heads[0].node}' leads to output '{heads[0].output}', but output "
                f"'{refusal.output}' was not understood and may be the classifier's (at {refusal.node}: "
                f"{refusal.reason}); if '{heads[0].output}' holds the classes, add --output-name {heads[0].output}"
            )


@tells_damage
def class_output(
    model: Model, head: str | None = None, output: str | None = None, kind: str | None = None
) -> ClassOutput:
    """Return the output that classifies.

    What it means is always read from the graph. Which output it is, and behind an appended map the number of classes,
    is read from this tool's provenance, if there is any.
    """
    if output is None and head in model.outputs:
        head, output = None, head
    # what the tool wrote counts only where the graph bears it out.
    entries = model.provenance_of(output)
    name = entries.get("output")
    classes = entries.get("classes", "")
    kind_entry = STATED_KINDS.get(entries.get("output_kind", ""))
    if kind is None and kind_entry and output in (None, name):
        candidates = find_heads(model, kind_entry)[0]
        # another head holds something else
        if head is None or any((c.node, c.output) == (head, name) for c in candidates):
            kind = kind_entry
    if head is None and name is not None and output in (None, name):
        heads, refusals = find_heads(model, kind)
        if any(candidate.output == name for candidate in heads):
            return choose_head(model, None, name, kind).class_output
        for refusal in refusals:
            behind_map = refusal.output == name and refusal.node.startswith(f"{PREFIX}/")
            if behind_map and refusal.activation in KINDS and classes.isdecimal():
                return _behind_map(model, name, entries, int(classes))
    if kind in STATED_KINDS.values():
        output = output or name
    return find_readout(model, head, output, kind).class_output


def _behind_map(model: Model, name: str, entries: dict[str, str], classes: int) -> ClassOutput:
    """Read an output behind a map that this tool appended."""
    walked = walk_back(model, name)
    kind = KINDS[walked.activation]
    if walked.activation == "none":
        kind = entries.get("output_kind", "logits")
    if walked.paired:
        kind = "probabilities"
    if entries.get("output_kind", "").startswith("label_"):
        kind = "label_logits"
        if walked.activation == "sigmoid":
            kind = "label_probabilities"
    sizes = model.sizes(name)
    class_axis = ONE
    if sizes is not None and has_positions(sizes):
        # what our metadata say counts if the declared shape agrees with it
        fitting = (axis for axis in (CLASSES_FIRST, CLASSES_LAST) if sizes[axis] in (None, classes))
        recorded = next((axis for axis in fitting if entries.get("class_axis") == str(axis)), ONE)
        class_axis = walked.class_axis or recorded or class_axis_of(sizes)
        if class_axis == ONE:
            raise UnsupportedModel(f"{model.name}: output '{name}': {OPEN_AXIS}")
    labels = walked.labels
    if not labels:  # what the classifier node in front of the map calls them
        labels = walk_back(model, mapped_logits(model, name) or name).class_labels
        if len(labels) != classes:
            labels = ()
    return ClassOutput(name, kind, classes, labels, "ZipMap" in walked.follows, class_axis)


@tells_damage
def behind_outputs(model: Model) -> list[tuple[Readout, State]]:
    """Return the tensors that maps can go behind, and what the walk learned.

    Where the graph does not tell what an output holds, and the user would have to, `Readout.holds` is empty.
    """
    outputs = []
    for info in model.proto.graph.output:
        walked = walk_back(model, info.name)
        try:
            outputs.append((_readout(model, info, None), walked))
        except Refused:
            # a forest and the like are asked about; a regressor or a detector is not, nor is an image
            with contextlib.suppress(Refused):
                unstated = replace(_readout(model, info, "logits"), holds="")
                if not (unstated.several or purpose.other_purpose(model)):
                    outputs.append((unstated, walked))
    return outputs


def _readout(model: Model, info: onnx.ValueInfoProto, kind: str | None) -> Readout:
    """Read one output."""
    tensor = info.type.tensor_type
    # ZipMap gives a sequence of maps; 0 is an output whose type the file does not say.
    scores = info.type.HasField("sequence_type") or tensor.elem_type in (0, *FLOAT_TYPES)
    if not scores:
        raise Refused(LABELS)
    if purpose.is_box_output(model, info.name):
        raise Refused(purpose.BOXES)
    require_samples_axis(model, info.name)
    walked = walk_back(model, info.name, kind=kind)
    if info.type.sequence_type.elem_type.HasField("tensor_type") and isinstance(walked.outcome, Refusal):
        raise Refused(walked.outcome.reason)
    labels = walked.class_labels
    sizes = _sizes(model, info.name)
    class_axis = _class_axis(model, walked, sizes)
    plain = walked.activation == "none" and walked.holds == "logits"  # divided by their sum, columns are of one class
    if kind is None and plain and purpose.is_one_vs_rest(model, walked.node):
        kind = "label-probabilities"
    if kind == "probability" and walked.activation == "sigmoid":
        kind = None  # the graph says the same
    single = kind in _SINGLE
    if single:
        _require_single(info, walked)
    columns = _columns(sizes, class_axis, walked, labels)
    multi_label = _is_multi_label(kind, walked, columns, class_axis)
    if single or (walked.activation == "sigmoid" and not multi_label):
        columns = 2
    holds = _holds(model, walked, kind, columns)
    if columns < 2:
        raise Refused(
            "the output's last dimension, the number of classes, is not declared; export the model with it fixed"
        )
    require_little_slack(walked.output_slack, columns, walked.activation)
    further = walked.fields_of(Readout) | {"holds": holds, "labels": labels, "class_axis": class_axis}
    return Readout(
        **further,
        logits_type=_logits_type(model, walked, tensor.elem_type),
        binary=not multi_label and (walked.activation == "sigmoid" or single),
        n_classes=columns,
        multi_label=multi_label,
        quantum=purpose.step_of_probabilities(model, walked.logits, columns) if holds == "probabilities" else 0.0,
    )


def _sizes(model: Model, output: str) -> list[int | None]:
    """Return the lengths of an output's axes: as declared, or as its nodes tell where the classes' only have a name."""
    sizes = model.sizes(output) or []
    if len(sizes) != 2 or sizes[1] is not None:
        return sizes
    return [dim.dim_value or None for dim in _inferred_type(model, output).shape.dim]


def _inferred_type(model: Model, tensor: str) -> Any:
    """Return the type of a tensor as its nodes tell it; an empty one where they do not, or contradict each other."""
    try:
        return onnx.shape_inference.infer_shapes(cut_at(model, [tensor])).graph.output[0].type.tensor_type
    except onnx.shape_inference.InferenceError:
        return onnx.TypeProto.Tensor()


def _logits_type(model: Model, walked: State, declared: int) -> str:
    """Return the element type of the logits: that of the output, but for a Cast between the two."""
    if walked.logits != walked.output and "Cast" in walked.follows:
        declared = _inferred_type(model, walked.logits).elem_type or declared
    return FLOAT_TYPES.get(declared, "float32")


def _class_axis(model: Model, walked: State, sizes: list[int | None]) -> int:
    """Return the axis of the classes where there are several predictions a sample, or `ONE`."""
    if not has_positions(sizes):
        return ONE
    # one class a box is not one class a position
    subject = purpose.other_purpose(model)
    if subject:
        raise Refused(subject)
    axis = walked.class_axis or class_axis_of(sizes)
    if axis == ONE:
        raise Refused(OPEN_AXIS)
    return axis


# Words for one number of the second of two classes -> what it is.
_SINGLE = {"logit": "logits", "probability": "probabilities"}


def _require_single(info: onnx.ValueInfoProto, walked: State) -> None:
    """Refuse an output that cannot hold one logit, or one probability."""
    sizes = [d.dim_value for d in info.type.tensor_type.shape.dim]
    if walked.activation != "none" or walked.holds != "logits" or (len(sizes) > 1 and sizes[-1] > 1):
        shape = dims_text(info.type.tensor_type.shape)
        raise Refused(f"{SINGLE_ONLY}; this one has shape {shape} and the activation {walked.activation}")


def _holds(model: Model, walked: State, kind: str | None, columns: int) -> str:
    """Return whether a tensor holds logits or probabilities; only where the graph does not tell, the user may."""
    if walked.activation != "none" or walked.holds != "logits":
        return walked.holds
    refuse_no_scores(model, walked.output)
    if columns == 1:
        raise Refused(walked.changed or f"holds {ONE_NUMBER}")
    if kind in _SINGLE:
        return _SINGLE[kind]
    if kind in LABEL_KINDS:
        return kind.removeprefix("label-")
    per_position = has_positions(model.sizes(walked.logits))
    # an image may end in a convolution too
    layer = walked.node is not None and is_linear(walked.node) and not per_position
    if kind is None and (layer or integer_layer(model, walked.node) is not None):
        return "logits"
    is_probability = purpose.gives_probabilities(walked.node) or is_complement(model, walked.node)
    if is_probability and kind == "logits":
        raise Refused(f"holds probabilities, as {walked.where} shows; leave --output-kind logits out")
    if not is_probability and kind is None:
        if purpose.holds_shares(walked.node):
            raise _AmbiguousScores(
                f"a tree ensemble ({walked.where}), which has no linear layer, but a map can go behind it; its leaves "
                f"hold shares from 0 to 1: say so with --output-kind probabilities"
            )
        source = walked.where
        if walked.node is not None and is_quantized(walked.node):
            source += f", a {walked.node.op_type}, whose quantised weight cannot be replaced"
        raise _AmbiguousScores(
            f"the graph does not tell whether it holds logits or probabilities (it comes from {source}); say "
            "so with --output-kind logits or --output-kind probabilities. If it holds neither (but an image, say), "
            "the model is no classifier"
        )
    return kind or "probabilities"


def _columns(sizes: list[int | None], class_axis: int, walked: State, labels: tuple[int | str, ...]) -> int:
    """Return the number of classes that an output declares; 0 if it declares none."""
    if walked.paired:
        return 2
    if labels or not sizes:
        return len(labels)
    if len(sizes) == 1:  # (N,): one number a sample
        return 1
    return sizes[class_axis or -1] or 0


def _is_multi_label(kind: str | None, walked: State, columns: int, class_axis: int) -> bool:
    """Tell whether an output holds several labels a sample, each by itself."""
    if kind in LABEL_KINDS and (walked.activation not in ("none", "sigmoid") or walked.holds != "logits"):
        raise Refused(f"the graph gives one class a sample ({walked.activation}); leave --output-kind {kind} out")
    multi_label = kind in LABEL_KINDS or (walked.activation == "sigmoid" and not walked.paired and columns != 1)
    if kind in LABEL_KINDS and class_axis != ONE:
        raise Refused(f"--output-kind {kind} is for an output (N, C), one number a label; this one has further axes")
    if multi_label and class_axis != ONE:
        raise Refused(f"{columns or 'several'} {MULTI_LABEL}")
    if multi_label and columns < 2:
        raise Refused(
            "the output's last dimension, the number of labels, is not declared; export the model with it fixed"
        )
    return multi_label
