"""`--batch-size auto`: what the probe chooses, where it stops, and that the choice changes nothing else."""

import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tna_onnx
from tests.builders import small_model
from tests.support import PLAIN, TILTED, ok, with_options
from tna_onnx.errors import DataError, UsageError
from tna_onnx.extraction import batch_size as batching
from tna_onnx.extraction.batch_size import batch_size_notes, check_batch_size, choose_batch_size
from tna_onnx.extraction.store import begun_batch_size, read_stored
from tna_onnx.runtime import Device, OutOfMemory, open_session

SIZES = [2**k for k in range(11)]


class Samples:
    """Numbers 0, 1, ...; notes which rows are read."""

    def __init__(self, count: int) -> None:
        self.read: list[int] = []
        self._count = count

    def __len__(self) -> int:
        return self._count

    def batches(self, size: int, rows: Any = None) -> Iterator[dict[str, np.ndarray]]:
        rows = np.arange(self._count) if rows is None else rows
        for start in range(0, len(rows), size):
            self.read += rows[start : start + size].tolist()
            yield {"x": rows[start : start + size].astype(np.float32)}


class Machine:
    """A network whose seconds per batch are known, on a clock of its own, with memory of its own."""

    def __init__(self, seconds: Callable[[int], float], bytes_each: int = 0, fails: Any = None) -> None:
        self.now = 0.0
        self.held = 0
        self.ran: list[int] = []
        self._seconds = seconds
        self._bytes = bytes_each
        self._fails = fails or {}

    def run(self, batch: dict[str, np.ndarray]) -> None:
        size = len(batch["x"])
        np.testing.assert_array_equal(batch["x"], np.arange(size))  # the first samples, in order
        self.ran.append(size)
        self.now += self._seconds(size)
        self.held = max(self.held, size * self._bytes)
        if size in self._fails:
            raise self._fails[size]

    def probe(self, samples: int = 5000, free: int = 2**50) -> int:
        self.source = Samples(samples)
        return batching._probe(self.run, self.source, lambda: self.now, lambda: self.held, lambda: free)


def per_run(overhead: float, each: float) -> Callable[[int], float]:
    return lambda size: overhead + each * size


