"""The walk itself: one node after another, back to the linear layer, by these rules.

1. Softmax, LogSoftmax or Sigmoid, at most one. ZipMap, 1 - p beside p, and division by the sum may come after it.
2. Identity, Cast, Dropout, changes of shape, selections and averages keep the scores linear in the weight.
3. Mul and Div by a constant of one element, or one per class, scale what lies behind them.
4. Add of a constant is the bias, once, in front of a layer without one.
5. Other functions, masks, quantisation, numbers computed elsewhere: only the graph computes the logits (`Head.linear`).
6. The linear layer (`graph.linear`, sums of them `walk.layer`); anything else is refused with node and reason.
"""

from collections.abc import Sequence
from dataclasses import replace

import onnx

from tna_onnx.errors import TnaError
from tna_onnx.graph.bounds import attribute_of, input_at
from tna_onnx.graph.linear import adds_up_products, is_linear, is_quantized
from tna_onnx.graph.load import PREFIX, Model, damage
from tna_onnx.graph.readout import Head
from tna_onnx.graph.stored import LabelsOfPositions, Refused
from tna_onnx.graph.walk import output_steps
from tna_onnx.graph.walk import steps as logit_steps
from tna_onnx.graph.walk.layer import head_at, summed
from tna_onnx.graph.walk.patterns import one_a_sample, reduced_axes
from tna_onnx.graph.walk.steps import Refusal, State

_STANDARD = ("", "ai.onnx")

# Every fork follows all its operands: a ladder of sums or products would be walked 2^forks times.
_MAX_FORKS = 4


def walk_back(model: Model, output: str, *, kind: str | None = None) -> State:
    """Walk back from a graph output; return the state at the end, whose outcome is a head or a refusal.

    `kind`: what `--output-kind` says that it holds: `logit` and `label-logits` have no Sigmoid behind them.
    """
    state = _walked(model, output, kind, pairs=True)
    if state.paired and state.activation == "none" and state.holds == "logits":
        return _walked(model, output, kind, pairs=False)  # no Sigmoid makes p: 1 - p and p are all there is
    return state


def _walked(model: Model, output: str, kind: str | None, *, pairs: bool) -> State:
    nodes = len(model.proto.graph.node)
    state = State(model, output, tensor=output, reader=nodes, logits=output, kind=kind, pairs=pairs)
    closed = False
    try:
        output_steps.require_samples_axis(model, output)
        state.outcome = _run(state)
        return state
    except Refused as refused:
        reason = str(refused)
        closed = isinstance(refused, LabelsOfPositions)
    except TnaError:
        raise
    except RecursionError:
        reason = "the chain of nodes before it is too long to follow"
    except Exception as error:  # noqa: BLE001 - raised again, unless the file is damaged
        reason = damage(model, error)
    state.outcome = Refusal(output, state.where, reason, state.activation, closed)
    return state


def _run(state: State) -> Head:
    model = state.model
    while True:
        index = model.producers.get(state.tensor)
        if index is None:
            state.where = f"tensor '{state.tensor}'"
            raise Refused("no linear layer lies before it")
        node = model.proto.graph.node[index]
        state.where = model.labels[index]
        # In a valid file nodes are sorted, so that the walk always ends.
        if index >= state.reader:
            raise Refused(f"the nodes are not in topological order: '{state.tensor}' is read before it is computed")
        state.reader = index
        if is_linear(node):
            return head_at(state, node)  # rule 6
        before = _step(state, node)
        if isinstance(before, Head):
            return before
        state.tensor = before
        state.follows = (node.op_type, *state.follows)


