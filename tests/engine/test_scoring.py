"""Scores by workers: the bits of one process, whoever computes a chunk and whoever is killed; what a worker checks."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tests.extraction.samples import CPU, dense, inputs
from tna_onnx.data import Source
from tna_onnx.data.options import Data
from tna_onnx.engine import local
from tna_onnx.engine.choice import engine_of
from tna_onnx.engine.outputs import score_model
from tna_onnx.engine.protocol import Engine
from tna_onnx.engine.scoring import ChunkScorer, Scored, Scorers, scorers_on
from tna_onnx.errors import DataError, DeviceError, UsageError
from tna_onnx.extraction import store
from tna_onnx.extraction.sessions import OpenModel
from tna_onnx.graph.head import choose_head
from tna_onnx.graph.load import load_model
from tna_onnx.graph.outputs import ClassOutput, output_of
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.progress import Progress, silent

BATCH = 16


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make chunks of two batches; workers are told where each begins and ends."""
    monkeypatch.setattr(store, "_CHUNK", 2 * BATCH)


@dataclass(frozen=True, eq=False)
class Run:
    """A model and samples on disk."""

    opened: OpenModel
    output: ClassOutput
    source: Source
    data: Data

    def alone(self, progress: Progress = silent) -> tuple[SampleScores, NDArray[np.int64]]:
        return score_model(self.opened.session, self.output, self.source, BATCH, progress)

    def by(self, engine: Engine, progress: Progress = silent) -> tuple[SampleScores, NDArray[np.int64]]:
        provider = self.opened.session.provider
        scorers = Scorers(engine, self.data)
        return scorers.score(self.opened.model, CPU, self.output, self.source, None, provider, BATCH, progress)


def opened(folder: Path, x: NDArray[Any], labels: NDArray[Any]) -> Run:
    onnx.save(dense(softmax=True), folder / "model.onnx")
    np.savez(folder / "data.npz", x=x, labels=labels)
    model = load_model(folder / "model.onnx")
    found = OpenModel(model, choose_head(model), CPU)
    data = Data(str(folder / "data.npz"))
    return Run(found, output_of(found.readout), data.open(found.inputs, 3, None), data)


def bits(found: tuple[SampleScores, NDArray[np.int64]]) -> list[tuple[str, bytes]]:
    scores, predicted = found
    arrays = [each for each in vars(scores).values() if each is not None]
    return [(array.dtype.str, array.tobytes()) for array in (*arrays, predicted)]


@pytest.mark.parametrize("engine", ["local", "processes:2", *(
    pytest.param(f"processes:{n}", marks=pytest.mark.slow) for n in (1, 3)
)])  # fmt: skip
def test_the_bits_are_those_of_one_process(tmp_path: Path, engine: str) -> None:
    # an odd last chunk, and a class that no sample has
    run = opened(tmp_path, inputs(101), np.arange(101) % 2)
    assert bits(run.by(engine_of(engine))) == bits(run.alone())


@pytest.mark.parametrize("samples", [2, 15, 32, 33])
def test_any_number_of_samples(tmp_path: Path, samples: int) -> None:
    run = opened(tmp_path, inputs(samples), np.arange(samples) % 3)
    assert bits(run.by(local)) == bits(run.alone())


def test_progress_counts_samples(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    opened(tmp_path, inputs(70), np.arange(70) % 3).by(local, lambda *step: seen.append(step))
    assert seen == [("evaluate", done, 70) for done in (0, 32, 64, 70)]


def test_17_bytes_a_sample_come_back(tmp_path: Path) -> None:
    sizes: list[float] = []

    class Weighing:
        def map_chunks(self, of: Any, chunks: Iterable[tuple[int, int]]) -> Generator[Scored, None, None]:
            for part in local.map_chunks(of, chunks):
                arrays = [*(each for each in vars(part.scores).values() if each is not None), part.predicted]
                sizes.append(sum(array.nbytes for array in arrays) / len(part.scores))
                yield part

        sum_chunks = staticmethod(local.sum_chunks)

    opened(tmp_path, inputs(70), np.arange(70) % 3).by(Weighing())
    assert sizes == [17.0, 17.0, 17.0]


@dataclass
class Dying:
    """A worker's function that ends its process once for every second chunk, behind the work."""

    of: ChunkScorer
    folder: Path

    def __call__(self, start: int, stop: int) -> Scored:
        found = self.of(start, stop)
        marker = self.folder / f"died-{start}"
        if start % (4 * BATCH) == 0 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_workers_that_are_killed_change_no_bit(tmp_path: Path) -> None:
    run = opened(tmp_path, inputs(101), np.arange(101) % 3)

    class Killed:
        def map_chunks(self, of: Any, chunks: Any) -> Generator[Scored, None, None]:
            return engine_of("processes:2").map_chunks(Dying(of, tmp_path), chunks)

        sum_chunks = staticmethod(local.sum_chunks)

    assert bits(run.by(Killed())) == bits(run.alone())
    assert len(list(tmp_path.glob("died-*"))) == 2


class Told:
    """The local engine, with a worker's function that was told something else."""

    def __init__(self, **fields: Callable[[ChunkScorer], Any]) -> None:
        self.fields = fields

    def map_chunks(self, of: Any, chunks: Any) -> Generator[Scored, None, None]:
        return local.map_chunks(replace(of, **{name: told(of) for name, told in self.fields.items()}), chunks)

    sum_chunks = staticmethod(local.sum_chunks)


def key(**entries: Any) -> Told:
    return Told(key=lambda of: {**of.key, **entries})


def test_what_a_worker_checks(tmp_path: Path) -> None:
    run = opened(tmp_path, inputs(40), np.arange(40) % 3)
    with pytest.raises(DeviceError, match=r"a worker has numpy [\d.a-z]+, the driver 0\.0\.1; install the same"):
        run.by(Told(key=lambda of: {**of.key, "versions": {**of.key["versions"], "numpy": "0.0.1"}}))
    with pytest.raises(DeviceError, match=r"runs the model on CPU\S+, the driver on Other; use machines of one kind"):
        run.by(key(provider="Other"))
    with pytest.raises(UsageError, match=r"model\.onnx: is another file on a worker"):
        run.by(key(model_sha256="0"))
    with pytest.raises(DataError, match="are other samples on a worker"):
        run.by(key(labels_sha256="0"))
    assert len(run.by(Told(model=lambda of: Path(of.model).read_bytes()))[1]) == 40  # a model in memory is sent


def test_an_output_that_is_none_is_refused_by_its_sample(tmp_path: Path) -> None:
    x = inputs(101)
    x[77] = 3e38  # finite, and its logits are not
    run = opened(tmp_path, x, np.arange(101) % 3)
    with pytest.raises(DataError, match="of sample 77 holds NaN") as here:
        run.alone()
    with pytest.raises(DataError) as there:
        run.by(engine_of("processes:2"))
    assert str(there.value) == str(here.value)


def test_samples_that_workers_cannot_open() -> None:
    assert scorers_on("local", Data({"x": inputs(3)})) is None
    with pytest.raises(UsageError, match="needs data that each worker can open"):
        scorers_on("processes:2", Data({"x": inputs(3)}))
    with pytest.raises(UsageError, match="expected local, processes:NUMBER"):
        scorers_on("spark", Data("data.npz"))
