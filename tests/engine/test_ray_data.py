"""`--engine ray`: the features of a local run, whatever is killed; and clusters that do not answer."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.builders import nodes_of, small_model
from tests.engine.features_data import MODEL, by_key, rows, with_nan, write_files, write_images
from tests.support import with_options
from tna_onnx import Recipe, evaluate
from tna_onnx.api.features import features
from tna_onnx.engine import ray_data
from tna_onnx.errors import DataError, DeviceError, UsageError

ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")  # needs pandas

# Ray leaves sockets and files to the collector of garbage.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("data")
    write_files(folder / "many", 7)
    features(MODEL, folder / "many", output=folder / "f", device="cpu")
    return folder / "many", by_key(folder / "f")


def test_features_are_those_of_a_local_run(
    cluster: None, expected: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    data, samples = expected
    options = {"concurrency": 4, "num_cpus": 0.5}
    made = features(MODEL, data, output=tmp_path / "f", engine="ray", ray_options=options)
    assert made.shape == (len(samples), 256)
    assert by_key(tmp_path / "f") == samples
    # and so is every measured number, though the rows come in another order
    measured = [evaluate(MODEL, place, device="cpu") for place in (tmp_path / "f", data.parent / "f")]
    assert measured[0].metrics == measured[1].metrics
    assert measured[0].estimates == measured[1].estimates


def test_images(cluster: None, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    words = {"device": "cpu", "preprocessing": Recipe(color="L", scale=1 / 255)}
    images = write_images(tmp_path / "images")
    with_options(features, MODEL, images, output=tmp_path / "a", **words)
    with_options(features, MODEL, images, output=tmp_path / "b", engine="ray", **words)
    assert by_key(tmp_path / "a") == by_key(tmp_path / "b")


def test_images_of_several_sizes(cluster: None, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    nodes = nodes_of("Resize x _ _ sizes > resized; Flatten resized > z; MatMul z weight > logits")
    tensors = {"sizes": np.array([1, 1, 2, 2]), "weight": np.eye(4, 2, dtype=np.float32)}
    model = small_model(nodes, {"x": [1, 1, "height", "width"]}, {"logits": [1, 2]}, tensors)
    onnx.save(model, tmp_path / "m.onnx")
    for side in range(2, 6):
        file = tmp_path / "images" / str(side % 2) / f"{side}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        image.new("L", (side, side), 100).save(file)
    words = {"device": "cpu", "preprocessing": Recipe(color="L", scale=1 / 255)}
    assert with_options(features, tmp_path / "m.onnx", tmp_path / "images", output=tmp_path / "a", **words).shape == (
        4,
        4,
    )
    with pytest.raises(DataError, match="has several shapes"):
        with_options(features, tmp_path / "m.onnx", tmp_path / "images", output=tmp_path / "b", engine="ray", **words)


def test_a_killed_worker_costs_nothing(cluster: None, expected: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """The process of an actor is killed as soon as it runs."""
    psutil = pytest.importorskip("psutil")
    data, samples = expected
    killed: list[int] = []
    stop = threading.Event()

    def kill() -> None:
        while not killed and not stop.is_set():
            for child in psutil.Process().children(recursive=True):
                with_name = child.name() if child.is_running() else ""
                if with_name.startswith("ray::MapWorker"):
                    os.kill(child.pid, signal.SIGKILL)
                    killed.append(child.pid)
                    break
            time.sleep(0.01)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        features(MODEL, data, output=tmp_path / "f", engine="ray")
    finally:
        stop.set()
        thread.join()
    assert killed
    assert by_key(tmp_path / "f") == samples


def test_an_error_of_a_worker_is_ours(cluster: None, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(rows(), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-100] + bytes(100))
    with pytest.raises(DataError, match=r"b\.parquet: cannot be read"):
        features(MODEL, tmp_path, output=tmp_path / "f", engine="ray")
    (tmp_path / "b.parquet").unlink()
    with_nan(rows(), tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"^batch: .*NaN"):
        features(MODEL, tmp_path, output=tmp_path / "e", engine="ray")
    with pytest.raises(UsageError, match=r"reads Parquet"):
        features(MODEL, MODEL.parent / "calib.npz", output=tmp_path / "g", engine="ray")
    with pytest.raises(UsageError, match="ray option 'cpus'"):
        features(MODEL, tmp_path / "a.parquet", output=tmp_path / "h", engine="ray", ray_options={"cpus": 1})
    assert not (tmp_path / "h").exists()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:99999"])
def test_a_cluster_that_does_not_answer(address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert ray_data.check_ray("ray", {}) == "local"
    with pytest.raises(DeviceError, match=address):
        ray_data.check_ray(f"ray:{address}", {})
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(DeviceError, match=address):
        ray_data.check_ray("ray", {})
    monkeypatch.delenv("RAY_ADDRESS")
    (tmp_path / "ray_current_cluster").write_text(address)
    with pytest.raises(DeviceError, match="ray stop"):
        ray_data.check_ray("ray", {})
