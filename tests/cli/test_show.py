"""Results: every step gets its turn, whatever the others do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tna_onnx.cli.show import finish, page_step
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


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    finish("text", [lambda: ["a line"]], quiet=True)
    assert capsys.readouterr().out == ""
