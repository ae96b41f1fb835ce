"""Inputs of text: from CSV, JSON Lines, Parquet, data frames and arrays, up to the output of the written pipeline."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.samples import gather, open_source, spec
from tests.support import ok
from tna_onnx.errors import DataError

CITIES = ["Oslo", " Åbo", "a, b", "Oslo", "NA ", "x\ny"]
CODES = ["0150", "1234", "0150", "7", "007", "7"]
SIZES = [1.5, 2, 3, 4, 5, 6]
LABELS = [0, 1, 0, 1, 0, 1]
INPUTS = [spec("city", (None, 1), object), spec("code", (None, 1), object), spec("size", (None, 1))]


def tables(folder: Path) -> dict[str, Any]:
    """The same samples in every form."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"size": SIZES, "code": CODES, "city": CITIES, "label": LABELS})
    frame.to_csv(folder / "t.csv", index=False)
    frame.to_json(folder / "t.jsonl", orient="records", lines=True)
    frame.to_parquet(folder / "t.parquet")
    frame.assign(city=frame.city.astype("category")).to_parquet(folder / "c.parquet")
    columns = {name: np.array(frame[name].tolist()) for name in frame}
    np.savez(folder / "t.npz", **{**{k: v[:, None] for k, v in columns.items()}, "size": np.float32(SIZES)[:, None]})
    return {
        **{file.name: file for file in folder.iterdir()},
        "frame": frame,
        "objects": frame.astype({"city": object, "code": object}),
        "categories": frame.assign(city=frame.city.astype("category")),
        "mapping": columns,
        "pair": (frame.drop(columns="label"), frame.label),
    }


def test_every_form_gives_the_text_as_it_is(tmp_path: Path) -> None:
    digests = []
    for name, data in tables(tmp_path).items():
        label = {} if name == "pair" else {"label_column": "label"}
        source = open_source(data, INPUTS, 2, **label)
        batch = gather(source, 4)
        assert batch["city"].tolist() == [[city] for city in CITIES], name
        assert batch["code"].tolist() == [[code] for code in CODES], name  # digits keep their zeros
        np.testing.assert_array_equal(batch["size"], np.float32(SIZES)[:, None])
        np.testing.assert_array_equal(source.labels, LABELS)
        digests.append(source.sample_digests().tolist())
        assert source.digest() == open_source(data, INPUTS, 2, **label).digest()
    assert len({*map(tuple, digests)}) == 1
    assert len({*digests[0]}) == len(CITIES)


def test_one_input_of_text(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"id": [5, 6], "body": ["yes", "no"], "label": [0, 1]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    for shape in ((None, 1), (None,)):
        for data in (frame, tmp_path / "t.csv"):
            values = gather(open_source(data, [spec("x", shape, object)], 2), 2)["x"]
            assert values.ravel().tolist() == ["yes", "no"]
            assert values.ndim == len(shape)
    # all columns, in the order of the table, numbers as their digits
    wide = gather(open_source(frame, [spec("x", (None, 2), object)], 2), 2)["x"]
    assert wide.tolist() == [["5", "yes"], ["6", "no"]]


@pytest.mark.parametrize(
    ("cities", "said"),
    [(["a", None, "b"], "in row 1"), (["a", "b", float("nan")], "in row 2"), ([1.5, 2.0, 3], "found 1.5")],
)
def test_cells_that_are_no_text_are_refused(tmp_path: Path, cities: list[Any], said: str) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"city": cities, "label": [0, 1, 1]})
    frame.to_parquet(tmp_path / "t.parquet")
    for data in (frame, tmp_path / "t.parquet"):
        with pytest.raises(DataError, match=r"city'.*expected text") as error:
            gather(open_source(data, [spec("city", (None, 1), object)], 2), 2)
        assert said in str(error.value)
    (tmp_path / "t.csv").write_text("city,label\na,0\n,1\n", "utf-8")
    with pytest.raises(DataError, match="found None in row 1"):
        gather(open_source(tmp_path / "t.csv", [spec("city", (None, 1), object)], 2), 2)


@pytest.mark.slow
def test_a_pipeline_on_a_data_frame_is_recalibrated(tmp_path: Path) -> None:
    """The new file against NumPy: the fitted weight times the encoded features, for each sample of the table."""
    pd = pytest.importorskip("pandas")
    ort = pytest.importorskip("onnxruntime")
    skl2onnx = pytest.importorskip("skl2onnx")
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "city": rng.choice(["Oslo", "Åbo", "Turku"], 900),
            "zip": rng.choice(["0150", "1234"], 900),
            "age": rng.integers(18, 90, 900),
            "income": rng.normal(50, 12, 900).astype(np.float32),
        }
    )
    score = (frame.city == "Oslo") * 2 - (frame.age - 50) / 20 + rng.logistic(size=900)
    frame["bought"] = np.where(score > 1, "yes", np.where(score > -1, "maybe", "no"))
    train, calib = frame[:200], frame[200:]
    features = train.drop(columns="bought")
    parts = [("text", OneHotEncoder(), ["city", "zip"]), ("number", StandardScaler(), ["age", "income"])]
    pipeline = make_pipeline(ColumnTransformer(parts), LogisticRegression(C=100)).fit(features, train.bought)
    model = skl2onnx.to_onnx(pipeline, features[:1], options={"zipmap": False})
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    calib.to_csv(tmp_path / "calib.csv", index=False)
    ok(
        "calibrate", tmp_path / "m.onnx", tmp_path / "calib.csv", "--label-column", "bought", "--map", "ts",
        "--search", "none", "--json", tmp_path / "r.json", "-o", tmp_path / "new.onnx",
    )  # fmt: skip
    feeds = {name: calib[[name]].to_numpy(object if calib[name].dtype == "str" else None) for name in features}
    _, before = ort.InferenceSession(tmp_path / "m.onnx").run(None, feeds)
    _, after = ort.InferenceSession(tmp_path / "new.onnx").run(None, feeds)
    np.testing.assert_allclose(before, pipeline.predict_proba(calib.drop(columns="bought")), atol=1e-5)
    # temperature: log p' is linear in log p, with one slope for all samples, and nothing else
    slopes = np.diff(np.log(after.astype(float)), axis=1) / np.diff(np.log(before.astype(float)), axis=1)
    np.testing.assert_allclose(slopes, np.median(slopes), rtol=2e-3)
    assert abs(np.median(slopes) - 1) > 0.01


def test_spaces_around_text_and_labels_of_csv(tmp_path: Path) -> None:
    """Census data have a space behind each comma, and models have learnt it; a label is its name without spaces."""
    (tmp_path / "t.csv").write_text("city, size, label\n Oslo, 1.5, yes\n Bergen, 2, no\nOslo,3, yes\n")
    for names in (None, ["no", "yes"], [" no", " yes"]):
        source = open_source(tmp_path / "t.csv", [INPUTS[0], INPUTS[2]], 2, class_names=names)
        assert gather(source, 2)["city"].tolist() == [[" Oslo"], [" Bergen"], ["Oslo"]]
        assert source.labels.tolist() == [1, 0, 1]
