"""Labels of 0 and 1, several a sample: what is taken, and what is refused with which words."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tna_onnx.data import InputSpec, Source, open_source
from tna_onnx.data.multi_label import LabelSource, marked_labels, order_warning
from tna_onnx.data.suspicion import marks_text
from tna_onnx.errors import DataError

INPUTS = (InputSpec("x", (None, 2), np.dtype(np.float32)),)
X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1], [1, 0, 0]])


def opened(data: Any, **options: Any) -> Source:
    return open_source(data, INPUTS, 3, multi_label=True, **options)


def npz(folder: Path, labels: Any = Y, name: str = "labels") -> Path:
    np.savez(folder / "d.npz", x=X, **{name: labels})
    return folder / "d.npz"


def table(folder: Path, suffix: str) -> Path:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"u": X[:, 0], "v": X[:, 1], "sea": Y[:, 0], "sky": Y[:, 1], "sun": Y[:, 2]})
    path = folder / f"d{suffix}"
    if suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        pytest.importorskip("pyarrow")
        frame.to_parquet(path)
    return path


@pytest.mark.parametrize("name", ["labels", "y"])
def test_arrays(tmp_path: Path, name: str) -> None:
    source = opened(npz(tmp_path, name=name))
    assert isinstance(source, LabelSource)
    np.testing.assert_array_equal(source.labels, Y)
    assert source.labels.dtype == np.int64
    assert source.describe() == "arrays d.npz (6 samples, 3 labels, 1.33 a sample)"
    np.testing.assert_array_equal(np.concatenate([b["x"] for b in source.batches(4)]), X)
    np.testing.assert_array_equal(next(iter(source.batches(4, np.array([5, 1]))))["x"], X[[5, 1]])


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_columns_of_a_table(tmp_path: Path, suffix: str) -> None:
    source = opened(table(tmp_path, suffix), label_column="sea, sky,sun")
    np.testing.assert_array_equal(source.labels, Y)
    np.testing.assert_array_equal(next(iter(source.batches(6)))["x"], X)


def test_lists_in_a_column(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    rows = (f'{{"x": {x.tolist()}, "labels": {y.tolist()}}}' for x, y in zip(X, Y, strict=True))
    path.write_text("\n".join(rows), "utf-8")
    np.testing.assert_array_equal(opened(path).labels, Y)


def test_samples_keep_digests_and_labels_have_a_part_in_that_of_the_data(tmp_path: Path) -> None:
    source = opened(npz(tmp_path))
    assert isinstance(source, LabelSource)
    assert len(np.unique(source.sample_digests())) == 6
    # equal labels are told from others by one number
    assert len(np.unique(source.sample_labels)) == len(np.unique(Y, axis=0))
    digest = source.digest()
    assert digest == opened(npz(tmp_path)).digest()
    assert digest != opened(npz(tmp_path, 1 - Y)).digest()


def with_cell(value: float) -> np.ndarray:
    labels = Y.astype(float)
    labels[4, 1] = value
    return labels


REFUSED: dict[str, tuple[Any, str]] = {
    "one class a sample": (np.arange(6) % 3, "gives 3 labels a sample, each by itself (Sigmoid)"),
    "names": (np.array(["a"] * 6), "gives 3 labels a sample"),
    "another width": (Y[:, :2], "expected shape (6, 3), one row a sample and one column a label"),
    "another length": (Y[:4], "expected shape (6, 3)"),
    "a soft label": (with_cell(0.3), "1 labels are neither 0 nor 1; the first is 0.3, of sample 4 in column 1 (a soft"),
    "NaN": (with_cell(np.nan), "the first is nan, of sample 4 in column 1 (a missing label"),
    "a missing label": (with_cell(-1), "the first is -1, of sample 4 in column 1 (a missing label"),
    "2": (with_cell(2), "the first is 2, of sample 4 in column 1 (expected 1 where the label holds"),
    "infinite": (with_cell(np.inf), "the first is inf"),
    "nothing holds": (0 * Y, "every label of every sample is 0"),
    "all hold": (0 * Y + 1, "every label of every sample is 1"),
    "text": (Y.astype(str), "found shape (6, 3), <U"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_set_of_labels_is_refused(tmp_path: Path, case: str) -> None:
    labels, words = REFUSED[case]
    with pytest.raises(DataError, match=re.escape(words)):
        opened(npz(tmp_path, labels))


def test_lists_of_different_lengths_are_refused() -> None:
    cells = np.array([[1, 0, 1], [1, 0], [0, 0, 1], None], object)[:-1]
    with pytest.raises(DataError, match="expected a list of 3 zeros and ones for each sample, found lists of 2, 3"):
        marked_labels(cells, 3, 3, "labels")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("sea,sky", "2 label columns ('sea', 'sky') for a model with 3 labels"),
        ("sea,sky,moon", "no column 'moon' for the labels"),
        ("sea,sky,sea", "label column 'sea' named twice; name one column for each label"),
        ("sea", "gives 3 labels a sample"),
    ],
)
def test_columns_that_are_not_the_labels_are_refused(tmp_path: Path, columns: str, words: str) -> None:
    with pytest.raises(DataError, match=re.escape(words)):
        opened(table(tmp_path, ".csv"), label_column=columns)


def test_columns_in_another_order_than_the_model_names_them_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="name the columns in the model's order"):
        opened(table(tmp_path, ".csv"), label_column="sea,sky,sun", class_names=("sky", "sea", "sun"))


def test_a_source_of_one_class_a_sample_is_refused(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    with pytest.raises(DataError, match="gives each sample one class, and the model 3 labels"):
        opened(tmp_path / "images")


def test_labels_of_0_and_1_for_a_model_of_one_class_a_sample() -> None:
    for labels in (np.eye(3)[[0, 1, 2, 0]], np.eye(3, dtype=bool)[[0, 1, 2, 0]]):
        assert open_source({"x": X[:4], "labels": labels}, INPUTS, 3).labels.tolist() == [0, 1, 2, 0]
    with pytest.raises(DataError, match="add --output-kind label-logits"):
        open_source({"x": X[: len(Y)], "labels": Y}, INPUTS, 3)


def test_rare_labels_are_named() -> None:
    marks = np.zeros((10, 3), np.int64)
    marks[:, 1] = 1
    marks[:2, 2] = 1
    assert marks_text(marks, "the data", ["a", "b", "c"]) == (
        "the data have no sample with 1 of 3 labels (a) and fewer than 5 samples with 1 of 3 labels (c) and no sample "
        "without 1 of 3 labels (b)"
    )


# ---- columns in another order


def predictions(n: int, labels: int, right: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels of which some are rare, and predictions that are right with a probability."""
    rng = np.random.default_rng(seed)
    marks = (rng.random((n, labels)) < np.linspace(0.1, 0.6, labels)).astype(np.int64)
    return np.where(rng.random(marks.shape) < right, marks, 1 - marks), marks


def test_another_order_of_the_columns_is_seen() -> None:
    predicted, marks = predictions(400, 5, 0.9, 0)
    assert order_warning(predicted, marks) == ""
    order = [0, 3, 2, 1, 4]
    warning = order_warning(predicted, marks[:, order], ["a", "b", "c", "d", "e"])
    assert "(for label 'b: column d', 'd: column b')" in warning


@pytest.mark.parametrize("right", [0.5, 0.6, 0.9])
def test_chance_is_no_order(right: float) -> None:
    """A hundred models, good and useless: none is told to have its columns in another order."""
    for seed in range(100):
        assert order_warning(*predictions(200, 8, right, seed)) == ""
