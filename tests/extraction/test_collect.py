"""One pass over the samples: what is kept is what NumPy computes, in any batches, and bad samples are named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.extraction.samples import BIAS, WEIGHT, dense, inputs, opened, source_of, tokens
from tna_onnx.data import InputSpec, open_source
from tna_onnx.errors import DataError, UnsupportedModel, UsageError
from tna_onnx.extraction.collect import FeatureTable, collect_features
from tna_onnx.extraction.head_check import check_readout
from tna_onnx.progress import silent


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
    assert (table.batch_size, table.logits, table.beside, table.rows) == (size, None, {}, 0)


def test_a_store_keeps_the_logits_and_a_second_run_takes_them_over(tmp_path: Path) -> None:
    x = inputs(40)
    first = collected(dense(), x, cache=tmp_path)
    assert first.logits is not None
    np.testing.assert_allclose(first.logits, np.maximum(x, 0) @ WEIGHT.T + BIAS, atol=1e-5)
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
    table = collect_features(model, model.readout, source, 16, silent, given=["z"])
    assert np.shares_memory(table.features, z)
    with pytest.raises(UsageError, match="leave --cache out"):
        collect_features(model, model.readout, source, 16, silent, Path("cache"), given=["z"])


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
