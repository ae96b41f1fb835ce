"""Commands: the table of them, their help and log, and errors inside one, which become messages with exit codes."""

import dataclasses
import importlib
import inspect
import itertools
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import tna_onnx
import tna_onnx.cli
from tests.builders import nodes_of, small_model
from tests.conftest import ROOT, Small
from tests.support import TILTED, cli, ok, refused, words_of
from tna_onnx import errors
from tna_onnx.api.arguments import holders_of
from tna_onnx.cli.command import SECTIONS, Command, Group, group
from tna_onnx.cli.options import take_recipe
from tna_onnx.data.options import Data
from tna_onnx.graph.options import ModelOptions
from tna_onnx.pipeline.settings import Settings
from tna_onnx.results.gates import Gates

OWN = [getattr(errors, name) for name in errors.__all__ if isinstance(getattr(errors, name), type)]


def group_that_raises(error: BaseException) -> Group:
    def fail() -> None:
        raise error

    return Group("test", commands=[Command("fail", callback=fail)])


@pytest.mark.parametrize("kind", OWN)
def test_each_error_ends_with_the_exit_code_of_its_class(kind: type[errors.TnaError]) -> None:
    result = cli("fail", command=group_that_raises(kind("why")))
    assert (result.exit_code, result.stderr) == (kind.exit_code, "Error: why\n")


@pytest.mark.parametrize("error", [OSError("disk"), EOFError("end"), ValueError("bug")])
def test_unexpected_errors_are_left_to_main(error: Exception) -> None:
    with pytest.raises((RuntimeError, ValueError)) as caught:
        cli("fail", command=group_that_raises(error))
    assert error in (caught.value, caught.value.__cause__)


# ---- The help: ten options that most people need, all of them on demand, each in a section, within any width


MANY = [name for name in group.commands if name not in ("card", "inspect")]


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


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in group.commands)])
def test_the_help_fits(words: list[str]) -> None:
    lines = CliRunner().invoke(group, words, prog_name="tna-onnx", terminal_width=50).output.splitlines()
    assert max(len(line) for line in lines if "tna-onnx" not in line) <= 50  # examples are not rewrapped


def defaults(name: str) -> dict[str, object]:
    """Return what a command hands to its function for options that are not given."""
    command = group.commands[name]
    required = [param for param in command.params if param.required]
    words = [word for param in required for word in ([param.opts[0], "x"] if param.opts[0].startswith("-") else ["x"])]
    params = command.make_context(name, words, parent=click.Context(group)).params
    return {option: value for option, value in params.items() if option not in {param.name for param in required}}


@pytest.mark.parametrize("name", MANY)
def test_defaults_are_those_of_the_function_and_its_values(name: str) -> None:
    function = getattr(tna_onnx, name)
    holders = (Gates, ModelOptions, Data, *holders_of(function).values())
    expected = {field.name: field.default for holder in holders for field in dataclasses.fields(holder)}
    expected["max_accuracy_drop"] = Settings.max_accuracy_drop
    for option, parameter in inspect.signature(function).parameters.items():
        # None is a keyword that was not given: the field of a dataclass has the default
        if parameter.default is not None or option not in expected:
            expected[option] = parameter.default
    # a path here and a truth value there; a text here and a number there; a word behind the models here
    # and none of some is an empty mapping here; guard edits a file without samples here
    other_types = ("details", "baseline", "data", "min_recall", "ray_options", *(("calib",) if name == "guard" else ()))
    shared = [option for option in defaults(name) if option in expected and option not in other_types]
    assert {option: defaults(name)[option] for option in shared} == {option: expected[option] for option in shared}


def test_texts_of_options_become_values(tmp_path: Path) -> None:
    processor = {"image_processor_type": "ViTImageProcessor", "do_resize": False, "size": 8, "do_normalize": False}
    (tmp_path / "p.json").write_text(json.dumps(processor))
    words = ["m.onnx", "d.npz", "--ensemble-size", "12", "--resize", "224,320", "--preset", str(tmp_path / "p.json")]
    params = group.commands["calibrate"].make_context("calibrate", words, parent=click.Context(group)).params
    assert (params["ensemble_size"], params["resize"]) == (12, (224, 320))
    recipe = take_recipe(params["preset"], params)
    assert recipe is not None
    assert recipe.resize == (224, 320)


# ---- The table of commands is complete: each is in a file of `tna_onnx/cli`, and a function


def test_every_command_of_the_folder_is_in_the_group() -> None:
    commands = {}
    for module in pkgutil.iter_modules(tna_onnx.cli.__path__):
        members = vars(importlib.import_module(f"tna_onnx.cli.{module.name}"))
        commands |= {name: member for name, member in members.items() if isinstance(member, Command)}
    assert commands == group.commands
    assert all(callable(getattr(tna_onnx, name)) for name in commands)


