"""Columns of Arrow tables as arrays: any rows, in any order, over chunks of any length."""

from pathlib import Path

import numpy as np
import pytest

from tna_onnx.data.sources.arrow import ArrowColumn, map_table, table_schema
from tna_onnx.errors import DataError

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

X = np.arange(14, dtype=np.float32).reshape(7, 2)


def test_rows_are_found_in_their_chunks() -> None:
    chunks = [pa.array(X[part].tolist(), pa.list_(pa.float32())) for part in (slice(0, 3), slice(3, 3), slice(3, 7))]
    numbers = ArrowColumn(pa.chunked_array(chunks, pa.list_(pa.float32())), "here").numbers()
    assert (numbers.shape, numbers.dtype) == (X.shape, X.dtype)
    rows = np.array([6, 0, 3, 2, 6])
    np.testing.assert_array_equal(numbers[rows], X[rows], strict=True)


def test_ragged_chunks_are_refused() -> None:
    chunks = [pa.array([[1.0, 2.0]]), pa.array([[3.0]])]
    with pytest.raises(DataError, match=r"here: every row must have the shape of row 0, \(2,\), but row 1 has \(1,\)"):
        ArrowColumn(pa.chunked_array(chunks), "here").numbers()


def test_only_the_columns_asked_for_are_mapped(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2], "y": ["a", "b"]}), tmp_path / "a.parquet")
    assert table_schema(tmp_path / "a.parquet").names == ["x", "y"]
    table = map_table([tmp_path / "a.parquet"] * 2, ["y"])
    assert table.to_pydict() == {"y": ["a", "b", "a", "b"]}
