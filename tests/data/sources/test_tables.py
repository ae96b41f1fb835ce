"""Parquet and Arrow: columns, labels, images, and that rows are not all loaded."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.samples import encoded, gather, noise, open_source, spec
from tna_onnx.data.options import FeatureFields, Request
from tna_onnx.data.source import Source
from tna_onnx.data.sources.arrays import ArraySource
from tna_onnx.data.sources.slices import plain_tables, table_slices
from tna_onnx.data.sources.tables import TableFiles, find_table_files
from tna_onnx.errors import DataError, UsageError

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

IMAGE = spec("pixels", (None, 3, 5, 6))
X = np.random.default_rng(0).random((6, 4), np.float32)
LABELS = np.array([0, 1, 2, 0, 1, 2])
WRITERS = ["parquet", "arrow", "feather", "ipc"]


def write(path: Path, table: Any) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=4)
    elif path.suffix == ".feather":  # compressed by default
        import pyarrow.feather

        pyarrow.feather.write_feather(table, path, chunksize=4)
    else:
        make = pa.ipc.new_stream if path.suffix == ".arrow" else pa.ipc.new_file
        with make(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    return path


def rows(values: np.ndarray, kind: Any = None) -> Any:
    return pa.array(list(values), kind or pa.list_(pa.float32()))


def opened(path: Path, *inputs: Any, n_classes: int = 3, **options: Any) -> Source:
    return open_source(path, inputs or [spec()], n_classes, **options)


def refusal(path: Path, *inputs: Any, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        opened(path, *inputs, **options)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_truth_values_are_the_classes_of_that_name(tmp_path: Path) -> None:
    """As in CSV and in data frames, whichever of the two the model has first."""
    path = write(tmp_path / "calib.parquet", pa.table({"x": rows(X), "label": LABELS > 0}))
    for names in (["True", "False"], ["false", "true"]):
        source = opened(path, n_classes=2, class_names=names)
        assert [names[label].lower() for label in source.labels] == [str(label > 0).lower() for label in LABELS]
    assert "labels are True and False" in refusal(path, n_classes=2, class_names=["cat", "dog"])


# ---- numbers ----


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("name", ["x", "embedding"])
def test_lists(tmp_path: Path, kind: str, name: str) -> None:
    path = write(tmp_path / f"calib.{kind}", pa.table({name: rows(X), "label": LABELS}))
    source = opened(path)
    np.testing.assert_array_equal(gather(source, 4)["x"], X, strict=True)
    np.testing.assert_array_equal(gather(source, 3, np.array([5, 0, -2, 0]))["x"], X[[5, 0, -2, 0]])
    np.testing.assert_array_equal(source.labels, LABELS)
    assert source.describe() == f"table calib.{kind} (6 samples of 3 classes)"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint8", "int64", "bool"])
def test_types_and_scalars(tmp_path: Path, dtype: str) -> None:
    values = (10 * X[:, 0]).astype(dtype)
    path = write(tmp_path / "calib.parquet", pa.table({"x": pa.array(values), "labels": LABELS}))
    joined = gather(opened(path, spec("x", (None,), dtype)), 4)["x"]
    np.testing.assert_array_equal(joined, values, strict=True)


@pytest.mark.parametrize("form", ["lists", "large lists", "fixed", "tensors"])
def test_nested_lists(tmp_path: Path, form: str) -> None:
    cubes = np.random.default_rng(1).random((6, 2, 3, 4)).astype(np.float32)
    if form == "tensors":
        column = pa.FixedShapeTensorArray.from_numpy_ndarray(cubes)
    else:
        make = {"lists": pa.list_, "large lists": pa.large_list, "fixed": pa.list_}[form]
        sizes = (4, 3, 2) if form == "fixed" else (-1, -1, -1)
        kind = pa.float32()
        for size in sizes:
            kind = make(kind) if size < 0 else make(kind, size)
        column = pa.array(cubes.tolist(), kind)
    path = write(tmp_path / "calib.arrow", pa.table({"x": column, "label": LABELS}))
    wanted = spec("x", (None, 2, None, 4))
    np.testing.assert_array_equal(gather(opened(path, wanted), 4)["x"], cubes, strict=True)


def test_lists_are_converted_as_single_numbers_are(tmp_path: Path) -> None:
    """pandas writes lists as float64 or int64, whatever the model takes."""
    for values in (X.astype(np.float64), np.arange(24).reshape(6, 4)):
        path = write(tmp_path / "a.parquet", pa.table({"x": pa.array(values.tolist()), "label": LABELS}))
        np.testing.assert_array_equal(gather(opened(path), 4)["x"], values.astype(np.float32), strict=True)
    for value, said in {2**24 + 1: "16777217 does not fit into float32", 1e300: "1e+300 does not fit"}.items():
        path = write(tmp_path / "a.parquet", pa.table({"x": pa.array([[value] * 4] * 6), "label": LABELS}))
        assert said in refusal(path)
    pixels = pa.array([[1, 2, 3, 255]] * 6, pa.list_(pa.uint8()))
    path = write(tmp_path / "a.parquet", pa.table({"x": pixels, "label": LABELS}))
    assert "expected dtype float32, found uint8" in refusal(path)


def test_several_inputs_by_name(tmp_path: Path) -> None:
    ids = np.random.default_rng(2).integers(0, 99, (6, 5))
    mask = np.ones((6, 5), np.int32)
    columns = {"input_ids": rows(ids, pa.list_(pa.int64())), "attention_mask": rows(mask, pa.list_(pa.int32()))}
    path = write(tmp_path / "calib.parquet", pa.table({"text": ["a"] * 6, **columns, "label": LABELS}))
    inputs = [spec("input_ids", (None, None), np.int64), spec("attention_mask", (None, None), np.int64)]
    joined = gather(opened(path, *inputs), 4)
    np.testing.assert_array_equal(joined["input_ids"], ids, strict=True)
    np.testing.assert_array_equal(joined["attention_mask"], mask.astype(np.int64), strict=True)


def test_a_folder_of_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name, part in {"b.parquet": slice(2, 6), "a.parquet": slice(0, 2)}.items():
        write(tmp_path / name, pa.table({"x": rows(X[part]), "label": LABELS[part]}))
    write(tmp_path / "_common.parquet", pa.table({"y": [1]}))  # of an engine: hidden, as in folders of features
    np.testing.assert_array_equal(gather(opened(tmp_path), 3)["x"], X)
    for name in "ab":
        (tmp_path / f"{name}.parquet").unlink()
    assert "begin with '.' or '_'" in refusal(tmp_path)


def test_what_is_no_file_in_a_folder_of_tables_is_not_left_out(tmp_path: Path) -> None:
    def pipe(path: Path) -> None:
        getattr(os, "mkfifo", Path.mkdir)(path)

    for number, make in enumerate((Path.mkdir, pipe, lambda path: path.symlink_to(path.with_name("gone")))):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(folder / "a.parquet", pa.table({"x": rows(X), "label": LABELS}))
        make(folder / "b.parquet")
        refusal(folder)
        with pytest.raises(DataError, match=r"b\.parquet"):
            table_slices(*drawn_from(folder), FeatureFields())


def test_a_parquet_file_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    """An error: of a mapped file, the rest would end the process."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.random.default_rng(0).random(200_000)}), path, row_group_size=20_000)
    files = find_table_files(str(path))
    assert files is not None
    batches = files.batches(str(path), ["x"])
    next(batches)
    os.truncate(path, path.stat().st_size // 4)
    with pytest.raises(DataError, match="cannot be read as a table"):
        list(batches)


def test_one_file_of_any_name(tmp_path: Path) -> None:
    write(tmp_path / "ab.parquet", pa.table({"x": rows(X), "label": LABELS}))
    for name in ("_a.parquet", ".a.parquet", "a*.parquet"):
        path = write(tmp_path / name, pa.table({"x": rows(X[:2]), "label": LABELS[:2]}))
        assert len(opened(path)) == 2
        slices, *_ = table_slices(*drawn_from(path), FeatureFields())
        assert sum(map(len, slices)) == 2


def drawn_from(path: Path) -> tuple[TableFiles, Request]:
    request = Request(path, inputs=[spec()], n_classes=3)
    files = plain_tables(request)
    assert files is not None
    return files, request


def test_files_with_other_columns(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pa.table({"x": rows(X), "label": LABELS}))
    write(tmp_path / "b.parquet", pa.table({"x": rows(X, pa.list_(pa.float64())), "label": LABELS}))
    assert "b.parquet: its columns differ in type" in refusal(tmp_path)
    write(tmp_path / "b.parquet", pa.table({"label": LABELS}))
    assert "b.parquet: cannot be read as a table" in refusal(tmp_path)
    kind = pa.list_(pa.float32())
    schema = pa.schema([pa.field("x", kind, nullable=False), ("label", pa.int64())])
    write(tmp_path / "a.parquet", pa.table({"x": rows(X), "label": LABELS}, schema=schema))
    write(tmp_path / "b.parquet", pa.table({"x": pa.array([None, [1.0] * 4], kind), "label": LABELS[:2]}))
    assert "b.parquet: cannot be read as a table" in refusal(tmp_path)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ({"x": pa.list_(pa.float32()), "label": pa.int64()}, {}),
        ({"x": pa.list_(pa.float32()), "label": pa.int64()}, {"multi_label": True}),
        ({"x": pa.list_(pa.float32()), "outcome": pa.string()}, {}),
        ({"x": pa.binary(), "label": pa.int64()}, {}),
    ],
)
def test_no_rows(tmp_path: Path, kind: str, columns: dict[str, Any], options: dict[str, Any]) -> None:
    schema = pa.schema([*columns.items()])
    refusal(write(tmp_path / f"a.{kind}", schema.empty_table()), **options)