def test_the_help_names_every_exit_code() -> None:
    text = cli("--help").output
    codes = {value.exit_code for name in errors.__all__ if hasattr(value := getattr(errors, name), "exit_code")}
    for code in {0, errors.INTERNAL_ERROR, errors.INTERRUPTED} | codes:
        assert f"{code} " in " ".join(text.split())


# ---- `--verbose` shows the log of a run on standard error; without it the log is silent


def test_a_command_on_data_logs_its_stages(small: Small) -> None:
    words = ["compare", small.model, small.model, small.test]
    logged = cli(*words, "--device", "cpu", "-v").stderr
    assert re.search(r"^open: .*model\.onnx( \(1\))?, provider CPUExecutionProvider$", logged, re.MULTILINE)
    assert "test.npz" in logged
    more = cli(*words, "--device", "cpu", "-vv").stderr
    assert "samples per run: 64" in more
    assert "samples per run" not in logged
    assert cli(*words, "--device", "cpu", "-v", "-q").output == ""


def test_the_longer_log_has_every_candidate_and_method(small: Small) -> None:
    words = words_of({**TILTED, "map": "auto", "search": "auto"})
    result = cli("calibrate", small.model, small.calib, "--dry-run", *words, "-vv")
    weights = re.findall(r"^search: ([\d.]+) degrees, \S+ members, accuracy 0\.\d{4}$", result.stderr, re.MULTILINE)
    methods = re.findall(r"^choice: (.+), cross-validated NLL \d\.\d{4}$", result.stderr, re.MULTILINE)
    assert f"weights scored: {len(weights)}" in result.stderr
    assert len(weights) > 1
    assert f"methods and strengths compared: {len(methods)}" in result.stderr
    assert {"none", "ts"} <= set(methods)


# ---- What people type: data behind the model, either flag, lists with spaces, any case


def numbers(small: Small, *words: object) -> object:
    result = ok("evaluate", small.model, *words, "--device", "cpu", "--json", "-")
    return json.loads(result.stdout)["metrics"]


def test_data_are_a_word_or_either_flag(small: Small) -> None:
    expected = numbers(small, "--data", small.test)
    assert numbers(small, small.test) == expected
    assert numbers(small, "--calib", small.test) == expected


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["calibrate", "m.onnx"], "Missing data. Add them after the model, or as --calib DATA."),
        (["evaluate", "m.onnx"], "Missing data. Add them after the model, or as --data DATA."),
        (["calibrate", "m.onnx", "a", "--calib", "b"], "the data are given twice, as 'a' and as --calib 'b'"),
        (["calibrate", "m.onnx", "a", "b"], "unexpected extra argument"),
        (["calibrate", "m.onnx", "a", "--label_column", "b"], "--label-column"),
        (["calibrate", "m.onnx", "a", "--outpt", "b"], "--output"),
        (["evalute"], "No such command 'evalute'."),
        (["qqqq"], "No such command 'qqqq'."),
    ],
)
def test_what_may_be_meant(words: list[str], says: str) -> None:
    refused(2, says, *words)


def test_choices_and_devices_in_any_case(small: Small, tmp_path: Path) -> None:
    words = ["--search", "None", "--map", "TS", "--device", "CPU", "-o", tmp_path / "o.onnx"]
    ok("calibrate", small.model, small.calib, *words)


def test_inspect_writes_json_like_the_others(small: Small, tmp_path: Path) -> None:
    file = tmp_path / "i.json"
    result = cli("inspect", small.model, "--json", file)
    assert (result.exit_code, json.loads(file.read_text())["heads"] != []) == (0, True)
    assert "head" in result.stdout
    assert json.loads(cli("inspect", small.model, "--json", "-").stdout) == json.loads(file.read_text())
    before = Path(small.model).read_bytes()
    refused(2, "", "inspect", "--json", small.model, small.model.with_name("other.onnx"))
    assert Path(small.model).read_bytes() == before
    assert "Missing argument 'MODEL'" in cli("inspect").stderr


# --- The command line as a user meets it: help, results, errors with their exit codes, nothing left behind


