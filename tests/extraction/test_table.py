"""The feature table: blocks and batches give every sample once, in order, as they were collected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tna_onnx.data import mapped
from tna_onnx.extraction import collect
from tna_onnx.extraction.collect import FeatureTable

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


def test_batches_are_those_of_the_collection() -> None:
    features = np.arange(N * 6, dtype=np.float16).reshape(N, 6)
    mask = np.arange(N * 2).reshape(N, 2)
    scalars = tuple({"length": np.array(k)} for k in range(3))
    batches = list(FeatureTable(features, LABELS, 4, {"mask": mask}, scalars).batches())
    assert len(FeatureTable(features, LABELS)) == N
    assert [len(labels) for _, labels, _ in batches] == [4, 4, 2]
    assert {values.dtype for values, _, _ in batches} == {np.dtype("float16")}
    np.testing.assert_array_equal(np.concatenate([values for values, _, _ in batches]), features)
    np.testing.assert_array_equal(np.concatenate([beside["mask"] for _, _, beside in batches]), mask)
    assert [int(beside["length"]) for _, _, beside in batches] == [0, 1, 2]


def test_several_rows_of_a_sample_follow_one_another() -> None:
    """Kept as (N, rows, n), given back as (B * rows, n), the shape that the graph computes."""
    features = np.arange(N * 3 * 2, dtype=np.float32).reshape(N, 3, 2)
    batches = [values for values, _, _ in FeatureTable(features, LABELS, 4, rows=3).batches()]
    assert [values.shape for values in batches] == [(12, 2), (12, 2), (6, 2)]
    np.testing.assert_array_equal(np.concatenate(batches), features.reshape(-1, 2))