@pytest.mark.parametrize(
    ("overhead", "each", "chosen"),
    [
        (0.0, 1e-4, 64 // 16),  # nothing gained from 1 on: 2 and 4 are as good, 4 is nearest to 64
        (1e-3, 1e-4, 256),  # 10 + N over 11 N: within 5 per cent of the fastest tried
        (1e-3, 1e-6, 1024),  # the overhead always counts
        (1e-4, 1e-4, 64),
    ],
)
def test_the_size_nearest_to_the_default_of_those_that_are_fast(overhead: float, each: float, chosen: int) -> None:
    machine = Machine(per_run(overhead, each))
    found = machine.probe()
    rates = {size: size / per_run(overhead, each)(size) for size in machine.ran}
    fast = [size for size in rates if 1.05 * rates[size] >= max(rates.values())]
    assert found == chosen == min(fast, key=lambda size: abs(math.log(size / 64)))


def test_each_sample_is_read_once() -> None:
    machine = Machine(per_run(1e-3, 1e-6))
    machine.probe(samples=300)
    assert machine.source.read == list(range(256))
    assert machine.ran == [size for size in SIZES if size <= 256 for _ in range(3)]


@pytest.mark.parametrize(("free", "largest"), [(2**50, 1024), (80_000, 16), (79_999, 8), (1, 1)])
def test_memory_bounds_the_size(free: int, largest: int) -> None:
    """1250 bytes a sample: twice what 8 samples take is 20,000, a quarter of 80,000."""
    machine = Machine(per_run(1e-3, 1e-7), bytes_each=1250)
    assert machine.probe(free=free) == max(machine.ran) == largest


def test_a_device_without_memory_for_more() -> None:
    machine = Machine(per_run(1e-3, 1e-7), fails={64: OutOfMemory("no memory")})
    assert machine.probe() == 16  # half of 32, which fitted
    with pytest.raises(OutOfMemory):
        Machine(per_run(1e-3, 1e-7), fails={1: OutOfMemory("no memory")}).probe()
    assert Machine(per_run(1e-3, 1e-7), fails={2: OutOfMemory("no memory")}).probe() == 1


def test_a_graph_that_takes_no_more() -> None:
    assert Machine(per_run(1e-3, 1e-7), fails={8: DataError("Reshape")}).probe() == 4
    with pytest.raises(DataError, match="Reshape"):
        Machine(per_run(1e-3, 1e-7), fails={1: DataError("Reshape")}).probe()


def test_a_slow_network_ends_the_probe() -> None:
    machine = Machine(per_run(0.5, 0.5))
    assert machine.probe() in machine.ran
    assert machine.ran == [1, 1, 1, 2, 2, 2]  # 7.5 seconds so far; three runs of 4 would take as long again


@pytest.mark.parametrize(("same", "chosen"), [(1, 1), (3, 2), (100, 64)])
def test_samples_of_several_shapes_end_the_probe(same: int, chosen: int) -> None:
    """A batch ends before the next shape, but all of it is decoded ahead: larger ones take memory for nothing."""

    class Shapes(Samples):
        def batches(self, size: int, rows: Any = None) -> Iterator[dict[str, np.ndarray]]:
            for batch in super().batches(size, rows):
                for side, numbers in itertools.groupby(batch["x"], lambda number: int(number) // same % 2):
                    yield {"x": np.stack([np.full((side + 2, 4), number) for number in numbers])}

    source: Any = Shapes(500)
    clock = map((1e-6).__mul__, itertools.count()).__next__
    assert batching._probe(lambda batch: None, source, clock, lambda: 0, lambda: 2**50) == chosen


# --- the choice


def model(batch: int | str, path: Path | None = None) -> bytes:
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((5, 8)).astype(np.float32)
    hidden = rng.standard_normal((4, 8)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "hidden"], ["h"]),
        helper.make_node("Relu", ["h"], ["z"]),
        helper.make_node("Gemm", ["z", "weight"], ["logits"], name="head", transB=1),
    ]
    made = small_model(nodes, {"x": [batch, 4]}, {"logits": [batch, 5]}, {"weight": weight, "hidden": hidden})
    if path is not None:
        onnx.save(made, path)
    return bytes(made.SerializeToString())


@pytest.fixture
def task(tmp_path: Path) -> SimpleNamespace:
    """A model that learned something, and samples."""
    data = model("N", tmp_path / "model.onnx")
    x = np.random.default_rng(0).standard_normal((300, 4)).astype(np.float32)
    logits = open_session(data, "tiny", Device("cpu")).run(["logits"], {"x": x})[0]
    labels = np.argmax(logits / 4 + np.random.default_rng(1).gumbel(size=logits.shape), axis=1)
    np.savez(tmp_path / "data.npz", x=x, labels=labels)
    return SimpleNamespace(model=tmp_path / "model.onnx", data=tmp_path / "data.npz", folder=tmp_path)


@pytest.mark.parametrize(("fixed", "chosen"), [(1, 64), (4, 64), (10, 60), (100, 100)])
def test_a_fixed_batch_is_kept(fixed: int, chosen: int) -> None:
    session = open_session(model(fixed), "tiny", Device("cpu"))
    assert choose_batch_size("auto", session, ["logits"], Samples(500)) == chosen
    assert choose_batch_size(7, session, ["logits"], Samples(500)) == 7


def test_nothing_to_run() -> None:
    assert choose_batch_size("auto", None, [], Samples(500)) == 64
    assert choose_batch_size(32, None, [], Samples(500)) == 32