def test_the_column_that_holds_the_classes_is_named(tmp_path: Path) -> None:
    columns = {"a": [1.0, None], "b": [0.5, 0.25], "outcome": ["u", "v"]}
    path = write(tmp_path / "a.parquet", pa.table(columns))
    assert "add --label-column outcome" in refusal(path, spec("x", (None, 2)), n_classes=2, class_names=["u", "v"])


def test_a_large_batch_does_not_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An Arrow file may be one batch; what was read does not change with the file."""
    monkeypatch.setattr("tna_onnx.data.mapped._IN_MEMORY", 2**10)
    large = np.random.default_rng(0).random((2**15, 4), np.float32)
    table = pa.table({"x": pa.array(large.tolist(), pa.list_(pa.float32())), "label": np.arange(2**15) % 3})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    source = opened(tmp_path / "a.arrow")
    assert isinstance(source, ArraySource)
    assert isinstance(source.columns["x"], np.memmap)
    np.testing.assert_array_equal(source.columns["x"], large, strict=True)


def test_a_file_that_is_rewritten_changes_no_open_source(tmp_path: Path) -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(6, 4)
    path = write(tmp_path / "a.ipc", pa.table({"x": rows(pixels[:4], pa.list_(pa.uint8())), "label": LABELS[:4]}))
    source = opened(path, spec("x", (None, 4), np.uint8))
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    np.testing.assert_array_equal(gather(source, 4)["x"], pixels[:4])
    np.testing.assert_array_equal(source.labels, LABELS[:4])


def test_ragged_lists(tmp_path: Path) -> None:
    ragged = pa.array([[1, 2], [3, 4], [5, 6], [7, 8], [9], [10]], pa.list_(pa.float32()))
    message = refusal(write(tmp_path / "a.arrow", pa.table({"x": ragged, "label": LABELS})))
    assert "'x': from row 4 on a sample has shape (1,) and dtype float32, before (2,)" in message
    assert "pad or cut" in message
    ragged = pa.array([[1, 2], [3], [5, 6], [7, 8], [9, 9], [10, 1]], pa.list_(pa.float32()))
    message = refusal(write(tmp_path / "b.arrow", pa.table({"x": ragged, "label": LABELS})))
    assert "one list has 2 values and row 1 has 1" in message


@pytest.mark.parametrize("cells", [[[1.0], None, [2.0]], [[1.0], [None], [2.0]]])
def test_empty_cells(tmp_path: Path, cells: list[Any]) -> None:
    table = pa.table({"x": pa.array(cells, pa.list_(pa.float32())), "label": LABELS[:3]})
    assert "'x': has empty cells" in refusal(write(tmp_path / "a.parquet", table), spec("x", (None, 1)))


@pytest.mark.parametrize(
    ("columns", "inputs", "pattern"),
    [
        ({"x": ["a"] * 6}, [spec()], "holds text, and the model's input 'x' takes float32"),
        ({"a": rows(X), "b": rows(X)}, [spec()], "no column for the model's input 'x'"),
        ({"x": rows(X)}, [spec("x"), spec("y")], "no column for the model's input 'y'"),
    ],
)
def test_columns_that_do_not_fit(tmp_path: Path, columns: dict[str, Any], inputs: list[Any], pattern: str) -> None:
    assert pattern in refusal(write(tmp_path / "a.parquet", pa.table({**columns, "label": LABELS})), *inputs)


@pytest.mark.parametrize("kind", WRITERS)
def test_broken_files(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"a.{kind}", pa.table({"x": rows(X), "label": LABELS}))
    for content in (b"", b"nothing", path.read_bytes()[:200]):
        path.write_bytes(content)
        assert "cannot be read as a table" in refusal(path)


def test_missing_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "a.parquet").touch()
    with pytest.raises(UsageError, match=r"needs pyarrow, .* pip install 'tna-onnx\[tables\]'"):
        opened(tmp_path / "a.parquet")


# ---- labels ----


@pytest.mark.parametrize("encode", [False, True])
def test_names(tmp_path: Path, encode: bool) -> None:
    names = pa.array(["dog", "cat", "cow", "dog", "cat", "cow"])
    table = pa.table({"x": rows(X), "label": names.dictionary_encode() if encode else names})
    path = write(tmp_path / "a.parquet", table)
    np.testing.assert_array_equal(opened(path).labels, [2, 0, 1, 2, 0, 1])
    np.testing.assert_array_equal(opened(path, class_names=["dog", "cat", "cow"]).labels, LABELS)


@pytest.mark.parametrize(
    ("labels", "pattern"),
    [
        ([0, 1, None, 0, 1, 2], "'label': has empty cells, first in row 2"),
        ([0, 1, 2, 0, 1, None], "'label': has empty cells, first in row 5"),
        (pa.array([0, 1, 2**63, 0, 1, 2], pa.uint64()), "largest 9223372036854775808"),
        (["a", "b", None, "c", "a", "b"], "found None in row 2"),
    ],
)
def test_labels_that_cannot_be_used(tmp_path: Path, labels: Any, pattern: str) -> None:
    table = pa.table({"x": rows(X), "label": labels})
    assert pattern in refusal(write(tmp_path / "a.arrow", table))


def class_labels(folder: Path, names: Any, labels: np.ndarray, kind: str) -> Path:
    """A table as `datasets` writes it, with the names of its classes in the schema."""
    features = {"x": {}, "label": {"names": names, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({"x": rows(X), "label": labels}).replace_schema_metadata(metadata)
    return write(folder / f"calib.{kind}", table)


@pytest.mark.parametrize("kind", WRITERS)
def test_stored_class_names_decide(tmp_path: Path, kind: str) -> None:
    """The indices of the data set are in its own order; the model's is another."""
    path = class_labels(tmp_path, ["cow", "cat", "dog"], LABELS, kind)
    np.testing.assert_array_equal(opened(path, class_names=["cat", "cow", "dog"]).labels, [1, 0, 2, 1, 0, 2])
    np.testing.assert_array_equal(opened(path).labels, LABELS)
    assert "1 of 3 labels are not class names of the model: 'cow'" in refusal(path, class_names=["cat", "bee", "dog"])
    assert "has 3 classes ('cow', 'cat', 'dog'), the model has 5" in refusal(path, n_classes=5)


