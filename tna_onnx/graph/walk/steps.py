"""The state of a walk (`State`), refusals, and steps from the logits to the linear layer.

The steps are operators with one input, and constants (rules 2 to 5). A `Refusal` is the reason why there is no head.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tna_onnx.graph.bounds import attribute_of, input_at
from tna_onnx.graph.constants import full_range, made_from_constants
from tna_onnx.graph.linear import class_labels, is_matrix_transpose, slice_bounds
from tna_onnx.graph.load import SHAPE_OR_TYPE, Model
from tna_onnx.graph.readout import ONE, Head
from tna_onnx.graph.stored import Refused, Select, Step, Stored, resolve
from tna_onnx.graph.tensors import FLOAT_TYPES, INTEGER_TYPES, type_name


@dataclass(frozen=True)
class Refusal:
    """Why the walk from a graph output found no head.

    Attributes:
        output: name of the graph output.
        node: node at which the walk ended.
        reason: why it ended there.
        activation: what followed that node.
        labels_of_positions: whether the reason is that several positions of a sample have several labels each.
    """

    output: str
    node: str
    reason: str
    activation: str = "none"
    labels_of_positions: bool = False


_NOT_ENDED = Refusal("", "", "the walk has not ended")


@dataclass
class State:
    """State of one backward walk; at its end, what the walk learned."""

    model: Model  # the model
    output: str  # the graph output at which the walk starts
    tensor: str  # the tensor that the walk has reached
    reader: int  # index of the node that reads it, or while a step looks at the node that makes it, of that
    # what `--output-kind` says of the output: `logit` and `label-logits` have no Sigmoid behind them
    kind: str | None = None
    where: str = "the output"  # label of the node that the walk has reached
    logits: str = ""  # tensor that holds the logits, as far as the walk knows
    holds: str = "logits"  # `logits`, or `probabilities` where the graph has no tensor of logits
    activation: str = "none"  # what follows the logits: none, softmax, log_softmax or sigmoid
    pairs: bool = True  # the walk passes Concat(1 - p, p), where p is a Sigmoid
    paired: bool = False  # the walk has passed it
    summed: bool = False  # the walk is between a division by the own sum and the activation that is summed
    # the walk has passed the choice of one column of probabilities, which must be the only one
    only_column: bool = False
    aligned: bool = False  # the walk has passed a node that moves, selects or averages scores
    # where the classes of the output are among the scores, if nodes select them or put them in another order; a slice
    # as long as the number of scores is not known
    order: tuple[int, ...] | slice = ()
    bias_steps: tuple[Step, ...] = ()  # the same for the bias
    turned: bool = False  # the walk is in front of a Transpose of a matrix: scores are (C, N) there
    # the walk is between a Log and its Softmax, or an Exp and its LogSoftmax: the two are the other one
    swapped: bool = False
    labels: tuple[int | str, ...] = ()  # what the model calls its classes
    follows: tuple[str, ...] = ()  # operators that the walk has passed, in order of execution
    # product of the constant factors on the scores, () or (C,)
    scale: NDArray[np.float64] = field(default_factory=lambda: np.ones(()))
    bias: Stored | None = None  # the constant that is added to the scores, if there is one
    # product of the constant factors on the bias
    bias_scale: NDArray[np.float64] = field(default_factory=lambda: np.ones(()))
    linear: bool = True  # nothing on the way bends the scores: the logits are features @ weight.T + bias
    homogeneous: bool = True  # scaling the scores scales the logits
    step: float = 0.0  # largest step of a quantisation between the linear layer and the logits
    full_step: float = 0.0  # the largest step that a range from 0 to 1 would have there
    # the same between the activation and the output, where a range that holds less becomes that
    output_step: float = 0.0
    output_slack: float = 0.0  # largest change of a probability by a Clip or an added constant behind the activation
    cast_to: str = ""  # float type that the logits are cast to, where they are
    # tensors that change the scores from the side; none may come from the linear layer itself
    side_inputs: tuple[str, ...] = ()
    forks: int = 0  # number of products of two computed tensors that the walk has passed
    class_axis: int = ONE  # of several predictions a sample, 1 or -1; 0 for one prediction a sample
    changed: str = ""  # why probabilities on the way are not those of the output
    outcome: Head | Refusal = _NOT_ENDED  # the head, or why there is none

    @property
    def node(self) -> onnx.NodeProto | None:
        """The node that the walk has reached; None at a graph input or an initializer."""
        return self.model.producer(self.tensor)

    def fields_of(self, kind: type) -> dict[str, Any]:
        """Return those fields of a kind of readout that the walk has under the same names."""
        names = {field.name for field in fields(self)}
        return {field.name: getattr(self, field.name) for field in fields(kind) if field.name in names}

    @property
    def class_labels(self) -> tuple[int | str, ...]:
        """What a ZipMap on the way, or the node that the walk has reached, calls the classes; empty if neither says."""
        if self.labels or self.node is None:
            return self.labels
        return class_labels(self.node)

    def leave_to_graph(self, *, homogeneous: bool) -> None:
        """Note that only the graph itself computes the logits from the scores (rule 5)."""
        self.linear = False
        self.homogeneous = self.homogeneous and homogeneous

    def places(self, scores: int) -> tuple[int, ...]:
        """Return where the classes of the output are among so many scores; empty if they are all, in order."""
        order = tuple(range(scores))[self.order] if isinstance(self.order, slice) else self.order
        if any(not -scores <= place < scores for place in order):
            raise Refused(f"class {max(order)} is selected behind a layer of {scores} scores")
        return tuple(place % scores for place in order)

    def selected(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return numbers of the scores, one a class, as the output has them."""
        if self.order == () or values.size == 1:
            return values
        return values.reshape(-1)[list(self.places(values.size))]

    def bias_selected(self, bias: Stored) -> tuple[Step, ...]:
        """Return the step from a bias of the scores to that of the output."""
        if self.order == () or bias.value.size == 1:
            return ()
        axis = int(np.argmax(bias.value.shape))
        return (Select(self.places(bias.value.shape[axis]), axis, bias.value),)

    def require_plain(self, purpose: str) -> None:
        """Refuse what comes between probabilities and the output, other than a change of shape, type or resolution."""
        scaled = self.scale.ndim > 0 or self.scale != 1
        if scaled or self.bias is not None or not self.linear or self.aligned:
            self.changed = f"{purpose} is scaled, shifted or changed in another way before the output"
            raise Refused(self.changed)
        # Whatever was quantised so far lies behind the activation.
        self.output_step = max(self.output_step, self.step, self.full_step)
        self.step = self.full_step = 0.0

    def begin_logits(self, tensor: str) -> str:
        """Note that the logits are an earlier tensor; casts behind it are no casts of the logits."""
        self.logits = tensor
        self.cast_to = ""
        return tensor


