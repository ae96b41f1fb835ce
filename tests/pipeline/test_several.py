"""Models with several predictions a sample, from the command line to the written file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper

import tna_onnx
from tests.builders import nodes_of, small_model
from tests.pipeline.samples import outputs, recalibrated
from tests.support import ok, refused, with_options
from tna_onnx.errors import DataError, UnsupportedModel, UsageError
from tna_onnx.numerics.ops import softmax

N_FEATURES, CLASSES = 8, 4
RNG = np.random.default_rng(0)
WEIGHT = (1.5 * RNG.normal(size=(CLASSES, N_FEATURES))).astype(np.float32)
BIAS = RNG.normal(size=CLASSES).astype(np.float32)
TOO_LARGE = 3.0  # the models' logits are so many times those that the labels come from


def tokens(**fields: Any) -> Any:
    """A head behind a ReLU: (N, T, n) -> (N, T, C), with labels beside."""
    nodes = nodes_of("Relu x > z; MatMul z w > s name=head; Add s b > logits; ArgMax logits > label axis=2 keepdims=0")
    outputs = {"logits": ["N", "T", CLASSES], "label": (["N", "T"], np.int64)}
    return small_model(nodes, {"x": ["N", "T", N_FEATURES]}, outputs, {"w": WEIGHT.T, "b": BIAS}, **fields)


def pixels(batch: int | str = "N", *, resized: bool = False) -> Any:
    """A convolution over one pixel and a softmax over axis 1: (N, n, H, W) -> (N, C, H, W)."""
    nodes = [
        *nodes_of("Relu x > z; Conv z w b > s name=head"),
        helper.make_node("Resize", ["s", "", "scales"], ["r"], mode="linear") if resized else None,
        helper.make_node("Softmax", ["r" if resized else "s"], ["p"], axis=1),
    ]
    tensors: dict[str, Any] = {"w": WEIGHT[:, :, None, None], "b": BIAS}
    if resized:
        tensors["scales"] = np.ones(4, np.float32)
    inputs = {"x": [batch, N_FEATURES, "H", "W"]}
    return small_model([node for node in nodes if node], inputs, {"p": [batch, CLASSES, "H", "W"]}, tensors)


def samples(n: int, shape: tuple[int, ...], seed: int, *, classes_first: bool = False) -> dict[str, NDArray[Any]]:
    """Features that share a part within a sample, and labels; a quarter of the positions has none."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, *shape, N_FEATURES)) + rng.normal(size=(n, *[1] * len(shape), N_FEATURES))
    x = x.astype(np.float32)
    p = softmax_over((np.maximum(x, 0) @ WEIGHT.T + BIAS) / TOO_LARGE)
    labels = (p.cumsum(axis=-1) > rng.random((*p.shape[:-1], 1))).argmax(axis=-1)
    labels[rng.random(labels.shape) < 0.25] = -100
    return {"x": np.moveaxis(x, -1, 1) if classes_first else x, "labels": labels}


def write(path: Path, model: Any, **arrays: dict[str, NDArray[Any]]) -> Path:
    (path / "model.onnx").write_bytes(model.SerializeToString())
    for name, data in arrays.items():
        np.savez(path / f"{name}.npz", **data)
    return path / "model.onnx"


@pytest.mark.parametrize(
    ("kind", "name"), [("tokens", "ts"), ("tokens", "isotonic"), ("pixels", "bias"), ("pixels", "svs")]
)
def test_the_written_file_calibrates_every_position(kind: str, name: str, tmp_path: Path) -> None:
    """Unlabelled positions too, in its own layout; folded or appended."""
    first = kind == "pixels"
    shape = (5, 6) if first else (9,)
    calib, held_out = (samples(120, shape, seed, classes_first=first) for seed in (1, 2))
    model = pixels() if first else tokens()
    report, output = recalibrated(model, calib, tmp_path, eval=held_out, map=name, fold=name != "svs")
    before, after = (outputs(each, held_out["x"])[0] for each in (model, output))
    assert after.shape == before.shape
    axis = 1 if first else -1
    p, q = (each if first else softmax_over(each) for each in (before, after))
    np.testing.assert_allclose(q.sum(axis=axis), 1, atol=1e-5)
    # confidence falls to the accuracy; labels were drawn from logits that are a third of these
    own = np.take_along_axis(np.moveaxis(q, axis, -1), np.maximum(held_out["labels"], 0)[..., None], -1)[..., 0]
    there = held_out["labels"] != -100
    assert report.comparison.after.nll == pytest.approx(-np.log(own[there]).mean(), abs=1e-5)  # float32 logits of 10
    assert report.comparison.after.n == there.sum()
    assert report.comparison.after.ece < 0.5 * report.comparison.before.ece
    assert q.max(axis=axis)[~there].mean() < p.max(axis=axis)[~there].mean() - 0.05


