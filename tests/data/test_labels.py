"""Class labels: what is accepted unchanged, and what every refusal says."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.samples import LISTS, open_source, spec, write_columns, write_npz
from tna_onnx.data.labelfile import LabelFile, find_label_column, read_label_file
from tna_onnx.data.labels import check_labels, folder_labels, label_coverage_text, label_indices
from tna_onnx.data.several import LabelSource, marked_labels, order_warning
from tna_onnx.data.source import InputSpec, Source
from tna_onnx.errors import DataError


def refusal(labels: npt.ArrayLike, n_samples: int | None = None, n_classes: int = 3) -> str:
    array = np.asarray(labels)
    with pytest.raises(DataError) as caught:
        check_labels(array, array.shape[0] if n_samples is None else n_samples, n_classes, "calib.npz")
    assert str(caught.value).startswith("calib.npz: ")
    return str(caught.value)


@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=20).filter(lambda values: len(set(values)) > 1),
    st.sampled_from(["int8", "int64", "uint8", "uint64", ">i4", "float16", "float32", "float64"]),
    st.booleans(),
)
def test_indices_pass_unchanged_whatever_their_type(values: list[int], dtype: str, column: bool) -> None:
    stored = np.array(values, dtype)
    stored = stored[:, np.newaxis] if column else stored
    stored.setflags(write=False)
    checked = check_labels(stored, len(values), 5, "labels")
    np.testing.assert_array_equal(checked, np.array(values, np.int64), strict=True)
    assert not np.shares_memory(checked, stored)


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (np.eye(3, dtype=bool), "found shape (3, 3)"),
        (["cat", "dog"], "expected integers, found <U3"),
        ([1j, 0j], "expected integers, found complex128"),
        ([0.0, 1.5, 2.5], "2 of 3 values that are not, first 1.5 in row 1"),
        ([0.0, 1.0, np.nan], "1 of 3 values that are not, first nan in row 2"),
        ([np.inf, 1.0, 0.0], "1 of 3 values that are not, first inf in row 0"),
        ([0, 1, 3, 7], "2 of 4 do not (smallest 0, largest 7)"),
        ([-1, 0, 1], "1 of 3 do not (smallest -1, largest 1)"),
        (np.array([0, 2**64 - 1], np.uint64), f"1 of 2 do not (smallest 0, largest {2**64 - 1})"),
        ([0.0, 1e300], "1 of 2 do not (smallest 0.0, largest 1e+300)"),
        ([1, 2, 3], "smallest 1, largest 3); they seem to start at 1: subtract 1"),
    ],
)
def test_what_is_no_class_index(labels: npt.ArrayLike, found: str) -> None:
    message = refusal(labels)
    assert found in message
    assert ("subtract 1" in message) == ("subtract 1" in found)


# ---- class folders ----


@given(st.integers(2, 300), st.data())
def test_numbers_are_indices(n_classes: int, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, n_classes - 1), min_size=1, unique=True))
    assert folder_labels([str(number) for number in numbers], n_classes, "calib") == {str(n): n for n in numbers}


def test_names_are_numbered_in_alphabetical_order() -> None:
    assert folder_labels(["dog", "Zebra", "cat", "10"], 4, "calib") == {"10": 0, "Zebra": 1, "cat": 2, "dog": 3}


@pytest.mark.parametrize(
    ("names", "n_classes", "found"),
    [
        (["dog", "cat", "bird"], 2, "order is unknown (found 'bird', 'cat', 'dog')"),
        (["dog", "cat", "bird"], 4, "3 class folders for a model with 4 classes"),
        (["0", "1", "2", "new"], 3, "all but 'new' are numbers"),
        (["1", "0", "01"], 3, "same number ('1', '01')"),
    ],
)
def test_folders_whose_classes_cannot_be_told(names: list[str], n_classes: int, found: str) -> None:
    with pytest.raises(DataError, match=re.escape(found)):
        folder_labels(names, n_classes, "calib")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3, 5, 7, 3], [0, 1, 2, 0]),
        ([7.0, 5.0], [2, 1]),
        ([0, 2, 1], [0, 2, 1]),  # none of the numbers of the model: indices
    ],
)
def test_numbers_that_a_model_gives_its_classes(values: list[float], expected: list[int]) -> None:
    assert label_indices(np.array(values), len(values), 3, "labels", ["3", "5", "7"]).tolist() == expected


def test_numbers_that_are_neither_indices_nor_the_models() -> None:
    for values in ([3, 4, 5], [3.5, 5.0, 7.0], [np.nan, 5.0, 7.0], [np.inf, 5.0, 3.0]):
        with pytest.raises(DataError):
            label_indices(np.array(values), 3, 3, "labels", ["3", "5", "7"])
    # what could be either is refused, unless it is the same class both ways
    with pytest.raises(
        DataError, match=r"labels '1', '2' may be indices, or the numbers .*; store those numbers as text"
    ):
        label_indices(np.array([1, 2]), 2, 3, "labels", ["1", "2", "3"])
    assert label_indices(np.array(["1", "2"]), 2, 3, "labels", ["1", "2", "3"]).tolist() == [0, 1]
    assert label_indices(np.array([1, 2, 1]), 3, 3, "labels", ["-1", "1", "2"]).tolist() == [1, 2, 1]
    assert label_indices(np.array([0, 1]), 2, 3, "labels", ["1", "2", "3"]).tolist() == [0, 1]
    assert label_indices(np.array([1, 2, 3]), 3, 3, "labels", ["1", "2", "3"]).tolist() == [0, 1, 2]
    assert label_indices(np.array([-1, 1]), 2, 2, "labels", ["-1", "1"]).tolist() == [0, 1]
    assert label_indices(np.eye(3)[[1, 2]], 2, 3, "labels", ["1", "2", "3"]).tolist() == [1, 2]
    # a CSV file is read as numbers, which have lost the zeros of these names, or hold all but the name of a word
    for names in (["01", "02", "00"], ["1.0", "2.0", "0.0"], ["rest", "0", "1", "2"]):
        for values in (np.array([1, 2]), np.array(["1", "2"]), np.array(["001", "002"])):
            if not {*values.astype(str)} <= {*names}:
                with pytest.raises(DataError, match="may be indices"):
                    label_indices(values, 2, len(names), "labels", names)
    assert label_indices(np.array([3, 5, 3]), 3, 3, "labels", ["03", "04", "05"]).tolist() == [0, 2, 0]
    assert label_indices(np.array([0, 1]), 2, 3, "labels", ["00", "01", "02"]).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("names", "indices"),
    [(None, [1, 0, 1]), (("0", "1"), [1, 0, 1]), (("False", "True"), [1, 0, 1]), (("TRUE", "FALSE"), [0, 1, 0])],
)
def test_truth_values_are_labels_of_two_classes(names: tuple[str, ...] | None, indices: list[int]) -> None:
    assert label_indices(np.array([True, False, True]), 3, 2, "here", names).tolist() == indices


def test_truth_values_are_refused_where_names_do_not_say_which_is_true() -> None:
    with pytest.raises(DataError, match="'ham', 'spam'; store these names"):
        label_indices(np.array([True, False]), 2, 2, "here", ("ham", "spam"))


def test_numbers_as_objects_or_as_texts_of_floats_are_indices() -> None:
    values = np.array([10, 2, 0, 10, 1])
    for stored in (values.astype(object), values.astype(float).astype(object), values.astype(float).astype(str)):
        assert label_indices(stored, 5, 11, "labels").tolist() == values.tolist()
        assert label_indices(stored, 5, 11, "labels", [str(n) for n in range(11)]).tolist() == values.tolist()
    # eleven names, whose alphabetical order is another one
    texts = np.arange(11.0).astype(str)
    assert label_indices(texts, 11, 11, "labels").tolist() == list(range(11))
    assert label_indices(texts, 11, 11, "labels", sorted(texts.tolist())).tolist()[2:3] == [3]


def test_a_column_for_each_class_has_to_say_its_class() -> None:
    """The order of the columns need not be the model's."""
    dummies = pytest.importorskip("pandas").get_dummies(["dog", "cat", "emu", "cat"])
    x, order = np.zeros((4, 4), np.float32), ["emu", "cat", "dog"]
    with pytest.raises(DataError, match=r"'cat', 'dog', 'emu'\); .* labels\.idxmax\(axis=1\)"):
        open_source(x, [spec()], 3, labels=dummies, class_names=order)
    assert open_source((x, dummies.idxmax(axis=1)), [spec()], 3, class_names=order).labels.tolist() == [2, 1, 0, 1]


