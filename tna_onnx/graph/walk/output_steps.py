"""Steps from the output to the logits: activations and what may come behind them (rule 1)."""

from collections.abc import Callable

import numpy as np
import onnx

from tna_onnx.graph.bounds import attribute_of
from tna_onnx.graph.linear import class_labels, first_column_of
from tna_onnx.graph.load import Model
from tna_onnx.graph.readout import CLASSES_FIRST, CLASSES_LAST, has_positions
from tna_onnx.graph.stored import Refused
from tna_onnx.graph.walk.patterns import BESIDE_SUM, scores_behind, written_out
from tna_onnx.graph.walk.steps import PASSED, State

# Operators that end the logits.
_ACTIVATIONS = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Sigmoid": "sigmoid"}
_SWAPPED = {"Softmax": "LogSoftmax", "LogSoftmax": "Softmax"}

MAX_SLACK = 1e-3
"""By how much a Clip or an added constant behind an activation may change a probability."""


def require_samples_axis(model: Model, output: str) -> None:
    """Refuse an output without the axis of samples that the inputs have in front: files for one sample, say."""
    shape = model.sizes(output)
    inputs = {name: sizes for name in model.inputs if (sizes := model.sizes(name))}
    if not shape or not shape[0] or not inputs:
        return
    first = shape[0]
    # (N,) is one number a sample, where an input has as many samples, or any number
    batched = any(len(sizes) > 1 and sizes[0] in (first, None) for sizes in inputs.values())
    flat = len(shape) == 1 and first > 1 and not batched
    # (d,) -> (1, C), (3, H, W) -> (1, C); several predictions of each sample may be rows
    unrelated = all(sizes[0] and sizes[0] > 1 and first % sizes[0] for sizes in inputs.values())
    # (T,) -> (1, C): a text of any number of words
    words = first == 1 and len(shape) > 1 and all(sizes == [None] for sizes in inputs.values())
    if flat or unrelated or words:
        name, sizes = next(iter(inputs.items()))
        raise Refused(
            f"input '{name}' of shape {_shape(sizes)} and output '{output}' of shape "
            f"{_shape(shape)} share no axis of samples in front; export the model with the samples along axis 0 of both"
        )


def _shape(sizes: list[int | None]) -> str:
    return f"({', '.join('?' if size is None else str(size) for size in sizes)})"


# Numbers that are no scores of classes, whatever their shape, by the node that makes them.
_NO_SCORES = {
    **dict.fromkeys(("LSTM", "GRU", "RNN"), "states of a recurrent layer"),
    **dict.fromkeys(("ArgMax", "ArgMin", "NonZero", "TopK"), "places or largest values"),
}
_HANDED_ON = PASSED | {"Transpose", "Slice", "Gather", "Split"}


def refuse_no_scores(model: Model, output: str) -> None:
    """Refuse an output that holds no scores, by the node that makes it, or as many rows for any number of samples."""
    node = model.maker(output, _HANDED_ON)
    if node is not None and node.op_type in _NO_SCORES:
        raise Refused(f"holds {_NO_SCORES[node.op_type]} ({node.op_type}), no scores of classes")
    rows = (model.sizes(output) or [None])[0]
    free = [name for name in model.inputs if (model.sizes(name) or [0])[0] is None]
    if rows and rows > 1 and free:
        raise Refused(
            f"has {rows} rows for any number of samples of '{free[0]}': it is no score of classes but a weight, say"
        )


def _zip_map(state: State, node: onnx.NodeProto) -> str:
    """Pass ZipMap, which says what the classes are called."""
    state.labels = class_labels(node)
    return _behind_activation(state, node, 0)


def _normalizer(state: State, node: onnx.NodeProto) -> str:
    """Pass Normalizer, which divides by the sum."""
    # ONNX: MAX unless stated.
    norm = attribute_of(node, "norm", b"MAX")
    if norm != b"L1":
        raise Refused(f"Normalizer with norm {norm.decode(errors='replace')}; expected L1, which makes probabilities")
    return _normalized(state, str(node.input[0]))


def _normalized(state: State, inner: str) -> str:
    """Pass the division of probabilities by their sum: what comes out of it is what can be calibrated."""
    state.require_plain("probabilities that are normalised")
    if state.activation != "none":
        raise Refused(f"the scores are divided by their sum before {state.activation}")
    state.holds = "probabilities"
    state.summed = True
    state.begin_logits(state.tensor)
    return inner


def _divided(state: State, node: onnx.NodeProto) -> str | None:
    """Pass the division of a tensor by its own sum, which may have been brought into shape; None if it is another."""
    divisor = state.model.maker(node.input[1], BESIDE_SUM)
    if divisor is None or divisor.op_type not in ("ReduceSum", "ReduceL1") or divisor.input[:1] != node.input[:1]:
        return None
    return _normalized(state, str(node.input[0]))


