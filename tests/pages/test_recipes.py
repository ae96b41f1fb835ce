"""Recipes of pages with libraries of others: trackers, batches of a data set, blocks for clusters."""

import gc
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tna_onnx
from tests.builders import nodes_of, small_model
from tests.conftest import ROOT, Small
from tests.pages.documents import blocks
from tests.support import PLAIN, cli, loaded, words_of
from tna_onnx.api.features import features
from tna_onnx.data.options import Request
from tna_onnx.data.sources.feature_files import open_feature_files

pytestmark = pytest.mark.slow


# --- docs/how-to/trackers.md: MLflow, with a local store


def test_a_run_of_mlflow_holds_the_numbers_and_the_file(small: Small, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    output = tmp_path / "new.onnx"
    words = ["--eval", small.test, "-o", output, "--json", tmp_path / "result.json", *words_of(PLAIN)]
    assert cli("calibrate", small.model, small.calib, *words, "--quiet").exit_code == 0
    store = f"sqlite:///{tmp_path}/runs.db"
    [text] = [b.text for b in blocks(ROOT / "docs/how-to/trackers.md") if "import mlflow\n" in b.text]
    assert len([line for line in text.splitlines() if line and "import " not in line]) <= 10
    # in a process of its own: MLflow keeps state and writes files
    own = {"PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": store, "MLFLOW_DISABLE_TELEMETRY": "true"}
    words = [sys.executable, "-c", text]
    done = subprocess.run(words, cwd=tmp_path, env=os.environ | own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    warnings.simplefilter("ignore")  # of what MLflow calls; pytest sets the filters back
    client = mlflow.MlflowClient(tracking_uri=store)
    [found] = client.search_runs(["0"])
    report = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert found.data.tags["verdict"] == report["verdict"]
    assert found.data.params["seed"] == str(report["settings"]["seed"])
    for when in ("before", "after"):
        values = report["comparison"][when]
        expected = {f"{when}.{name}": value for name, value in values.items() if isinstance(value, (int, float))}
        assert {name: value for name, value in found.data.metrics.items() if name.startswith(when)} == expected
    kept = Path(client.download_artifacts(found.info.run_id, "", dst_path=str(tmp_path)))
    assert (kept / "new.onnx").read_bytes() == output.read_bytes()


# --- docs/data.md: they calibrate as arrays of the same samples do


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


# --- docs/how-to/cluster.md, each block with the engine itself: all write the features of a local run


PAGE = ROOT / "docs/how-to/cluster.md"
SIZE, CLASSES, N = 8, 3, 300


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A model of one input x, and Parquet files with x, label and key."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    rng = np.random.default_rng(0)
    shapes = {"a": (SIZE, 16), "w": (16, CLASSES)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = nodes_of("MatMul x a > h; Relu h > z; MatMul z w > logits name=head")
    onnx.save(small_model(nodes, {"x": ["N", SIZE]}, {"logits": ["N", CLASSES]}, weights), tmp_path / "model.onnx")
    x, labels = rng.standard_normal((N, SIZE)).astype(np.float32), rng.integers(0, CLASSES, N)
    (tmp_path / "samples").mkdir()
    for k, part in enumerate(np.array_split(np.arange(N), 3)):
        table = pa.table({"x": list(x[part]), "label": labels[part], "key": [f"k{row}" for row in part]})
        pq.write_table(table, tmp_path / f"samples/{k}.parquet")
    return tmp_path


@pytest.mark.parametrize(("library", "written"), [("ray", "features-ray"), ("pyspark", "features-spark")])
def test_a_block_writes_the_features_of_a_local_run(world: Path, library: str, written: str) -> None:
    code = next(block.text for block in blocks(PAGE) if library in block.text and written in block.text)
    if library == "pyspark" and shutil.which("java") is None:
        pytest.skip("Spark needs a Java, and there is none")
    if not all(map(find_spec, ("pandas", library))):
        pytest.skip(f"{library} or pandas is not installed")
    homes = {"PYSPARK_PYTHON": sys.executable, "RAY_ADDRESS": "local"}
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # in a process of its own: engines start threads and change signals
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=world,
        env={**os.environ, **homes, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    features(world / "model.onnx", world / "samples", output=world / "local", device="cpu")
    request = Request(inputs=[], n_classes=CLASSES)
    expected, found = (open_feature_files(world / name, request) for name in ("local", written))
    assert expected is not None
    assert found is not None
    assert found.source.digest() == expected.source.digest()
