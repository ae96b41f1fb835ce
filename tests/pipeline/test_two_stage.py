"""Heads that end in a cosine or a distance, end to end; the oracle is NumPy's definition beside ONNX Runtime."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

import tna_onnx
from tests.builders import small_model
from tests.pipeline.samples import nll
from tests.support import TILTED, WALKED, outputs_of, with_options
from tna_onnx.graph.load import load_model
from tna_onnx.graph.scores import choose_head
from tna_onnx.numerics.ops import softmax

CLASSES, FEATURES, INPUTS, SCALE = 5, 24, 8, 12.0
Array = NDArray[Any]
_RNG = np.random.default_rng(7)
TRUNK = _RNG.standard_normal((INPUTS, FEATURES)).astype(np.float32)
ROWS = _RNG.standard_normal((CLASSES, FEATURES)).astype(np.float32)


def _node(kind: str, inputs: str, output: str, **flags: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], name=f"at_{output}", **flags)


def _cosine(in_graph: bool) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    """Normalised features times class vectors that are normalised by nodes, or before the export."""
    nodes = [
        _node("ReduceL2", "h", "length", axes=[1], keepdims=1),
        _node("Clip", "length tiny", "kept"),
        _node("Div", "h kept", "unit"),
    ]
    rows = ROWS
    if in_graph:
        nodes += [
            _node("ReduceL2", "rows", "lengths", axes=[1], keepdims=1),
            _node("Div", "rows lengths", "directions"),
            _node("Transpose", "directions", "turned", perm=[1, 0]),
            _node("MatMul", "unit turned", "cosine"),
        ]
    else:
        rows = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
        nodes.append(_node("Gemm", "unit rows", "cosine", transB=1))
    return [*nodes, _node("Mul", "cosine scale", "logits")], {"rows": rows.astype(np.float32)}


def _similarity() -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    """Sum of products over the product of the lengths, as torch writes it."""
    nodes = [
        _node("Unsqueeze", "h one", "many"),
        _node("Mul", "many rows", "products"),
        _node("ReduceSum", "products last", "sums", keepdims=0),
        _node("ReduceL2", "h", "length", axes=[1], keepdims=1),
        _node("Mul", "length lengths", "both"),
        _node("Div", "sums both", "cosine"),
        _node("Mul", "cosine scale", "logits"),
    ]
    lengths = np.linalg.norm(ROWS, axis=1)[None]
    return nodes, {"rows": ROWS[None], "lengths": lengths.astype(np.float32)}


def _expanded() -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    """-(|h|^2 - 2 h P^T + |P|^2) / 10."""
    nodes = [
        _node("Mul", "h h", "squares"),
        _node("ReduceSum", "squares last", "length", keepdims=1),
        _node("MatMul", "h rows", "product"),
        _node("Mul", "product two", "twice"),
        _node("Sub", "length twice", "first"),
        _node("Add", "first lengths", "distance"),
        _node("Div", "distance minus_ten", "logits"),
    ]
    return nodes, {"rows": ROWS.T.copy(), "lengths": (ROWS**2).sum(axis=1)}


def _unit(rows: Array) -> Array:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _gaps(h: Array, rows: Array) -> Array:
    return np.linalg.norm(h[:, None].astype(np.float64) - rows[None], axis=2)


FORMS: dict[str, tuple[Callable[[], Any], Callable[[Array], Array]]] = {
    "cosine in the graph": (lambda: _cosine(True), lambda h: SCALE * _unit(h) @ _unit(ROWS).T),
    "cosine of baked rows": (lambda: _cosine(False), lambda h: SCALE * _unit(h) @ _unit(ROWS).T),
    "similarity": (_similarity, lambda h: SCALE * _unit(h) @ _unit(ROWS).T),
    "expanded": (_expanded, lambda h: -(_gaps(h, ROWS) ** 2) / 10),
}
LAYERS = ("cosine in the graph", "cosine of baked rows", "expanded")


def _made(folder: Path, name: str) -> tuple[Path, Path, Path]:
    build, logits_of = FORMS[name]
    nodes, tensors = build()
    constants = {
        "trunk": TRUNK,
        "scale": np.float32(SCALE),
        "tiny": np.float32(1e-12),
        "two": np.float32(2),
        "ten": np.float32(10),
        "minus_ten": np.float32(-10),
        "one": np.array([1]),
        "last": np.array([-1]),
    }
    used = {each for node in nodes for each in node.input}
    kept = {key: value for key, value in {**constants, **tensors}.items() if key in used or key == "trunk"}
    proto = small_model(
        [_node("MatMul", "x trunk", "m"), _node("Tanh", "m", "h"), *nodes],
        {"x": ["N", INPUTS]},
        {"logits": ["N", CLASSES]},
        kept,
    )
    onnx.save(proto, folder / "m.onnx")
    rng = np.random.default_rng(3)
    for file in ("calib", "test"):
        x = rng.standard_normal((900, INPUTS)).astype(np.float32)
        z = logits_of(np.tanh(x @ TRUNK))
        labels = np.argmax(z / 3 + rng.gumbel(size=z.shape), axis=1)
        np.savez(folder / f"{file}.npz", x=x, labels=labels)
    return folder / "m.onnx", folder / "calib.npz", folder / "test.npz"


def test_a_map_goes_behind_the_scores(tmp_path: Path) -> None:
    """Without a word on what the output holds: the graph tells."""
    model, calib, test = _made(tmp_path, "similarity")
    out = tmp_path / "o.onnx"
    report = tna_onnx.calibrate(model, calib, eval=test, output=out, search="none", map="ts", device="cpu")
    data = np.load(test)
    assert report.comparison.after.nll < report.comparison.before.nll
    logits = outputs_of(out, data["x"])["logits"]
    assert report.comparison.after.nll == pytest.approx(nll(logits, data["labels"]), rel=1e-6)
    expected = FORMS["similarity"][1](np.tanh(data["x"] @ TRUNK)) / report.parameters["temperature"]
    np.testing.assert_allclose(softmax(logits.astype(np.float64)), softmax(expected), atol=1e-5)
    assert tna_onnx.verify(model, out, data=test).passed
    assert tna_onnx.evaluate(out, test).metrics.nll == pytest.approx(report.comparison.after.nll, rel=1e-6)


@pytest.mark.parametrize(("name", "settings"), [*zip(LAYERS, itertools.cycle([TILTED, WALKED]), strict=False)])
def test_what_the_search_scores_is_what_the_file_gives(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    """The class vectors in the file, by definition: averages of turned vectors, which nothing normalises again."""
    model, calib, test = _made(tmp_path, name)
    out = tmp_path / "o.onnx"
    report = with_options(
        tna_onnx.calibrate, model, calib, eval=test, output=out, max_accuracy_drop=30, **settings | {"map": "none"}
    )
    assert report.angle > 0
    data = np.load(test)
    h = np.tanh(data["x"] @ TRUNK).astype(np.float64)
    head = choose_head(load_model(out))
    w = head.weight.astype(np.float64)
    expected = _unit(h) @ w.T
    if name == "expanded":
        # the graph adds the lengths of the old rows: class vectors turn, prototypes do not move
        expected = h @ w.T - (ROWS.astype(np.float64) ** 2).sum(axis=1) / 10
    actual = outputs_of(out, data["x"])["logits"].astype(np.float64)
    np.testing.assert_allclose(softmax(actual), softmax(expected), atol=1e-5)
    assert report.comparison.after.nll == pytest.approx(nll(actual, data["labels"]), rel=1e-6)
