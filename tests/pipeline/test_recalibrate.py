"""The stages of a run, as its log tells them, and where a run ends early."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Small
from tests.pipeline.samples import few, job_of
from tna_onnx.errors import CheckFailed, UnsupportedModel
from tna_onnx.pipeline.recalibrate import recalibrate
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.strategy import Strategy
from tna_onnx.progress import silent
from tna_onnx.results.gates import GateMissed, Gates
from tna_onnx.results.report import Report


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert {(record.name, record.levelno) for record in caplog.records} <= {("tna_onnx", logging.INFO)}
    return [record.getMessage() for record in caplog.records]


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tna_onnx")


def run(small: Small, tmp_path: Path, **fields: Any) -> Report:
    return recalibrate(job_of(small, calib=few(small.calib), output=tmp_path / "o.onnx", **fields), silent)


def test_each_stage_has_one_line(small: Small, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    report = run(small, tmp_path, held_out=few(small.test), settings=Settings(search="none", map="ts"))
    opened, collect, held_out, search, choice, check, compare, done = lines_of(caplog)
    assert opened == f"open: {small.model}, provider CPUExecutionProvider"
    assert collect == held_out == "collect: arrays (300 samples, 5 classes)"
    assert search == "search: original weight, weights scored: 1"
    assert choice == "choice: ts, methods compared: 0"
    assert check == f"check: 300 samples, largest |p - p'| {report.verification.max_difference:.1e}"
    assert compare == "compare: 300 samples, held-out"
    assert done == f"done: {report.verdict}"


def test_a_missed_gate_is_not_done(small: Small, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(GateMissed) as caught:
        run(small, tmp_path, gates=Gates(max_nll=1e-6))
    stages = ["open", "collect", "search", "choice", "check", "compare"]
    assert [line.split(":")[0] for line in lines_of(caplog)] == stages
    assert (caught.value.result.missed, caught.value.result.output) != ((), "")
    assert list(tmp_path.iterdir()) == []


def test_an_accuracy_that_is_not_the_expected_one_ends_before_the_search(
    small: Small, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = few(small.calib)
    data["labels"] = (data["labels"] + 1) % 5
    job = job_of(small, calib=data, output=tmp_path / "o.onnx")
    object.__setattr__(job.calib, "expect_accuracy", 90.0)
    with pytest.raises(CheckFailed, match="90"):
        recalibrate(job, silent)
    assert [line.split(":")[0] for line in lines_of(caplog)] == ["open", "collect"]


def test_a_weight_that_cannot_be_tilted_is_a_refusal_of_the_model(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UnsupportedModel("a class vector is zero")

    monkeypatch.setattr(Strategy, "run", refuse)
    with pytest.raises(UnsupportedModel, match="head 'head': a class vector is zero; use --search none"):
        run(small, tmp_path, settings=Settings())