# --- Files of labels: what is read from each form, and every refusal


def read(folder: Path, name: str, text: str, label_column: str | None = None, *, paths: bool = False) -> LabelFile:
    (folder / name).write_text(text)
    return read_label_file(folder / name, label_column, is_path=lambda text: paths and text.endswith(".png"))


def refusal_of_file(folder: Path, name: str, text: str, label_column: str | None = None) -> str:
    with pytest.raises(DataError) as caught:
        read(folder, name, text, label_column)
    assert str(folder / name) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("name", "text"), LISTS)
def test_paths_and_labels(tmp_path: Path, name: str, text: str) -> None:
    found = read(tmp_path, name, text, paths=True)
    assert found.paths == ("b.png", "sub/a.png")
    assert [label.strip() for label in found.labels] == ["cat", "dog"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "label\n1\n0\n"),
        ("a.csv", "1\n0\n"),
        ("a.csv", "index,label\n17,1\n18,0\n"),
        ("a.jsonl", '{"label": 1}\n{"label": 0}'),
        ("a.txt", "1\n0\n\n"),
    ],
)
def test_labels_only(tmp_path: Path, name: str, text: str) -> None:
    found = read(tmp_path, name, text)
    assert found.paths is None
    assert [int(label) for label in found.labels] == [1, 0]


