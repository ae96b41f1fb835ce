"""What people type: data behind the model, other names of flags and commands, lists with spaces, any case, a dash."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Small
from tests.support import PLAIN, cli, words_of
from tna_onnx.cli.command import joined_lists

FAST = words_of(PLAIN)


def numbers(small: Small, *words: object) -> object:
    result = cli("evaluate", small.model, *words, "--device", "cpu", "--json", "-")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["metrics"]


def test_data_are_a_word_or_either_flag(small: Small) -> None:
    expected = numbers(small, "--data", small.test)
    assert numbers(small, small.test) == expected
    assert numbers(small, "--calib", small.test) == expected


def test_calibrate_takes_a_model_and_data(small: Small, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.onnx", "b.onnx", "c.onnx")]
    for file, words in zip(files, ([], ["--calib"], ["--data"]), strict=True):
        result = cli("calibrate", small.model, *words, small.calib, *FAST, "-o", file)
        assert result.exit_code == 0, result.output
    assert len({file.read_bytes() for file in files}) == 1
    result = cli("verify", small.model, files[0], small.calib, "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "mean confidence" in result.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["calibrate", "m.onnx"], "Missing data. Give them behind the model, or as --calib DATA."),
        (["evaluate", "m.onnx"], "Missing data. Give them behind the model, or as --data DATA."),
        (["calibrate", "m.onnx", "a", "--calib", "b"], "the data are given twice, as 'a' and as --calib 'b'"),
        (["calibrate", "m.onnx", "a", "b"], "unexpected extra argument"),
        (["calibrate", "--model", "m.onnx"], "The model is the first word: tna-onnx calibrate MODEL"),
        (["calibrate", "m.onnx", "a", "--gpu"], "Did you mean '--device cuda'?"),
        (["calibrate", "m.onnx", "a", "--test", "b"], "Did you mean '--eval'?"),
        (["evaluate", "m.onnx", "--dataset", "b"], "Did you mean '--data'?"),
        (["calibrate", "m.onnx", "--dataset", "b"], "Did you mean '--calib'?"),
        (["calibrate", "m.onnx", "a", "--label_column", "b"], "Did you mean '--label-column'?"),
        (["calibrate", "m.onnx", "a", "--outpt", "b"], "'--output'"),
        (["calibrate", "--version"], "Did you mean 'tna-onnx --version'?"),
        (["version"], "Did you mean 'tna-onnx --version'?"),
        (["help"], "Did you mean 'tna-onnx --help'?"),
        (["help", "verify"], "Did you mean 'tna-onnx verify --help'?"),
        (["m.onnx"], "Did you mean 'tna-onnx calibrate m.onnx ...'?"),
        (["evalute"], "'evaluate'"),
        (["qqqq"], "No such command 'qqqq'."),
    ],
)
def test_what_may_be_meant(words: list[str], says: str) -> None:
    result = cli(*words)
    assert result.exit_code == 2
    assert says in result.stderr


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["verify", "--help"]])
def test_what_is_suggested_works(words: list[str]) -> None:
    assert cli(*words).exit_code == 0


def test_choices_and_devices_in_any_case(small: Small, tmp_path: Path) -> None:
    words = ["--search", "None", "--map", "TS", "--device", "CPU", "-o", tmp_path / "o.onnx"]
    assert cli("calibrate", small.model, small.calib, *words).exit_code == 0


def test_lists_with_spaces() -> None:
    flags = ["--mean", "--std", "--crop"]
    assert joined_lists(["m", "--mean", "1", ".5", "-2e-3", "--std", "1,2", "x"], flags) == [
        "m", "--mean", "1,.5,-2e-3", "--std", "1,2", "x",
    ]  # fmt: skip
    assert joined_lists(["--mean", "[0.1,", "0.2]", "--crop", "224"], flags) == ["--mean", "0.1,0.2", "--crop", "224"]
    assert joined_lists(["--mean", "x", "1"], flags) == ["--mean", "x", "1"]
    assert joined_lists(["--", "--mean", "1", "2"], flags) == ["--", "--mean", "1", "2"]
    result = cli("evaluate", "m.onnx", "data", "--mean", "0.1", "0.2", "x")
    assert "unexpected extra argument" in result.stderr


def test_json_on_standard_output_is_alone(small: Small, tmp_path: Path) -> None:
    result = cli("calibrate", small.model, small.calib, *FAST, "-o", tmp_path / "o.onnx", "--json", "-")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["output"].endswith("o.onnx")
    for words in (
        ["features", small.model, small.calib, "--cache", tmp_path / "f"],
        ["verify", small.model, small.model],
    ):
        result = cli(*words, "--device", "cpu", "--json", "-")
        json.loads(result.stdout)


def test_inspect_writes_json_like_the_others(small: Small, tmp_path: Path) -> None:
    file = tmp_path / "i.json"
    result = cli("inspect", small.model, "--json", file)
    assert (result.exit_code, json.loads(file.read_text())["heads"] != []) == (0, True)
    assert "head" in result.stdout
    printed = [cli("inspect", *words).stdout for words in (
        [small.model, "--json"], ["--json", small.model], [small.model, "--json", "-"],
    )]  # fmt: skip
    assert [json.loads(text) for text in printed] == [json.loads(file.read_text())] * 3
    before = Path(small.model).read_bytes()
    assert cli("inspect", "--json", small.model, file).exit_code == 2
    assert Path(small.model).read_bytes() == before
    assert "Missing argument 'MODEL'" in cli("inspect").stderr
