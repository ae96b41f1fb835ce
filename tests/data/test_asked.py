"""What is asked of data: formats, options, requests; what a table does not say; samples without labels."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.samples import gather, open_source, spec, write_columns
from tna_onnx.data.choices import DEFAULT_LIMITS
from tna_onnx.data.formats import DATA_FORMATS, DataFormat, open_request, request_of
from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.data.labelfile import find_label_column, model_class_names
from tna_onnx.data.options import Data, Request
from tna_onnx.data.source import NO_LABELS, Source
from tna_onnx.data.sources.arrays import ArraySource, open_columns
from tna_onnx.data.sources.image_files import prepared_input
from tna_onnx.data.sources.table_inputs import Table, label_of
from tna_onnx.data.textfile import read_columns
from tna_onnx.errors import CheckFailed, DataError, UsageError

# --- The rows of the formats: complete, loadable, light; and a new source is its file and its row


def open_text(path: Path, request: Request) -> ArraySource:
    """Read a table of numbers, the label last."""
    rows = np.loadtxt(path, dtype=np.float32)
    columns = {request.inputs[0].name: rows[:, :-1]}
    return open_columns(f"text {path.name}", str(path), request, columns, rows[:, -1], hashed=lambda _: "digest")


def test_a_new_source_is_its_file_and_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATA_FORMATS, "text", DataFormat(open_text, files=(".dat",)))
    rows = np.random.default_rng(0).random((5, 4)).astype(np.float32)
    np.savetxt(tmp_path / "calib.dat", np.column_stack([rows, [0, 1, 2, 0, 1]]))
    source: Source = open_source(tmp_path / "calib.dat", [spec()], 3)
    np.testing.assert_allclose(gather(source, 2)["x"], rows, rtol=1e-6)
    assert source.labels.tolist() == [0, 1, 2, 0, 1]


# ---- `open_source` chooses by what the path is, and refuses what it cannot choose for


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.npz: no such file or folder"):
        open_source(tmp_path / "gone.npz", [spec()], 2)


@pytest.mark.parametrize(("name", "found"), [("calib.docx", r"\.docx"), ("calib", "no suffix")])
def test_other_files(tmp_path: Path, name: str, found: str) -> None:
    (tmp_path / name).write_text("0,1\n")
    with pytest.raises(DataError, match=rf"{name}: expected .* \.npz .* found {found}\. .* rename it"):
        open_source(tmp_path / name, [spec()], 2)


# --- `Data`: class names from where they are known, the checks of labels, and that `open` passes everything on


X = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_class_names_by_precedence(tmp_path: Path) -> None:
    metadata = {"names": "['cat', 'cow', 'dog']"}
    (tmp_path / "names.txt").write_text("a\nb\nc\n")
    assert model_class_names(Data(X, classes=tmp_path / "names.txt"), metadata, [], 3) == ("a", "b", "c")
    assert model_class_names(Data(X, classes=["x", "y", "z"]), metadata, ["p", "q", "r"], 3) == ("x", "y", "z")
    assert model_class_names(Data(X), metadata, ["p", "q", "r"], 3) == ("cat", "cow", "dog")
    assert model_class_names(Data(X), {}, ["p", "q", "r"], 3) == ("p", "q", "r")
    assert model_class_names(Data(X), metadata, [0, 1], 2) is None, (
        "other numbers of names, and labels that are indices"
    )


def test_stated_names_must_be_as_many_as_the_classes() -> None:
    with pytest.raises(UsageError, match=r"classes: 9 class names \('0', '1', .* for a model with 3"):
        model_class_names(Data(X, classes=[str(index) for index in range(9)]), {}, [], 3)


@pytest.mark.parametrize("expected", [-1, 100.5])
def test_an_expected_accuracy_is_a_percentage(expected: object) -> None:
    with pytest.raises(UsageError, match="expect_accuracy must be from 0 to 100, in per cent"):
        Data(X, expect_accuracy=expected)  # type: ignore[arg-type]


def test_the_expected_accuracy_is_checked_with_its_standard_error() -> None:
    data = Data(X, expect_accuracy=76)
    data.check_accuracy(0.752, 10_000)
    with pytest.raises(CheckFailed, match=r"accuracy is 75\.00 % .*; check the preprocessing"):
        data.check_accuracy(0.75, 10_000)
    with pytest.raises(CheckFailed, match="; look there"):
        data.check_accuracy(0.75, 10_000, "look there")
    Data(X).check_accuracy(0.0, 10_000)


def test_open_passes_everything_on(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=X)
    (tmp_path / "labels.csv").write_text("class,label\n0,dog\n0,cat\n0,dog\n")
    data = Data(tmp_path / "x.npz", tmp_path / "labels.csv", label_column="label")
    source = open_request(request_of(data, [spec()], 2, ("cat", "dog")))
    assert source.labels.tolist() == [1, 0, 1]
    np.testing.assert_array_equal(gather(source, 2)["x"], X)


# --- What a request refuses before anything is read


IMAGE = spec("image", (None, 3, 8, 8))


def test_the_only_input_takes_images() -> None:
    request = Request(inputs=[IMAGE], n_classes=3, preprocessing=Recipe(scale=1.0))
    name, resolved = prepared_input(request, "calib")
    assert (name, resolved.layout, resolved.scale) == ("image", "NCHW", 1.0)
    with pytest.raises(DataError, match="calib: images need a model with one input"):
        prepared_input(Request(inputs=[IMAGE, spec()], n_classes=3), "calib")


# --- What a table does not say is refused, and what is asked for is never ignored


LABELS = [0, 1, 2, 0, 1]
TWO = [spec("X", (None, 2))]


def columns(**more: Any) -> dict[str, Any]:
    return {"a": [0.1, 0.2, 0.3, 0.4, 0.5], "b": [5.0, 6.0, 7.0, 8.0, 9.0], **more, "label": LABELS}


def values(source: Any) -> np.ndarray:
    (batch,) = source.batches(len(source))
    return np.asarray(batch["X"])


@pytest.mark.parametrize("option", [{"columns": ["a"]}, {"tokenizer": "folder"}], ids=["columns", "tokenizer"])
def test_what_only_tables_have_is_refused_elsewhere(tmp_path: Path, option: dict[str, Any]) -> None:
    x = np.zeros((5, 2), np.float32)
    np.savez(tmp_path / "d.npz", X=x, labels=LABELS)
    for data in (tmp_path / "d.npz", (x, LABELS), {"X": x, "labels": LABELS}, [(x, LABELS)]):
        with pytest.raises(UsageError, match="a table"):
            open_source(data, TWO, 3, **option)


def test_a_column_is_named_once() -> None:
    with pytest.raises(DataError, match="--columns names 'a' several times"):
        open_source(columns(), TWO, 3, columns=["a", "a"])


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64 - 1, -(2**63)])
def test_whole_numbers_keep_their_digits(tmp_path: Path, number: int) -> None:
    path = write_columns(tmp_path / "d.csv", {"id": [number, 1]})
    assert read_columns(path, DEFAULT_LIMITS)["id"].tolist() == [number, 1]
    (tmp_path / "d.json").write_text(json.dumps([{"id": number}, {"id": 1}]), encoding="utf-8")
    assert read_columns(tmp_path / "d.json", DEFAULT_LIMITS)["id"].tolist() == [number, 1]


@pytest.mark.parametrize("power", [63, 70, 2000])
def test_numbers_too_large_for_any_dtype_are_features_or_refused_labels(power: int) -> None:
    large = np.array([2**power + k for k in range(5)], object)
    source = open_source(columns(id=large), TWO, 3, columns=["a", "b"])
    np.testing.assert_allclose(values(source)[0], [0.1, 5.0])
    with pytest.raises(DataError, match="label"):
        open_source({**columns(), "label": large}, TWO, 3)


@pytest.mark.parametrize("names", [["x", "y", "kind"], ["x0", "y", "x1"], ["y", "x", "z"]])
def test_y_may_be_a_feature(names: list[str]) -> None:
    with pytest.raises(DataError, match="'y' may be the label or a feature"):
        find_label_column(names, None, "d.csv")
    assert find_label_column(names, "y", "d.csv") == "y"


@pytest.mark.parametrize("names", [["x", "y"], ["x0", "x1", "y"], ["y", "x0", "x1"]])
def test_y_at_an_end_is_the_label(names: list[str]) -> None:
    assert find_label_column(names, None, "d.csv") == "y"


def test_a_column_like_the_input_is_not_the_input_of_several() -> None:
    """`x` and `X` are one name, but one number a row does not fill two."""
    source = open_source({"x": [0.1, 0.2], "w": [1.0, 2.0], "label": [0, 1]}, TWO, 3)
    np.testing.assert_allclose(values(source), [[0.1, 1.0], [0.2, 2.0]])


@pytest.mark.parametrize("name", ["id", "ID", "user_id", "index", "row"])
def test_row_numbers_are_no_features_where_any_number_of_columns_fits(name: str) -> None:
    table = columns(**{name: range(5)})
    with pytest.raises(DataError, match=f"'{name}' may not be a feature"):
        open_source(table, [spec("X", (None, None))], 3)
    source = open_source(table, [spec("X", (None, None))], 3, columns=["a", "b"])
    assert values(source).shape == (5, 2)
    # the model says how many it takes: so many it gets
    assert values(open_source(table, [spec("X", (None, 3))], 3)).shape == (5, 3)


# --- Samples without labels


@pytest.mark.parametrize(("name", "column"), [("target", None), ("class", None), ("species", "species")])
def test_a_column_of_labels_is_no_feature(tmp_path: Path, name: str, column: str | None) -> None:
    rows = [f"a,b,c,{name}", *(f"{k},{k + 1},{k + 2},{k % 2}" for k in range(4))]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(rows))
    source = open_source(path, [spec("x", (None, 3))], 2, labels=NO_LABELS, label_column=column)
    np.testing.assert_array_equal(next(source.batches(4))["x"][0], [0, 1, 2])
    with pytest.raises(DataError, match="4"):  # and is none that fills up an input
        open_source(path, [spec("x", (None, 4))], 2, labels=NO_LABELS, label_column=column)


def test_a_column_of_many_texts_is_not_read_whole_for_an_advice() -> None:
    read = []

    def parts(names: Any) -> Any:
        for start in range(0, 100, 10):
            read.append(start)
            yield {names[0]: np.array([f"text {row}" for row in range(start, start + 10)], object)}

    table = Table("captions", {"caption": "text", "x": "list", "more": "other"}, parts)
    with pytest.raises(DataError, match="name the one with --label-column"):
        label_of(table, Request(inputs=[spec()], n_classes=3, class_names=["a", "b", "c"]))
    assert read == [0, 10]
