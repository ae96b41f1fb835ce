"""One pass over the samples: what is kept is what NumPy computes, in any batches, and bad samples are named."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from tests.builders import nodes_of, small_model
from tests.data.samples import open_source
from tests.extraction.samples import BIAS, WEIGHT, dense, inputs, opened, rows_run, source_of, tokens
from tna_onnx.data import mapped
from tna_onnx.data.source import InputSpec
from tna_onnx.errors import DataError, UnsupportedModel
from tna_onnx.extraction import collect
from tna_onnx.extraction.collect import FeatureTable, collect_features
from tna_onnx.extraction.head_check import check_readout
from tna_onnx.extraction.sessions import layout_of, position_rows
from tna_onnx.graph.readout import Layout
from tna_onnx.progress import silent
from tna_onnx.runtime import Device, Session, providers


def collected(proto: onnx.ModelProto, x: np.ndarray, size: int = 16, **more: Any) -> FeatureTable:
    model = opened(proto)
    source = source_of(model, x)
    readout = check_readout(model, model.readout, model.session, source, size).readout
    return collect_features(model, readout, source, size, more.pop("progress", silent), **more)


@pytest.mark.parametrize("size", [1, 16, 50, 64])
def test_features_are_kept_in_any_batches(size: int) -> None:
    x = inputs(50)
    table = collected(dense(), x, size)
    np.testing.assert_array_equal(table.features, np.maximum(x, 0))
    np.testing.assert_array_equal(table.labels, np.arange(50) % 3)
    assert (table.batch_size, table.rows) == (size, 0)


def test_a_second_run_takes_the_rows_of_a_store_over(tmp_path: Path) -> None:
    x = inputs(40)
    first = collected(dense(), x, cache=tmp_path)
    seen: list[tuple[str, int, int]] = []
    second = collected(dense(), x, cache=tmp_path, progress=lambda *step: seen.append(step))
    assert seen == [("collect features", 40, 40)] * 2
    assert second.folder == first.folder
    np.testing.assert_array_equal(second.features, first.features)
    assert collected(dense(), x, 8, cache=tmp_path).folder != first.folder  # other batches round in other ways


def test_given_features_stay_where_they_are() -> None:
    model = opened(dense())
    z = inputs(30)
    source = open_source({"z": z, "labels": np.arange(30) % 3}, [InputSpec("z", (None, 6), z.dtype)], 3)
    table = collect_features(model, model.readout, source, 16, silent, dtypes={"z": z.dtype})
    assert np.shares_memory(table.features, z)


def test_a_sample_with_infinite_features_is_named() -> None:
    proto = dense()
    proto.graph.node[0].op_type = "Add"  # z = x + x
    proto.graph.node[0].input.append("x")
    x = inputs(40)
    x[33, 2] = 3e38
    with pytest.raises(DataError, match="features of sample 33 hold NaN or infinite values"):
        collected(proto, x)


class Short:
    """A source that ends too early."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def __len__(self) -> int:
        return len(self._source)

    def batches(self, size: int, rows: Any = None) -> Iterator[Any]:
        yield next(self._source.batches(size, rows))


def test_samples_that_are_missing_are_counted() -> None:
    model = opened(dense())
    source: Any = Short(source_of(model, inputs(40)))
    with pytest.raises(DataError, match="16 samples read; expected 40"):
        collect_features(model, model.readout, source, 16, silent)


def test_several_rows_a_sample_are_no_features_of_a_linear_head() -> None:
    model = opened(tokens())
    linear = opened(dense()).readout
    with pytest.raises(UnsupportedModel, match="one vector a sample"):
        collect_features(model, linear, source_of(model, inputs(8, 4, 6)), 16, silent)


