"""An output of a coarser type than the logits: its rounding is no error of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tna_onnx
from tests.builders import small_model, tensor_info

F16, F32 = TensorProto.FLOAT16, TensorProto.FLOAT


def _cast(source: str, target: str, to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], to=to)


def _softmax(source: str, target: str, kind: str = "Softmax") -> onnx.NodeProto:
    return helper.make_node(kind, [source], [target], axis=1)


FORMS = {
    "probabilities": ([_softmax("s", "p"), _cast("p", "o", F16)], np.float16, 1e-3),
    "probabilities, cast back": ([_softmax("s", "p"), _cast("p", "q", F16), _cast("q", "o", F32)], np.float32, 1e-3),
    "log-probabilities": ([_softmax("s", "p", "LogSoftmax"), _cast("p", "o", F16)], np.float16, 3e-3),
    "of rounded logits": ([_cast("s", "h", F16), _softmax("h", "o")], np.float16, 0.05),
    "logits": ([_cast("s", "o", F16)], np.float16, 0.05),
}


@pytest.fixture(scope="module")
def weight() -> np.ndarray:
    return 3 * np.random.default_rng(5).standard_normal((5, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def data(weight: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((1000, 8)).astype(np.float32)
    labels = np.argmax(x @ weight.T / 6 + rng.gumbel(size=(1000, 5)), axis=1)
    path = tmp_path_factory.mktemp("types") / "data.npz"
    np.savez(path, x=x, labels=labels)
    return path


@pytest.mark.parametrize("form", FORMS)
def test_rounding_of_the_output_is_no_error(form: str, weight: np.ndarray, data: Path, tmp_path: Path) -> None:
    nodes, dtype, most = FORMS[form]
    head = helper.make_node("Gemm", ["x", "w"], ["s"], name="head", transB=1)
    outputs = [tensor_info("o", ["N", 5], dtype)]
    model = tmp_path / "m.onnx"
    onnx.save(small_model([head, *nodes], [tensor_info("x", ["N", 8])], outputs, {"w": weight}), model)
    for name in ("ts", "ets"):
        found = tna_onnx.calibrate(model, data, dry_run=True, map=name, search="none", device="cpu").verification
        assert found.max_difference <= found.bound <= most
    tna_onnx.shift(model, data, target_prior="uniform", dry_run=True, device="cpu")