def _complement(state: State, node: onnx.NodeProto) -> str | None:
    """Pass Concat(1 - p, p) of a binary model; None if it is not that."""
    if state.paired or not state.pairs or not is_complement(state.model, node):
        return None
    state.paired = True
    return _behind_activation(state, node, 1)


def is_complement(model: Model, node: onnx.NodeProto | None) -> bool:
    """Whether a node is Concat(1 - p, p)."""
    if node is None or node.op_type != "Concat" or len(node.input) != 2:
        return False
    first = model.producer(node.input[0])
    if first is None or first.op_type != "Sub" or len(first.input) != 2 or first.input[1] != node.input[1]:
        return False
    constant = model.constant_tensor(first.input[0])
    # Both a number and a vector of ones are written.
    return constant is not None and bool(np.all(model.floats(constant) == 1))


def _behind_activation(state: State, node: onnx.NodeProto, position: int) -> str:
    """Pass a node between the activation and the output."""
    state.require_plain(node.op_type)
    if state.activation != "none":
        raise Refused(f"{node.op_type} stands before {state.activation}")
    return state.begin_logits(str(node.input[position]))


def _activation(state: State, node: onnx.NodeProto) -> str:
    """Pass Softmax, LogSoftmax or Sigmoid: the logits are in front of it."""
    kind = node.op_type
    if state.activation != "none":
        raise Refused(f"{kind} stands before {state.activation}, which is a second activation")
    if kind != "Sigmoid":
        _over_classes(state, kind, _axis(state.model, node))
    return _begin(state, kind, str(node.input[0]))


def _axis(model: Model, node: onnx.NodeProto) -> int:
    """Return the axis of a Softmax or LogSoftmax."""
    return int(attribute_of(node, "axis", 1 if model.opset < 13 else -1))  # ONNX changed the default with opset 13


def _turned_activation(state: State, node: onnx.NodeProto) -> str | None:
    """Pass a Softmax over the last axis between two Transposes that undo each other; None if it is something else.

    So it is written over another axis in opsets below 13.
    """
    inner = state.model.producer(node.input[0])
    if state.activation != "none" or inner is None or inner.op_type not in ("Softmax", "LogSoftmax"):
        return None
    first = state.model.producer(inner.input[0])
    axes = list(attribute_of(node, "perm", ()))
    if first is None or first.op_type != "Transpose" or _axis(state.model, inner) not in (-1, len(axes) - 1):
        return None
    if not axes or np.argsort(axes).tolist() != list(attribute_of(first, "perm", ())):
        return None
    _over_classes(state, inner.op_type, axes.index(len(axes) - 1))
    return _begin(state, inner.op_type, str(first.input[0]))


def _over_classes(state: State, kind: str, axis: int) -> None:
    """Take in the axis of an activation: of several predictions a sample it says where the classes are."""
    sizes = state.model.sizes(state.output)
    if sizes is not None and has_positions(sizes):
        last = axis in (-1, len(sizes) - 1)
        if not last and axis != CLASSES_FIRST:
            raise Refused(f"{kind} over axis {axis} of {len(sizes)}; expected the classes on axis 1, or on the last")
        state.class_axis = CLASSES_FIRST
        if last:
            state.class_axis = CLASSES_LAST
    elif axis not in (1, -1) and not _is_last(state, axis):
        raise Refused(f"{kind} over axis {axis}; expected the class axis, 1 of (N, C)")


def _is_last(state: State, axis: int) -> bool:
    """Whether an axis may be the last of one prediction, (N, 1, 1, C): numbers tell where no shape is declared."""
    sizes = state.model.sizes(state.tensor)
    if sizes is None:
        return axis > 1 and not PASSED.isdisjoint(state.follows)
    return 1 < axis == len(sizes) - 1


def _begin(state: State, kind: str, logits: str) -> str:
    """Note what ends the logits, and where they are."""
    state.require_plain(f"the result of {kind}")
    if state.paired and kind != "Sigmoid":
        raise Refused(f"1 - p stands beside the p of a {kind}; expected a Sigmoid")
    if state.summed:  # the activation's results are divided by their sum: there is no tensor of logits
        if kind == "LogSoftmax":
            raise Refused("the result of LogSoftmax is divided by its sum")
        if kind == "Sigmoid":
            state.leave_to_graph(homogeneous=False)
        return logits
    if state.swapped:
        kind = _SWAPPED[kind]
    state.activation = _ACTIVATIONS[kind]
    return state.begin_logits(logits)


