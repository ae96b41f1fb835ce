"""Python objects as data: data frames, (X, y), arrays, and batches in every form; data sets are refused."""

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.samples import gather, open_source, spec
from tna_onnx.data.formats import open_request, request_of
from tna_onnx.data.options import Data
from tna_onnx.data.sample_info import with_prior
from tna_onnx.data.source import Source
from tna_onnx.data.sources.arrays import ArraySource
from tna_onnx.errors import DataError, UsageError

pd = pytest.importorskip("pandas")

X = np.random.default_rng(0).random((70, 3))  # more than one batch of items
LABELS = np.arange(70) % 3
NAMES = np.array(["setosa", "virginica", "versicolor"])
ONE = [spec("X", (None, 3))]
EACH = [spec(name, (None, 1)) for name in "abc"]
VALUES = X.astype(np.float32)
PARTS = [slice(0, 30), slice(30, 60), slice(60, 70)]


class Items:
    """A data set of torch: items by number."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        return self.items[row]


def parts(order: str = "abc") -> dict[str, Any]:
    return {name: X[:, "abc".index(name)] for name in order}


def opened(data: Any, inputs: Any = ONE, **options: Any) -> Source:
    return open_source(data, inputs, 3, **options)


class Reader:
    def __init__(self, batches: list[Any]) -> None:
        self.batches = iter(batches)

    def get_next(self) -> Any:
        return next(self.batches, None)


def tuples() -> Iterator[tuple[Any, Any]]:
    yield from ((VALUES[part], LABELS[part]) for part in PARTS)


FORMS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "frame": lambda: (pd.DataFrame({**parts(), "target": LABELS}), {}),
    "frame, label first": lambda: (pd.DataFrame({"label": LABELS, **parts()}), {}),
    "frame, columns called 0, 1, 2": lambda: (pd.DataFrame({**dict(enumerate(X.T)), "y": LABELS}), {}),
    "frame, label column": lambda: (pd.DataFrame({**parts(), "species": LABELS}), {"label_column": "species"}),
    "frame, names": lambda: (pd.DataFrame({**parts(), "class": NAMES[LABELS]}), {"class_names": NAMES}),
    "frame, labels apart": lambda: (pd.DataFrame(parts()), {"labels": pd.Series(LABELS)}),
    "frame, told": lambda: (pd.DataFrame({**parts("cab"), "n": LABELS, "y": LABELS}), {"columns": ["a", "b", "c"]}),
    "X, y": lambda: ((X, LABELS), {}),
    "X, y of float32": lambda: ((VALUES, LABELS), {}),
    "X, y of lists": lambda: ((X.tolist(), LABELS.tolist()), {}),
    "X, y of names": lambda: ((X, NAMES[LABELS].astype(object)), {"class_names": NAMES}),
    "X, y of a frame": lambda: ((pd.DataFrame(parts()), pd.Series(LABELS)), {}),
    "X and labels": lambda: (X, {"labels": LABELS}),
    "X and labels of float32": lambda: (VALUES, {"labels": LABELS.tolist()}),
    "mapping, names as objects": lambda: (
        {"X": VALUES, "labels": NAMES[LABELS].astype(object)},
        {"class_names": NAMES},
    ),
    "mapping of columns": lambda: ({**parts(), "target": LABELS}, {}),
    "dicts": lambda: ([{"X": VALUES[part], "labels": LABELS[part]} for part in PARTS], {}),
    "dicts with label": lambda: ([{"X": VALUES[part], "label": LABELS[part], "more": 1} for part in PARTS], {}),
    "tuples": lambda: ([(VALUES[part], LABELS[part]) for part in PARTS], {}),
    "generator": lambda: (tuples(), {}),
    "lists of numbers": lambda: ([[VALUES[part], LABELS[part].tolist()] for part in PARTS], {}),
    "reader": lambda: (Reader([{"X": VALUES[part]} for part in PARTS]), {"labels": LABELS}),
    "reader with labels": lambda: (Reader([{"X": VALUES[part], "labels": LABELS[part]} for part in PARTS]), {}),
    "reader of bare arrays": lambda: (Reader([VALUES[part] for part in PARTS]), {"labels": LABELS}),
    "bare arrays": lambda: ([VALUES[part] for part in PARTS], {"labels": LABELS}),
    "ignored labels": lambda: (tuples(), {"labels": LABELS}),
    "columns of labels": lambda: ([(VALUES[part], LABELS[part, np.newaxis]) for part in PARTS], {}),
    "mapping": lambda: ({"X": VALUES, "labels": LABELS}, {}),
    "mapping and labels": lambda: ({"X": VALUES}, {"labels": LABELS}),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str) -> None:
    data, options = FORMS[name]()
    source = opened(data, **options)
    np.testing.assert_array_equal(gather(source, 16)["X"], VALUES, strict=True)
    np.testing.assert_array_equal(gather(source, 2, np.array([6, 0]))["X"], VALUES[[6, 0]], strict=True)
    np.testing.assert_array_equal(source.labels, LABELS, strict=True)


@pytest.mark.parametrize(
    "data", [pd.DataFrame({**parts("cba"), "target": LABELS}), (X, LABELS), parts("bca") | {"y": LABELS}]
)
def test_one_input_a_column(data: Any) -> None:
    joined = gather(opened(data, EACH), 16)
    for place, name in enumerate("abc"):
        np.testing.assert_array_equal(joined[name], X[:, [place]].astype(np.float32), strict=True)


def test_values_that_are_missing_or_of_python() -> None:
    cells = [1, 2.5, *X[2:, 0].tolist()]
    source = opened(pd.DataFrame({"a": np.array(cells, object), **{k: parts()[k] for k in "bc"}, "target": LABELS}))
    np.testing.assert_array_equal(gather(source, 70)["X"][:, 0], np.array(cells, np.float32))
    cells[7] = None
    with pytest.raises(
        DataError, match="data frame: column 'a': expected a finite number of float32, found nan in row 7"
    ):
        opened(pd.DataFrame({"a": np.array(cells, object), **{k: parts()[k] for k in "bc"}, "target": LABELS}))


def test_a_tuple_of_batches_is_none_of_x_and_y() -> None:
    batches = tuple((X[part].astype(np.float32), LABELS[part]) for part in (slice(0, 35), slice(35, 70)))
    np.testing.assert_array_equal(gather(opened(batches), 16)["X"], VALUES)


@pytest.mark.parametrize(
    ("data", "inputs", "error", "pattern"),
    [
        (X, ONE, DataError, r"array \(70, 3\): has no labels; give \(X, y\)"),
        ((X, LABELS[:5]), ONE, DataError, "5 labels for 70 samples"),
        ((X[:, :2], LABELS), ONE, DataError, "names 2 columns, the model takes 3"),
        ((np.zeros((70, 3, 2)), LABELS), EACH, DataError, "one array for a model with 3 inputs; give a mapping"),
        (
            pd.DataFrame({"a": X[:, 0], "target": LABELS}),
            EACH,
            DataError,
            "data frame: no column for the model's input 'b', 'c'",
        ),
        (pd.DataFrame({0: LABELS, "0": LABELS}), ONE, DataError, "several columns are called '0'"),
        (pd.DataFrame(parts()), ONE, DataError, "data frame: no column is named 'label'"),
        ({**parts(), "target": LABELS[:3]}, ONE, DataError, "one row per sample, found lengths"),
        (Items([(X[0], 0), (X[1], 1)]), ONE, UsageError, r"data set, Items; expected its batches: .*DataLoader"),
        (3, ONE, UsageError, "found int"),
    ],
)
def test_refusals(data: Any, inputs: Any, error: type[Exception], pattern: str) -> None:
    with pytest.raises(error, match=pattern):
        opened(data, inputs)


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    values = torch.tensor(X, dtype=torch.float32, requires_grad=True)
    for data in (
        (values, torch.tensor(LABELS)),
        (values.detach().to_sparse(), torch.tensor(LABELS)),
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(values, torch.tensor(LABELS)), batch_size=32),
    ):
        source = opened(data)
        np.testing.assert_array_equal(gather(source, 16)["X"], VALUES, strict=True)
        np.testing.assert_array_equal(source.labels, LABELS)
    labels = torch.tensor(LABELS, dtype=torch.float32, requires_grad=True)
    np.testing.assert_array_equal(opened(values, labels=labels).labels, LABELS)
    rounded = values.bfloat16()
    expected = rounded.float().detach().numpy()
    np.testing.assert_array_equal(gather(opened((rounded, torch.tensor(LABELS))), 16)["X"], expected, strict=True)
    assert "batch 0: 'X': cannot be made an array" in refusal([([*values], LABELS)])  # the gradients are not dropped
    assert "batch 0: 'labels': cannot be made an array" in refusal([(VALUES, torch.tensor(LABELS, device="meta"))])


def test_masked_values_are_missing_ones() -> None:
    hidden = np.arange(70) == 7
    labels = np.ma.array(LABELS, mask=hidden)
    values = np.ma.array(VALUES, mask=np.repeat(hidden[:, np.newaxis], 3, 1))
    for data in ((X, labels), {"X": VALUES, "labels": labels}, {"X": values, "labels": LABELS}):
        with pytest.raises(
            DataError, match=r"expected integers, found 1 of 70 .* in row 7|expected dtype float32, found object"
        ):
            opened(data)
    with pytest.raises(DataError, match="expected a finite number of float32, found nan in row 7"):
        gather(opened((values.astype(float), LABELS)), 16)


def test_tables_of_pyarrow_and_sparse_matrices() -> None:
    pa = pytest.importorskip("pyarrow")
    sparse = pytest.importorskip("scipy.sparse")
    for data in (
        pa.table({**parts(), "label": LABELS}),
        (sparse.csr_matrix(X), LABELS),
        {"X": sparse.csr_matrix(VALUES), "labels": LABELS},
        (X, pa.array(LABELS)),
        (X, pa.array(LABELS.astype(str)).dictionary_encode()),
        (X, pa.chunked_array([LABELS[:7], LABELS[7:]])),
    ):
        np.testing.assert_array_equal(gather(opened(data), 16)["X"], VALUES, strict=True)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames(library: str) -> None:
    frames = pytest.importorskip(library)
    whole = frames.DataFrame({**parts(), "target": NAMES[LABELS]})
    for data in (whole, (whole[["a", "b", "c"]], whole["target"])):
        source = opened(data, class_names=NAMES)
        np.testing.assert_array_equal(gather(source, 16)["X"], VALUES, strict=True)
        np.testing.assert_array_equal(source.labels, LABELS)
    if library == "polars":
        for lazy in (whole.lazy(), (whole.lazy().select("a", "b", "c"), whole["target"])):
            np.testing.assert_array_equal(opened(lazy, class_names=NAMES).labels, LABELS)


def test_rows_of_pandas_in_two_orders_are_refused() -> None:
    x = pd.DataFrame(parts())
    labels = pd.Series(LABELS)
    moved = labels[::-1]
    for data, options in (
        ((x, moved), {}),
        (x, {"labels": moved}),
        ({**x, "b": x["b"][::-1], "y": labels}, {}),
        ({"X": x, "labels": moved}, {}),
        ({**x, "y": labels, "by": moved}, {"by": "by"}),
    ):
        with pytest.raises(DataError, match="in another order, by their index"):
            Data(data, **options)
    for pair in ((x[::-1], moved), (x[10:40], labels[:30])):  # of other rows nothing is known: position counts
        np.testing.assert_array_equal(opened(Data(pair).samples).labels, pair[1])
    numbered = pd.DataFrame({**dict(zip((2, 0, 1), X.T, strict=True)), 3: LABELS})
    for data in (
        Data(x[["c", "a", "b"]], labels, columns=x.columns),
        Data(numbered, label_column=numbered.columns[3], columns=pd.Index([2, 0, 1])),
    ):
        source = open_request(request_of(data, ONE, 3, None))
        np.testing.assert_array_equal(gather(source, 16)["X"], VALUES)
        np.testing.assert_array_equal(source.labels, LABELS)


def test_frequencies_of_pandas_are_by_class() -> None:
    labels = np.repeat([0, 1, 2], [5, 20, 45])
    stated = pd.Series(NAMES[labels]).value_counts(normalize=True)  # the most frequent first
    weights = [
        with_prior(Data((X, labels), class_prior=prior), 3, list(NAMES)).weights for prior in (stated, stated.to_dict())
    ]
    np.testing.assert_allclose(weights[0].frequencies, np.array([5, 20, 45]) / 70)
    np.testing.assert_array_equal(weights[0].frequencies, weights[1].frequencies)


def test_data_sets_are_refused_with_their_batches_or_their_file() -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"X": VALUES.tolist(), "label": LABELS})
    for refused in (data, data.to_iterable_dataset()):
        with pytest.raises(
            UsageError, match=r"expected its batches: .*data\.to_parquet\('calib\.parquet'\) of datasets"
        ):
            opened(refused)
    batches = data.with_format("numpy").cast_column("X", datasets.Sequence(datasets.Value("float32"))).iter(16)
    np.testing.assert_array_equal(gather(opened(batches), 16)["X"], VALUES)


# ---- batches


def refusal(data: Any, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        opened(data, **options)
    return str(caught.value)


def test_batches_do_not_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source keeps no batch: the only array that is left is a map."""
    monkeypatch.setattr("tna_onnx.data.mapped._IN_MEMORY", VALUES[:45].nbytes)
    kept: list[Any] = []

    def batches() -> Iterator[dict[str, Any]]:
        for part in PARTS:
            values = VALUES[part].copy()
            kept.append(weakref.ref(values))
            yield {"X": values, "labels": LABELS[part]}

    source = opened(batches())
    gc.collect()
    assert [ref() for ref in kept] == [None] * 3
    assert isinstance(source, ArraySource)
    assert isinstance(source.columns["X"], np.memmap)
    np.testing.assert_array_equal(source.columns["X"], VALUES)


