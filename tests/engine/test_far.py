"""Workers that read a store's rows: the bits of one process for scores, searches and fits, whoever is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.engine.test_logits import SETTINGS, bits
from tests.engine.test_processes import children
from tna_onnx.calibration.outcome import Outcome
from tna_onnx.calibration.strategy import Strategy
from tna_onnx.engine import far as module
from tna_onnx.engine import local
from tna_onnx.engine.far import FarTable, far_table
from tna_onnx.engine.logits import HeadLogits
from tna_onnx.engine.processes import Processes
from tna_onnx.engine.protocol import Engine
from tna_onnx.engine.staying import Staying
from tna_onnx.errors import DeviceError, UsageError
from tna_onnx.extraction import table as table_module
from tna_onnx.extraction.manifest import json_digest, read_manifest
from tna_onnx.extraction.shared import shared_rows
from tna_onnx.extraction.store import open_store
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.maps import MAPS
from tna_onnx.numerics.stats import SampleScores

FEATURES, CLASSES = 12, 4
N = 701  # with chunks of 100 rows, the last one has a single row


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make chunks of 100 rows; workers are told where each begins and ends."""
    monkeypatch.setattr(table_module, "_BLOCK", 100 * FEATURES)


def stored(folder: Path, features: NDArray[Any], labels: NDArray[np.int64]) -> FeatureTable:
    """Write a store as `features` does, and return its table."""
    with open_store(folder, {"labels_sha256": _digest(labels)}, labels, 64) as store:
        array = store.array("features", features.shape[1:], features.dtype)
        array[:] = features
        store.finish_up_to(len(labels))
        return FeatureTable(array, labels, 64, folder=store.folder)


def _digest(labels: NDArray[np.int64]) -> str:
    from tna_onnx.extraction.keys import labels_digest

    return labels_digest(labels)


def problem(dtype: Any = np.float32) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[np.int64]]:
    """(features, weight, bias, labels): overconfident, and the last class has no sample."""
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((CLASSES, FEATURES)).astype(np.float32)
    bias = (rng.standard_normal(CLASSES) / 10).astype(np.float32)
    features = rng.standard_normal((N, FEATURES)).astype(dtype)
    logits = features.astype(np.float64) @ weight.T / 3 + rng.gumbel(size=(N, CLASSES))
    return features, weight, bias, np.argmax(logits[:, :-1], axis=1)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> FeatureTable:
    features, _, _, labels = problem()
    return stored(tmp_path_factory.mktemp("far"), features, labels)


@pytest.fixture(scope="module")
def two() -> Iterator[Staying]:
    with Processes(2).staying() as engine:
        yield engine


def known(found: FarTable | None) -> FarTable:
    assert found is not None
    return found


def outcome_of(table: FeatureTable, engine: Engine, far: FarTable | None, search: str, name: str) -> Any:
    _, weight, bias, _ = problem()

    def logits_of(given: Any) -> HeadLogits:
        return HeadLogits(table, given, bias, engine=engine, far=far)

    strategy = Strategy(logits_of, weight, search, name, SETTINGS)
    outcome = strategy.run(lambda *_: None)
    return outcome, strategy.cross_fitted(outcome)


def same(one: tuple[Outcome, SampleScores], other: tuple[Outcome, SampleScores]) -> bool:
    """Whether all scores and parameters have the same bits."""
    a, b = one[0], other[0]
    assert [bits(c.scores) for c in a.candidates] == [bits(c.scores) for c in b.candidates]
    assert [(m, bits(s)) for m, s in a.scores.items()] == [(m, bits(s)) for m, s in b.scores.items()]
    assert (a.chosen.angle, a.chosen.ensemble_size, a.method) == (b.chosen.angle, b.chosen.ensemble_size, b.method)
    assert (a.fitted is None) == (b.fitted is None)
    if a.fitted is not None and b.fitted is not None:
        assert a.fitted.brief == b.fitted.brief
    return bits(one[1]) == bits(other[1])


