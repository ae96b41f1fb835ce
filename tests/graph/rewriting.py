"""What the tests of rewriting share: a result beside its source, and what the written file has to compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tests.graph.samples import Array, Sample, assert_gives, run
from tna_onnx.graph.difference import unexpected_differences
from tna_onnx.graph.head import Head, choose_head
from tna_onnx.graph.load import Model
from tna_onnx.graph.rewrite import Rewritten, rewrite

__all__ = ["assert_computes", "differences", "drawn", "sizes", "write", "write_both"]


def write(model: Model, rewritten: Rewritten) -> Path:
    """Write the result beside its source, where external data are found."""
    path = model.path.with_name("result.onnx")
    path.write_bytes(rewritten.proto.SerializeToString())
    return path


def differences(model: Model, rewritten: Rewritten, path: Path) -> list[str]:
    return unexpected_differences(model, rewritten, onnx.load_model(path, load_external_data=False))


def drawn(head: Head) -> tuple[Array, Array]:
    """A weight and a bias of random numbers, as the head takes them."""
    rng = np.random.default_rng(12)
    weight = rng.standard_normal((head.n_classes, head.n_features))
    bias = rng.standard_normal(head.n_classes)
    return head.anchored(weight).astype(head.working_type), head.anchored(bias).astype(head.working_type)


def write_both(model: Model, weight: Array, bias: Array, head: Head | None = None) -> tuple[Path, set[str], set[str]]:
    """Write a new weight and a new bias; return the path, what changed and what is new."""
    rewritten = rewrite(model, head or choose_head(model), weight, bias=bias, metadata={})
    path = write(model, rewritten)
    assert differences(model, rewritten, path) == []
    onnx.checker.check_model(str(path), full_check=True)
    assert not rewritten.nodes
    return path, rewritten.changed, rewritten.added


def sizes(z: Array, weight: Array, bias: Array) -> Array:
    """Return the sums of the sizes of all terms, which bound the rounding of the logits."""
    return np.abs(z) @ np.abs(weight.astype(np.float64)).T + np.abs(bias)


def assert_computes(path: Path, sample: Sample, x: Array, z: Array, weight: Array, bias: Array) -> None:
    """Hold all outputs of a file, in ONNX Runtime and in ONNX's own evaluator, against those of weight and bias."""
    logits, size = z @ weight.astype(np.float64).T + bias, sizes(z, weight, bias)
    names = list(sample.outputs)
    evaluator = ReferenceEvaluator(onnx.load(path))
    for found in (run(path, names, x), evaluator.run(names, {"x": x})):
        for array, kind in zip(found, sample.outputs.values(), strict=True):
            assert_gives(np.asarray(array), kind, logits, size, sample.coarsest)
