"""What outputs say of one another: from arrays, and in files where one of them no longer follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.conftest import Small
from tests.pipeline.samples import few, opened, outputs, probabilities
from tna_onnx.errors import CheckFailed
from tna_onnx.extraction.sessions import Runner
from tna_onnx.graph.options import ModelOptions
from tna_onnx.pipeline.job import Task
from tna_onnx.pipeline.other_outputs import check_other_outputs, relation
from tna_onnx.runtime import open_session

LOGITS = np.random.default_rng(0).standard_normal((200, 3)) * 3
P = probabilities(LOGITS)
FIRST = P.argmax(axis=1)


@pytest.mark.parametrize(
    ("values", "p", "expected"),
    [
        (FIRST, P, "labels"),
        (np.array(["cat", "dog", "eel"])[FIRST], P, "labels"),
        (FIRST[:, None] + 100, P, "labels"),
        (np.zeros(200, np.int64), P, ""),  # one label for all is none
        (np.roll(FIRST, 1), P, ""),
        (FIRST.astype(np.float32), P, ""),  # numbers that may be anything
        (P.astype(np.float32), P, "probabilities"),
        (P[:, :, None, None], P, "probabilities"),
        (LOGITS, P, "logits"),
        (LOGITS + 7, P, "logits"),  # a constant per row is no difference
        (LOGITS / 2, P, ""),
        (P[:, ::-1], P, ""),
        (np.full_like(P, np.nan), P, ""),
        (P[:, :2], P, ""),
    ],
    ids=str,
)
def test_relations(values: np.ndarray, p: np.ndarray, expected: str) -> None:
    assert relation(values, p, 1e-3) == expected


def test_one_number_of_two_classes() -> None:
    """The second class's probability, or the difference of the two logits."""
    two = probabilities(LOGITS[:, :2])
    assert relation(two[:, 1], two, 1e-3) == "probabilities"
    assert relation(two[:, 1:], two, 1e-3) == "probabilities"
    assert relation(LOGITS[:, 1] - LOGITS[:, 0], two, 1e-3) == "logits"
    assert relation(two[:, 0] ** 2, two, 1e-3) == ""


@pytest.mark.parametrize(("wrong", "expected"), [(2, "labels"), (3, "")])
def test_labels_may_differ_on_a_hundredth_of_the_samples(wrong: int, expected: str) -> None:
    labels = FIRST.copy()
    labels[:wrong] = (labels[:wrong] + 1) % 3
    assert relation(labels, P, 1e-3) == expected


def classifier(small: Small, path: Path, sharper: float = 1.0, around: float = 1.0, label: float = 1.0) -> Path:
    """Write `small` with p, its logits `raw` computed around the head, and a label, each from logits times a factor."""
    model = onnx.load(small.model)
    graph = model.graph
    weight = numpy_helper.to_array(next(t for t in graph.initializer if t.name == "weight"))
    for name, factor in (("weight", sharper), ("again", around), ("third", label)):
        kept = [t for t in graph.initializer if t.name != name]
        del graph.initializer[:]
        graph.initializer.extend([*kept, numpy_helper.from_array(np.float32(factor) * weight, name)])
    graph.node.extend(
        [
            helper.make_node("Softmax", ["logits"], ["p"], axis=1),
            helper.make_node("Gemm", ["features", "again", "bias"], ["raw"], transB=1),
            helper.make_node("Gemm", ["features", "third", "bias"], ["scores"], transB=1),
            helper.make_node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0),
        ]
    )
    del graph.output[:]
    for name, kind, shape in (("p", 1, ["N", 5]), ("raw", 1, ["N", 5]), ("label", TensorProto.INT64, ["N"])):
        graph.output.append(helper.make_tensor_value_info(name, kind, shape))
    onnx.save(model, path)
    return path


def check(task: Task, path: Path) -> None:
    rows = np.arange(len(task.source))
    runner = Runner(open_session(path, path.name, task.device))
    check_other_outputs(task, task.calibration, rows, runner, path, 1e-4)


@pytest.fixture
def source(small: Small, tmp_path: Path) -> Task:
    path = classifier(small, tmp_path / "m.onnx")
    return opened(small, path, few(small.calib), options=ModelOptions(output_name="p", head="head"))


def test_outputs_that_follow_together_pass(source: Task, small: Small, tmp_path: Path) -> None:
    check(source, classifier(small, tmp_path / "o.onnx"))
    check(source, classifier(small, tmp_path / "o.onnx", sharper=0.5, around=0.5, label=0.5))


@pytest.mark.parametrize(
    ("factors", "name", "kind"),
    [
        ({"sharper": 0.5}, "raw", "logits"),
        ({"around": 0.9}, "raw", "logits"),
        ({"label": -1.0}, "label", "labels"),
    ],
)
def test_an_output_that_stays_behind_is_named(
    source: Task, small: Small, tmp_path: Path, factors: dict[str, float], name: str, kind: str
) -> None:
    path = classifier(small, tmp_path / "o.onnx", **factors)
    p, raw, _ = outputs(path, few(small.calib)["x"])
    assert name == "label" or np.abs(probabilities(raw) - p).max() > 1e-2
    with pytest.raises(CheckFailed, match=f"output '{name}' gives the {kind} of 'p' in .*m.onnx, and would not in o"):
        check(source, path)


@pytest.mark.parametrize(("gap", "follows"), [(0.005, True), (0.05, False)])
def test_a_label_may_go_either_way_where_two_classes_are_nearly_tied(
    source: Task, tmp_path: Path, gap: float, *, follows: bool
) -> None:
    p = np.tile([0.5 - gap / 2, 0.5 + gap / 2, 0, 0, 0], (300, 1)).clip(1e-12)
    gives: Any = Gives({"p": p, "raw": np.log(p), "label": np.zeros(300, np.int64)})
    runner = Runner(gives)
    rows = np.arange(300)
    if follows:
        check_other_outputs(source, source.calibration, rows, runner, tmp_path / "o.onnx", 1e-4)
        return
    with pytest.raises(CheckFailed, match="'label'"):
        check_other_outputs(source, source.calibration, rows, runner, tmp_path / "o.onnx", 1e-4)


class Gives:
    """A session that gives the first rows of stored outputs."""

    def __init__(self, values: dict[str, np.ndarray]) -> None:
        self._values = values

    def run(self, names: list[str], batch: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [self._values[name][: len(batch["x"])] for name in names]


def test_a_closed_runner_runs_nothing() -> None:
    gives: Any = Gives({"p": P})
    runner = Runner(gives)
    runner.close()
    with pytest.raises(RuntimeError, match="closed"):
        runner.run(["p"], {"x": P})
