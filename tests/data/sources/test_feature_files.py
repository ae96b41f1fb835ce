"""Features and logits in Parquet and Arrow files: one array, whatever the order of files and rows."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Small
from tests.data.samples import gather, spec, write_npz
from tests.support import PLAIN, loaded, ok, refused, words_of
from tna_onnx.data import mapped as mapped_module
from tna_onnx.data.options import Request
from tna_onnx.data.sources import feature_files as module
from tna_onnx.data.sources.arrays import Precomputed, open_precomputed
from tna_onnx.data.sources.feature_files import FeatureFolder, features_table, open_feature_files
from tna_onnx.errors import DataError, UsageError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

N, WIDTH, CLASSES = 500, 6, 3


def table() -> Any:
    """Rows with two that are the same, and two that differ in their label alone."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((N, WIDTH)).astype(np.float32)
    labels = rng.integers(0, CLASSES, N)
    values[1], labels[1] = values[0], labels[0]
    values[3], labels[2:4] = values[2], (0, 1)
    return features_table("features", values, {"label": labels, "key": np.arange(N)}, {"model_sha256": "ab"})


def opened(place: Path | str, at_most: int | None = None) -> Any:
    files = open_feature_files(place, Request(inputs=[], n_classes=CLASSES), at_most)
    assert files is not None
    return files


def write_shuffled(folder: Path, count: int, suffix: str = "parquet") -> Path:
    folder.mkdir()
    rows = np.random.default_rng(count).permutation(N)
    for k, part in enumerate(np.array_split(rows, count)):
        path = folder / f"{count - k:02}.{suffix}"
        if suffix == "parquet":
            pq.write_table(table().take(part), path, row_group_size=7)
        else:
            with pa.ipc.new_file(path, table().schema) as writer:
                writer.write_table(table().take(part), max_chunksize=9)
    return folder


@pytest.mark.parametrize("mapped", [False, True])
def test_one_array_and_digest_for_any_order_of_files_and_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    pq.write_table(table(), tmp_path / "one.parquet")
    one = opened(tmp_path / "one.parquet")
    if mapped:
        monkeypatch.setattr(mapped_module, "_IN_MEMORY", 1000)
        monkeypatch.setattr(module, "_DIGESTED", 64)
    for count, suffix in [(1, "parquet"), (37, "parquet"), (4, "arrow")]:
        other = opened(write_shuffled(tmp_path / f"{count}", count, suffix))
        assert other.source.digest() == one.source.digest()
        np.testing.assert_array_equal(other.values, one.values, strict=True)
        np.testing.assert_array_equal(other.labels, one.labels, strict=True)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_part_of_the_rows_is_a_random_one_in_the_order_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    every = opened(write_shuffled(tmp_path / "all", 5))
    if mapped:
        monkeypatch.setattr(mapped_module, "_IN_MEMORY", 1000)
        monkeypatch.setattr(module, "_DIGESTED", 64)
    digests = {every.source.digest()}
    for most in (20, 100, N - 1):
        part = opened(write_shuffled(tmp_path / f"{most}", 1 + most % 7), most)
        np.testing.assert_array_equal(part.values, every.values[:most], strict=True)
        np.testing.assert_array_equal(part.labels, every.labels[:most], strict=True)
        assert any(f"{most:,} of {N:,} rows" in note for note in part.source.notes)
        digests.add(part.source.digest())
    assert len(digests) == 4
    rows = {row.tobytes(): k for k, row in enumerate(np.stack(table()["features"].to_pylist()).astype(np.float32))}
    numbers = [rows[row.tobytes()] for row in every.values[:100]]
    # the mean of 100 of the 500 numbers at random: four standard errors
    assert abs(np.mean(numbers) - (N - 1) / 2) < 4 * N / np.sqrt(12 * 100)


def test_rows_keep_their_labels(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "one.parquet")
    read = opened(tmp_path / "one.parquet")
    values = np.stack(table()["features"].to_pylist()).astype(np.float32)
    rows = sorted((row.tobytes(), label) for row, label in zip(read.values, read.labels, strict=True))
    assert rows == sorted((r.tobytes(), y) for r, y in zip(values, table()["label"].to_numpy(), strict=True))


@pytest.mark.parametrize("change", ["value", "label", "row"])
def test_the_digest_changes_with_the_data(tmp_path: Path, change: str) -> None:
    pq.write_table(table(), tmp_path / "one.parquet")
    columns = table().to_pydict()
    if change == "value":
        columns["features"][17][2] += 1
    if change == "label":
        columns["label"][17] = (columns["label"][17] + 1) % CLASSES
    if change == "row":
        columns = {name: [*column, column[0]] for name, column in columns.items()}
    changed = pa.table(columns).cast(pa.schema([table().schema.field(n) for n in table().schema.names]))
    pq.write_table(changed, tmp_path / "other.parquet")
    assert opened(tmp_path / "one.parquet").source.digest() != opened(tmp_path / "other.parquet").source.digest()


