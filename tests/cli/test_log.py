"""`--verbose` shows the log of a run on standard error; without it the log is silent."""

from __future__ import annotations

import contextlib
import logging
from typing import NoReturn

import pytest

from tests.support import cli
from tna_onnx.cli.log import show_log
from tna_onnx.errors import DataError

LOGGER = logging.getLogger("tna_onnx")


@pytest.mark.parametrize(("flags", "lines"), [(["-v"], "a stage\n"), ([], ""), (["-v", "-q"], "")])
def test_verbose_logs_the_stages(flags: list[str], lines: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(**_: object) -> NoReturn:
        logging.getLogger("tna_onnx.engine").info("a %s", "stage")
        raise DataError("the end")

    monkeypatch.setattr("tna_onnx.api.evaluate.evaluate", evaluate)
    assert cli("evaluate", "m.onnx", "--data", "d.npz", *flags).stderr == f"{lines}Error: the end\n"


def test_logging_is_as_before_afterwards() -> None:
    before = (LOGGER.level, list(LOGGER.handlers))
    with contextlib.suppress(ValueError), show_log():
        assert LOGGER.isEnabledFor(logging.INFO)
        raise ValueError
    assert (LOGGER.level, LOGGER.handlers) == before


def test_the_package_adds_no_handler_that_prints() -> None:
    assert [type(handler) for handler in LOGGER.handlers] == [logging.NullHandler]
