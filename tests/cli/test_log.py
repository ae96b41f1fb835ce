"""`--verbose` shows the log of a run on standard error; without it the log is silent."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import NoReturn

import pytest

from tests.conftest import Small
from tests.support import cli
from tna_onnx.errors import DataError

LOGGER = logging.getLogger("tna_onnx")


@pytest.mark.parametrize(("flags", "lines"), [(["-v"], "a stage\n"), ([], ""), (["-v", "-q"], "")])
def test_verbose_logs_the_stages(flags: list[str], lines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(**_: object) -> NoReturn:
        logging.getLogger("tna_onnx.engine").info("a %s", "stage")
        raise DataError("the end")

    monkeypatch.setattr("tna_onnx.api.evaluate.evaluate", evaluate)
    assert cli("evaluate", "m.onnx", "--data", "d.npz", *flags).stderr == f"{lines}Error: the end\n"


def test_the_package_adds_no_handler_that_prints() -> None:
    assert [type(handler) for handler in LOGGER.handlers] == [logging.NullHandler]


@pytest.mark.parametrize("command", ["evaluate", "compare", "calibrate"])
def test_every_command_on_data_logs_its_stages(command: str, small: Small, tmp_path: Path) -> None:
    words: list[object] = [command, small.model, *([small.model] if command == "compare" else []), small.test]
    if command == "calibrate":
        words += ["-o", tmp_path / "o.onnx", "--search", "none", "--map", "ts"]
    logged = cli(*words, "--device", "cpu", "-v").stderr
    assert re.search(r"^open: .*model\.onnx( \(1\))?, provider CPUExecutionProvider$", logged, re.MULTILINE)
    assert "test.npz" in logged
    more = cli(*words, "--device", "cpu", "-vv").stderr
    assert "samples per run: 64" in more
    assert "samples per run" not in logged


def test_twice_shows_candidates_and_methods(small: Small, tmp_path: Path) -> None:
    words = ["calibrate", small.model, small.calib, "-o", tmp_path / "o.onnx", "--method", "tna", "--device", "cpu"]
    assert "search: 0 degrees, 1 members, accuracy " in cli(*words, "--ensemble-size", 16, "-vv").stderr
