"""A few cases of the harnesses that run in child processes, and that each of them can tell a bad end."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.fuzz import children, configs
from tests.fuzz.__main__ import HARNESSES
from tests.fuzz.children import OUTCOMES, campaign, outcome_of
from tests.support import run
from tna_onnx.errors import UsageError

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, and limits memory as Linux does")

# Seed and case that once ended in a traceback.
FOUND = [("configs", 1, 600)]  # a null byte in a path of a settings file


def fail() -> None:
    raise AssertionError("a wrong result")


def refuse() -> None:
    raise UsageError("no")


BAD_ENDS = {
    "crashed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "blocked": lambda: time.sleep(60),
    "traceback": [].pop,
    "silently wrong": fail,
    "refused cleanly": refuse,
    "done and verified": lambda: None,
}


@pytest.mark.parametrize(("name", "seed", "k"), FOUND)
def test_what_was_found_before(name: str, seed: int, k: int, tmp_path: Path) -> None:
    outcome, text = outcome_of(lambda: HARNESSES[name](k, seed, tmp_path))
    assert outcome in OUTCOMES[:2], text


def test_a_null_byte_in_a_path(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('labels = "a\\u0000b"\n')
    result = run("evaluate", "m.onnx", "--data", "a.npz", "--config", tmp_path / "a.toml")
    assert result.returncode == 2
    assert "a.toml: labels: embedded null byte, got " in result.stderr


@pytest.mark.parametrize("name", HARNESSES)
def test_a_few_cases(name: str) -> None:
    """In this process; `python -m tests.fuzz` has one for each harness."""
    import tempfile

    for k in range(6):
        with tempfile.TemporaryDirectory() as folder:
            outcome, text = outcome_of(lambda k=k, folder=folder: HARNESSES[name](k, 5, Path(folder)))
            assert outcome in OUTCOMES[:2], text


@pytest.mark.parametrize("bad", BAD_ENDS)
def test_every_end_is_told(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third of five cases ends badly; the others are counted all the same."""
    if bad in ("crashed", "blocked"):
        monkeypatch.setattr(children, "_SECONDS", 1.0)

    def case(k: int, seed: int, folder: Path) -> None:
        assert [*folder.iterdir()] == []
        if k == 2:
            BAD_ENDS[bad]()

    counts = campaign("test", case, seed=0, cases=5)
    assert counts.total() == 5
    assert counts[bad] == (5 if bad == "done and verified" else 1)


def test_seconds_end_a_campaign() -> None:
    start = time.monotonic()
    assert campaign("test", lambda *_: time.sleep(0.05), seed=0, seconds=0.5).total() > 1
    assert time.monotonic() - start < 20


def test_commands_of_the_settings_are_those_that_there_are() -> None:
    import click

    from tna_onnx.cli.command import group
    from tna_onnx.cli.config import configurable_commands

    assert set(configs.REQUIRED) == set(configurable_commands(click.Context(group)))
