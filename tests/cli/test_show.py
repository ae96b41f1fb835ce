"""Results: every step gets its turn, whatever the others do, and figures and MLflow come last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest

from tna_onnx.cli.calibrate import FIGURE_FORMATS, Extras
from tna_onnx.cli.show import finish, page_step
from tna_onnx.cli.terminal import interruption, watch
from tna_onnx.errors import ResultError, TrackingError, UsageError


def test_a_step_that_fails_keeps_no_other_from_its_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> Sequence[str]:
        raise UsageError("folder: full")

    def untracked() -> Sequence[str]:
        raise TrackingError("no server; m.onnx is written")

    steps = [fails, page_step(None, lambda: "never"), untracked, lambda: ["a line"]]
    with pytest.raises(ResultError) as caught:
        finish("text", [*steps, page_step(str(tmp_path / "page"), lambda: "page")], quiet=False, output="m.onnx")
    assert str(caught.value).splitlines() == ["folder: full; m.onnx is written", "no server; m.onnx is written"]
    assert capsys.readouterr().out == "text\na line\n"
    assert (tmp_path / "page").read_text() == "page"


# ---- The message on an interruption names the files that changed since the command began, and no other


def test_changed_and_new_files_are_named(tmp_path: Path) -> None:
    old, changed, new = (tmp_path / name for name in ("old", "changed", "new"))
    old.write_text("1")
    changed.write_text("1")
    with click.Context(click.Command("test")) as ctx:
        assert interruption(ctx) == "Interrupted; no file was written."
        watch([old, changed, new, None], cache="features")
        changed.write_text("12")
        kept = " The features computed so far are kept in the cache."
        assert interruption(ctx) == f"Interrupted; {changed} is written.{kept}"
        new.touch()
        assert interruption(ctx) == f"Interrupted; {changed}, {new} are written.{kept}"


# ---- Figures and MLflow: steps only for what was asked for


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
