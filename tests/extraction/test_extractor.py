"""`FeatureExtractor`: the features that the model computes, whatever carries it and however the data are cut."""

from __future__ import annotations

import io
import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.conftest import ROOT
from tna_onnx import DataError, FeatureExtractor, Recipe, UsageError

DIGITS = ROOT / "models/digits"
N = 200


def digits() -> dict[str, Any]:
    """Return images, labels and keys."""
    with np.load(DIGITS / "calib.npz") as file:
        name = next(each for each in file.files if each != "labels")
        return {"image": file[name][:N], "label": file["labels"][:N], "key": np.arange(N)}


def extractor(**options: Any) -> FeatureExtractor:
    return FeatureExtractor(DIGITS / "model.onnx", **{"columns": ["image"], "device": "cpu", **options})


def model_outputs(images: np.ndarray, tensor: str) -> np.ndarray:
    """Run the model by hand up to a tensor: the oracle."""
    model = onnx.load(DIGITS / "model.onnx")
    model.graph.output.append(helper.make_empty_tensor_value_info(tensor))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run([tensor], {session.get_inputs()[0].name: images})[0]


def test_features_are_the_models_and_other_columns_pass() -> None:
    batch = digits()
    made = extractor()
    result = made(batch)
    assert set(result) == {"label", "key", "features"}
    assert result["label"] is batch["label"]
    expected = model_outputs(batch["image"], made.describe()["tensor"])
    np.testing.assert_allclose(result["features"], expected.reshape(N, -1), rtol=1e-5, atol=1e-5)


def test_logits_are_the_models() -> None:
    made = extractor(kind="logits")
    expected = model_outputs(digits()["image"], made.describe()["tensor"])
    np.testing.assert_allclose(made(digits())["logits"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cuts", [[N], [1, 2, 3, 130], [64, 128], [63, 64, 65]])
def test_the_bits_do_not_depend_on_how_the_data_are_cut(cuts: list[int]) -> None:
    batch = digits()
    expected = extractor()(batch)["features"]
    made = extractor()
    bounds = [0, *cuts, N]
    parts = [
        made({name: column[start:stop] for name, column in batch.items()})["features"]
        for start, stop in itertools.pairwise(bounds)
        if stop > start
    ]
    np.testing.assert_array_equal(np.concatenate(parts), expected, strict=True)


def test_it_travels_without_its_session() -> None:
    made = extractor()
    fresh = pickle.dumps(made)
    first = made(digits())["features"]
    assert len(pickle.dumps(made)) == len(fresh)
    np.testing.assert_array_equal(pickle.loads(fresh)(digits())["features"], first)
    content = FeatureExtractor((DIGITS / "model.onnx").read_bytes(), columns=["image"], device="cpu")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(content))(digits())["features"], first)


def test_nothing_is_opened_before_the_first_call() -> None:
    made = FeatureExtractor("none.onnx", head="fc")
    assert repr(made) == "FeatureExtractor('none.onnx', head='fc')"
    with pytest.raises(UsageError, match=r"none\.onnx"):
        made(digits())


def test_rows_that_are_arrays_themselves() -> None:
    """Engines give columns of several numbers as arrays of objects."""
    batch = digits()
    rows = np.empty(N, object)
    rows[:] = list(batch["image"])
    result = extractor()({**batch, "image": rows})
    np.testing.assert_array_equal(result["features"], extractor()(batch)["features"])


def linear_model(path: Path) -> Path:
    """Write a model of one input with 3 numbers, features of 4 and 2 classes."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("Relu", ["h"], ["z"]),
        helper.make_node("Gemm", ["z", "w", "b"], ["logits"], name="head"),
    ]
    shapes = {"a": (3, 4), "w": (4, 2), "b": (2,)}
    weights = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 2])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_an_input_of_several_columns(tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((30, 3))
    table = {name: values[:, k] for k, name in enumerate("abc")} | {"label": np.zeros(30, np.int64)}
    path = linear_model(tmp_path / "m.onnx")
    result = FeatureExtractor(path, columns=["a", "b", "c"], device="cpu")(table)
    assert set(result) == {"label", "features"}
    direct = FeatureExtractor(path, device="cpu")({"x": values.astype(np.float32)})
    np.testing.assert_array_equal(result["features"], direct["features"])


def test_encoded_images_and_pixels_are_one(tmp_path: Path) -> None:
    """A recipe is applied to what Ray, Spark and Hugging Face datasets hold: bytes, pixels, or both in a mapping."""
    pillow = pytest.importorskip("PIL.Image")
    weight = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["p"]),
        helper.make_node("Flatten", ["p"], ["z"]),
        helper.make_node("Gemm", ["z", "w"], ["logits"], name="head", transB=1),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 2])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(weight, "w")])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    pixels = np.random.default_rng(1).integers(0, 256, (5, 8, 8, 3), np.uint8)
    encoded = []
    for image in pixels:
        file = io.BytesIO()
        pillow.fromarray(image).save(file, "PNG")
        encoded.append(file.getvalue())
    made = FeatureExtractor(path, preprocessing=Recipe(scale=1.0), columns=["image"], device="cpu")
    expected = pixels.astype(np.float64).mean(axis=(1, 2))
    columns = [pixels, encoded, [{"bytes": content, "path": None} for content in encoded]]
    columns.append([pillow.fromarray(image) for image in pixels])
    for column in columns:
        np.testing.assert_allclose(made({"image": column})["features"], expected, rtol=1e-5)
    with pytest.raises(DataError, match="uint8 pixels"):
        made({"image": [np.zeros((8, 8, 3), np.float32)]})
    with pytest.raises(DataError, match="cannot be read as an image"):
        made({"image": [b"no image"]})


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"pixels": np.zeros((2, 3))}, "no column 'x'; expected x, got pixels"),
        ({"x": np.zeros((2, 5), np.float32)}, "column 'x'"),
        ({"x": np.full((2, 3), np.nan, np.float32)}, "NaN"),
        ({"x": np.zeros((2, 3), np.float32), "features": np.zeros(2)}, "column 'features' already"),
    ],
)
def test_batches_that_do_not_fit(tmp_path: Path, batch: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        FeatureExtractor(linear_model(tmp_path / "m.onnx"), device="cpu")(batch)
