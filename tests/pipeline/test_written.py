"""The check of a written file: what passes, and that what is wrong by ten times the rounding bound does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.conftest import Small
from tests.pipeline.samples import outcome_of
from tna_onnx.errors import CheckFailed
from tna_onnx.graph.load import load_model
from tna_onnx.maps.temperature import Temperature
from tna_onnx.pipeline import checking as written
from tna_onnx.pipeline.checking import (
    _rows,
    _whole_batches,
    check_file,
    check_probabilities,
    check_runs,
    check_written,
    checked_samples,
    probability_bounds,
)
from tna_onnx.pipeline.job import Task
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.writing import Shipped, Writing, provenance_entries
from tna_onnx.runtime.session import CUDA

ROWS = np.arange(512)


class Gives:
    """A session on a file that gives these probabilities, as logits."""

    def __init__(self, p: np.ndarray) -> None:
        self._logits = np.log(p)
        self._done = 0

    def run(self, outputs: list[str], batch: dict[str, np.ndarray]) -> list[np.ndarray]:
        count = len(next(iter(batch.values())))
        self._done += count
        return [self._logits[self._done - count : self._done]]


def check(task: Task, p: np.ndarray, rows: np.ndarray = ROWS) -> Any:
    logits = task.logits(task.weight)
    return check_probabilities(Gives(p), task, task.calibration, rows, Shipped(logits, Temperature(2.0)), checker=True)


@pytest.fixture(scope="module")
def exact(task: Task) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities (512, 5) that are right, and the bounds on them."""
    assert task.head is not None
    z = task.calibration.table.features[ROWS].astype(np.float64)
    s = np.asarray(task.logits(task.weight).at(ROWS), np.float64)
    powers = np.exp(s / 2)
    return powers / powers.sum(axis=1, keepdims=True), probability_bounds(task, z, s, Temperature(2.0))


def moved(p: np.ndarray, by: np.ndarray | float) -> np.ndarray:
    """Move so much probability from the largest class to the smallest one."""
    out = p.copy()
    rows = np.arange(len(p))
    out[rows, p.argmax(axis=1)] -= by
    out[rows, p.argmin(axis=1)] += by
    return out


def test_right_probabilities_pass_and_the_numbers_are_those(task: Task, exact: tuple[np.ndarray, np.ndarray]) -> None:
    p, bound = exact
    verification = check(task, moved(p, bound / 20))
    assert (verification.samples, verification.checker) == (512, True)
    assert verification.max_difference == pytest.approx(np.max(bound) / 20, rel=1e-3)
    assert verification.bound == pytest.approx(np.max(bound), rel=1e-9)


@pytest.mark.parametrize("times", [1.01, 10.0])
def test_one_sample_beyond_its_bound_is_named(task: Task, exact: tuple[np.ndarray, np.ndarray], times: float) -> None:
    p, bound = exact
    by = np.zeros(512)
    by[137] = times * bound[137]
    with pytest.raises(CheckFailed, match=r"gives sample 137 of arrays .* a probability"):
        check(task, moved(p, by))


def test_a_quantised_output_is_off_by_half_a_step_everywhere(task: Task, exact: tuple[np.ndarray, np.ndarray]) -> None:
    """Rounding to steps of 0.004 is no error; ten times the bound of one sample, or a step too many of all, is one."""
    p, bound = exact
    step = 0.004
    coarse = replace(task, probed=replace(task.probed, readout=replace(task.readout, output_step=step)))
    rounded = np.maximum(np.rint(p / step) * step, 1e-12)
    by = np.abs(rounded - p).max(axis=1)
    assert np.mean(by) > (np.mean(bound) + step) / 10
    assert check(coarse, moved(p, by)).samples == 512
    one = by.copy()
    one[137] = 10 * (bound[137] + step)
    with pytest.raises(CheckFailed, match="gives sample 137"):
        check(coarse, moved(p, one))
    with pytest.raises(CheckFailed, match="on average, too much for rounding"):
        check(coarse, moved(p, bound + 0.9 * step))


