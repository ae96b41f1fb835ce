"""A classifier with a head of 21,843 classes and little else, and samples that it labels itself.

Most labels are the most likely class, so that accuracy is that of a trained network; its logits are too large by a
factor of 1.5, which is what there is to find.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["write_large_head"]

INPUTS, FEATURES, CLASSES = 64, 1280, 21_843
SAMPLES = 2000
SHARPNESS = 1.5


def write_large_head(folder: Path, *, seed: int = 0) -> int:
    """Write `model.onnx`, `calib.npz` and `eval.npz` into a folder; return the bytes of the head's weight."""
    rng = np.random.default_rng(seed)
    hidden = (rng.standard_normal((INPUTS, FEATURES)) / INPUTS**0.5).astype(np.float32)
    weight = (rng.standard_normal((CLASSES, FEATURES)) * 12 / FEATURES**0.5).astype(np.float32)
    for name in ("calib", "eval"):
        x = rng.standard_normal((SAMPLES, INPUTS)).astype(np.float32)
        honest = np.maximum(x @ hidden, 0) @ weight.T
        labels = np.argmax(honest + rng.gumbel(size=honest.shape).astype(np.float32), axis=1)
        np.savez(folder / f"{name}.npz", x=x, labels=labels)
    weight *= np.float32(SHARPNESS)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "hidden"], ["h"]),
            helper.make_node("Relu", ["h"], ["z"]),
            helper.make_node("Gemm", ["z", "weight", "bias"], ["logits"], name="head", transB=1),
        ],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", INPUTS])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", CLASSES])],
        [
            numpy_helper.from_array(hidden, "hidden"),
            numpy_helper.from_array(weight, "weight"),
            numpy_helper.from_array(np.zeros(CLASSES, np.float32), "bias"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    return int(weight.nbytes)