@pytest.mark.parametrize("names", ["cow", {"cow": 0, "cat": 1, "dog": 2}, [], None])
def test_class_names_in_another_form_do_not_count(tmp_path: Path, names: Any) -> None:
    path = class_labels(tmp_path, names, LABELS, "parquet")
    np.testing.assert_array_equal(opened(path, class_names=["cat", "cow", "dog"]).labels, LABELS)
    np.testing.assert_array_equal(opened(path, n_classes=5).labels, LABELS)


def test_samples_without_a_label(tmp_path: Path) -> None:
    path = class_labels(tmp_path, ["cow", "cat", "dog"], LABELS - 1, "arrow")
    assert "but goes from -1 to 1" in refusal(path, class_names=["cat", "cow", "dog"])


# ---- images ----


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(
    ("form", "name"), [("struct", "photo"), ("binary", "pixels"), ("large", "photo"), ("dictionary", "photo")]
)
def test_images(tmp_path: Path, kind: str, form: str, name: str) -> None:
    content = [encoded(seed) for seed in range(6)]
    if form == "struct":
        cells = pa.array([{"bytes": part, "path": None} for part in content])
    elif form == "dictionary":
        cells = pa.array(content).dictionary_encode()
    else:
        cells = pa.array(content, pa.binary() if form == "binary" else pa.large_binary())
    path = write(tmp_path / f"calib.{kind}", pa.table({name: cells, "label": LABELS, "score": X[:, 0]}))
    source = opened(path, IMAGE)
    expected = np.stack([noise(5, 6, seed=seed).transpose(2, 0, 1) for seed in range(6)]) / 255
    np.testing.assert_allclose(gather(source, 4)["pixels"], expected, rtol=0, atol=1e-6)
    assert source.describe() == f"table calib.{kind} (6 images of 3 classes)"
    assert source.recipe() is not None


