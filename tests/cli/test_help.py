"""The help: ten options that most people need, all of them on demand, each in a section, within any width."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from tests.support import cli
from tna_onnx.cli.command import SECTIONS, group

MANY = [name for name in group.commands if name not in ("apply", "card", "inspect")]


def flags_of(text: str) -> set[str]:
    return {word.strip(",") for line in text.splitlines() for word in line.split()[:3] if line.startswith("  -")} & {
        opt for command in group.commands.values() for param in command.params for opt in param.opts
    }


@pytest.mark.parametrize("name", MANY)
def test_all_options_are_shown_on_demand_and_each_has_a_section(name: str) -> None:
    options = [param for param in group.commands[name].params if isinstance(param, click.Option)]
    text = cli(name, "--help-all").output
    assert flags_of(text) >= {max(option.opts, key=len) for option in options if not option.secondary_opts}
    for option in options:
        named = sum(option.name in names for names in SECTIONS.values())
        assert named == 1 or getattr(option, "section", "") in SECTIONS, option.name
    assert "more options" not in text


def test_ten_options_of_calibrate_are_shown() -> None:
    text = cli("calibrate", "--help").output
    shown = flags_of(text)
    assert len(shown - {"--data", "--output"}) == 10  # further names of two of them
    assert {"--calib", "--eval", "--labels", "--report", "--json", "--device"} <= shown
    assert "--alpha" not in text
    assert (
        "more options (data, images, results, decisions, what is fitted, the search, gates, model, running): --help-all"
        in " ".join(text.split())
    )


@pytest.mark.parametrize("width", [50, 60, 80, 100])
@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in group.commands)])
def test_the_help_fits(width: int, words: list[str]) -> None:
    lines = CliRunner().invoke(group, words, prog_name="tna-onnx", terminal_width=width).output.splitlines()
    assert max(len(line) for line in lines if "tna-onnx" not in line) <= width  # examples are not rewrapped
