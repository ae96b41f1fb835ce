"""Features by workers: the store of a single process, byte for byte, whoever fills it, and whoever is killed in it."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.extraction.samples import CPU, dense, divided, inputs, tokens
from tna_onnx.data import Source
from tna_onnx.data.options import Data
from tna_onnx.engine import local
from tna_onnx.engine.processes import Processes
from tna_onnx.errors import DataError, DeviceError, UsageError
from tna_onnx.extraction import filling
from tna_onnx.extraction import store as store_module
from tna_onnx.extraction.collect import collect_features
from tna_onnx.extraction.filling import ChunkFiller, Filled
from tna_onnx.extraction.head_check import check_readout
from tna_onnx.extraction.sessions import OpenModel
from tna_onnx.extraction.spreading import MapChunks, Spread, require_openable
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.graph.head import choose_head
from tna_onnx.graph.load import load_model
from tna_onnx.graph.readout import Readout
from tna_onnx.progress import silent

BATCH = 16


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make chunks of two batches; workers are told."""
    monkeypatch.setattr(store_module, "_CHUNK", 2 * BATCH)


@dataclass(frozen=True, eq=False)
class Run:
    """A model and samples on disk, opened and checked."""

    opened: OpenModel
    readout: Readout
    source: Source
    data: Data

    def alone(self, cache: Path, **more: Any) -> FeatureTable:
        return collect_features(self.opened, self.readout, self.source, BATCH, more.pop("progress", silent), cache)

    def spread(self, cache: Path, map_chunks: MapChunks = local.map_chunks, **more: Any) -> FeatureTable:
        progress = more.pop("progress", silent)
        spread = Spread(map_chunks, self.data)
        return spread.collect(self.opened, self.readout, self.source, None, BATCH, progress, cache, **more)


def opened(folder: Path, proto: onnx.ModelProto, x: np.ndarray) -> Run:
    path = folder / "model.onnx"
    onnx.save(proto, path)
    np.savez(folder / "data.npz", x=x, labels=np.arange(len(x)) % 3)
    model = load_model(path)
    found = OpenModel(model, choose_head(model), CPU)
    data = Data(str(folder / "data.npz"))
    source = data.open(found.inputs, 3, None)
    readout = check_readout(found, found.readout, found.session, source, BATCH).readout
    return Run(found, readout, source, data)