def _step(state: State, node: onnx.NodeProto) -> str | Head:
    """Take one step back through a node that may follow a head: the tensor before it, or the head at a fork."""
    if is_quantized(node):
        raise Refused(
            f"{node.op_type} computes with quantised numbers; its weight cannot be replaced. A map can go "
            "behind it (--search none). To search the weight, calibrate the float model and quantise the result, or "
            "export it with QuantizeLinear and DequantizeLinear nodes (QDQ)"
        )
    if any((node.domain, node.op_type) == (f.domain, f.name) for f in state.model.proto.functions):
        raise Refused(
            f"{node.op_type} is a function of the file that could not be inlined: its operators are of other versions "
            "than the model's, or it is damaged; export the model without functions"
        )
    # ONNX Runtime's own domain has some element-wise functions: Gelu, and quantisation to 16 bits.
    contributed = node.domain == "com.microsoft" and node.op_type in logit_steps.CURVED and len(node.input) > 0
    classifies = node.domain == "ai.onnx.ml" and node.op_type in ("Normalizer", "ZipMap")
    if node.domain not in _STANDARD and not contributed and not classifies:
        raise Refused(f"{node.op_type} of domain {node.domain} is not a linear layer that can be replaced")
    for step in (output_steps.step, _stacked, logit_steps.one_sided, _two_sided, _masked):
        before = step(state, node)
        if before is not None:
            return before
    reason = _NOT_FOLLOWING.get(
        node.op_type, "{} is neither a linear layer nor one of the operators that may follow it"
    )
    reason = reason.format(node.op_type, len(node.input))
    if node.name.startswith(f"{PREFIX}/"):
        reason += "; tna-onnx wrote this node: start from the original model"
    raise Refused(reason)


# Operator -> why it is none that may follow a head.
_NOT_FOLLOWING = {
    "SequenceConstruct": "{} makes a list of arrays, one a task; make each an output of the graph, or export "
    "scikit-learn's OneVsRestClassifier, which trains the classifiers of MultiOutputClassifier",
    "Concat": "{} puts {} tensors side by side: no one layer gives all classes",
}


def _masked(state: State, node: onnx.NodeProto) -> str | None:
    """Pass a Where that puts a constant in the place of some scores (rule 5); None if it is something else."""
    computed = [str(name) for name in node.input[1:] if not logit_steps.is_constant(state.model, name)]
    if node.op_type != "Where" or len(computed) != 1:
        return None
    state.side_inputs = (*state.side_inputs, str(node.input[0]))
    state.leave_to_graph(homogeneous=False)
    return computed[0]


def _stacked(state: State, node: onnx.NodeProto) -> Head | None:
    """Follow the tensors whose mean or sum a reduction gives, which are stacked along a new axis; None if none are."""
    model = state.model
    stack = model.producer(input_at(node, 0))
    if node.op_type not in ("ReduceMean", "ReduceSum") or stack is None or stack.op_type != "Concat":
        return None
    axis = attribute_of(stack, "axis", 0)
    layers = [model.producer(name) for name in stack.input]
    if axis != 0 or reduced_axes(model, node) != [0] or len(set(stack.input)) < len(layers):
        return None
    lifted = [layer for layer in layers if layer is not None and layer.op_type == "Unsqueeze"]
    if len(lifted) < len(layers) or any(reduced_axes(model, layer) != [0] for layer in lifted):
        return None
    return _sum(state, node, [str(layer.input[0]) for layer in lifted])


def _two_sided(state: State, node: onnx.NodeProto) -> str | Head | None:
    """Pass arithmetic with a constant, or with something that no linear layer makes; None of other operators."""
    if node.op_type == "Neg":
        state.scale = -state.scale
        return str(node.input[0])
    if node.op_type not in ("Add", "Sub", "Mul", "Div", "Sum", "Mean"):
        return None
    operands = list(dict.fromkeys(node.input))
    wanted = len(node.input) if node.op_type in ("Mean", "Sum") else 2
    if len(operands) < wanted:  # s + s is not s
        raise Refused(f"{node.op_type} reads {', '.join(operands)}; expected {wanted} different tensors")
    constants = [name for name in operands if logit_steps.is_constant(state.model, name)]
    if len(operands) != len(constants) + 1 or node.op_type == "Mean":
        return _fork(state, node, operands)
    data = str(next(name for name in operands if name not in constants))
    if adds_up_products(state.model, node, state.follows):
        return head_at(state, node)
    for name in constants:  # Sum may have several
        logit_steps.with_constant(state, node, data, logit_steps.constant_operand(state, name))  # rules 3 and 4
    return data


