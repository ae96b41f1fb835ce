"""Class labels: what is accepted unchanged, and what every refusal says."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.samples import spec
from tna_onnx.data import open_source
from tna_onnx.data.labels import check_labels, folder_labels, label_indices
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


@pytest.mark.parametrize("dtype", [np.float32, np.int64, bool])
def test_one_hot(dtype: npt.DTypeLike) -> None:
    message = refusal(np.eye(3, dtype=dtype))
    assert "found shape (3, 3)" in message
    assert "argmax" in message


@pytest.mark.parametrize("labels", [["cat", "dog"], [b"cat", b"dog"], [True, False], [1j, 0j]])
def test_other_types(labels: list[object]) -> None:
    array = np.asarray(labels)
    assert f"expected integers, found {array.dtype}" in refusal(array)


@pytest.mark.parametrize(
    ("labels", "first"),
    [
        ([0.0, 1.5, 2.5], "2 of 3 values that are not, first 1.5 in row 1"),
        ([0.0, 1.0, np.nan], "1 of 3 values that are not, first nan in row 2"),
        ([np.inf, 1.0, 0.0], "1 of 3 values that are not, first inf in row 0"),
    ],
)
def test_floats_that_are_not_whole(labels: list[float], first: str) -> None:
    assert first in refusal(labels)


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ([0, 1, 3, 7], "2 of 4 do not (smallest 0, largest 7)"),
        ([1, 2, 7], "1 of 3 do not (smallest 1, largest 7)"),
        ([-1, 0, 1], "1 of 3 do not (smallest -1, largest 1)"),
        ([0.0, 1.0, 5.0], "1 of 3 do not (smallest 0.0, largest 5.0)"),
        (np.array([0, 2**64 - 1], np.uint64), f"1 of 2 do not (smallest 0, largest {2**64 - 1})"),
        ([0.0, 1e300], "1 of 2 do not (smallest 0.0, largest 1e+300)"),
    ],
)
def test_range(labels: npt.ArrayLike, found: str) -> None:
    message = refusal(labels)
    assert "3 classes, so labels must lie in 0 to 2" in message
    assert found in message
    assert "subtract 1" not in message


def test_labels_that_start_at_one() -> None:
    assert "smallest 1, largest 3); they seem to start at 1: subtract 1" in refusal([1, 2, 3])


# ---- class folders ----


def folders_refused(names: list[str], n_classes: int) -> str:
    with pytest.raises(DataError) as caught:
        folder_labels(names, n_classes, "calib")
    assert str(caught.value).startswith("calib: ")
    return str(caught.value)


@given(st.integers(2, 300), st.data())
def test_numbers_are_indices(n_classes: int, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, n_classes - 1), min_size=1, unique=True))
    assert folder_labels([str(number) for number in numbers], n_classes, "calib") == {str(n): n for n in numbers}


def test_names_are_numbered_in_alphabetical_order() -> None:
    assert folder_labels(["dog", "Zebra", "cat", "10"], 4, "calib") == {"10": 0, "Zebra": 1, "cat": 2, "dog": 3}


@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_order_of_names_cannot_be_told(n_classes: int) -> None:
    message = folders_refused(["dog", "cat", "bird"], n_classes)
    assert f"3 class folders for a model with {n_classes} classes" in message
    assert "order is unknown" in message
    assert "'bird', 'cat', 'dog'" in message


def test_equal_numbers() -> None:
    assert "same number ('1', '01')" in folders_refused(["1", "0", "01"], 3)


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


@pytest.mark.parametrize(
    ("names", "indices"),
    [(None, [1, 0, 1]), (("0", "1"), [1, 0, 1]), (("False", "True"), [1, 0, 1]), (("TRUE", "FALSE"), [0, 1, 0])],
)
def test_truth_values_are_labels_of_two_classes(names: tuple[str, ...] | None, indices: list[int]) -> None:
    assert label_indices(np.array([True, False, True]), 3, 2, "here", names).tolist() == indices


def test_truth_values_are_refused_where_names_do_not_say_which_is_true() -> None:
    with pytest.raises(DataError, match="'ham', 'spam'; store these names"):
        label_indices(np.array([True, False]), 2, 2, "here", ("ham", "spam"))


@pytest.mark.parametrize("as_frame", [False, True])
def test_dummies_are_labels(as_frame: bool) -> None:
    pd = pytest.importorskip("pandas")
    series = pd.Series(["dog", "cat", "emu", "cat"], name="kind")
    dummies = pd.get_dummies(series.to_frame() if as_frame else series)
    x = np.zeros((4, 4), np.float32)
    for order in (["cat", "dog", "emu"], ["emu", "cat", "dog"]):
        expected = [order.index(name) for name in series]
        shuffled = dummies[dummies.columns[::-1]]  # the order of the columns says nothing: their names do
        assert open_source(x, [spec()], 3, labels=shuffled, class_names=order).labels.tolist() == expected
        assert open_source((x, shuffled), [spec()], 3, class_names=order).labels.tolist() == expected