def _log_or_exp(state: State, node: onnx.NodeProto) -> str | None:
    """Pass the Log of a Softmax, the Exp of a LogSoftmax, or that in front of a Normalizer; None if it is another."""
    inner = activation_of(state.model, node.input[0])
    if state.activation == "none" and (node.op_type, inner) in (("Log", "Softmax"), ("Exp", "LogSoftmax")):
        state.require_plain(f"the {node.op_type} of {inner}")
        state.swapped = True
        return str(node.input[0])
    if not state.summed or node.op_type == "Log":
        return None
    # exp(s) / sum(exp(s)) is softmax(s), and so is exp(s - max s) / sum(exp(s - max s)).
    state.summed = False
    state.holds = "logits"
    return _begin(state, "Softmax", scores_behind(state.model, str(node.input[0])))


def _slack(state: State, node: onnx.NodeProto) -> str | None:
    """Pass a Clip, or a constant that is added, behind probabilities; None if it is something else.

    They stay behind the calibrated probabilities, which they change by as much as the original ones.
    """
    operands = [name for name in node.input if name and state.model.constant_tensor(name) is None]
    if state.activation != "none" or state.summed or len(operands) != 1:
        return None
    if activation_of(state.model, operands[0]) not in ("Softmax", "Sigmoid"):
        return None
    slack = _change(state.model, node)
    if not slack <= MAX_SLACK:
        raise Refused(f"{node.op_type} behind probabilities changes them by up to {slack:.2g}; at most {MAX_SLACK:g}")
    state.require_plain(f"the result of {node.op_type}")
    state.output_slack += slack
    return str(operands[0])


def require_little_slack(slack: float, classes: int, activation: str) -> None:
    """Refuse constants of all classes that together move a probability far, once these add up to 1 again.

    log (p + e) stands for (p + e) / (1 + C e), which differs from p by C e at most.
    """
    together = slack * classes
    if activation == "log_softmax" and together > MAX_SLACK * (1 + 1e-6):
        raise Refused(
            f"a Clip or constant of {slack:.2g} behind each of {classes} probabilities changes them by up to "
            f"{together:.2g} in the log; at most {MAX_SLACK:g}"
        )


def _column(state: State, node: onnx.NodeProto) -> str | None:
    """Pass the choice of the only column of a Sigmoid's results, (N, 1) -> (N,); None if it is something else.

    That it is the only one, the linear layer tells.
    """
    if state.activation != "none":
        return None
    tensor = first_column_of(state.model, node)
    if not tensor or activation_of(state.model, tensor) != "Sigmoid":
        return None
    sizes = state.model.sizes(tensor)
    if sizes is not None and len(sizes) != 2:  # of tokens (N, T, 1), axis 1 is not the classes'
        return None
    state.only_column = True
    return tensor


def _change(model: Model, node: onnx.NodeProto) -> float:
    """Return the largest change of a number from 0 to 1; infinity if it is unknown."""
    values = [model.constant_tensor(name) for name in node.input if name]
    numbers = [model.floats(value).reshape(-1) for value in values if value is not None]
    numbers += [np.array([a.f]) for a in node.attribute if a.name in ("min", "max")]  # opset < 11
    if any(number.size != 1 for number in numbers):
        return np.inf
    constants = [float(number[0]) for number in numbers]
    if node.op_type == "Add":
        return max(map(abs, constants))
    # A bound cuts off what is on its side: which side that is, its place between 0 and 1 tells.
    return max((max(0.0, min(bound, 1 - bound)) for bound in constants), default=0.0)


def activation_of(model: Model, tensor: str) -> str:
    """Return the activation whose results a tensor holds, through changes of shape and slack; empty if none."""
    for _ in range(_MAX_PASSED):
        node = model.producer(tensor)
        if node is None or not node.input:
            return ""
        if node.op_type in _ACTIVATIONS:
            return str(node.op_type)
        form = written_out(model, tensor)
        if form is not None:
            return form[0]
        if node.op_type not in (*PASSED, *_SLACK):
            return ""
        computed = [name for name in node.input if name and model.constant_tensor(name) is None]
        if not computed:
            return ""
        tensor = str(computed[0])
    return ""


_SLACK = ("Clip", "Add", "Max", "Min")
_MAX_PASSED = 20

_STEPS: dict[str, Callable[[State, onnx.NodeProto], str | None]] = {
    "ZipMap": _zip_map,
    "Normalizer": _normalizer,
    "Div": _divided,
    **dict.fromkeys(_ACTIVATIONS, _activation),
    **dict.fromkeys(_SLACK, _slack),
    **dict.fromkeys(("Log", "Exp"), _log_or_exp),
    "Concat": _complement,
    "Transpose": _turned_activation,
    **dict.fromkeys(("Gather", "Slice"), _column),
}
"""Operator -> its step: the tensor before it, or None if it is not what may stand there."""


def step(state: State, node: onnx.NodeProto) -> str | None:
    """Pass an activation (rule 1), written out in simpler nodes or not, or what comes behind one; None if none is."""
    if state.activation == "none" and (form := written_out(state.model, state.tensor)):
        return _begin(state, *form)
    if node.op_type not in _STEPS:
        return None
    return _STEPS[node.op_type](state, node)