@pytest.mark.parametrize("part", ["weight", "bias"])
def test_a_weight_that_is_wrong_by_ten_times_the_bound_is_caught(
    task: Task, small: Small, tmp_path: Path, exact: tuple[np.ndarray, np.ndarray], part: str
) -> None:
    """One number of the file is off, by what moves its most exposed sample ten times as far as rounding may."""
    p, bound = exact
    outcome = outcome_of(task, Temperature(2.0))
    rewritten = Writing(task, fold=True).write(outcome, provenance_entries(task, Settings(), outcome))
    tensor = next(t for t in rewritten.proto.graph.initializer if t.name == part)
    value = numpy_helper.to_array(tensor).copy()
    # p_0 moves by p_0 (1 - p_0) of what its logit moves; that of weight [0, 3] is the third feature
    features = task.calibration.table.features[ROWS, 3] if part == "weight" else np.ones(512)
    reach = p[:, 0] * (1 - p[:, 0]) * features / bound
    value[(0, 3) if part == "weight" else 0] += np.float32(10 / reach.max())
    path = tmp_path / "o.onnx"
    onnx.save(rewritten.proto, path)
    shipped = Writing(task, fold=True).shipped(outcome, checked_samples(task))
    assert check_written(task, path, checked_samples(task), shipped).samples == 512
    tensor.CopyFrom(numpy_helper.from_array(value, part))
    onnx.save(rewritten.proto, path)
    with pytest.raises(CheckFailed, match="off the numerics"):
        check_runs(task, checked_samples(task), shipped, path, checker=True)
    with pytest.raises(CheckFailed, match=f"tensor {part}: values"):
        check_written(task, path, checked_samples(task), shipped)


def test_a_node_that_nobody_announced_is_a_difference(task: Task, tmp_path: Path) -> None:
    proto = onnx.ModelProto()
    proto.CopyFrom(task.model.proto)
    proto.graph.node[1].name = "renamed"
    onnx.save(proto, tmp_path / "o.onnx")
    with pytest.raises(CheckFailed, match="does not say how it was made"):
        check_file(task.model, tmp_path / "o.onnx")


def test_the_checker_may_refuse_only_what_it_refuses_in_the_source(small: Small, tmp_path: Path) -> None:
    proto = onnx.load(small.model)
    proto.graph.node.append(helper.make_node("Relu", ["logits"], ["unused"], name="odd", nothing=1))
    onnx.save(proto, tmp_path / "m.onnx")
    source = load_model(tmp_path / "m.onnx")
    assert check_file(source, tmp_path / "m.onnx") is False
    assert check_file(load_model(small.model), small.model) is True


@pytest.mark.parametrize(("n", "size"), [(2000, 64), (1500, 64), (600, 512), (1500, 1024), (40, 64), (513, 1)])
def test_whole_batches_are_those_of_the_collection(n: int, size: int) -> None:
    rows = _whole_batches(n, size)
    assert (np.diff(rows) > 0).all()
    assert len(rows) <= max(512, size)
    assert len(rows) >= min(n, 512) - size
    collected = [np.arange(start, min(start + size, n)).tolist() for start in range(0, n, size)]
    # a source cuts the rows that it is given into batches
    for start in range(0, len(rows), size):
        assert rows[start : start + size].tolist() in collected


def test_on_cuda_batches_are_those_of_the_collection(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    on_cuda = replace(task, provider=CUDA)
    np.testing.assert_array_equal(_rows(on_cuda, task.calibration), _whole_batches(1500, 64))
    assert not np.array_equal(_rows(task, task.calibration), _whole_batches(1500, 64))


def test_another_first_class_within_the_bound_is_counted(
    task: Task, exact: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    p, _ = exact
    assert check(task, p).other_class == 0
    top = np.sort(p, axis=1)
    close = np.flatnonzero(top[:, -1] - top[:, -2] < 0.04)[:3]
    assert len(close) == 3
    swapped = p.copy()
    for row in close:
        second, first = np.argsort(p[row])[-2:]
        swapped[row, [first, second]] = p[row, [second, first]]
    monkeypatch.setattr(written, "probability_bounds", lambda task, z, *_: np.full(len(z), 0.05))
    assert check(task, swapped).other_class == 3