PASSED = SHAPE_OR_TYPE | {"Dropout"}
"""Operators that leave each score what it is."""

# Operators that keep each score linear in the weight, but may put it in another place or average over places.
_ALIGNED = {
    "Transpose", "Gather", "GatherND", "GatherElements", "Slice", "ReduceMean", "GlobalAveragePool", "AveragePool",
    "Split",
}  # fmt: skip

# Operators f with f(k x) = k f(x) for k > 0: a temperature can be folded through them.
_HOMOGENEOUS = {
    "Relu", "LeakyRelu", "PRelu", "GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceSum", "Expand", "Resize", "Upsample",
}  # fmt: skip

# What makes one prediction of several positions.
_BRING_TOGETHER = {
    "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMean", "ReduceSum",
}  # fmt: skip

CURVED = {
    "BatchNormalization", "Clip", "Elu", "Selu", "Celu", "ThresholdedRelu", "Tanh", "Softplus", "Softsign",
    "HardSigmoid", "HardSwish", "Erf", "Gelu", "Mish", "Swish", "QuantizeLinear", "DequantizeLinear",
}  # fmt: skip
"""Operators behind which only the graph itself computes the logits."""

_ONE_SIDED = PASSED | _ALIGNED | _HOMOGENEOUS | CURVED


def one_sided(state: State, node: onnx.NodeProto) -> str | None:
    """Pass an operator whose first input brings the scores (rules 2 and 5); None if it is another."""
    kind = node.op_type
    if kind not in _ONE_SIDED:
        return None
    if state.tensor != node.output[0] and kind != "Split":
        raise Refused(f"'{state.tensor}' is a side output of {kind}")
    if kind == "Cast":
        _cast(state, node)
    # Sizes, slopes, bounds: constants mostly, but a graph may compute them.
    state.side_inputs = (*state.side_inputs, *(name for name in node.input[1:] if name))
    state.aligned |= kind in _ALIGNED  # behind probabilities, this is not plain
    if kind in ("Gather", "GatherND", "Slice", "Split"):
        _selection(state, node)
    if is_matrix_transpose(node):
        state.turned = not state.turned
    if kind == "QuantizeLinear":
        _quantized(state, node)
    elif kind == "BatchNormalization":
        _batch_norm(state, node)
    elif kind in _HOMOGENEOUS | CURVED and kind != "DequantizeLinear":
        state.leave_to_graph(homogeneous=kind in _HOMOGENEOUS)
    return str(node.input[0])


