"""Samples without labels, from every kind of source; labels that they bring are not read."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.samples import spec
from tna_onnx.data import open_source
from tna_onnx.data.options import Data
from tna_onnx.data.source import NO_LABELS, InputSpec, Source
from tna_onnx.errors import DataError

X = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
WRONG = np.array([99, -4, 7, 7, 7, 7])


def opened(data: Any, **words: Any) -> Source:
    return open_source(data, (InputSpec("x", (None, 3), np.dtype(np.float32)),), 4, labels=NO_LABELS, **words)


def check(source: Source) -> None:
    np.testing.assert_array_equal(source.labels, np.full(6, -1))
    assert "(6 samples, without labels)" in source.describe()
    np.testing.assert_array_equal(np.concatenate([batch["x"] for batch in source.batches(4)]), X)


@pytest.mark.parametrize("labelled", [False, True], ids=["without", "with labels that are none"])
def test_arrays_and_tables(labelled: bool, tmp_path: Path) -> None:
    extra: dict[str, Any] = {"labels": WRONG} if labelled else {}
    np.savez(tmp_path / "a.npz", x=X, **extra)
    check(opened(tmp_path / "a.npz"))
    check(opened({"x": X, **extra}))
    check(opened([{"x": X[:4], **({"labels": WRONG[:4]} if labelled else {})}, {"x": X[4:], "labels": WRONG[4:]}]))
    lines = ["a,b,c" + (",label" if labelled else "")]
    lines += [",".join(map(repr, row.tolist())) + (",no such class" if labelled else "") for row in X]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    check(opened(tmp_path / "a.csv"))


@pytest.mark.parametrize("kind", ["flat", "folders", "manifest", "tar"])
def test_images(kind: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    buffer = io.BytesIO()
    image.new("RGB", (8, 8)).save(buffer, "PNG")
    folder = tmp_path / "images"
    folder.mkdir()
    for k in range(3):
        place = folder
        if kind == "folders":
            place = folder / f"no class {k}"
            place.mkdir()
        (place / f"{k}.png").write_bytes(buffer.getvalue())
    data = folder
    if kind == "manifest":
        data = folder / "list.csv"
        data.write_text("path,label\n" + "".join(f"{k}.png,no class\n" for k in range(3)))
    if kind == "tar":
        data = tmp_path / "a.tar"
        with tarfile.open(data, "w") as archive:
            for k in range(3):
                for name, content in ((f"{k}.png", buffer.getvalue()), (f"{k}.cls", b"no class")):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    source = open_source(data, (InputSpec("x", (None, 3, 8, 8), np.dtype(np.float32)),), 4, labels=NO_LABELS)
    assert "(3 images, without labels)" in source.describe()
    assert len(source) == sum(len(batch["x"]) for batch in source.batches(2)) == 3


@pytest.mark.parametrize(("name", "column"), [("target", None), ("class", None), ("species", "species")])
def test_a_column_of_labels_is_no_feature(tmp_path: Path, name: str, column: str | None) -> None:
    rows = [f"a,b,c,{name}", *(f"{k},{k + 1},{k + 2},{k % 2}" for k in range(4))]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(rows))
    source = Data(path, labels=NO_LABELS, label_column=column).open([spec("x", (None, 3))], 2, None)
    np.testing.assert_array_equal(next(source.batches(4))["x"][0], [0, 1, 2])
    with pytest.raises(DataError, match="4"):  # and is none that fills up an input
        Data(path, labels=NO_LABELS, label_column=column).open([spec("x", (None, 4))], 2, None)
