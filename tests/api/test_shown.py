"""What the functions write besides their results: the same files as the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tna_onnx
from tests.conftest import Small
from tests.support import PLAIN
from tna_onnx.render import progress


def test_calibrate_writes_what_the_command_line_writes(small: Small, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page, file, folder = tmp_path / "r.html", tmp_path / "r.json", tmp_path / "figures"
    report = tna_onnx.calibrate(
        small.model, small.calib, output=tmp_path / "o.onnx", report=page, json=file, figures=folder, **PLAIN
    )
    assert page.read_text().startswith("<!doctype html>") or "<html" in page.read_text()
    stored = json.loads(file.read_text())
    assert (stored["verdict"], "details" in stored) == (report.verdict, True)
    assert {path.suffix for path in folder.iterdir()} == {".svg", ".png", ".pdf"}


def test_a_missed_gate_is_written_too(small: Small, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    with pytest.raises(tna_onnx.GateMissed):
        tna_onnx.calibrate(small.model, small.calib, output=tmp_path / "o.onnx", json=file, max_ece=0, **PLAIN)
    assert json.loads(file.read_text())["missed"] != []
    with pytest.raises(tna_onnx.GateMissed):
        tna_onnx.evaluate(small.model, small.calib, device="cpu", json=file, max_ece=0)
    assert json.loads(file.read_text())["missed"] != []


def test_json_of_the_others(small: Small, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    tna_onnx.verify(small.model, small.model, data=small.calib, device="cpu", json=file)
    assert json.loads(file.read_text())["intact"] is True
    tna_onnx.features(small.model, small.calib, tmp_path / "f", device="cpu", json=file)
    assert json.loads(file.read_text())["folder"]
    tna_onnx.compare([small.model, small.model], small.calib, device="cpu", json=file)
    assert len(json.loads(file.read_text())["models"]) == 2


def test_files_that_cannot_be_written_are_refused_before_the_work(small: Small, tmp_path: Path) -> None:
    for words in ({"json": tmp_path / "no" / "r.json"}, {"json": tmp_path}, {"report": tmp_path / "no" / "r.html"}):
        with pytest.raises(tna_onnx.UsageError, match=r"does not exist|is a folder"):
            tna_onnx.calibrate("missing.onnx", "missing.npz", **words)


def test_progress_is_shown_or_told(
    small: Small, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress.Lines.__init__, "__defaults__", (30.0, 0.0))
    tna_onnx.evaluate(small.model, small.calib, device="cpu", progress=True)
    assert "evaluate: " in capfd.readouterr().err
    steps: list[str] = []
    tna_onnx.evaluate(small.model, small.calib, device="cpu", progress=lambda stage, *_: steps.append(stage))
    tna_onnx.evaluate(small.model, small.calib, device="cpu", progress=False)
    assert set(steps) == {"evaluate"}
    assert capfd.readouterr() == ("", "")