def test_lines_are_labels_with_spaces_unless_all_start_with_a_path(tmp_path: Path) -> None:
    assert read(tmp_path, "a.txt", "great auk\nb.png cat", paths=True).labels.tolist() == ["great auk", "b.png cat"]
    assert read(tmp_path, "a.txt", "b.png great auk", paths=True).labels.tolist() == ["great auk"]


@pytest.mark.parametrize(
    ("name", "text", "pattern"),
    [
        ("a.csv", "a,b,c\n1,2,3\n", "no column is named 'label'"),
        ("a.csv", "path,colour\na.png,1\n", "no column is named 'label'"),
        ("a.csv", "path,class,category\na.png,1,2\n", "several columns can hold the labels .*--label-column"),
        ("a.txt", "1\n\n2", "line 2 is empty"),
        ("a.xlsx", "", "found .xlsx"),
    ],
)
def test_refusals(tmp_path: Path, name: str, text: str, pattern: str) -> None:
    assert re.search(pattern, refusal_of_file(tmp_path, name, text))


def test_a_column_can_be_named(tmp_path: Path) -> None:
    text = "path,label,fine\na.png,1,7\nb.png,0,9\n"
    assert read(tmp_path, "a.csv", text, "fine").labels.tolist() == ["7", "9"]
    assert "no column 'coarse'" in refusal_of_file(tmp_path, "a.csv", text, "coarse")
    assert find_label_column(["x", "Labels", "class"], None, "a") == "Labels"


@pytest.mark.parametrize("sign", ["\x85", "\u2028", "\u2029", "\x0b", "\x0c", "\x1c"])
@pytest.mark.parametrize(
    ("name", "text"), [("a.csv", "path,label\r\na.png,x{}y\r\nb.png,z\r\n"), ("a.txt", "a.png x{}y\nb.png z\n")]
)
def test_only_line_feeds_and_returns_end_a_row(tmp_path: Path, name: str, text: str, sign: str) -> None:
    (tmp_path / name).write_text(text.format(sign), encoding="utf-8", newline="")
    found = read_label_file(tmp_path / name, is_path=lambda text: text.endswith(".png"))
    assert found.labels.tolist() == [f"x{sign}y", "z"]


# --- Labels of 0 and 1, several a sample: what is taken, and what is refused with which words


INPUTS = (InputSpec("x", (None, 2), np.dtype(np.float32)),)
X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1], [1, 0, 0]])


def opened(data: Any, **options: Any) -> Source:
    return open_source(data, INPUTS, 3, multi_label=True, **options)


def npz(folder: Path, labels: Any = Y, name: str = "labels") -> Path:
    return write_npz(folder / "d.npz", {"x": X, name: labels})


def table(folder: Path, suffix: str) -> Path:
    return write_columns(folder / f"d{suffix}", dict(zip(["u", "v", "sea", "sky", "sun"], [*X.T, *Y.T], strict=True)))


@pytest.mark.parametrize("name", ["labels", "y"])
def test_arrays(tmp_path: Path, name: str) -> None:
    source = opened(npz(tmp_path, name=name))
    assert isinstance(source, LabelSource)
    np.testing.assert_array_equal(source.labels, Y)
    assert source.labels.dtype == np.int64
    assert source.describe() == "arrays d.npz (6 samples, 3 labels, 1.33 a sample)"
    empty = opened({"x": X[:0], "labels": Y[:0]})
    assert empty.describe() == "arrays (0 samples, 3 labels, 0 a sample)"
    np.testing.assert_array_equal(np.concatenate([b["x"] for b in source.batches(4)]), X)
    np.testing.assert_array_equal(next(iter(source.batches(4, np.array([5, 1]))))["x"], X[[5, 1]])


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_columns_of_a_table(tmp_path: Path, suffix: str) -> None:
    source = opened(table(tmp_path, suffix), label_column="sea, sky,sun")
    np.testing.assert_array_equal(source.labels, Y)
    np.testing.assert_array_equal(next(iter(source.batches(6)))["x"], X)


def test_lists_in_a_column(tmp_path: Path) -> None:
    path = write_columns(tmp_path / "d.jsonl", {"x": X, "labels": Y})
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
    with pytest.raises(DataError, match="3 independent labels"):
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
    assert label_coverage_text(marks, "the data", ["a", "b", "c"]) == (
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
