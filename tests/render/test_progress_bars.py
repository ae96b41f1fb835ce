"""Progress without a terminal: the end of each stage, a sign of life, and nothing where nothing is wanted."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Small
from tna_onnx import calibrate
from tna_onnx.pipeline.methods import FOLDS
from tna_onnx.render.progress_bars import Lines


def test_one_line_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines(short=0.2) as progress:
        for step in (("collect", 0, 2000), ("collect", 1000, 2000), ("collect", 2000, 2000), ("collect", 2000, 2000)):
            progress(*step)
        assert capsys.readouterr().err == ""
        progress("search", 3, 9)
        progress("search", 9, 9)
        _wait_until(lambda: progress._waiting is None)
        progress("collect", 0, 50)
        progress("collect", 50, 50)
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.rpartition(",")[0] for line in err.splitlines()] == [
        "collect: 2,000 of 2,000",
        "search: 9 of 9",
        "collect: 50 of 50",
    ]


def test_a_stage_that_reports_nothing_gives_signs_of_life(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines(every=0.01, short=0) as lines:
        lines("search", 3, 9)
        seen = ""
        for _ in range(500):
            time.sleep(0.01)
            seen += capsys.readouterr().err
            if seen.count("so far, search: 3 of 9") > 1:
                break
    assert "so far, search: 3 of 9, 0 s\n" in seen


def test_an_error_ends_it_and_a_closed_stream_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyError), Lines() as lines:
        raise KeyError
    assert not lines._clock.is_alive()
    closed = open("/dev/null", "w")  # noqa: PTH123, SIM115
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    with Lines(short=0) as lines:
        _wait_until(lambda: lines._waiting is None)
        lines("search", 9, 9)


def _wait_until(true: Callable[[], bool]) -> None:
    for _ in range(500):
        if true():
            return
        time.sleep(0.01)
    pytest.fail("not within five seconds")


@pytest.mark.parametrize(
    ("search", "stages"),
    [
        ("none", {"calibration data", "cross-validate"}),
        ("auto", {"calibration data", "search", "cross-validate"}),
        ("sparse", {"calibration data", "search", "search in folds", "cross-validate"}),
    ],
)
def test_folds_and_methods_have_a_total(search: str, stages: set[str], small: Small, tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    calibrate(
        small.model, small.calib, output=tmp_path / "o.onnx", search=search, map="auto", device="cpu",
        progress=lambda *step: steps.append(step),
    )  # fmt: skip
    assert {stage for stage, _, _ in steps} >= stages
    validated = [(done, total) for stage, done, total in steps if stage == "cross-validate"]
    first = validated[: validated[0][1]]
    assert first == [(done, first[0][1]) for done in range(1, first[0][1] + 1)]
    assert first[0][1] % FOLDS == 0


def test_an_estimate_of_one_method_has_a_step_a_fold(small: Small, tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    calibrate(
        small.model, small.calib, output=tmp_path / "o.onnx", search="sparse", map="ts", device="cpu",
        progress=lambda *step: steps.append(step),
    )  # fmt: skip
    assert steps[-FOLDS:] == [("cross-validate", k + 1, FOLDS) for k in range(FOLDS)]