def _selection(state: State, node: onnx.NodeProto) -> None:
    """Take in a choice or another order of the classes; other selections are for numbers to tell.

    torch's newer exporter writes x[:, places] as a GatherND between two Transposes.
    """
    class_axes = (0, -2) if state.turned else (1, -1)
    if node.op_type == "Split":
        order = _split(state, node, class_axes)
    elif node.op_type == "Slice":
        order = _sliced(state.model, node, class_axes)
    else:
        order = _gathered(state.model, node, class_axes)
    if order == ():
        return
    everything = isinstance(order, tuple) and sorted(order) == list(range(len(order)))
    # positions, which something brings together later, may be selected in the same way
    matrices = [state.model.sizes(name) for name in (state.output, node.input[0])]
    positions = set(state.follows) & _BRING_TOGETHER or any(sizes and len(sizes) != 2 for sizes in matrices)
    if positions and not everything:
        return
    if state.order == ():
        state.order = order
    elif isinstance(state.order, tuple) and isinstance(order, tuple) and max(state.order) < len(order):
        state.order = tuple(order[place] for place in state.order)
    else:
        raise Refused("classes are selected twice")


def _gathered(model: Model, node: onnx.NodeProto, class_axes: tuple[int, int]) -> tuple[int, ...] | slice:
    """Return which classes a Gather takes, or a GatherND of rows; nothing if it is another choice."""
    indices = model.constant_tensor(input_at(node, 1))
    if indices is None:
        return ()
    axis = attribute_of(node, "batch_dims", attribute_of(node, "axis", 0))
    dims = list(indices.dims)
    if axis not in class_axes or len(dims) != (2 if node.op_type == "GatherND" else 1) or dims[1:] not in ([], [1]):
        return ()
    places = tuple(int(place) for place in model.array(indices).reshape(-1))
    if not (len(places) > 1 and len(set(places)) == len(places)):
        return ()
    return places


def _sliced(model: Model, node: onnx.NodeProto, class_axes: tuple[int, int]) -> tuple[int, ...] | slice:
    """Return which classes a Slice takes; nothing if it slices another axis, or takes all of them or one."""
    bounds = slice_bounds(model, node)
    if len(bounds) != 1 or bounds[0][0] not in class_axes or bounds[0][1:] == (0, None, 1):
        return ()
    start, end, step = bounds[0][1:]
    single_class = start == -1 if end is None else start * end >= 0 and len(range(start, end, step)) < 2
    if single_class:
        return ()
    return slice(start, end, step)


def _split(state: State, node: onnx.NodeProto, class_axes: tuple[int, int]) -> tuple[int, ...] | slice:
    """Return which classes are in the part that the walk has reached; nothing if it is not known, or is one class."""
    constant = state.model.constant_tensor(input_at(node, 1))
    sizes = attribute_of(node, "split", ())  # opset < 13
    if constant is not None:
        sizes = state.model.array(constant).tolist()
    part = list(node.output).index(state.tensor)
    if attribute_of(node, "axis", 0) not in class_axes or part >= len(sizes) or sizes[part] < 2:
        return ()
    start = sum(sizes[:part])
    return slice(start, start + sizes[part], 1)


def _cast(state: State, node: onnx.NodeProto) -> None:
    to = attribute_of(node, "to", 0)
    if to not in FLOAT_TYPES:
        raise Refused(f"Cast to {type_name(to)}, which is not {', '.join(FLOAT_TYPES.values())}")
    state.cast_to = state.cast_to or FLOAT_TYPES[to]  # the last of several casts counts


def _quantized(state: State, node: onnx.NodeProto) -> None:
    scale, zero = (state.model.constant_tensor(input_at(node, place)) for place in (1, 2))
    if scale is None:
        raise Refused("QuantizeLinear has a scale that is not a constant")
    state.step = max(state.step, float(np.max(state.model.floats(scale), initial=0)))
    if zero is not None and zero.data_type in INTEGER_TYPES:
        state.full_step = max(state.full_step, 1 / full_range(INTEGER_TYPES[zero.data_type]))