def test_patterns_folders_and_urls(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    folder = write_shuffled(tmp_path / "many", 5)
    (folder / "_SUCCESS").write_text("")
    expected = opened(folder).source.digest()
    assert opened(str(folder / "*.parquet")).source.digest() == expected
    memory = fsspec.filesystem("memory")
    memory.put(f"{folder}/", "/bucket/features/", recursive=True)
    for url in ("memory://bucket/features/", "memory://bucket/features/*.parquet"):
        assert opened(url).source.digest() == expected
    memory.rm("/bucket", recursive=True)


def test_parts_without_rows_are_passed_over(tmp_path: Path) -> None:
    folder = write_shuffled(tmp_path / "f", 2, "arrow")
    with pa.ipc.new_file(folder / "00.arrow", table().schema) as writer:
        writer.write_batch(table().to_batches()[0].slice(0, 0))
    pq.write_table(table(), tmp_path / "one.parquet")
    assert opened(folder).source.digest() == opened(tmp_path / "one.parquet").source.digest()


def test_files_of_one_type_only(tmp_path: Path) -> None:
    """Values of one file would lose digits in the array of another."""
    (tmp_path / "f").mkdir()
    pq.write_table(table(), tmp_path / "f" / "1.parquet")
    values, labels = np.stack(table()["features"].to_numpy()), table()["label"].to_numpy()
    for dtype in (np.float16, np.float64):
        other = features_table("features", values.astype(dtype), {"label": labels}, {"model_sha256": "ab"})
        pq.write_table(other, tmp_path / "f" / "0.parquet")
        with pytest.raises(DataError, match=rf"1\.parquet: .* dtype float32, before .* and {np.dtype(dtype)}"):
            opened(tmp_path / "f")


def test_columns_that_are_no_features(tmp_path: Path) -> None:
    """Weights and groups may be there; a report says that they are not used."""
    pq.write_table(table(), tmp_path / "plain.parquet")
    more = table().append_column("weight", pa.array(np.ones(N))).append_column("group", pa.array(["a"] * N))
    pq.write_table(more, tmp_path / "more.parquet")
    source = opened(tmp_path / "more.parquet").source
    assert source.digest() == opened(tmp_path / "plain.parquet").source.digest()
    assert [note.split("'")[1] for note in source.notes] == ["group", "weight"]


def test_a_folder_is_no_data_before_it_is_finished(tmp_path: Path) -> None:
    folder = FeatureFolder(tmp_path / "new")
    folder.write([table(), table()])
    with pytest.raises(DataError, match="has not finished"):
        opened(tmp_path / "new")
    assert folder.finish() == ("features", 2 * N, WIDTH, np.float32)
    assert len(opened(tmp_path / "new").source) == 2 * N
    with pytest.raises(UsageError, match="holds files already"):
        FeatureFolder(tmp_path / "new")
    with pytest.raises(UsageError, match="cannot be written"):
        FeatureFolder(tmp_path / "new" / "part-00000.parquet" / "below")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.set_column(1, "label", pa.array([None, *[0] * (N - 1)], pa.int64())), "without a label"),
        (lambda t: t.set_column(0, "features", pa.array([[1.0]] + [[1.0, 2.0]] * (N - 1))), "same shape"),
        (lambda t: t.set_column(0, "features", pa.array([None] + [[1.0, 2.0]] * (N - 1))), "empty cells"),
        (lambda t: t.slice(0, 0), "no rows"),
        (lambda t: t.set_column(1, "label", pa.array(np.full(N, 9))), "9"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, change: Callable[[Any], Any], message: str) -> None:
    pq.write_table(change(table()), tmp_path / "f.parquet")
    with pytest.raises(DataError, match=message):
        opened(tmp_path / "f.parquet")