def test_bad_images_are_named_or_skipped(tmp_path: Path) -> None:
    cells = [{"bytes": encoded(seed) if seed != 1 else b"broken", "path": None} for seed in range(6)]
    cells[4] = {"bytes": None, "path": None}
    path = write(tmp_path / "a.parquet", pa.table({"image": pa.array(cells), "label": LABELS}))
    with pytest.raises(DataError, match=r"a\.parquet: row 1: cannot be read as an image"):
        list(opened(path, IMAGE).batches(6))
    source = opened(path, IMAGE, skip_bad=True)
    np.testing.assert_array_equal(source.labels, [0, 2, 0, 2])
    assert "2 unreadable skipped" in source.describe()


def test_which_column_holds_the_images(tmp_path: Path) -> None:
    cells = [encoded(seed) for seed in range(6)]
    others = [encoded(seed) for seed in range(6, 12)]
    path = write(tmp_path / "a.parquet", pa.table({"left": cells, "right": others, "label": LABELS}))
    assert "no column is known to hold the images (found 'left', 'right', 'label')" in refusal(path, IMAGE)
    right = next(opened(path, IMAGE, columns=["right"]).batches(6))[IMAGE.name]
    np.testing.assert_array_equal(next(opened(path, IMAGE, drop_columns=["left"]).batches(6))[IMAGE.name], right)
    assert not np.array_equal(next(opened(path, IMAGE, columns=["left"]).batches(6))[IMAGE.name], right)
    assert "no column 'middle', which --columns names" in refusal(path, IMAGE, columns=["middle"])
    assert "no column 'middle', which --drop-columns names" in refusal(path, IMAGE, drop_columns=["middle"])
    path = write(tmp_path / "b.parquet", pa.table({"thumb": cells, "image": cells, "label": LABELS}))
    assert len(opened(path, IMAGE)) == 6
    path = write(tmp_path / "e.parquet", pa.table({IMAGE.name: cells, "crop": others, "label": LABELS}))
    np.testing.assert_array_equal(next(opened(path, IMAGE, drop_columns=[IMAGE.name]).batches(6))[IMAGE.name], right)
    path = write(tmp_path / "c.parquet", pa.table({"img": cells, "image": cells, "label": LABELS}))
    assert "no column is known to hold the images (found 'img', 'image', 'label')" in refusal(path, IMAGE)


