"""Manifests: every form of the file, paths that count from it, and every refusal."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.samples import ANY_SIZE, LISTED, TWO, gather, noise, spec, write_folder
from tna_onnx.data import Source, open_source
from tna_onnx.errors import DataError, UsageError

IMAGE = spec("image", (None, 3, 5, 6))


def opened(folder: Path, name: str, text: str, **options: Any) -> Source:
    write_folder(folder, LISTED)
    (folder / name).write_text(text)
    return open_source(folder / name, [IMAGE], options.pop("n_classes", 2), **options)


def test_a_manifest(tmp_path: Path) -> None:
    text = f"path,label\nc d.png,dog\n{tmp_path / 'b.png'},cat\nsub/a.png,dog\nc d.png,dog\n"
    source = opened(tmp_path, "list.csv", text, class_names=["dog", "cat"])
    assert source.describe() == "manifest list.csv (4 images, 2 classes)"
    np.testing.assert_array_equal(source.labels, [0, 1, 0, 0])
    expected = np.stack([noise(5, 6, seed=seed).transpose(2, 0, 1) for seed in (2, 0, 1, 2)]) / 255
    np.testing.assert_allclose(gather(source, 3)["image"], expected, rtol=0, atol=1e-6)


def test_missing_images(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"list\.csv: 1 of 2 files are not there \('x\.png'\); paths count from"):
        opened(tmp_path, "list.csv", "path,label\nx.png,0\nb.png,1\n")


def test_a_manifest_without_paths(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no column holds the paths .* 'index' only"):
        opened(tmp_path, "list.csv", "index,label\n1,0\n2,1\n")
    with pytest.raises(DataError, match="computed logits and features are read from Parquet"):
        opened(tmp_path, "list.csv", "logits_0,logits_1,label\n1,0.5,0\n2,0.1,1\n")


def test_a_manifest_takes_no_labels_apart(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="brings its own labels; leave --labels out"):
        opened(tmp_path, "list.csv", "b.png,0\nsub/a.png,1\n", labels=[0, 1])


def test_a_missing_image_of_a_manifest_is_bad(tmp_path: Path) -> None:
    write_folder(tmp_path, TWO)
    (tmp_path / "list.csv").write_text("path,label\n0/a.png,0\ngone.png,0\n1/b.png,1\n")
    source = open_source(tmp_path / "list.csv", [ANY_SIZE], 2, skip_bad=True)
    assert len(source) == 2
    assert source.describe().endswith(f"1 unreadable skipped: {tmp_path / 'gone.png'}")
