"""Heads that end in a cosine or a distance, end to end; the oracle is NumPy's definition beside ONNX Runtime."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import tna_onnx
from tests.builders import nodes_of, small_model
from tests.pipeline.samples import nll
from tests.support import PLAIN, TILTED, WALKED, outputs_of, with_options
from tna_onnx.graph.load import load_model
from tna_onnx.graph.scores import choose_head
from tna_onnx.numerics.ops import softmax

CLASSES, FEATURES, INPUTS, SCALE = 5, 24, 8, 12.0
Array = NDArray[Any]
_RNG = np.random.default_rng(7)
TRUNK = _RNG.standard_normal((INPUTS, FEATURES)).astype(np.float32)
ROWS = _RNG.standard_normal((CLASSES, FEATURES)).astype(np.float32)


def _cosine(in_graph: bool) -> tuple[str, dict[str, Array]]:
    """Normalised features times class vectors that are normalised by nodes, or before the export."""
    unit = "ReduceL2 h > length axes=[1] keepdims=1; Clip length tiny > kept; Div h kept > unit"
    if in_graph:
        turned = "ReduceL2 rows > lengths axes=[1] keepdims=1; Div rows lengths > d; Transpose d > turned perm=[1,0]"
        return f"{unit}; {turned}; MatMul unit turned > cosine; Mul cosine scale > logits", {"rows": ROWS}
    rows = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
    return f"{unit}; Gemm unit rows > cosine transB=1; Mul cosine scale > logits", {"rows": rows}


def _similarity() -> tuple[str, dict[str, Array]]:
    """Sum of products over the product of the lengths, as torch writes it."""
    nodes = (
        "Unsqueeze h one > many; Mul many rows > products; ReduceSum products last > sums keepdims=0; "
        "ReduceL2 h > length axes=[1] keepdims=1; Mul length lengths > both; Div sums both > cosine; "
        "Mul cosine scale > logits"
    )
    return nodes, {"rows": ROWS[None], "lengths": np.linalg.norm(ROWS, axis=1)[None]}


def _expanded() -> tuple[str, dict[str, Array]]:
    """-(|h|^2 - 2 h P^T + |P|^2) / 10."""
    nodes = (
        "Mul h h > squares; ReduceSum squares last > length keepdims=1; MatMul h rows > product; "
        "Mul product two > twice; Sub length twice > first; Add first lengths > distance; "
        "Div distance minus_ten > logits"
    )
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
    text, tensors = build()
    nodes = nodes_of(f"MatMul x trunk > m; Tanh m > h; {text}")
    numbers = {"scale": SCALE, "tiny": 1e-12, "two": 2, "minus_ten": -10, "trunk": TRUNK, **tensors}
    constants = {name: np.float32(value) for name, value in numbers.items()}
    constants |= {"one": np.array([1]), "last": np.array([-1])}
    used = {name: value for name, value in constants.items() if any(name in node.input for node in nodes)}
    proto = small_model(nodes, {"x": ["N", INPUTS]}, {"logits": ["N", CLASSES]}, used)
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
    report = tna_onnx.calibrate(model, calib, eval=test, output=out, **PLAIN)
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