def _fork(state: State, node: onnx.NodeProto, operands: Sequence[str]) -> Head:
    """Follow the operands of Mul or Div: one comes from the linear layer, the other from none but the trunk's.

    Of Add and Sub, the other is one number a sample, such as the squared length of the features in a distance.
    """
    shifts = [name for name in operands if node.op_type in ("Add", "Sub") and one_a_sample(state.model, name)]
    if node.op_type not in ("Mul", "Div") and len(shifts) != 1:
        return _sum(state, node, operands)
    _require_few_forks(state)
    heads: dict[str, Head] = {}
    reasons = []
    for name in operands:
        if name in shifts:
            continue
        branch = _branch(state, node, operands, name)
        try:
            heads[name] = _run(branch)
        except Refused as refused:
            reasons.append(f"'{name}': {refused}" if name in state.model.producers else str(refused))
    if not heads:
        raise Refused(f"{node.op_type} has no constant operand ({'; '.join(reasons)})")
    if len(heads) > 1:
        raise Refused(f"{node.op_type} joins two linear layers: {' and '.join(head.node for head in heads.values())}")
    ((name, head),) = heads.items()
    if node.op_type == "Div" and node.input[0] != name:
        raise Refused(f"Div divides by the scores of the linear layer {head.node}")
    _refuse_gate(state.model, node, head, [operand for operand in operands if operand != name])
    return head


def _require_few_forks(state: State) -> None:
    if state.forks >= _MAX_FORKS:
        raise Refused(
            f"the scores are made by more than {_MAX_FORKS} sums and products of tensors that are computed from data"
        )


def _sum(state: State, node: onnx.NodeProto, operands: Sequence[str]) -> Head:
    """Follow the operands of a sum or mean, each of which comes from a linear layer: together they are one."""
    _require_few_forks(state)
    share = 1.0
    if node.op_type in ("Mean", "ReduceMean"):
        share = 1 / len(operands)
    layers = []
    for k, name in enumerate(operands):
        branch = replace(state, tensor=name, follows=(node.op_type, *state.follows), forks=state.forks + 1)
        branch.scale = state.scale * share
        if node.op_type == "Sub" and k:
            branch.scale = -branch.scale
        if k:
            branch.bias = None  # a constant behind the sum is added once
        try:
            head = _run(branch)
            # the sum of two distributions is none, nor is that of logits and probabilities
            activated = output_steps.activation_of(state.model, name) or head.activation != state.activation
            if activated or head.holds != state.holds:
                raise Refused("it holds probabilities")
            layers.append(head)
        except Refused as refused:
            subject = f"{node.op_type} of tensors that are computed from data: {', '.join(operands)}"
            raise Refused(f"{subject}; '{name}' comes from no linear layer ({refused})") from refused
    return summed(state.model, layers)


def _branch(state: State, node: onnx.NodeProto, operands: Sequence[str], name: str) -> State:
    """Return the state of a walk along one operand, beside which the others come in."""
    gates = tuple(operand for operand in operands if operand != name)
    branch = replace(
        state,
        tensor=name,
        side_inputs=(*state.side_inputs, *gates),
        follows=(node.op_type, *state.follows),
        forks=state.forks + 1,
    )
    # rule 5: the others are computed from data; what is added to the scores does not grow with them
    branch.leave_to_graph(homogeneous=node.op_type in ("Mul", "Div"))
    if node.op_type == "Sub" and name != node.input[0]:
        branch.scale = -state.scale
    return branch


def _refuse_gate(model: Model, node: onnx.NodeProto, head: Head, gates: Sequence[str]) -> None:
    """Refuse a factor that another linear layer makes, behind the trunk: which of the two is the head?"""
    trunk = model.ancestors(head.features)
    for operand in gates:
        for k in sorted(model.ancestors(operand) - trunk):
            gate = model.proto.graph.node[k]
            if is_linear(gate) or is_quantized(gate):
                raise Refused(
                    f"{node.op_type} joins the linear layer {head.node} and another, {gate.name or gate.op_type}"
                )
