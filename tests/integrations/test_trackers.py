"""TensorBoard and Weights & Biases: what was logged is read back by their own readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tna_onnx
from tests.conftest import Small
from tests.support import TILTED
from tna_onnx.integrations.tracker import log_to
from tna_onnx.render.logged import metrics_of
from tna_onnx.results.report import Report


@pytest.fixture(scope="module")
def report(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Report:
    output = tmp_path_factory.mktemp("trackers") / "small.tna.onnx"
    return tna_onnx.calibrate(small.model, small.calib, eval=small.test, output=output, **TILTED)


class Kept:
    def __init__(self) -> None:
        self.words: dict[str, str] = {}
        self.numbers: list[tuple[str, float, int]] = []

    def settings(self, values: dict[str, str]) -> None:
        self.words |= values

    def metric(self, name: str, value: float, step: int) -> None:
        self.numbers.append((name, value, step))


def test_a_tracker_is_given_everything_in_the_order_of_the_steps(report: Report) -> None:
    kept = Kept()
    log_to(kept, report)
    assert sorted(kept.numbers) == sorted(metrics_of(report))
    steps = [step for _, _, step in kept.numbers]
    assert steps == sorted(steps)
    assert steps[-1] == len(report.curve) - 1 > 0
    assert kept.words["map"] == "ts"
    assert kept.words["tna_onnx.verdict"] == report.verdict


@pytest.mark.filterwarnings("ignore")
def test_tensorboard(report: Report, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from tna_onnx.integrations.tensorboard import log_report

    log_report(report, tmp_path)
    events = EventAccumulator(str(tmp_path))
    events.Reload()

    def values(name: str) -> list[float]:
        return [float(tensor.value) for tensor in events.Scalars(name)]

    assert values("after.ece") == pytest.approx([report.comparison.after.ece], rel=1e-6)  # events are float32
    assert values("curve.angle") == pytest.approx([point.angle for point in report.curve], rel=1e-6)
    [text] = events.Tensors("settings")
    assert b"| map | ts |" in b"".join(text.tensor_proto.string_val)


@pytest.mark.filterwarnings("ignore")
def test_wandb(report: Report, tmp_path: Path, monkeypatch: Any) -> None:
    wandb = pytest.importorskip("wandb")
    from tna_onnx.integrations.wandb import log_report

    monkeypatch.setenv("WANDB_SILENT", "true")
    seen: list[dict[str, float]] = []
    log = wandb.sdk.wandb_run.Run.log
    monkeypatch.setattr(
        wandb.sdk.wandb_run.Run, "log", lambda self, values, **words: (seen.append(values), log(self, values, **words))
    )
    name = log_report(report, mode="offline", dir=str(tmp_path), project="tna")
    assert list(tmp_path.rglob(f"run-{name}.wandb"))
    assert seen[0]["after.ece"] == report.comparison.after.ece
    assert [values["curve.angle"] for values in seen] == [point.angle for point in report.curve]
    json.dumps(seen)