@np.errstate(all="ignore")
def _batch_norm(state: State, node: onnx.NodeProto) -> None:
    """Take in the factor per class; the offset stays with the graph."""
    gamma, _, _, variance = (
        resolve(state.model, name, state.reader).value.astype(np.float64) for name in node.input[1:5]
    )
    epsilon = attribute_of(node, "epsilon", 1e-5)
    factor = state.selected(gamma / np.sqrt(variance + epsilon))
    # A class whose scores are multiplied by 0 has no vector that could be found back.
    if not np.all(np.isfinite(factor)) or np.any(factor == 0):
        raise Refused("BatchNormalization has factors that are 0, NaN or infinite")
    if factor.ndim != 1 or (state.scale.ndim and state.scale.shape != factor.shape):
        raise Refused(f"BatchNormalization has {factor.size} channels, and {state.scale.size} factors lie behind it")
    state.scale = np.asarray(state.scale * factor)
    state.leave_to_graph(homogeneous=False)


def is_constant(model: Model, tensor: str) -> bool:
    """Whether an operand is a constant, brought to the shape of the scores or not."""
    return made_from_constants(model, _before_expand(model, tensor)) is not None


def constant_operand(state: State, tensor: str) -> Stored:
    """Return the constant that an operand of the node is that the walk has reached."""
    before = _before_expand(state.model, tensor)
    if before == tensor:
        return resolve(state.model, tensor, state.reader)
    expand = state.model.producers[tensor]
    state.side_inputs = (*state.side_inputs, state.model.proto.graph.node[expand].input[1])
    constant = resolve(state.model, before, expand)
    if state.model.uses.get(tensor, 0) > 1:  # others read what the Expand gives: this node gets a tensor of its own
        return replace(
            constant, name=tensor, steps=(), read_as=tensor, reader=state.reader, shared=True, quantized=None
        )
    return constant


def _before_expand(model: Model, tensor: str) -> str:
    """Return what an Expand to a computed shape repeats, which Add and Mul would have done by themselves."""
    node = model.producer(tensor)
    if node is None or (node.domain, node.op_type) != ("", "Expand") or len(node.input) < 2:
        return tensor
    if made_from_constants(model, node.input[1]) is not None:  # a constant as a whole
        return tensor
    return str(node.input[0])


def with_constant(state: State, node: onnx.NodeProto, data: str, constant: Stored) -> None:
    """Take in the constant of Add, Sub, Sum, Mul or Div."""
    shape = constant.value.shape
    if state.turned and constant.value.size > 1 and (len(shape) < 2 or shape[-1] != 1):
        raise Refused(f"{node.op_type} has a constant of shape {shape}, which is one number a sample of (C, N)")
    constant_first = node.input[0] != data
    if node.op_type == "Div" and constant_first:
        raise Refused(f"Div divides the constant '{constant.read_as}' by the scores")
    if node.op_type in ("Mul", "Div"):
        _scale(state, node, constant)  # rule 3
        return
    if state.bias is None:  # rule 4
        state.bias = constant
        state.bias_steps = state.bias_selected(constant)
        state.bias_scale = state.scale
        if node.op_type == "Sub" and not constant_first:  # s - c
            state.bias_scale = -state.scale
    else:  # a second constant: only the graph adds both
        state.leave_to_graph(homogeneous=False)
    if node.op_type == "Sub" and constant_first:  # c - s
        state.scale = -state.scale


@np.errstate(all="ignore")
def _scale(state: State, node: onnx.NodeProto, constant: Stored) -> None:
    value = constant.value.astype(np.float64).reshape(-1)
    if constant.value.ndim and value.size not in constant.value.shape:
        raise Refused(
            f"{node.op_type} by a constant of shape {constant.value.shape}; expected one value, or one a class"
        )
    if not np.all(np.isfinite(value)) or np.any(value == 0):
        raise Refused(f"{node.op_type} has a constant with values that are 0, NaN or infinite")
    factor = value.reshape(()) if value.size == 1 else state.selected(value)
    if factor.ndim and state.scale.ndim and factor.shape != state.scale.shape:
        raise Refused(f"{node.op_type} by {value.size} values, and by {state.scale.size} values behind it")
    if node.op_type == "Mul":
        state.scale = np.asarray(state.scale * factor)
    else:
        state.scale = np.asarray(state.scale / factor)
