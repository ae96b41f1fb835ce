"""Maps that read the features in the graph: of another type than the logits, or quantised."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import tna_onnx
from tests.corpus.forms import Graph
from tests.support import PLAIN

SAMPLES = 600


def _half(g: Graph) -> None:
    """A head in float16, whose logits are cast."""
    g.output(g.node("Cast", g.gemm(g.vector()), to=1), dtype=np.float32)


def _steps(g: Graph) -> None:
    """Quantised features and logits."""
    for_features, for_logits = (g.const(0.05), g.const(0, np.int8)), (g.const(0.1), g.const(0, np.int8))
    z = g.node("DequantizeLinear", g.node("QuantizeLinear", g.vector(), *for_features), *for_features)
    g.output(g.node("DequantizeLinear", g.node("QuantizeLinear", g.gemm(z), *for_logits), *for_logits))


@pytest.mark.parametrize("name", ["aar", "refit"])
@pytest.mark.parametrize(("fill", "dtype"), [(_half, "float16"), (_steps, "float32")])
def test_a_map_reads_features_of_any_type(fill: Callable[[Graph], None], dtype: str, name: str, tmp_path: Path) -> None:
    graph = Graph(dtype)
    fill(graph)
    path, written = tmp_path / "model.onnx", tmp_path / "new.onnx"
    path.write_bytes(graph.proto().SerializeToString())
    feeds: dict[str, Any] = graph.feeds(SAMPLES, np.random.default_rng(1))
    logits = np.asarray(onnxruntime.InferenceSession(str(path)).run(None, feeds)[0], np.float64)
    labels = (logits + 3 * np.random.default_rng(2).gumbel(size=logits.shape)).argmax(axis=1)
    np.savez(tmp_path / "calib.npz", labels=labels, **feeds)
    report = tna_onnx.calibrate(
        path, tmp_path / "calib.npz", output=written, max_accuracy_drop=20, **PLAIN | {"map": name}
    )
    assert report.map == name
    assert report.verification.max_difference <= report.verification.bound
    assert tna_onnx.verify(path, written).intact
