"""Samples with a label at each position, as rows."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.data.samples import open_source
from tna_onnx.data import several
from tna_onnx.data.several import POSITIONS, SHAPE, PositionSource, first_batches
from tna_onnx.data.source import InputSpec, sample_labels
from tna_onnx.errors import DataError

SPECS = (InputSpec("x", (None, None), np.dtype(np.float32)),)
LABELS = np.array([[0, 1, -100], [-100, -100, -100], [2, -100, 0], [1, 1, 2]])
VALUES = np.arange(12, dtype=np.float32).reshape(4, 3)


def opened(labels: Any = LABELS, n_features: int = 0, **arrays: NDArray[Any]) -> PositionSource:
    data = {"x": VALUES, "labels": labels, **arrays}
    source = open_source(data, SPECS, 3, several=True, n_features=n_features)
    assert isinstance(source, PositionSource)
    return source


def rows_of(source: PositionSource, size: int, rows: NDArray[np.int64] | None = None) -> list[float]:
    """Values at the rows' positions, as a session would take them from the batches."""
    found: list[float] = []
    for batch in source.batches(size, rows):
        names = list(batch)
        assert names[0] == POSITIONS  # its length is the number of rows
        assert batch[SHAPE].tolist() == [3]
        assert len(batch["x"]) <= size
        found += batch["x"].reshape(-1)[batch[POSITIONS]].tolist()
    return found


def test_labelled_positions_are_rows() -> None:
    source = opened()
    assert source.labels.tolist() == [0, 1, 2, 0, 1, 1, 2]
    assert source.clusters is not None
    assert source.clusters.tolist() == [0, 0, 2, 2, 3, 3, 3]
    assert source.describe() == "arrays (3 samples, 7 labelled positions of 3 classes)"


@pytest.mark.parametrize("size", [1, 2, 3, 64])
def test_the_rows_are_the_same_whatever_the_batch_size(size: int) -> None:
    source = opened()
    assert rows_of(source, size) == [0, 1, 6, 8, 9, 10, 11]
    assert rows_of(source, size, np.array([1, 2, 6])) == [1, 6, 11]
    assert rows_of(source, size, np.zeros(0, np.int64)) == []


def test_pixels_are_counted_row_by_row() -> None:
    labels = np.full((4, 2, 3), 255)
    labels[:, 1, 0] = [0, 1, 2, 1]
    labels[0, 0, 2] = 1
    data = {"x": VALUES, "labels": labels}
    source = open_source(data, SPECS, 3, several=True, ignore_label=255)
    (batch,) = source.batches(4)
    assert batch[SHAPE].tolist() == [2, 3]
    assert batch[POSITIONS].tolist() == [2, 3, 9, 15, 21]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([0, 1, 2, 1]), r"a label for each position, shape \(N, P\), found shape \(4,\)"),
        (LABELS[:3], "3 rows of labels for 4 samples"),
        (np.where(LABELS == -100, 255, LABELS), "--ignore-label 255"),
        (np.where(LABELS == -100, 2**64 - 1, LABELS.astype(np.uint64)), "--ignore-label 18446744073709551615"),
        (np.where(LABELS == -100, -100, LABELS + 1), "start at 1"),
        (np.full((4, 3), -100), "every label is -100"),
        (np.where(LABELS == -100, -100, 1), "at least two different classes"),
        (LABELS + 0.5, "expected integers"),
    ],
)
def test_labels_that_cannot_be_used(labels: NDArray[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        opened(labels)


def test_an_unsigned_type_holds_no_negative_number() -> None:
    """Stored as uint8, -1 is 255, a class of 256."""
    data = {"x": VALUES, "labels": LABELS.astype(np.uint8)}
    with pytest.raises(DataError, match="without a -1"):
        open_source(data, SPECS, 256, several=True, ignore_label=-1)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.float32])
def test_no_label_stays_none_in_any_dtype(dtype: type) -> None:
    """With 256 classes the largest number of uint8 is a class: -1 in that dtype would be taken for it."""
    missing = 100
    labels = np.where(LABELS == -100, missing, LABELS)
    source = open_source({"x": VALUES, "labels": labels.astype(dtype)}, SPECS, 256, several=True, ignore_label=missing)
    assert isinstance(source, PositionSource)
    assert source.labels.dtype == np.int64
    assert source.labels.tolist() == opened().labels.tolist()
    assert rows_of(source, 4) == rows_of(opened(), 4)


def test_equal_samples_with_other_labels_can_be_told() -> None:
    source = opened()
    numbers = sample_labels(source)
    assert len(numbers) == len(source.sample_digests()) == 3  # the sample without a label is none
    same = opened(np.array([[0, 1, -100], [-100] * 3, [0, 1, -100], [1, 1, 2]]))
    assert sample_labels(same)[0] == sample_labels(same)[1] == numbers[0] != numbers[1]


def test_the_digest_changes_with_the_labels_alone() -> None:
    other = LABELS.copy()
    other[3, 0] = 2
    assert opened().digest() == opened().digest() != opened(other).digest()


def test_memory_is_bounded_by_whole_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "_MIN_ROWS", 1)
    monkeypatch.setattr(several, "_MIN_SAMPLES", 1)
    monkeypatch.setattr(several, "_MAX_BYTES", 4 * 10 * 5)  # five rows of ten numbers
    source = opened(n_features=10)
    assert 1 <= len(source) <= 5
    whole = opened()
    for sample in source.owners:  # all rows of a sample, or none
        assert np.sum(source.owner == sample) == np.sum(whole.owner == sample)
    assert "taken at random" in source.notes[-1]
    assert opened(n_features=10).labels.tolist() == source.labels.tolist()


def test_where_few_samples_would_stay_positions_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "_MIN_ROWS", 1)
    monkeypatch.setattr(several, "_MAX_BYTES", 4 * 10 * 4)
    source = opened(n_features=10)
    assert len(source) == 4
    assert "and positions of those" in source.notes[-1]
    assert rows_of(source, 2) == rows_of(source, 64)


def test_a_batch_holds_no_more_samples_than_its_logits_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "_BATCH_BYTES", 4 * 3 * 3 * 2)  # two samples of three positions and classes
    assert [len(batch["x"]) for batch in opened().batches(64)] == [2, 1]


def test_labels_that_are_the_input_are_refused() -> None:
    """What a language model reads is not what it is to predict: labels come one position later."""
    specs = (InputSpec("input_ids", (None, None), np.dtype(np.int64)),)
    ids = np.array([[0, 1, 2], [2, 1, 0]])
    with pytest.raises(DataError, match=r"labels\[:, t\] = input_ids\[:, t \+ 1\]"):
        open_source({"input_ids": ids, "labels": ids}, specs, 3, several=True)
    following = np.c_[ids[:, 1:], [-100, -100]]
    assert len(open_source({"input_ids": ids, "labels": following}, specs, 3, several=True)) == 4


@given(st.lists(st.integers(0, 4), min_size=2, max_size=12), st.integers(1, 5), st.integers(1, 20))
def test_the_first_whole_batches(labelled: list[int], size: int, most: int) -> None:
    """They hold the rows that a run over everything puts into its first batches."""
    labels = np.array([[0] * count + [-100] * (4 - count) for count in labelled])
    labels[labels == 0] = np.arange(np.sum(labels == 0)) % 2
    assume(np.any(labels == 1))
    source = opened(labels, x=np.zeros((len(labels), 4), np.float32))
    lengths = np.cumsum([len(batch[POSITIONS]) for batch in source.batches(size)])
    fitting = lengths[lengths <= most]
    assert first_batches(source, size, most) == (fitting[-1] if len(fitting) else lengths[0])
