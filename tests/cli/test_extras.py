"""Figures and MLflow: steps only for what was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tna_onnx.cli.calibrate import FIGURE_FORMATS, Extras
from tna_onnx.errors import UsageError

REPORT: Any = object()


def test_steps_are_those_that_were_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    drawn = (tmp_path / "a.svg", tmp_path / "a.png")
    monkeypatch.setattr("tna_onnx.render.figures.write_figures", lambda *given: calls.append(given) or drawn)
    monkeypatch.setattr("tna_onnx.render.mlflow.log_report", lambda *given: calls.append(given) or "run 1")
    assert Extras(None, mlflow=False).steps(REPORT, None) == []
    steps = Extras("f", mlflow=True).steps(REPORT, str(tmp_path / "not written"))
    assert [step() for step in steps] == [[f"figures  f: a ({', '.join(FIGURE_FORMATS)})"], ["mlflow   run 1"]]
    assert calls == [(REPORT, Path("f"), FIGURE_FORMATS), (REPORT, None, {"": [], "figures": [*drawn]})]


def test_a_folder_that_is_a_file_of_the_command_is_refused(tmp_path: Path) -> None:
    extras = Extras(str(tmp_path / "r.json"), mlflow=False)
    with pytest.raises(UsageError, match="is one of the other files"):
        extras.check(str(tmp_path / "r.json"))