def test_files_of_several_models(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet")
    pq.write_table(table().replace_schema_metadata({}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match="another model"):
        opened(tmp_path)
    (tmp_path / "b.parquet").write_bytes(b"no Parquet")
    with pytest.raises(DataError, match=r"b\.parquet: cannot be read"):
        opened(tmp_path)


def test_other_tables_are_left_to_others(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": np.ones(3), "label": [0, 1, 0]}), tmp_path / "t.parquet")
    for place in (tmp_path / "t.parquet", tmp_path / "none.parquet", "s3://bucket/calib.npz", {"features": 1}):
        assert open_feature_files(place, Request(inputs=[], n_classes=CLASSES)) is None


def test_the_command_reads_what_an_extractor_made(small: Small, tmp_path: Path) -> None:
    """The written file is the same for one file and for shuffled ones, and is not made for another model."""
    import tna_onnx

    arrays = loaded(small.calib)
    made = tna_onnx.FeatureExtractor(small.model, device="cpu")
    batch = made(arrays)
    rows = features_table("features", batch["features"], {"label": batch["labels"]}, made.describe())
    pq.write_table(rows, tmp_path / "one.parquet")
    (tmp_path / "many").mkdir()
    for k, part in enumerate(np.array_split(np.random.default_rng(0).permutation(len(rows)), 9)):
        pq.write_table(rows.take(part), tmp_path / f"many/{k}.parquet")
    for name, place in [("a", "one.parquet"), ("b", "many")]:
        ok("calibrate", small.model, tmp_path / place, "-o", tmp_path / f"{name}.onnx", *words_of(PLAIN), "-q")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    pq.write_table(rows.replace_schema_metadata({"tna_onnx": '{"model_sha256": "00"}'}), tmp_path / "x.parquet")
    shutil.rmtree(tmp_path / "many")
    # commands that run the whole model do not take features for its inputs
    refused(2, "holds features", "guard", small.model, tmp_path / "one.parquet", "-o", tmp_path / "g.onnx")
    words = ["calibrate", small.model, tmp_path / "x.parquet", "-o", tmp_path / "x.onnx"]
    refused(4, "computed with another model", *words)


# --- Features and logits that were stored before


FEATURES = np.random.default_rng(0).random((6, 5), np.float32)
LOGITS = np.random.default_rng(1).random((6, 3), np.float32)
LABELS = np.array([0, 1, 2, 0, 1, 2])
WANTED = Request(inputs=[spec()], n_classes=3)


def store(folder: Path, **arrays: Any) -> Path:
    return write_npz(folder / "calib.npz", arrays)


def computed(data: Any, request: Request = WANTED, **options: Any) -> Precomputed:
    found = open_precomputed(data, replace(request, **options))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("kind", "dtype"), [("features", "float16"), ("features", "float64"), ("logits", "float16"), ("logits", "float32")]
)
def test_values_and_labels(tmp_path: Path, kind: str, dtype: str) -> None:
    values = {"features": FEATURES, "logits": LOGITS}[kind].astype(dtype)
    path = store(tmp_path, **{kind: values, "labels": LABELS})
    found = computed(path)
    assert found.kind == kind
    np.testing.assert_array_equal(found.values, values, strict=True)
    np.testing.assert_array_equal(found.labels, LABELS, strict=True)
    np.testing.assert_array_equal(gather(found.source, 4)[kind], values, strict=True)
    assert found.source.describe() == f"{kind} {path.name} (6 samples of 3 classes)"
    assert found.source.recipe() is None


def test_features_go_before_logits(tmp_path: Path) -> None:
    assert computed(store(tmp_path, logits=LOGITS, features=FEATURES, labels=LABELS)).kind == "features"


def test_inputs_are_not_features(tmp_path: Path) -> None:
    path = store(tmp_path, features=FEATURES, labels=LABELS, x=FEATURES)
    assert open_precomputed(path, Request(inputs=[spec("features")], n_classes=3)) is None
    assert open_precomputed(path, Request(inputs=[spec("x")], n_classes=3)) is None, "samples are there: they count"


def test_other_data(tmp_path: Path) -> None:
    assert open_precomputed(store(tmp_path, x=FEATURES, labels=LABELS), WANTED) is None
    assert open_precomputed(tmp_path, WANTED) is None
    assert open_precomputed(tmp_path / "gone.npz", WANTED) is None
    (tmp_path / "a.csv").touch()
    assert open_precomputed(tmp_path / "a.csv", WANTED) is None


@pytest.mark.parametrize(
    ("arrays", "pattern"),
    [
        ({"features": FEATURES}, "'labels'; the file has 'features'"),
        ({"features": FEATURES[..., np.newaxis], "labels": LABELS}, r"must be floating-point \(N, n\), .* \(6, 5, 1\)"),
        ({"features": FEATURES.astype(int), "labels": LABELS}, "must be floating-point .* int64"),
        ({"logits": FEATURES, "labels": LABELS}, r"must be floating-point \(N, 3\), one per class; found \(6, 5\)"),
        ({"logits": LOGITS, "labels": LABELS[:5]}, "5 labels for 6 samples"),
        ({"logits": LOGITS, "labels": LABELS + 1}, "subtract 1"),
    ],
)
def test_refusals(tmp_path: Path, arrays: dict[str, Any], pattern: str) -> None:
    path = store(tmp_path, **arrays)
    with pytest.raises(DataError, match=pattern) as caught:
        open_precomputed(path, WANTED)
    assert str(path) in str(caught.value)


def test_a_mapping() -> None:
    found = computed({"features": FEATURES, "labels": LABELS})
    assert found.values is FEATURES
    assert found.source.describe() == "features (6 samples of 3 classes)"
    assert found.source.digest() != computed({"features": 1 - FEATURES, "labels": LABELS}).source.digest()
    assert open_precomputed({"x": FEATURES, "labels": LABELS}, WANTED) is None
    assert open_precomputed([(FEATURES, LABELS)], WANTED) is None


def test_one_logit(tmp_path: Path) -> None:
    path = store(tmp_path, logits=LOGITS[:, :1], labels=LABELS % 2)
    assert computed(path, n_classes=2).values.shape == (6, 1)


def test_labels_apart_and_names(tmp_path: Path) -> None:
    path = store(tmp_path, features=FEATURES)
    np.testing.assert_array_equal(computed(path, labels=LABELS).labels, LABELS)
    (tmp_path / "y.txt").write_text("cat\ndog\ncow\n" * 2)
    found = computed(path, labels=str(tmp_path / "y.txt"), class_names=["cow", "cat", "dog"])
    np.testing.assert_array_equal(found.labels, [1, 2, 0, 1, 2, 0])