def digests(cache: Path) -> dict[str, str]:
    """SHA-256 of every file, by its path."""
    files = [path for path in cache.rglob("*") if path.is_file()]
    return {str(path.relative_to(cache)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize(
    ("proto", "shape"),
    [(dense(), ()), (dense(np.float16), ()), (dense(batch=16), ()), (tokens(), (4, 6)), (divided(), ())],
)
@pytest.mark.parametrize("samples", [5, 32, 101])
def test_the_store_is_that_of_one_process(
    tmp_path: Path, proto: onnx.ModelProto, shape: tuple[int, ...], samples: int
) -> None:
    run = opened(tmp_path, proto, inputs(samples, *shape).astype(np.float16 if _is_half(proto) else np.float32))
    one = run.alone(tmp_path / "one")
    several = run.spread(tmp_path / "several")
    assert digests(tmp_path / "one") == digests(tmp_path / "several")
    assert one.logits is not None
    np.testing.assert_array_equal(one.logits, several.logits)
    np.testing.assert_array_equal(one.features, several.features)
    assert one.beside.keys() == several.beside.keys()
    assert (one.rows, one.batch_size, one.resumed) == (several.rows, several.batch_size, several.resumed)
    assert several.folder is not None


def _is_half(proto: onnx.ModelProto) -> bool:
    return bool(proto.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16)


def test_a_model_in_memory_is_sent(tmp_path: Path) -> None:
    run = opened(tmp_path, dense(), inputs(40))
    model = load_model(dense().SerializeToString())
    run = replace(run, opened=OpenModel(model, choose_head(model), CPU))
    np.testing.assert_array_equal(run.spread(tmp_path / "a").features, run.alone(tmp_path / "b").features)


def test_logits_may_be_left_out(tmp_path: Path) -> None:
    table = opened(tmp_path, dense(), inputs(40)).spread(tmp_path / "c", keep_logits=False)
    assert table.logits is None


def test_progress_counts_samples(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    opened(tmp_path, dense(), inputs(70)).spread(tmp_path / "c", progress=lambda *step: seen.append(step))
    assert seen == [("collect features", done, 70) for done in (0, 32, 64, 70)]


def stopping(after: int) -> MapChunks:
    """Map like `local`, and be interrupted behind some chunks."""

    def map_chunks(of: Callable[[int], Filled], chunks: Iterable[tuple[int]]) -> Generator[Filled, None, None]:
        for k, chunk in enumerate(chunks):
            if k == after:
                raise KeyboardInterrupt
            yield of(*chunk)

    return map_chunks


class Tally:
    """Map like `local`, and remember the places of chunks."""

    def __init__(self) -> None:
        self.places: list[int] = []

    def __call__(self, of: Callable[[int], Filled], chunks: Iterable[tuple[int]]) -> Generator[Filled, None, None]:
        for chunk in chunks:
            self.places += chunk
            yield of(*chunk)


@pytest.mark.parametrize("after", [0, 1, 3])
def test_an_interrupted_run_goes_on_in_either_way(tmp_path: Path, after: int) -> None:
    run = opened(tmp_path, dense(), inputs(150))
    run.alone(tmp_path / "whole")
    for name in ("spread", "alone"):
        with pytest.raises(KeyboardInterrupt):
            run.spread(tmp_path / name, stopping(after))
    tally = Tally()
    run.spread(tmp_path / "spread", tally)
    assert tally.places == list(range(after, 5))
    run.alone(tmp_path / "alone")
    assert digests(tmp_path / "spread") == digests(tmp_path / "alone") == digests(tmp_path / "whole")
    again = Tally()
    run.spread(tmp_path / "spread", again)
    assert again.places == []


def test_workers_take_over_what_one_process_has_left(tmp_path: Path) -> None:
    run = opened(tmp_path, dense(), inputs(150))
    run.alone(tmp_path / "whole")

    def stop(_stage: str, done: int, _total: int) -> None:
        if done == 5 * BATCH:  # two chunks and a batch
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.alone(tmp_path / "c", progress=stop)
    assert list((tmp_path / "c").rglob("journal.txt"))
    tally = Tally()
    run.spread(tmp_path / "c", tally)
    assert tally.places == [2, 3, 4]
    assert digests(tmp_path / "c") == digests(tmp_path / "whole")


def test_a_damaged_chunk_is_filled_again(tmp_path: Path) -> None:
    run = opened(tmp_path, dense(), inputs(150))
    folder = run.spread(tmp_path / "c").folder
    assert folder is not None
    before = digests(tmp_path)
    content = bytearray((folder / "features.bin").read_bytes())
    content[70 * 6 * 4] ^= 1
    (folder / "features.bin").write_bytes(content)
    tally = Tally()
    table = run.spread(tmp_path / "c", tally)
    assert tally.places == [2, 3, 4]
    assert table.resumed == ("chunk 2 is damaged: computed anew from there",)
    assert digests(tmp_path) == before


@dataclass
class Dying:
    """A worker's function that ends its process once for some chunks: before, amid or after the work."""

    of: ChunkFiller
    folder: Path
    seed: int

    def __call__(self, place: int) -> Filled:
        draw = random.Random(f"{self.seed} {place}")
        marker = self.folder / f"died-{place}"
        when = draw.choice(["before", "amid", "after", "never"])
        if when == "never" or marker.exists():
            return self.of(place)
        marker.touch()
        if when == "amid":
            put = filling.Collector.put
            batches = iter([True, False])

            def dying(*arguments: Any) -> None:
                if not next(batches):
                    os.kill(os.getpid(), signal.SIGKILL)
                put(*arguments)

            filling.Collector.put = dying  # type: ignore[method-assign]
        if when != "before":
            self.of(place)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
@pytest.mark.parametrize("count", [2, pytest.param(1, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
def test_workers_that_are_killed_change_no_byte(tmp_path: Path, count: int) -> None:
    run = opened(tmp_path, dense(), inputs(150))
    run.alone(tmp_path / "whole")

    def map_chunks(of: Any, chunks: Any) -> Generator[Filled, None, None]:
        return Processes(count).map_chunks(Dying(of, tmp_path, 3), chunks)

    run.spread(tmp_path / "c", map_chunks)
    assert len(list(tmp_path.glob("died-*"))) >= 3
    assert digests(tmp_path / "c") == digests(tmp_path / "whole")


# --- what a worker checks


def changed(**fields: Any) -> MapChunks:
    """Map like `local`, with a worker's function that was told something else."""

    def map_chunks(of: Any, chunks: Iterable[tuple[int]]) -> Generator[Filled, None, None]:
        return local.map_chunks(replace(of, **{k: v(of) if callable(v) else v for k, v in fields.items()}), chunks)

    return map_chunks


def test_other_versions_are_refused(tmp_path: Path) -> None:
    run = opened(tmp_path, dense(), inputs(40))
    for name in ("numpy", "onnxruntime", "tna-onnx"):
        told = changed(versions=lambda of, name=name: {**of.versions, name: "0.0.1"})
        with pytest.raises(DeviceError, match=rf"a worker has {name} [\d.a-z]+, the driver 0.0.1; install the same"):
            run.spread(tmp_path / "c", told)


def test_another_model_is_refused(tmp_path: Path) -> None:
    run = opened(tmp_path, dense(), inputs(40))

    def map_chunks(of: Any, chunks: Any) -> Any:
        proto = dense()
        proto.doc_string = "changed"
        onnx.save(proto, tmp_path / "model.onnx")
        return local.map_chunks(of, chunks)

    with pytest.raises(UsageError, match="another file on a worker than on the driver"):
        run.spread(tmp_path / "c", map_chunks)


def test_other_samples_are_refused(tmp_path: Path) -> None:
    run = opened(tmp_path, dense(), inputs(40))

    def map_chunks(of: Any, chunks: Any) -> Any:
        np.savez(tmp_path / "data.npz", x=inputs(40), labels=np.arange(1, 41) % 3)
        return local.map_chunks(of, chunks)

    with pytest.raises(DataError, match="other samples on a worker than on the driver"):
        run.spread(tmp_path / "c", map_chunks)


def test_another_provider_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = opened(tmp_path, dense(), inputs(40))
    run.opened.session.provider = "CUDAExecutionProvider"
    with pytest.raises(DeviceError, match="runs the model on CPUExecutionProvider, the driver on CUDAExecution"):
        run.spread(tmp_path / "c")


def test_a_worker_that_does_not_see_the_store_makes_none(tmp_path: Path) -> None:
    run = opened(tmp_path, dense(), inputs(40))
    with pytest.raises(UsageError, match="does not see this store; put --cache on a disk that all share"):
        run.spread(tmp_path / "c", changed(folder=tmp_path / "elsewhere"))
    assert not (tmp_path / "elsewhere").exists()


def test_a_store_that_loses_its_files_is_an_error(tmp_path: Path) -> None:
    run = opened(tmp_path, dense(), inputs(40))

    def map_chunks(of: Any, chunks: Any) -> Any:
        (of.folder / "features.bin").unlink()
        return local.map_chunks(of, chunks)

    with pytest.raises(UsageError, match="is not there for a worker"):
        run.spread(tmp_path / "c", map_chunks)


def test_a_sample_that_cannot_be_used_is_named_and_chunks_before_it_stay(tmp_path: Path) -> None:
    x = inputs(150)
    x[100] = 1e38  # a product overflows
    proto = dense()
    run = opened(tmp_path, proto, x)
    with pytest.raises(DataError, match="logits of sample 100 hold NaN or infinite values"):
        run.spread(tmp_path / "c")
    tally = Tally()
    with pytest.raises(DataError, match="sample 100"):
        run.spread(tmp_path / "c", tally)
    assert tally.places == [3]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Data({"x": np.zeros((3, 6))}), "a path, not a Python object"),
        (Data("https://example.org/d.npz"), "copy them there"),
        (Data("s3://bucket/d.npz"), "copy them there"),
        (Data("loader.py:batches", format="loader"), "a loader gives its samples once"),
        (Data("images", skip_bad=True), "--skip-bad decodes all images first"),
    ],
)
def test_samples_that_workers_cannot_open(data: Data, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        require_openable(data, "processes:2")


@pytest.mark.parametrize("path", ["d.npz", Path("d.npz"), "file:///d.npz"])
def test_samples_that_they_can(path: str | Path) -> None:
    require_openable(Data(path), "ray")


@pytest.mark.parametrize(("took", "written"), [(0.0, 11), (0.1, 3), (1.0, 2)])
def test_manifests_take_a_small_share_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took: float, written: int
) -> None:
    """100 chunks come in ten seconds; the last manifest is written whatever the time."""
    now = [100.0]
    times: list[float] = []

    def write(_folder: Path, _content: dict[str, Any]) -> None:
        times.append(now[0])
        now[0] += took

    store = store_module.DiskStore(tmp_path, {}, 100 * BATCH, BATCH)
    monkeypatch.setattr(store_module, "write_manifest", write)
    monkeypatch.setattr(store_module.time, "monotonic", lambda: now[0])
    for place in range(100):
        now[0] = max(now[0], 100 + place / 10)
        store.take(str(place))
    store.record()
    store.record()  # nothing new
    assert len(times) == written