def test_a_loader_may_fill_one_buffer_again() -> None:
    def batches() -> Iterator[Any]:
        buffer = np.empty((1, 3), np.float32)
        for row, label in zip(VALUES, LABELS, strict=True):
            buffer[:] = row
            yield buffer, [label]

    np.testing.assert_array_equal(gather(opened(batches()), 3)["X"], VALUES)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6))
def test_digest_does_not_depend_on_the_batches(sizes: list[int]) -> None:
    ends = np.minimum(np.cumsum([0, *sizes, 70]), 70)
    parts = [slice(a, b) for a, b in itertools.pairwise(ends) if a < b]
    assert opened([(VALUES[part], LABELS[part]) for part in parts]).digest() == opened([(VALUES, LABELS)]).digest()


@pytest.mark.parametrize(
    ("batches", "pattern"),
    [
        ([], "gives no samples"),
        ([{"y": VALUES, "labels": LABELS}], "batch 0: has no 'X' (found 'y', 'labels')"),
        ([{"X": VALUES}], "batch 0: has no 'labels' (found 'X'); give labels apart"),
        ([(VALUES,)], "batch 0: has 1 parts, expected 2, 'X', 'labels' in this order"),
        ([(VALUES, LABELS, LABELS)], "batch 0: has 3 parts, expected 2"),
        ([VALUES], "batch 0: expected a mapping or a tuple of 'X', 'labels', found ndarray; for arrays of all samples"),
        ([(VALUES, LABELS[:3])], "batch 0: every array must have one row per sample"),
        ([(VALUES, 3)], "batch 0: every array must have one row per sample"),
        (
            [(VALUES, LABELS), (VALUES[:, :2], LABELS)],
            "from row 70 on a sample has shape (2,) and dtype float32, before (3,)",
        ),
        ([(VALUES, LABELS), (VALUES.astype(np.float64), LABELS)], "dtype float64, before (3,) and float32"),
        ([(VALUES, LABELS), (VALUES, LABELS[:, np.newaxis])], "another number of axes"),
        ([([[1.0], [2.0, 3.0]], [0, 1])], "'X': expected numbers, found objects"),
        ([(np.array([{}] * 70), LABELS)], "'X': expected numbers, found objects"),
    ],
)
def test_batches_that_are_refused(batches: Any, pattern: str) -> None:
    assert pattern in refusal(batches)


def test_batches_without_an_end_stop_where_labels_given_apart_do() -> None:
    assert "70 labels for more samples" in refusal(itertools.cycle([VALUES[:30]]), labels=LABELS)


def test_an_input_called_labels() -> None:
    with pytest.raises(DataError, match="rename that input"):
        opened([{"labels": VALUES}], [spec("labels")])


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
        yield VALUES, LABELS
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        opened(broken())