def softmax_over(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Over the last axis, whatever the others."""
    return softmax(logits.reshape(-1, logits.shape[-1]).astype(np.float64)).reshape(logits.shape)


def test_labels_of_the_graph_follow_maps_that_keep_the_order(tmp_path: Path) -> None:
    data = samples(80, (9,), 1)
    _, output = recalibrated(tokens(), data, tmp_path, map="ets")
    logits, labels = outputs(output, data["x"])
    np.testing.assert_array_equal(labels, logits.argmax(axis=-1))


def test_a_fixed_batch_is_run_in_portions() -> None:
    data = samples(41, (5, 6), 1, classes_first=True)
    reports = [tna_onnx.calibrate(pixels(batch), data, map="ts", search="none") for batch in ("N", 4)]
    assert reports[0].comparison.after.nll == pytest.approx(reports[1].comparison.after.nll, abs=1e-6)


def test_what_stands_behind_the_layer_leaves_the_maps() -> None:
    """A Resize: only the graph computes the logits of the head, and a map goes behind them."""
    data = samples(60, (5, 6), 1, classes_first=True)
    model = pixels(resized=True)
    with pytest.raises(UnsupportedModel, match="only the graph computes its logits; use search='none'"):
        tna_onnx.calibrate(model, data, settings=tna_onnx.Settings(method="tna"))
    report = tna_onnx.calibrate(model, data, search="none", map="ts")
    assert report.head == ""
    assert report.comparison.after.nll < report.comparison.before.nll


def test_the_commands_agree(tmp_path: Path) -> None:
    model = write(tmp_path, tokens(), calib=samples(120, (9,), 1), test=samples(60, (9,), 2))
    output = tmp_path / "out.onnx"
    result = ok("calibrate", model, tmp_path / "calib.npz", "--eval", tmp_path / "test.npz", "-o", output)
    words = " ".join(result.output.split())
    assert "(120 samples, " in words
    assert "intervals and folds are over whole samples" in words
    evaluated = tna_onnx.evaluate(output, tmp_path / "test.npz").metrics
    compared = tna_onnx.compare([model, output], tmp_path / "test.npz").models[1].metrics
    moved = tna_onnx.verify(model, output, data=tmp_path / "test.npz")
    assert evaluated.n == compared.n == moved.outputs.samples
    assert evaluated.nll == compared.nll
    assert moved.intact
    assert moved.outputs.accuracy_after == pytest.approx(evaluated.accuracy)


@pytest.mark.parametrize(("dtype", "channel"), [("uint8", True), ("uint16", False)])
def test_masks_as_files_have_them(dtype: str, channel: bool, tmp_path: Path) -> None:
    """Unsigned, 255 where there is no label, and perhaps an axis for the one channel."""
    data = samples(60, (4, 3), 1, classes_first=True)
    masks = np.where(data["labels"] == -100, 255, data["labels"]).astype(dtype)
    masks = masks[:, None] if channel else masks
    model = write(tmp_path, pixels(), plain=data, masks={"x": data["x"], "labels": masks})
    expected = tna_onnx.evaluate(model, tmp_path / "plain.npz")
    found = tna_onnx.evaluate(model, tna_onnx.Data(tmp_path / "masks.npz", ignore_label=255))
    assert (found.metrics, found.metrics.n) == (expected.metrics, np.sum(data["labels"] != -100))
    words = ["--ignore-label", 255, "--search", "none", "--map", "ts", "-o", tmp_path / "o.onnx", "-q"]
    ok("calibrate", model, tmp_path / "masks.npz", *words)


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        ({"cache": "store"}, UsageError, "leave cache out"),
        ({"ignore_label": 0, "labels": np.zeros((80, 9))}, DataError, "every label is 0"),
        ({"labels": np.tile(np.arange(4), 20)}, DataError, "a label for each position"),
        ({"labels": np.random.default_rng(0).integers(0, 4, (80, 8))}, DataError, "a label for each position"),
        (
            {"labels": np.eye(4, dtype=int)[np.arange(720).reshape(80, 9) % 4]},
            DataError,
            r"shape \(64, 9, 4\); expected",
        ),
        ({"map": "aar"}, UnsupportedModel, "reads the features"),
    ],
)
def test_refusals(words: dict[str, Any], kind: type[Exception], message: str, tmp_path: Path) -> None:
    arguments = {"map": "ts", **words}
    if "cache" in words:
        arguments["cache"] = tmp_path / "store"
    with pytest.raises(kind, match=message):
        recalibrated(tokens(), samples(80, (9,), 1), tmp_path, **arguments)
    assert not (tmp_path / "o.onnx").exists()


def test_options_for_positions_need_a_model_with_several() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["logits"])]
    model = small_model(nodes, {"x": ["N", 8]}, {"logits": ["N", CLASSES]}, {"w": WEIGHT.T})
    data = {"x": np.zeros((40, 8), np.float32), "labels": np.arange(40) % 4}
    with pytest.raises(UsageError, match="several predictions a sample"):
        with_options(tna_onnx.evaluate, model, data, ignore_label=-1)


def sequence(length: int | str) -> Any:
    """A convolution along a sequence that gives logits: (N, n, P) -> (N, C, P)."""
    nodes = [helper.make_node("Relu", ["x"], ["z"]), helper.make_node("Conv", ["z", "w", "b"], ["logits"], name="head")]
    inputs = {"x": ["N", N_FEATURES, length]}
    outputs = {"logits": ["N", CLASSES, length]}
    return small_model(nodes, inputs, outputs, {"w": WEIGHT[:, :, None], "b": BIAS})


@pytest.mark.parametrize("length", [CLASSES, "P"])
def test_as_many_positions_as_classes(length: int | str, tmp_path: Path) -> None:
    """Both axes fit the labels: what the head told is written down for files that hold a map."""
    calib, held_out = (samples(120, (CLASSES,), seed, classes_first=True) for seed in (1, 2))
    report, output = recalibrated(sequence(length), calib, tmp_path, eval=held_out, map="svs", fold=False)
    assert report.comparison.before.accuracy > 0.5
    evaluation = tna_onnx.evaluate(output, held_out)
    assert evaluation.metrics.accuracy == report.comparison.after.accuracy
    assert evaluation.metrics.nll == pytest.approx(report.comparison.after.nll, abs=1e-6)


def test_an_axis_of_classes_that_nothing_tells_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Tanh", ["x"], ["logits"])]
    sizes = ["N", 4, 4]
    data = {"x": np.zeros((40, 4, 4), np.float32), "labels": np.arange(160).reshape(40, 4) % 4}
    model = write(tmp_path, small_model(nodes, {"x": sizes}, {"logits": sizes}, {}), data=data)
    said = "neither the nodes nor the shape tell which axis holds the classes"
    refused(3, said, "evaluate", model, tmp_path / "data.npz", "--output-kind", "logits")


@pytest.mark.parametrize("axis", [1, -1])
def test_a_declared_number_of_classes_tells_their_axis(axis: int) -> None:
    """As many positions as classes in the data, but the model declares the classes alone."""
    nodes = [helper.make_node("Identity", ["x"], ["logits"])]
    sizes = ["N", 4, "P"] if axis == 1 else ["N", "P", 4]
    model = small_model(nodes, {"x": sizes}, {"logits": sizes}, {})
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, (40, 4))
    x = np.moveaxis(np.eye(4, dtype=np.float32)[labels], -1, axis) * 3
    evaluation = with_options(tna_onnx.evaluate, model, {"x": x, "labels": labels}, output_kind="logits")
    assert evaluation.metrics.accuracy == 1


def test_a_network_that_quantises_each_batch(tmp_path: Path) -> None:
    """Dynamic quantisation: the check runs the batches that the features came from."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    nodes = nodes_of("MatMul x v > h name=hidden; Relu h > z; MatMul z w > logits name=head")
    hidden = np.eye(N_FEATURES, dtype=np.float32) + 0.1
    inputs = {"x": ["N", "T", N_FEATURES]}
    outputs = {"logits": ["N", "T", CLASSES]}
    plain = write(tmp_path, small_model(nodes, inputs, outputs, {"v": hidden, "w": WEIGHT.T}))
    model = tmp_path / "dynamic.onnx"
    quantization.quantize_dynamic(plain, model, nodes_to_exclude=["head"])
    calib = samples(150, (9,), 1)
    # one sample that is large: batches with it are quantised far more coarsely
    calib["x"][40] *= 30
    report = tna_onnx.calibrate(model, calib, search="none", map="ts", batch_size=7, output=tmp_path / "o.onnx")
    assert report.verification.samples > 100
