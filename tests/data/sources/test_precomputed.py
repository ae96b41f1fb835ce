"""Features and logits that were stored before."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.samples import gather, spec
from tests.support import pairwise
from tna_onnx.data import open_precomputed
from tna_onnx.data.request import Request
from tna_onnx.errors import DataError

FEATURES = np.random.default_rng(0).random((6, 5), np.float32)
LOGITS = np.random.default_rng(1).random((6, 3), np.float32)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def store(folder: Path, form: str, **arrays: Any) -> Path:
    if form == "npz":
        np.savez(folder / "calib.npz", **arrays)
        return folder / "calib.npz"
    (folder / "calib").mkdir()
    for name, values in arrays.items():
        np.save(folder / "calib" / f"{name}.npy", values)
    return folder / "calib"


@pytest.mark.parametrize(
    ("form", "kind", "dtype"), pairwise(["npz", "npy"], ["features", "logits"], ["float16", "float32", "float64"])
)
def test_values_and_labels(tmp_path: Path, form: str, kind: str, dtype: str) -> None:
    values = {"features": FEATURES, "logits": LOGITS}[kind].astype(dtype)
    path = store(tmp_path, form, **{kind: values, "labels": LABELS})
    found = open_precomputed(path, Request([spec()], 3))
    assert found is not None
    assert found.kind == kind
    np.testing.assert_array_equal(found.values, values, strict=True)
    np.testing.assert_array_equal(found.labels, LABELS, strict=True)
    np.testing.assert_array_equal(gather(found.source, 4)[kind], values, strict=True)
    assert found.source.describe() == f"{kind} {path.name} (6 samples, 3 classes)"
    assert found.source.recipe() is None
    assert isinstance(found.values, np.memmap) == (form == "npy")


def test_features_go_before_logits(tmp_path: Path) -> None:
    found = open_precomputed(
        store(tmp_path, "npz", logits=LOGITS, features=FEATURES, labels=LABELS), Request([spec()], 3)
    )
    assert found is not None
    assert found.kind == "features"


@pytest.mark.parametrize("form", ["npz", "npy"])
def test_inputs_are_not_features(tmp_path: Path, form: str) -> None:
    path = store(tmp_path, form, features=FEATURES, labels=LABELS, x=FEATURES)
    assert open_precomputed(path, Request([spec("features")], 3)) is None
    assert open_precomputed(path, Request([spec("x")], 3)) is None, "samples are there: they count"


def test_other_data(tmp_path: Path) -> None:
    assert open_precomputed(store(tmp_path, "npz", x=FEATURES, labels=LABELS), Request([spec()], 3)) is None
    assert open_precomputed(tmp_path, Request([spec()], 3)) is None
    assert open_precomputed(tmp_path / "gone.npz", Request([spec()], 3)) is None
    (tmp_path / "a.csv").touch()
    assert open_precomputed(tmp_path / "a.csv", Request([spec()], 3)) is None


@pytest.mark.parametrize("form", ["npz", "npy"])
@pytest.mark.parametrize(
    ("arrays", "pattern"),
    [
        ({"features": FEATURES}, "'labels'; the file has 'features'"),
        ({"features": FEATURES[..., np.newaxis], "labels": LABELS}, r"must be floating-point \(N, n\), .* \(6, 5, 1\)"),
        ({"features": FEATURES.astype(int), "labels": LABELS}, "must be floating-point .* int64"),
        ({"logits": FEATURES, "labels": LABELS}, r"must be floating-point \(N, 3\), one per class; found \(6, 5\)"),
        ({"logits": LOGITS, "labels": LABELS[:5]}, "5 labels for 6 samples"),
        ({"logits": LOGITS, "labels": LABELS + 1}, "subtract 1"),
    ],
)
def test_refusals(tmp_path: Path, form: str, arrays: dict[str, Any], pattern: str) -> None:
    path = store(tmp_path, form, **arrays)
    with pytest.raises(DataError, match=pattern) as caught:
        open_precomputed(path, Request([spec()], 3))
    assert str(path) in str(caught.value)


def test_a_mapping() -> None:
    found = open_precomputed({"features": FEATURES, "labels": LABELS}, Request([spec()], 3))
    assert found is not None
    assert found.values is FEATURES
    assert found.source.describe() == "features (6 samples, 3 classes)"
    other = open_precomputed({"features": 1 - FEATURES, "labels": LABELS}, Request([spec()], 3))
    assert other is not None
    assert found.source.digest() != other.source.digest()
    assert open_precomputed({"x": FEATURES, "labels": LABELS}, Request([spec()], 3)) is None
    assert open_precomputed([(FEATURES, LABELS)], Request([spec()], 3)) is None


def test_a_url(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    local = store(tmp_path, "npz", features=FEATURES, labels=LABELS)
    fsspec.filesystem("memory").put(str(local), f"/{tmp_path.name}/calib.npz")
    found = open_precomputed(f"memory://{tmp_path.name}/calib.npz", Request([spec()], 3))
    same = open_precomputed(local, Request([spec()], 3))
    assert found is not None
    assert same is not None
    assert found.source.digest() == same.source.digest()
    assert open_precomputed(f"memory://{tmp_path.name}", Request([spec()], 3)) is None


def test_one_logit(tmp_path: Path) -> None:
    found = open_precomputed(store(tmp_path, "npz", logits=LOGITS[:, :1], labels=LABELS % 2), Request([spec()], 2))
    assert found is not None
    assert found.values.shape == (6, 1)


def test_labels_apart_and_names(tmp_path: Path) -> None:
    path = store(tmp_path, "npy", features=FEATURES)
    found = open_precomputed(path, Request([spec()], 3, labels=LABELS))
    assert found is not None
    np.testing.assert_array_equal(found.labels, LABELS)
    (tmp_path / "y.txt").write_text("cat\ndog\ncow\n" * 2)
    found = open_precomputed(
        path, Request([spec()], 3, labels=str(tmp_path / "y.txt"), class_names=["cow", "cat", "dog"])
    )
    assert found is not None
    np.testing.assert_array_equal(found.labels, [1, 2, 0, 1, 2, 0])


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    values = FEATURES.copy()
    values[2, 1] = np.inf
    found = open_precomputed(store(tmp_path, "npz", features=values, labels=LABELS), Request([spec()], 3))
    assert found is not None
    with pytest.raises(DataError, match="'features' must be finite, but row 2 "):
        list(found.source.batches(6))