@pytest.mark.parametrize("start", [["-m", "tna_onnx"], [str(ROOT / "cli.py")]])
def test_module_and_shim_are_the_console_script(start: list[str]) -> None:
    done = subprocess.run([sys.executable, *start, "--version"], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == f"tna-onnx, version {tna_onnx.__version__}"


def test_quiet_is_quiet(small: Small, tmp_path: Path) -> None:
    words = [*words_of(TILTED), "-q", "-o", tmp_path / "o.onnx"]
    assert ok("calibrate", small.model, "--calib", small.calib, *words).output == ""


def truncated(small: Small, folder: Path) -> Path:
    path = folder / "cut.onnx"
    path.write_bytes(small.model.read_bytes()[:-100])
    return path


def text(folder: Path) -> Path:
    path = folder / "text.onnx"
    path.write_text("this is no model\n" * 20)
    return path


def no_head(folder: Path) -> Path:
    nodes = nodes_of("MatMul x w > h; Sin h > logits name=sine")
    model = small_model(nodes, {"x": ["N", 8]}, {"logits": ["N", 5]}, {"w": np.ones((8, 5), np.float32)})
    onnx.save(model, folder / "sine.onnx")
    return folder / "sine.onnx"


BAD_MODELS = {
    "missing": (lambda small, folder: folder / "none.onnx", 2, "no such file"),
    "folder": (lambda small, folder: folder, 2, "is a directory"),
    "text": (lambda small, folder: text(folder), 3, "not an ONNX file"),
    "truncated": (truncated, 3, "truncated"),
    "no head": (lambda small, folder: no_head(folder), 3, "at sine: Sin is neither a linear layer"),
}


@pytest.mark.parametrize(
    ("case", "command"),
    [
        *zip(BAD_MODELS, itertools.cycle(["calibrate", "evaluate", "inspect"]), strict=False),
        ("no head", "calibrate"),
        ("no head", "inspect"),
    ],
)
def test_bad_models(small: Small, tmp_path: Path, case: str, command: str) -> None:
    make, code, message = BAD_MODELS[case]
    # rows that add up to 1 could be calibrated: the data show that these do not
    if case == "no head":
        code = 0 if command == "inspect" else 3
        message = message if command == "inspect" else "if they are logits, say so with --output-kind logits"
    flags = {"calibrate": ["--calib", small.calib], "evaluate": ["--data", small.calib], "inspect": []}[command]
    result = refused(code, message, command, make(small, tmp_path), *flags)
    assert "Traceback" not in result.output
    assert not list(tmp_path.glob("*.tna.onnx"))


@pytest.mark.parametrize(
    ("output", "message"),
    [("model.onnx", "output is the input model"), ("none/o.onnx", "does not exist"), (".", "is a folder")],
)
def test_bad_outputs(small: Small, tmp_path: Path, output: str, message: str) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(small.model.read_bytes())
    refused(2, message, "calibrate", model, "--calib", small.calib, "-o", tmp_path / output)
    assert model.read_bytes() == small.model.read_bytes()


BAD_USAGE = {
    "no data": ([], "--calib"),
    "missing data": (["--calib", "none.npz"], "none.npz"),
    "missing data, in a folder of two uses": (["--calib", "none.npz", "--cache", "f", "--figures", "f"], "none.npz"),
    "mean is no list": (["--calib", "D", "--mean", "a,b"], "0.485,0.456,0.406"),
    "resize is no size": (["--calib", "D", "--resize", "1,2,3"], "HEIGHT,WIDTH"),
    "resize is no number": (["--calib", "D", "--resize", "wide"], "got 'wide'"),
    "flags for arrays": (["--calib", "D", "--mean", "0.5"], "images only"),
    "unknown device": (["--calib", "D", "--device", "tpu"], "expected auto, cpu, cuda or cuda:INDEX"),
    "nothing to do": (["--calib", "D", "--search", "none", "--map", "none"], "changes nothing"),
    "no preset": (["--calib", "D", "--preset", "imagnet"], "'imagnet' is no file, and none of imagenet"),
    "no number of members": (["--calib", "D", "--ensemble-size", "many"], "got 'many'"),
    "no decision": (["--calib", "D", "--add", "set,d"], "'d' is not one of"),
    "json nowhere": (["--calib", "D", "--json", "none/r.json"], "does not exist"),
    "json is a folder": (["--calib", "D", "--json", "."], "cannot be written"),
    "figures in a file": (["--calib", "D", "--figures", "D/inside"], "cannot be written"),
    "figures over a result": (["--calib", "D", "--figures", "r", "--json", "r"], "is one of the other files"),
}


@pytest.mark.parametrize("case", BAD_USAGE)
def test_bad_usage(small: Small, tmp_path: Path, case: str) -> None:
    flags, message = BAD_USAGE[case]
    paths = {"D": small.calib, "D/inside": small.calib / "inside"}
    given = [paths.get(flag, flag) for flag in flags]
    refused(2, message, "calibrate", small.model, *given, "-o", tmp_path / "o.onnx")
    assert list(tmp_path.iterdir()) == []


def test_without_a_runtime_the_message_says_what_to_install(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # makes `import onnxruntime` fail
    words = ["calibrate", small.model, "--calib", small.calib, "-o", tmp_path / "o.onnx"]
    result = refused(5, "pip install 'tna-onnx[cpu]'", *words)
    assert "pip install 'tna-onnx[gpu]'" in result.output