@pytest.mark.parametrize("places", [False, True])  # whether the place of a token counts
@pytest.mark.parametrize("side", ["right", "left", "left if long", "gaps if long"])
def test_tokens_that_are_padding_are_not_run_where_the_features_stay(
    places: bool, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 20, 300)
    mask = (np.arange(20) < lengths[:, None]).astype(np.int64)
    chosen = lengths > (10 if "long" in side else 0)
    if "left" in side:
        mask[chosen] = mask[chosen, ::-1]
    if "gaps" in side:
        mask[chosen, 3] = 0
    ids = np.where(mask, rng.integers(1, 9, mask.shape), 0)
    words = rng.standard_normal((9, 6)).astype(np.float32)
    weigh = "CumSum ones axis > w; Mul m w > used" if places else "Identity m > used"
    nodes = nodes_of(
        "Gather words ids > e; Cast mask > m to=FLOAT; Cast ids > i to=FLOAT; Mul i zero > i0; Exp i0 > ones; "
        f"{weigh}; Unsqueeze used two > u; Mul e u > v; ReduceSum v one > sum keepdims=0; "
        "ReduceSum m one > count; Div sum count > z; Gemm z weight bias > logits name=head transB=1"
    )
    tensors = {"words": words, "one": np.array([1]), "two": np.array([2]), "weight": WEIGHT, "bias": BIAS}
    tensors |= {"zero": np.float32(0), "axis": np.array(1)}
    tensors = {name: each for name, each in tensors.items() if any(name in node.input for node in nodes)}
    tokens_of = {name: (["N", "T"], np.int64) for name in ("ids", "mask")}
    model = opened(small_model(nodes, tokens_of, {"logits": ["N", 3]}, tensors))
    source = open_source({"ids": ids, "mask": mask, "labels": np.arange(300) % 3}, model.inputs, 3)
    run: list[int] = []
    compute = Session._compute
    monkeypatch.setattr(
        Session, "_compute", lambda self, names, feeds: (run.append(feeds["ids"].size), compute(self, names, feeds))[1]
    )
    table = collect_features(model, model.readout, source, 32, silent)
    weights = mask * np.arange(1, 21) if places else mask
    expected = (words[ids] * weights[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
    assert_allclose(table.features, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(table.labels, np.arange(300) % 3)
    assert (sum(run) < 0.8 * mask.size) == (side == "right" or (side == "left" and not places))


def test_a_network_that_takes_samples_of_one_length_alone_gets_them_whole() -> None:
    mask = np.tile([1, 1, 0, 0, 0, 0], (12, 1))
    nodes = nodes_of("Cast mask > m to=FLOAT; Reshape m shape > z; Gemm z weight bias > logits name=head transB=1")
    tensors = {"shape": np.array([-1, 6]), "weight": WEIGHT, "bias": BIAS}
    model = opened(small_model(nodes, {"mask": (["N", "T"], np.int64)}, {"logits": ["N", 3]}, tensors))
    source = open_source({"mask": mask, "labels": np.arange(12) % 3}, model.inputs, 3)
    np.testing.assert_array_equal(collect_features(model, model.readout, source, 12, silent).features, mask)


# --- The feature table: blocks and batches give every sample once, in order, as they were collected


N = 10
LABELS = np.arange(N) % 3


@pytest.mark.parametrize("in_memory", [0, 2**20])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_part_has_the_rows_in_their_order(dtype: str, in_memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory, or in a temporary file that is filled some rows at a time."""
    monkeypatch.setattr(mapped, "_IN_MEMORY", in_memory)
    monkeypatch.setattr(collect, "_BLOCK", 3 * 6 * np.dtype(dtype).itemsize)
    features = np.arange(N * 6).reshape(N, 6).astype(dtype)
    rows = np.array([7, 8, 0, 1, 2, 9, 4])
    clusters = np.arange(N) // 2
    part = FeatureTable(features, LABELS, 4, clusters=clusters, folder=Path("store")).part(rows)
    assert isinstance(part.features, np.memmap) == (in_memory == 0)
    assert part.features.dtype == dtype
    np.testing.assert_array_equal(part.features, features[rows])
    np.testing.assert_array_equal(part.labels, LABELS[rows])
    np.testing.assert_array_equal(part.clusters, clusters[rows])
    # workers would find other rows there
    assert part.folder is None


def test_a_part_is_in_memory_where_there_is_no_room_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "_IN_MEMORY", 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    part = FeatureTable(np.eye(N), LABELS).part(np.array([3, 1]))
    assert type(part.features) is np.ndarray
    np.testing.assert_array_equal(part.features, np.eye(N)[[3, 1]])


@pytest.mark.parametrize(
    ("stored", "given", "n_classes", "rows"),
    [
        ("float16", "float32", 2, 4), ("float32", "float32", 6, 4),
        ("float64", "float64", 8, 3), ("int8", "float32", 100, 1),
    ],
)  # fmt: skip
def test_blocks_are_as_large_as_their_logits_allow(
    stored: str, given: str, n_classes: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 elements a block: 24 over the larger of 6 features and the number of classes."""
    monkeypatch.setattr(collect, "_BLOCK", 24)
    features = np.arange(N * 6).reshape(N, 6).astype(stored)
    blocks = list(FeatureTable(features, LABELS).chunks(n_classes))
    assert [len(labels) for _, labels in blocks][:-1] == [rows] * ((N - 1) // rows)
    assert {block.dtype for block, _ in blocks} == {np.dtype(given)}
    np.testing.assert_array_equal(np.concatenate([block for block, _ in blocks]), features)
    np.testing.assert_array_equal(np.concatenate([labels for _, labels in blocks]), LABELS)


def test_blocks_are_batches_of_the_collection() -> None:
    features = np.arange(N * 6, dtype=np.float16).reshape(N, 6)
    for least, lengths in ((1, [4, 4, 2]), (5, [8, 2])):
        blocks = list(FeatureTable(features, LABELS, 4).blocks(least))
        assert [len(labels) for _, labels in blocks] == lengths
        assert {values.dtype for values, _ in blocks} == {np.dtype("float16")}
        np.testing.assert_array_equal(np.concatenate([values for values, _ in blocks]), features)


def test_several_rows_of_a_sample_follow_one_another() -> None:
    """Kept as (N, rows, n), given back as (B * rows, n), the shape that the graph computes."""
    features = np.arange(N * 3 * 2, dtype=np.float32).reshape(N, 3, 2)
    batches = [values for values, _ in FeatureTable(features, LABELS, 4, rows=3).blocks(1)]
    assert [values.shape for values in batches] == [(12, 2), (12, 2), (6, 2)]
    np.testing.assert_array_equal(np.concatenate(batches), features.reshape(-1, 2))


# --- Tensors of several predictions a sample, as rows


SIZES = st.lists(st.integers(2, 4), min_size=1, max_size=3)


@given(SIZES, st.integers(1, 3), st.integers(5, 6))
def test_rows_are_the_class_vectors_of_the_positions(shape: list[int], samples: int, classes: int) -> None:
    """Classes first or last: row r of position p is the vector that NumPy's indices give."""
    last = np.random.default_rng(0).normal(size=(samples, *shape, classes))
    expected = np.array([last[place] for place in np.ndindex(samples, *shape)])
    first = np.moveaxis(last, -1, 1)
    for values, axis in ((last, -1), (first, 1), (expected, -1)):
        layout = layout_of(values.shape, samples, tuple(shape), 0)
        assert layout == Layout(values.ndim, axis)
        np.testing.assert_array_equal(position_rows(values, layout), expected)


@pytest.mark.parametrize(
    ("shape", "samples", "positions", "axis", "expected"),
    [
        ((2, 3), 2, (3,), -1, Layout(2, 0)),  # one number a position
        # the graph decides where shapes do not
        *[((8, 5, 5), 8, (5,), axis, Layout(3, axis)) for axis in (1, -1)],
        *[(shape, 8, (5,), -1, None) for shape in [(8, 4), (8, 7, 3), (7, 5, 3), (8, 5, 3, 1), ()]],
    ],
)
def test_where_the_positions_of_a_tensor_are(
    shape: tuple[int, ...], samples: int, positions: tuple[int, ...], axis: int, expected: Layout | None
) -> None:
    assert layout_of(shape, samples, positions, axis) == expected


# --- One session for everything that a run reads, and sessions on parts of a model


def test_the_session_is_opened_once_and_gives_all_that_a_run_reads() -> None:
    model = opened(dense(softmax=True))
    session = model.session
    assert model.session is session
    assert model.is_whole(session)
    assert set(session.outputs) == {"z", "logits", "p"}


def test_a_session_starts_where_the_samples_enter() -> None:
    model = opened(dense())
    float32 = np.dtype(np.float32)
    part = model.session_from({"z": float32})
    assert [each.name for each in part.inputs] == ["z"]
    z = inputs(3)  # of any sign: nothing in front of the head is run
    np.testing.assert_allclose(part.run(["logits"], {"z": z})[0], z @ WEIGHT.T + BIAS, atol=1e-5)
    assert not model.is_whole(part)
    assert model.session_from({"logits": float32}) is None
    assert model.session_from({}) is model.session_from({"x": float32}) is model.session


def test_only_what_nodes_compute_is_asked_for_and_once() -> None:
    assert opened(dense()).computed(["logits", "x", "weight", "z", "logits", "nowhere"]) == ["logits", "z"]


@pytest.mark.parametrize("samples", [5, 8, 9, 20])
def test_cores_are_divided_among_batches_where_there_are_several(monkeypatch: pytest.MonkeyPatch, samples: int) -> None:
    monkeypatch.setattr(providers, "allowed_cores", lambda: 8)
    model = opened(dense())
    x = inputs(samples)
    source = source_of(model, x)
    session = model.session
    assert session.at_once == 1
    check_readout(model, model.readout, session, source, 8)
    sizes = rows_run(monkeypatch)
    table = collect_features(model, model.readout, source, 8, silent)
    assert_allclose(table.features, np.maximum(x, 0), rtol=0)
    assert (model.session is session, model.session.at_once) == ((True, 1) if samples <= 8 else (False, 2))
    # the first batch, and the second of two, were run by the check
    assert sum(sizes) == {20: 12}.get(samples, 0)


@pytest.mark.parametrize(("cores", "free"), [(1, 2**40), (8, 2**20)])
def test_a_session_is_opened_once_where_cores_or_memory_allow_one_batch_at_a_time(
    monkeypatch: pytest.MonkeyPatch, cores: int, free: int
) -> None:
    monkeypatch.setattr(providers, "allowed_cores", lambda: cores)
    monkeypatch.setattr(providers, "free_memory", lambda: free)
    model = opened(dense())
    session = model.session
    model.divide_cores(3)
    assert model.session is session


def test_a_session_that_was_asked_for_cuda_is_not_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "_wants_cuda", lambda ort, device: True)
    load = providers._load
    monkeypatch.setattr(providers, "_load", lambda *words: load(*words[:3], words[3][-1:], *words[4:]))
    model = opened(dense())
    model.device = Device("auto")
    session = model.session
    assert session.fallback
    model.divide_cores(3)
    assert model.session is session
