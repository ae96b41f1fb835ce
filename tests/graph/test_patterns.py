"""Each formula of an operator in simpler nodes gives that operator's numbers, and is told from formulas like it."""

import ast
import copy
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
from scipy.special import expit, log_softmax, softmax

from tests.graph.samples import Builder, run
from tna_onnx.graph.load import load_model
from tna_onnx.graph.walk.patterns import _PARSED, written_out

FUNCTIONS = {"Softmax": partial(softmax, axis=1), "LogSoftmax": partial(log_softmax, axis=1), "Sigmoid": expit}
FORMULAS = [(kind, ast.unparse(form)) for kind, form in _PARSED]
OPERATORS = {
    "exp": "Exp", "tanh": "Tanh", "neg": "Neg", "log": "Log", "reciprocal": "Reciprocal", "shaped": "Identity",
    "max": "ReduceMax", "sum": "ReduceSum", "log_sum": "ReduceLogSum", "log_sum_exp": "ReduceLogSumExp",
    ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.Div: "Div",
}  # fmt: skip


class Written(Builder):
    """Nodes that compute a formula of `scores`, a new one for each place in it."""

    def __init__(self, formula: str) -> None:
        super().__init__(opset=18)
        self.linear("scores")
        self.text("Identity scores > other; ReduceMax scores axes > top; Max top least > m", axes=[1], least=-9.0)
        self.count = 0
        result = self.tensor(ast.parse(formula, mode="eval").body)
        self.node("Identity", result, out="y")
        self.model = load_model(self.proto("scores", "y"))
        self.found = written_out(self.model, result)

    def tensor(self, form: ast.expr) -> str:
        self.count += 1
        out = f"t{self.count}"
        match form:
            case ast.Name(id=name):
                return "scores" if name == "s" else name
            case ast.Constant() | ast.UnaryOp():
                return self.store(out, ast.literal_eval(form))
            case ast.BinOp(left=left, op=sign, right=right):
                return self.node(OPERATORS[type(sign)], self.tensor(left), self.tensor(right), out=out)
            case ast.Call(func=ast.Name(id=name), args=[inner]):
                axes = ["axes"] if OPERATORS[name].startswith("Reduce") else []
                return self.node(OPERATORS[name], self.tensor(inner), *axes, out=out)
        raise AssertionError(form)


@pytest.mark.parametrize(("kind", "formula"), FORMULAS)
def test_a_formula_gives_the_numbers_of_its_operator(kind: str, formula: str) -> None:
    written = Written(formula)
    assert written.found == (kind, "scores")
    scores, y = run(written.model.proto, ["scores", "y"], written.draw(9, 6))
    np.testing.assert_allclose(y, FUNCTIONS[kind](scores), rtol=1e-5, atol=1e-6)


def others(formula: str) -> Iterator[str]:
    """Yield the formula with one number changed, one s of several replaced, or two operands exchanged."""
    whole = ast.parse(formula, mode="eval")
    several = [node for node in ast.walk(whole) if isinstance(node, ast.Name) and node.id == "s"][1:]
    for k in range(len([*ast.walk(whole)])):
        changed = copy.deepcopy(whole)
        place = [*ast.walk(changed)][k]
        match place:
            case ast.Constant():
                place.value = 3
            case ast.Name(id="s") if several:
                place.id = "other"
            case ast.BinOp(op=ast.Sub() | ast.Div()):
                place.left, place.right = place.right, place.left
            case _:
                continue
        yield ast.unparse(changed)


@pytest.mark.parametrize("formula", [formula for _, formula in FORMULAS])
def test_what_differs_in_one_place_stands_for_nothing(formula: str) -> None:
    assert [other for other in others(formula) if Written(other).found is not None] == []