@pytest.mark.parametrize("wrong", [0, -1, "many", "64"])
def test_sizes_that_are_none(wrong: Any, task: SimpleNamespace) -> None:
    with pytest.raises(UsageError, match="at least 1, or auto"):
        check_batch_size(wrong)
    for run in (
        lambda: tna_onnx.calibrate(task.model, task.data, batch_size=wrong),
        lambda: tna_onnx.evaluate(task.model, task.data, batch_size=wrong),
        lambda: tna_onnx.features(task.model, task.data, task.folder / "cache", batch_size=wrong),
        lambda: tna_onnx.verify(task.model, task.model, data=task.data, batch_size=wrong),
    ):
        with pytest.raises(UsageError, match="at least 1, or auto"):
            run()


def fix_probe(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Let the probe find some size: times are not for tests."""
    monkeypatch.setattr(batching, "_probe", lambda run, source: size)


def test_the_result_is_that_of_the_number(task: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_probe(monkeypatch, 32)
    files, reports = [], []
    for size in ("auto", 32):
        output = task.folder / f"{size}.onnx"
        reports.append(
            with_options(tna_onnx.calibrate, task.model, task.data, output=output, batch_size=size, **TILTED)
        )
        files.append(output.read_bytes())
    assert files[0] == files[1]
    auto, number = reports
    assert auto.settings["batch_size"] == number.settings["batch_size"] == 32
    assert {*auto.notes} - {*number.notes} == {*batch_size_notes("auto", 32)}


def test_a_store_is_continued_with_its_size(task: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = task.folder / "cache"
    fix_probe(monkeypatch, 32)
    first = tna_onnx.features(task.model, task.data, cache, batch_size="auto")
    assert read_stored(Path(first.folder)).key["batch_size"] == 32
    fix_probe(monkeypatch, 16)
    again = tna_onnx.features(task.model, task.data, cache, batch_size="auto")
    assert again.folder == first.folder
    words = {"output": task.folder / "a.onnx", "cache": cache, "batch_size": "auto", **PLAIN}
    report = with_options(tna_onnx.calibrate, task.model, task.data, **words)
    assert report.settings["batch_size"] == 32
    other = np.load(task.data)
    np.savez(task.folder / "other.npz", x=other["x"] + 1, labels=other["labels"])
    assert tna_onnx.features(task.model, task.folder / "other.npz", cache, batch_size="auto").folder != first.folder
    assert begun_batch_size(cache, {"model_sha256": first.model_sha256}) in (16, 32)


@pytest.mark.parametrize("verb", ["calibrate", "features"])
def test_the_command_line_probes_for_real(verb: str, task: SimpleNamespace) -> None:
    words = {
        "calibrate": ["--calib", task.data, "-o", task.folder / "a.onnx", "--search", "none"],
        "features": ["--data", task.data, "--cache", task.folder / "cache"],
    }[verb]
    out = task.folder / "result.json"
    ok(verb, task.model, *words, "--batch-size", "auto", "--json", out)
    notes = json.loads(out.read_text())["notes"]
    (note,) = [note for note in notes if note.startswith("batch size auto: ")]
    assert int(note.split(":")[1].split(";")[0]) in SIZES


@pytest.mark.parametrize(("limit", "largest"), [(None, 64), (2**27, 8)])
def test_memory_of_the_device_bounds_the_size(limit: int | None, largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of a network on a device are there: 1 GiB is free, and a sample takes 4 MiB of it."""
    taken = [0]

    def free(index: int, limit: int | None = None) -> int:
        assert index == 1
        return min(2**30 - taken[0], 2**40 if limit is None else limit)

    def run(outputs: Any, batch: Any) -> None:
        taken[0] = max(taken[0], 2**22 * len(batch["x"]))

    monkeypatch.setattr(batching, "free_device_memory", free)
    # each sample costs less the more there are: only memory ends the probe
    monkeypatch.setattr(batching, "_seconds", lambda go, batch, clock: (go(batch), 1e-3)[1])
    session: Any = SimpleNamespace(run=run, fixed_batch=None, device=Device("cuda", 1, memory=limit))
    source: Any = Samples(5000)
    choose_batch_size("auto", session, ["y"], source)
    # rule 2: a quarter of what is free is 2^28 or 2^25 bytes, and the next size would take twice that
    assert taken[0] // 2**22 == largest