CASES = [
    ("sparse", "none"),
    ("sparse", "ts"),
    ("none", "ts"),
    ("complete", "ts"),
    pytest.param("auto", "auto", marks=pytest.mark.slow),
    *(pytest.param("none", name, marks=pytest.mark.slow) for name in MAPS if not MAPS[name].binary and name != "ts"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("search", "name"), CASES)
def test_search_and_fits_have_the_bits_of_one_process(
    table: FeatureTable, two: Staying, search: str, name: str
) -> None:
    if name.startswith("label-"):
        pytest.skip("for several labels a sample, which no store holds")
    here = outcome_of(table, local, None, search, name)
    there = outcome_of(table, two, known(far_table(table, CLASSES, 2)), search, name)
    assert same(here, there)
    assert len(children()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_the_number_of_workers_does_not_matter(table: FeatureTable, count: int) -> None:
    with Processes(count).staying() as engine:
        far = known(far_table(table, CLASSES, count))
        assert same(outcome_of(table, local, None, "sparse", "ts"), outcome_of(table, engine, far, "sparse", "ts"))


class Deadly:
    """Workers of which the first to see each third chunk is killed, behind the work."""

    def __init__(self, engine: Staying, folder: Path) -> None:
        self.engine = engine
        self.folder = folder

    def map_chunks(self, of: Any, chunks: Any) -> Any:
        return self.engine.map_chunks(_Dies(of, self.folder), chunks)

    def sum_chunks(self, of: Any, chunks: Any) -> Any:
        return self.engine.sum_chunks(_Dies(of, self.folder), chunks)


class _Dies:
    def __init__(self, of: Callable[..., Any], folder: Path) -> None:
        self.of = of
        self.folder = folder

    def __call__(self, start: int, *more: Any) -> Any:
        found = self.of(start, *more)
        marker = self.folder / f"died-{start}"
        if start % 300 == 0 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_workers_that_are_killed_change_no_bit(table: FeatureTable, two: Staying, tmp_path: Path) -> None:
    far = known(far_table(table, CLASSES, 2))
    there = outcome_of(table, Deadly(two, tmp_path), far, "sparse", "ts")
    assert same(outcome_of(table, local, None, "sparse", "ts"), there)
    assert len(list(tmp_path.glob("died-*"))) == 3


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_sum_of_logits(tmp_path: Path, dtype: Any) -> None:
    features, weight, bias, labels = problem(dtype)
    table = stored(tmp_path, features, labels)
    here = HeadLogits(table, weight, bias)
    there = HeadLogits(table, weight, bias, engine=local, far=far_table(table, CLASSES, 1))
    # whole chunks without a sample, the first among them, and the last one of a single row
    rows = (np.arange(N) > 320) & (np.arange(N) % 7 == 0)
    aligned = np.arange(float(rows.sum()))
    assert aligned[-1] == np.flatnonzero(rows).size - 1

    def dots(logits: Any, labels: Any, z: Any, weights: Any) -> Any:
        return np.array([weights @ logits.max(axis=1), weights @ labels, weights @ z.sum(axis=1)])

    for features_too in (True, True, False):  # the second time from logits that are kept
        one, other = (each.reduce(rows, features=True)(dots, aligned) for each in (here, there))
        assert one.tobytes() == other.tobytes()
        a, b = (each.reduce(features=features_too)(_sums) for each in (here, there))
        assert a.tobytes() == b.tobytes()
    assert bits(here.scores()) == bits(there.scores())
    assert bits(here.mapped_scores(None, rows)) == bits(there.mapped_scores(None, rows))
    assert bits(here.scaled_scores(0.5)) == bits(there.scaled_scores(0.5))
    np.testing.assert_array_equal(here.predictions(), there.predictions())
    np.testing.assert_array_equal(here.at(np.array([0, 99, 700])), there.at(np.array([0, 99, 700])))


def _sums(logits: Any, labels: Any, z: Any) -> NDArray[np.float64]:
    return np.asarray([logits.sum(dtype=np.float64), labels.sum(), 0.0 if z is None else z.sum(dtype=np.float64)])


def test_what_workers_keep_is_bounded() -> None:
    kept = module._Kept()
    chunk = np.zeros((10, 4), np.float32)
    for start in range(0, 50, 10):
        kept.put(1, start, chunk, 3 * chunk.nbytes)
    assert [kept.get(1, start) is not None for start in range(0, 50, 10)] == [True, True, True, False, False]
    kept.put(2, 0, chunk, 3 * chunk.nbytes)  # another head: what was asked for before makes room
    assert kept.get(2, 0) is not None
    assert kept.get(1, 0) is None
    kept.put(None, 0, chunk, 10**9)
    assert kept.get(None, 0) is None


# --- what can be shared, and what a worker checks


def test_what_workers_cannot_read_stays_here(tmp_path: Path) -> None:
    features, _, _, labels = problem()
    table = stored(tmp_path, features, labels)
    assert far_table(replace(table, folder=None), CLASSES, 2) is None
    assert far_table(replace(table, folder=tmp_path), CLASSES, 2) is None  # no store, but the folder of one
    assert far_table(replace(table, features=features.astype(np.float64)), CLASSES, 2) is None
    assert far_table(replace(table, features=features[:, :5]), CLASSES, 2) is None
    few = stored(tmp_path / "few", features[:100], labels[:100])
    assert far_table(few, CLASSES, 2) is None  # one chunk
    shared = shared_rows(table)
    assert shared is not None
    np.testing.assert_array_equal(shared.table().features, features)
    np.testing.assert_array_equal(shared.table().labels, labels)


def test_what_a_worker_checks(tmp_path: Path) -> None:
    features, weight, bias, labels = problem()
    table = stored(tmp_path, features, labels)
    far = known(far_table(table, CLASSES, 1))
    assert table.folder is not None
    assert far.shared.manifest == json_digest(read_manifest(table.folder))

    def scores(**changes: Any) -> SampleScores:
        told = replace(far, **changes)
        return HeadLogits(table, weight, bias, engine=local, far=told).scores()

    with pytest.raises(DeviceError, match="a worker multiplies with other rounding than the driver"):
        scores(probe=replace(far.probe, digest="0"))
    with pytest.raises(UsageError, match="a worker does not see this store"):
        scores(shared=replace(far.shared, manifest="0"))
    with pytest.raises(UsageError, match="a worker does not see this store"):
        scores(shared=replace(far.shared, folder=tmp_path / "elsewhere"))
    with pytest.raises(DeviceError, match=r"a worker has numpy [\d.a-z]+, the driver 0\.0\.1"):
        scores(shared=replace(far.shared, versions=(*far.shared.versions, ("numpy", "0.0.1"))))
    (table.folder / "labels.npy").write_bytes(b"x" * 9000)
    with pytest.raises(UsageError, match="a worker cannot read this store"):
        scores(shared=replace(far.shared, shape=(N, FEATURES, 1)))  # not the one that is open
