"""The blocks of the page on clusters, each with the engine itself: all write the features of a local run."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.builders import nodes_of, small_model
from tests.conftest import ROOT
from tests.pages.documents import blocks
from tna_onnx.api.features import features
from tna_onnx.data.options import Request
from tna_onnx.data.sources.feature_files import open_feature_files

pytestmark = pytest.mark.slow

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
