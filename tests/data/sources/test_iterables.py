"""Python objects as data: batches in every form, read once, kept on disk, and every refusal."""

import gc
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.samples import gather, open_source, spec
from tna_onnx.data.source import Source
from tna_onnx.data.sources.arrays import ArraySource
from tna_onnx.errors import DataError, UsageError

X = np.arange(28, dtype=np.float32).reshape(7, 4)
IDS = np.arange(7)
LABELS = IDS % 3
PARTS = [slice(0, 3), slice(3, 6), slice(6, 7)]


def opened(data: Any, inputs: Any = None, **options: Any) -> Source:
    return open_source(data, inputs or [spec()], 3, **options)


def refusal(data: Any, inputs: Any = None, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        opened(data, inputs, **options)
    return str(caught.value)


class Reader:
    def __init__(self, batches: list[Any]) -> None:
        self.batches = iter(batches)

    def get_next(self) -> Any:
        return next(self.batches, None)


def tuples() -> Iterator[tuple[Any, Any]]:
    yield from ((X[part], LABELS[part]) for part in PARTS)


FORMS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "dicts": lambda: ([{"x": X[part], "labels": LABELS[part]} for part in PARTS], {}),
    "dicts with label": lambda: ([{"x": X[part], "label": LABELS[part], "more": 1} for part in PARTS], {}),
    "tuples": lambda: ([(X[part], LABELS[part]) for part in PARTS], {}),
    "generator": lambda: (tuples(), {}),
    "lists of numbers": lambda: ([[X[part], LABELS[part].tolist()] for part in PARTS], {}),
    "reader": lambda: (Reader([{"x": X[part]} for part in PARTS]), {"labels": LABELS}),
    "reader with labels": lambda: (Reader([{"x": X[part], "labels": LABELS[part]} for part in PARTS]), {}),
    "reader of bare arrays": lambda: (Reader([X[part] for part in PARTS]), {"labels": LABELS}),
    "bare arrays": lambda: ([X[part] for part in PARTS], {"labels": LABELS}),
    "ignored labels": lambda: (tuples(), {"labels": LABELS}),
    "columns of labels": lambda: ([(X[part], LABELS[part, np.newaxis]) for part in PARTS], {}),
    "mapping": lambda: ({"x": X, "labels": LABELS}, {}),
    "mapping and labels": lambda: ({"x": X}, {"labels": LABELS}),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    data, options = FORMS[name]()
    source = opened(data, **options)
    np.testing.assert_array_equal(gather(source, 2)["x"], X, strict=True)
    np.testing.assert_array_equal(gather(source, 2, np.array([6, 0]))["x"], X[[6, 0]], strict=True)
    np.testing.assert_array_equal(source.labels, LABELS, strict=True)


def test_batches_do_not_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source keeps no batch: the only array that is left is a map."""
    import weakref

    monkeypatch.setattr("tna_onnx.data.mapped._IN_MEMORY", X[:5].nbytes)
    kept: list[Any] = []

    def batches() -> Iterator[dict[str, Any]]:
        for part in PARTS:
            values = X[part].copy()
            kept.append(weakref.ref(values))
            yield {"x": values, "labels": LABELS[part]}

    source = opened(batches())
    gc.collect()
    assert [ref() for ref in kept] == [None] * 3
    assert isinstance(source, ArraySource)
    assert isinstance(source.columns["x"], np.memmap)
    np.testing.assert_array_equal(source.columns["x"], X)


def test_a_loader_may_fill_one_buffer_again() -> None:
    def batches() -> Iterator[Any]:
        buffer = np.empty((1, 4), np.float32)
        for row, label in zip(X, LABELS, strict=True):
            buffer[:] = row
            yield buffer, [label]

    np.testing.assert_array_equal(gather(opened(batches()), 3)["x"], X)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_digest_does_not_depend_on_the_batches(sizes: list[int]) -> None:
    ends = np.minimum(np.cumsum([0, *sizes, 7]), 7)
    parts = [slice(a, b) for a, b in itertools.pairwise(ends) if a < b]
    assert opened([(X[part], LABELS[part]) for part in parts]).digest() == opened([(X, LABELS)]).digest()


@pytest.mark.parametrize(
    ("batches", "pattern"),
    [
        ([], "gives no samples"),
        ([{"y": X, "labels": LABELS}], "batch 0: has no 'x' (found 'y', 'labels')"),
        ([{"x": X}], "batch 0: has no 'labels' (found 'x'); give labels apart"),
        ([(X,)], "batch 0: has 1 parts, expected 2, 'x', 'labels' in this order"),
        ([(X, IDS, LABELS)], "batch 0: has 3 parts, expected 2"),
        ([X], "batch 0: expected a mapping or a tuple of 'x', 'labels', found ndarray; for arrays of all samples"),
        ([(X, LABELS[:3])], "batch 0: every array must have one row per sample"),
        ([(X, 3)], "batch 0: every array must have one row per sample"),
        ([(X, LABELS), (X[:, :3], LABELS)], "from row 7 on a sample has shape (3,) and dtype float32, before (4,)"),
        ([(X, LABELS), (X.astype(np.float64), LABELS)], "dtype float64, before (4,) and float32"),
        ([(X, LABELS), (X, LABELS[:, np.newaxis])], "another number of axes"),
        ([([[1.0], [2.0, 3.0]], [0, 1])], "'x': expected numbers, found objects"),
        ([(np.array([{}] * 7), LABELS)], "'x': expected numbers, found objects"),
    ],
)
def test_refusals(batches: Any, pattern: str) -> None:
    assert pattern in refusal(batches)


def test_batches_without_an_end_stop_where_labels_given_apart_do() -> None:
    assert "7 labels for more samples" in refusal(itertools.cycle([X[:3]]), labels=LABELS)


def test_an_input_called_labels() -> None:
    with pytest.raises(DataError, match="rename that input"):
        opened([{"labels": X}], [spec("labels")])


def test_an_iterator_that_was_read_before() -> None:
    batches = tuples()
    list(batches)
    assert "gives no samples; an iterator that was read before is empty" in refusal(batches)


@pytest.mark.parametrize("data", [3, None, tuples])
def test_other_objects(data: Any) -> None:
    with pytest.raises(UsageError, match="expected a path, a source, a data frame"):
        opened(data)


def test_errors_of_the_callers_code_pass() -> None:
    def broken() -> Iterator[Any]:
        yield X, LABELS
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        opened(broken())
