"""`FeatureExtractor`: the features that the model computes, whatever carries it and however the data are cut."""

import io
import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tests.builders import nodes_of, small_model, tensor_info
from tests.conftest import ROOT
from tests.extraction.samples import BIAS, CPU, WEIGHT, dense, inputs, opened
from tna_onnx import FeatureExtractor
from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.data.options import Data
from tna_onnx.errors import DataError, UsageError
from tna_onnx.extraction.classifier import OpenModel
from tna_onnx.extraction.opened_samples import Samples, open_samples
from tna_onnx.graph.rewrite import rewrite
from tna_onnx.maps.temperature import Temperature

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
    nodes = nodes_of("MatMul x a > h; Relu h > z; Gemm z w b > logits name=head")
    shapes = {"a": (3, 4), "w": (4, 2), "b": (2,)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    onnx.save(small_model(nodes, {"x": ["N", 3]}, {"logits": ["N", 2]}, weights), path)
    return path


def test_an_input_of_several_columns(tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((30, 3))
    table = {name: values[:, k] for k, name in enumerate("abc")} | {"label": np.zeros(30, np.int64)}
    path = linear_model(tmp_path / "m.onnx")
    result = FeatureExtractor(path, columns=["a", "b", "c"], device="cpu")(table)
    assert set(result) == {"label", "features"}
    direct = FeatureExtractor(path, device="cpu")({"x": values.astype(np.float32)})
    np.testing.assert_array_equal(result["features"], direct["features"])


def test_a_column_of_numbers_for_each_input() -> None:
    nodes = nodes_of("Concat a b > x axis=1; MatMul x w > logits")
    sides = [tensor_info("a", ["N", 1]), tensor_info("b", ["N", 1])]
    model = small_model(nodes, sides, [tensor_info("logits", ["N", 3])], {"w": np.eye(2, 3, dtype=np.float32)})
    values = np.random.default_rng(1).standard_normal((30, 2)).astype(np.float32)
    expected = FeatureExtractor(model)({"a": values[:, :1], "b": values[:, 1:]})["features"]
    np.testing.assert_array_equal(expected, values)
    for dtype in (np.float32, np.float64):
        batch = {name: values[:, k].astype(dtype) for k, name in enumerate("ab")}
        np.testing.assert_array_equal(FeatureExtractor(model)(batch)["features"], expected)
    with pytest.raises(DataError, match="finite number of float32, found nan in row 0"):
        FeatureExtractor(model)({"a": np.full(30, np.nan), "b": values[:, 1]})
    with pytest.raises(DataError, match="expected columns by name, a mapping or a data frame, got ndarray"):
        FeatureExtractor(model)(values)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="has no rows"):
        FeatureExtractor(model)({"a": values[:0, 0], "b": values[:0, 1]})
    assert FeatureExtractor(model, columns="ab").columns == ("ab",)


def test_encoded_images_and_pixels_are_one(tmp_path: Path) -> None:
    """A recipe is applied to what Ray, Spark and Hugging Face datasets hold: bytes, pixels, or both in a mapping."""
    pillow = pytest.importorskip("PIL.Image")
    weight = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    nodes = nodes_of("GlobalAveragePool x > p; Flatten p > z; Gemm z w > logits name=head transB=1")
    path = tmp_path / "m.onnx"
    onnx.save(small_model(nodes, {"x": ["N", 3, "H", "W"]}, {"logits": ["N", 2]}, {"w": weight}), path)
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
    with pytest.raises(DataError, match="rows of different shapes"):
        made({"image": [pixels[0], pixels[1, 1:]]})


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


# --- Where samples enter a graph: what is given, as which tensor, and the written file run from there


def enter(model: OpenModel, **arrays: np.ndarray) -> Samples:
    return open_samples(model, Data({**arrays, "labels": np.arange(20) % 3}))


def batch_of(samples: Samples) -> dict[str, np.ndarray]:
    return next(samples.source.batches(20))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_features_enter_at_the_head_in_its_dtype(dtype: type) -> None:
    model = opened(dense(dtype))
    samples = enter(model, features=inputs(20).astype(dtype))
    assert samples.given == {"z": np.dtype(dtype)}
    assert samples.readout is model.readout
    np.testing.assert_array_equal(batch_of(samples)["z"], inputs(20).astype(dtype))


def test_features_of_another_length_are_refused() -> None:
    with pytest.raises(DataError, match="features have 7 columns; expected 6"):
        enter(opened(dense()), features=inputs(20, 7))


@pytest.mark.parametrize("entered", ["x", "features", "logits"])
def test_a_written_file_is_run_from_where_the_samples_enter(tmp_path: Path, entered: str) -> None:
    """A weight twice as large; logits that were given are what the file would give without a change."""
    model = opened(dense(softmax=True))
    onnx.save(rewrite(model.model, model.readout, 2 * WEIGHT, metadata={}).proto, tmp_path / "o.onnx")
    samples = enter(model, **{entered: inputs(20, 3 if entered == "logits" else 6)})
    batch = batch_of(samples)
    (p,) = samples.open_written(tmp_path / "o.onnx", "p", CPU).run(["p"], batch)
    logits = inputs(20, 3)
    if entered != "logits":
        z = np.maximum(inputs(20), 0) if entered == "x" else inputs(20)
        logits = z @ (2 * WEIGHT).T + BIAS
    powers = np.exp(logits.astype(np.float64))
    np.testing.assert_allclose(p, powers / powers.sum(axis=1, keepdims=True), atol=1e-5)


def test_given_logits_enter_in_front_of_an_appended_map(tmp_path: Path) -> None:
    model = opened(dense())
    proto = rewrite(model.model, model.readout, None, write_map=Temperature(2.0).forward, metadata={}).proto
    onnx.save(proto, tmp_path / "o.onnx")
    logits = inputs(20, 3)
    samples = enter(model, logits=logits)
    (mapped,) = samples.open_written(tmp_path / "o.onnx", "logits", CPU).run(["logits"], batch_of(samples))
    np.testing.assert_allclose(mapped, logits / 2, rtol=1e-6)


def test_an_output_that_is_given_needs_no_session(tmp_path: Path) -> None:
    onnx.save(dense(), tmp_path / "o.onnx")
    samples = enter(opened(dense()), logits=inputs(20, 3))
    batch = batch_of(samples)
    runner = samples.open_written(tmp_path / "o.onnx", "logits", CPU)
    assert runner.run(["logits"], batch)[0] is batch["logits"]
