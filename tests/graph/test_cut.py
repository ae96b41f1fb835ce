"""The cut: the same numbers from less of the model."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.graph.samples import CASES, FEATURES, Array, Builder, Sample, run, tensors
from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.cut import cut_at, cut_between
from tna_onnx.graph.load import load_model
from tna_onnx.graph.scores import choose_head

INNER = {name: build for name, build in CASES.items() if name not in ("on the graph input", "external data")}


@pytest.mark.parametrize("build", [*INNER.values()][::3], ids=[*INNER][::3])
def test_cut_tensors_are_those_of_the_whole_model(build: Callable[[], Sample], tmp_path: Path) -> None:
    sample = build()
    model = sample.write(tmp_path)
    head, x, before = choose_head(model), sample.inputs(4), model.path.read_bytes()
    names = [head.features, head.logits]
    for found, expected in zip(run(cut_at(model, names), names, x), tensors(model, names, x), strict=True):
        np.testing.assert_array_equal(found, expected, strict=True)
    assert model.proto.SerializeToString() == before


def test_only_what_the_tensors_need_is_kept(tmp_path: Path) -> None:
    b = Builder()
    b.node("Softmax", b.linear("scores"), out="y")
    model = b.sample(bias_scale=1.0).write(tmp_path)
    cut = cut_at(model, ["features"])
    assert [node.op_type for node in cut.graph.node] == ["MatMul", "Relu"]
    assert [tensor.name for tensor in cut.graph.initializer] == ["trunk"]
    assert [info.name for info in cut.graph.input] == ["x"]
    assert (cut.opset_import, cut.ir_version) == (model.proto.opset_import, model.proto.ir_version)


# --- from the features on


def fed(model: onnx.ModelProto, output: str, feeds: dict[str, Array]) -> Array:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert {i.name for i in session.get_inputs()} == set(feeds)
    return np.asarray(session.run([output], feeds)[0])


def assert_tail_gives_the_logits(sample: Sample, folder: Path) -> None:
    """Compare the nodes behind the features, fed with them, with the whole model; rows in another number too."""
    model = sample.write(folder)
    before = model.proto.SerializeToString()
    head = choose_head(model)
    names = [head.features]
    whole = onnx.load(model.path)  # ONNX Runtime finds no external data beside bytes
    for count in (1, 6):
        x = sample.inputs(count, seed=count)
        *values, logits = tensors(model, [*names, head.logits], x)
        feeds = dict(zip(names, values, strict=True))
        cut = cut_between(whole, {name: value.dtype for name, value in feeds.items()}, [head.logits])
        found = fed(cut, head.logits, feeds)
        assert (found.dtype, found.shape) == (logits.dtype, logits.shape)
        # the runtime keeps more digits of float16 where it computes features and logits in one go
        bound = 16 * float(np.finfo(sample.coarsest).eps) * max(1.0, float(np.abs(logits).max()))
        np.testing.assert_allclose(found.astype(np.float64), logits.astype(np.float64), rtol=0, atol=bound)
    assert [o.name for o in cut.graph.output] == [head.logits]
    assert model.proto.SerializeToString() == before


@pytest.mark.parametrize("name", [*CASES][::3])
def test_the_tail_gives_the_logits_of_the_whole_model(name: str, tmp_path: Path) -> None:
    assert_tail_gives_the_logits(CASES[name](), tmp_path)


def _gated() -> Sample:
    """Logits times something that is computed beside the head from the data: a temperature of the sample."""
    b = Builder()
    b.node("Sigmoid", b.node("ReduceMax", "x", out="largest", axes=[1], keepdims=1), out="gate")
    b.node("Mul", b.linear("scores"), "gate", out="y")
    return b.sample()


def _gated_by_the_features() -> Sample:
    b = Builder()
    b.node("ReduceMax", "features", out="largest", axes=[1], keepdims=1)
    b.node("Mul", b.linear("scores"), b.node("Exp", b.node("Neg", "largest", out="minus"), out="gate"), out="y")
    return b.sample()


def _pooled() -> Sample:
    """Scores of three positions a sample, of which the largest counts."""
    b = Builder()
    tripled = b.node("Concat", "features", "trunk_out", "x", out="wide", axis=1)
    b.node("Reshape", tripled, b.store("to", [-1, 3, FEATURES], np.int64), out="positions")
    product = b.node("MatMul", "positions", b.store("weight", b.weight.T), out="product", name="head")
    b.node("ReduceMax", b.node("Add", product, b.store("bias", b.bias), out="scores"), out="y", axes=[1], keepdims=0)
    return b.sample(features="positions")


def _clipped() -> Sample:
    """Two steps that are not linear, one of them with a tensor from beside."""
    b = Builder()
    b.linear("scores")
    b.node("ReduceMean", "x", out="beside", axes=[1], keepdims=1)
    b.node("Clip", "scores", b.store("low", -1.0), b.store("high", 1.0), out="clipped")
    b.node("Mul", "clipped", "beside", out="y")
    return b.sample()


@pytest.mark.parametrize("build", [_gated_by_the_features, _pooled])
def test_a_tail_that_only_the_graph_computes(build: Callable[[], Sample], tmp_path: Path) -> None:
    sample = build()
    assert_tail_gives_the_logits(sample, tmp_path)
    head = choose_head(load_model(tmp_path / "model.onnx"))
    assert (head.linear, head.features) == (False, sample.features)


@pytest.mark.parametrize("build", [_gated, _clipped])
def test_a_tail_that_reads_more_of_the_data_has_no_features_alone(build: Callable[[], Sample], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="not computed from 'features' alone"):
        assert_tail_gives_the_logits(build(), tmp_path)