def test_structs_that_are_no_images_are_read_past(tmp_path: Path) -> None:
    table = pa.table({"about": [{"page": 3}] * 6, "x": rows(X), "label": LABELS})
    np.testing.assert_array_equal(gather(opened(write(tmp_path / "a.parquet", table)), 4)["x"], X)


@pytest.mark.parametrize("name", ["state.json", "dataset_dict.json"])
def test_a_saved_data_set_is_refused_with_the_file_to_write(tmp_path: Path, name: str) -> None:
    """The order of its rows may be in a file of its own."""
    write(tmp_path / "data-00000-of-00001.arrow", pa.table({"x": rows(X), "label": LABELS}))
    (tmp_path / name).write_text("{}")
    assert "data_set.to_parquet('calib.parquet')" in refusal(tmp_path)


def test_labels_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", pa.table({"x": rows(X)}))
    np.testing.assert_array_equal(opened(path, labels=LABELS).labels, LABELS)
    path = write(tmp_path / "b.parquet", pa.table({"image": [encoded(seed) for seed in range(6)]}))
    np.testing.assert_array_equal(opened(path, IMAGE, labels=LABELS).labels, LABELS)
    assert "b.parquet: column 'labels': 5 labels for 6 samples" in refusal(path, IMAGE, labels=LABELS[:5])


@pytest.mark.parametrize(("labels", "count"), [([[0, 1], [1, 0]] * 3, 4), (["a", None, "b"] * 2, 3)])
def test_rows_are_drawn_by_labels_that_have_no_order(tmp_path: Path, labels: list[Any], count: int) -> None:
    """Half of six, rounded in each class."""
    path = write(tmp_path / "a.parquet", pa.table({"x": rows(X), "label": labels}))
    drawn, columns, _ = table_slices(*drawn_from(path), FeatureFields(max_samples=3, stratify=True))
    assert (sum(map(len, drawn)), columns) == (count, ("x",))
