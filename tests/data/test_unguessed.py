"""What a table does not say is refused, and what is asked for is never ignored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.samples import spec
from tna_onnx.data import open_source
from tna_onnx.data.choices import DEFAULT_LIMITS
from tna_onnx.data.labelfile import find_label_column
from tna_onnx.data.sources.inmemory import read_columns
from tna_onnx.errors import DataError, UsageError

LABELS = [0, 1, 2, 0, 1]
TWO = [spec("X", (None, 2))]


def columns(**more: Any) -> dict[str, Any]:
    return {"a": [0.1, 0.2, 0.3, 0.4, 0.5], "b": [5.0, 6.0, 7.0, 8.0, 9.0], **more, "label": LABELS}


def values(source: Any) -> np.ndarray:
    (batch,) = source.batches(len(source))
    return np.asarray(batch["X"])


def csv(path: Path, table: dict[str, Any]) -> Path:
    rows = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values(), strict=True))]
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("option", [{"columns": ["a"]}, {"tokenizer": "folder"}], ids=["columns", "tokenizer"])
def test_what_only_tables_have_is_refused_elsewhere(tmp_path: Path, option: dict[str, Any]) -> None:
    x = np.zeros((5, 2), np.float32)
    np.savez(tmp_path / "d.npz", X=x, labels=LABELS)
    np.save(tmp_path / "X.npy", x)
    np.save(tmp_path / "labels.npy", LABELS)
    for data in (tmp_path / "d.npz", tmp_path, (x, LABELS), {"X": x, "labels": LABELS}, [(x, LABELS)]):
        with pytest.raises(UsageError, match="a table"):
            open_source(data, TWO, 3, **option)


def test_a_column_is_named_once() -> None:
    with pytest.raises(DataError, match="--columns names 'a' several times"):
        open_source(columns(), TWO, 3, columns=["a", "a"])


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64 - 1, -(2**63)])
def test_whole_numbers_keep_their_digits(tmp_path: Path, number: int) -> None:
    path = csv(tmp_path / "d.csv", {"id": [number, 1]})
    assert read_columns(path, DEFAULT_LIMITS)["id"].tolist() == [number, 1]
    (tmp_path / "d.json").write_text(json.dumps([{"id": number}, {"id": 1}]), encoding="utf-8")
    assert read_columns(tmp_path / "d.json", DEFAULT_LIMITS)["id"].tolist() == [number, 1]


@pytest.mark.parametrize("power", [63, 70, 2000])
def test_numbers_too_large_for_any_dtype_are_features_or_refused_labels(power: int) -> None:
    large = np.array([2**power + k for k in range(5)], object)
    source = open_source(columns(id=large), TWO, 3, columns=["a", "b"])
    np.testing.assert_allclose(values(source)[0], [0.1, 5.0])
    with pytest.raises(DataError, match="label"):
        open_source({**columns(), "label": large}, TWO, 3)


def test_labels_too_large_in_a_parquet_file(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({**columns(), "label": pa.array([0, 1, 2**63, 0, 1], pa.uint64())})
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "d.parquet")
    with pytest.raises(DataError, match="9223372036854775808 in row 2 is no class index"):
        open_source(tmp_path / "d.parquet", TWO, 3)


def test_rows_of_columns_in_dictionaries_are_matched_by_their_keys(tmp_path: Path) -> None:
    table = {name: dict(enumerate(cells)) for name, cells in columns().items()}
    shuffled = {**table, "label": dict(reversed(table["label"].items()))}
    (tmp_path / "d.json").write_text(json.dumps(shuffled), encoding="utf-8")
    for data in (shuffled, tmp_path / "d.json"):
        source = open_source(data, TWO, 3)
        assert source.labels.tolist() == LABELS
        np.testing.assert_allclose(values(source)[4], [0.5, 9.0])
    del shuffled["label"][2]
    with pytest.raises(DataError, match=r"column 'label' has other rows than 'a' \(4 and 5\)"):
        open_source(shuffled, TWO, 3)


@pytest.mark.parametrize("names", [["x", "y", "kind"], ["x0", "y", "x1"], ["y", "x", "z"]])
def test_y_may_be_a_feature(names: list[str]) -> None:
    with pytest.raises(DataError, match="'y' may be the label or a feature"):
        find_label_column(names, None, "d.csv")
    assert find_label_column(names, "y", "d.csv") == "y"


@pytest.mark.parametrize("names", [["x", "y"], ["x0", "x1", "y"], ["y", "x0", "x1"]])
def test_y_at_an_end_is_the_label(names: list[str]) -> None:
    assert find_label_column(names, None, "d.csv") == "y"


def test_a_column_like_the_input_is_not_the_input_of_several() -> None:
    """`x` and `X` are one name, but one number a row does not fill two."""
    source = open_source({"x": [0.1, 0.2], "w": [1.0, 2.0], "label": [0, 1]}, TWO, 3)
    np.testing.assert_allclose(values(source), [[0.1, 1.0], [0.2, 2.0]])


@pytest.mark.parametrize("name", ["id", "ID", "user_id", "index", "row"])
def test_row_numbers_are_no_features_where_any_number_of_columns_fits(name: str) -> None:
    table = columns(**{name: range(5)})
    with pytest.raises(DataError, match=f"'{name}' may not be a feature"):
        open_source(table, [spec("X", (None, None))], 3)
    source = open_source(table, [spec("X", (None, None))], 3, columns=["a", "b"])
    assert values(source).shape == (5, 2)
    # the model says how many it takes: so many it gets
    assert values(open_source(table, [spec("X", (None, 3))], 3)).shape == (5, 3)
