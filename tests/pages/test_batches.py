"""The recipes of docs/data.md that need a library of their own: they calibrate as arrays of the same samples do."""

import gc
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tna_onnx
from tests.conftest import ROOT, Small
from tests.pages.documents import blocks
from tests.support import loaded


def write_hdf5(x: Any, labels: Any) -> None:
    with pytest.importorskip("h5py").File("calib.h5", "w") as file:
        file["images"], file["labels"] = x, labels


def write_shards(x: Any, labels: Any) -> None:
    """Write five shards, in the order of the samples, with an image that holds the number of its sample."""
    image = pytest.importorskip("PIL.Image")
    Path("shards").mkdir()
    for shard, rows in enumerate(np.array_split(np.arange(len(x)), 5)):
        with tarfile.open(f"shards/calib-{shard:03}.tar", "w") as archive:
            for row in rows.tolist():
                content = io.BytesIO()
                image.fromarray(np.array([[row // 256, row % 256]], np.uint8)).save(content, "png")
                for kind, data in (("jpg", content.getvalue()), ("cls", str(labels[row]).encode())):
                    member = tarfile.TarInfo(f"{row:05}.{kind}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # webdataset leaves its last file to the garbage collector
@pytest.mark.parametrize(("library", "write"), [("h5py", write_hdf5), ("webdataset", write_shards)])
def test_batches_of_a_library(
    library: str, write: Any, small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    [code] = [block.text for block in blocks(ROOT / "docs/data.md") if f"import {library}" in block.text]
    assert len([line for line in code.splitlines() if line and not line.startswith("import ")]) <= 5
    x, labels = loaded(small.calib).values()
    write(x, labels)

    def transform(image: Any) -> Any:
        high, low = np.asarray(image)[0, :, 0].astype(int)
        return x[256 * high + low]

    given = []
    monkeypatch.setattr(
        tna_onnx, "calibrate", lambda _, batches: given.append(tna_onnx.evaluate(small.model, batches, device="cpu"))
    )
    exec(compile(code, "data.md", "exec"), {"transform": transform})
    gc.collect()
    expected = tna_onnx.evaluate(small.model, small.calib, device="cpu")
    assert given[0].metrics == expected.metrics
