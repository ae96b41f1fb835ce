"""What pipelines take the package by: the GitHub Action, the pre-commit hooks, the Dockerfile, the conda recipe."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any

import pytest

import tna_onnx
from tests.conftest import ROOT, Small

yaml = pytest.importorskip("yaml")

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
STEPS: dict[str, dict[str, Any]] = {step["id"]: step for step in ACTION["runs"]["steps"]}
# pip finds there what is installed already
LIBRARIES = sysconfig.get_path("purelib")
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")


def expand(text: str, values: dict[str, str]) -> str:
    """Put values in the place of the expressions of a workflow; one without a value is an error."""
    return re.sub(r"\$\{\{ *([\w.-]+) *\}\}", lambda match: values[match[1]], text)


def step(name: str, folder: Path, values: dict[str, str]) -> tuple[int, dict[str, str], str]:
    """Run a step as a runner does; return its exit code, its outputs and what it printed."""
    output = folder / "outputs.txt"
    output.write_text("", "utf-8")
    env = {key: expand(str(value), values) for key, value in STEPS[name]["env"].items()}
    runner = {
        "RUNNER_TEMP": str(folder),
        "GITHUB_OUTPUT": str(output),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), LIBRARIES]),
    }
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[name]["run"]],
        cwd=folder,
        env={**os.environ, **runner, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = output.read_text("utf-8").splitlines()
    return done.returncode, dict(line.split("=", 1) for line in lines), done.stdout


def inputs(folder: Path, **said: str) -> dict[str, str]:
    """Return values of all expressions: defaults of the action, what was said, and a stand-in for the installation."""
    binaries = folder / "bin"
    binaries.mkdir(exist_ok=True)
    program = binaries / "tna-onnx"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tna_onnx "$@"\n', "utf-8")
    program.chmod(0o755)
    python = binaries / "python"
    if not python.exists():
        python.symlink_to(sys.executable)
    given = {name: str(entry.get("default", "")) for name, entry in ACTION["inputs"].items()} | said
    return {"steps.install.outputs.bin": str(binaries), **{f"inputs.{name}": value for name, value in given.items()}}


QUICK = "--search none --map ts --device cpu"


@pytest.mark.slow
def test_the_action_calibrates(small: Small, tmp_path: Path) -> None:
    said = {"model": str(small.model), "data": str(small.calib), "eval": str(small.test), "output": "new model.onnx"}
    code, outputs, printed = step("run", tmp_path, inputs(tmp_path, args=QUICK, **said))
    assert code == 0, printed
    assert outputs["model"] == "new model.onnx"
    assert (tmp_path / "new model.onnx").is_file()
    assert outputs["verdict"] == json.loads(Path(outputs["json"]).read_text("utf-8"))["verdict"]
    summary = (tmp_path / "summary.md").read_text("utf-8")
    assert "NLL, nats" in summary
    assert outputs["verdict"] in summary
    assert shlex.split(outputs["files"]) == ["new model.onnx"]
    assert "<html" in Path(outputs["report"]).read_text("utf-8")
    assert set(ACTION["outputs"]) == set(outputs)
    code, outputs, _ = step("run", tmp_path, inputs(tmp_path, args=f"{QUICK} --max-ece 0.001", **said))
    assert (code, outputs["verdict"], outputs["model"]) == (1, "refused", "")


@pytest.mark.slow
def test_the_action_fails_where_a_gate_is_missed(small: Small, tmp_path: Path) -> None:
    said = {"model": str(small.model), "data": str(small.test), "args": "--max-ece 0.001 --device cpu"}
    code, outputs, printed = step("run", tmp_path, inputs(tmp_path, command="evaluate", **said))
    assert code == 1
    assert "ECE" in printed
    assert outputs["model"] == ""
    code, outputs, _ = step("run", tmp_path, inputs(tmp_path, **(said | {"model": "missing.onnx"})))
    assert (code, outputs) == (2, {})
    assert "missing.onnx" in (tmp_path / "summary.md").read_text("utf-8")  # the error


EVIL = "'\"; touch owned; $(touch owned) `touch owned` #"


def test_inputs_are_no_commands(tmp_path: Path) -> None:
    code, _, _ = step("run", tmp_path, inputs(tmp_path, **dict.fromkeys(("model", "data", "args", "eval"), EVIL)))
    assert code != 0
    assert not (tmp_path / "owned").exists()
    for entry in STEPS.values():
        assert "${{" not in entry.get("run", "")


@pytest.mark.slow
def test_the_action_installs_the_package(tmp_path: Path) -> None:
    values = inputs(tmp_path, extras="images") | {"github.action_path": str(ROOT)}
    code, outputs, printed = step("install", tmp_path, values)
    if code and re.search("No matching distribution|ConnectionError|Max retries", printed):
        pytest.skip("no package index")
    assert code == 0, printed
    words, env = [Path(outputs["bin"], "tna-onnx"), "--version"], {**os.environ, "PYTHONPATH": LIBRARIES}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert tna_onnx.__version__ in done.stdout


@pytest.mark.slow
def test_the_hooks_run(small: Small) -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    words = {
        "tna-onnx-evaluate": [small.model, "--data", small.test, "--device", "cpu"],
        "tna-onnx-verify": [small.model, small.model],
    }
    for hook in hooks:
        assert hook["language"] == "python"
        assert hook["additional_dependencies"] == PROJECT["optional-dependencies"]["cpu"]
        assert re.search(hook["files"], "models/model.onnx")
        program, *first = hook["entry"].split()
        assert program in PROJECT["scripts"]
        line = [sys.executable, "-m", "tna_onnx", *first, *map(str, words.pop(hook["id"]))]
        assert subprocess.run(line, capture_output=True, check=False).returncode == 0
    assert not words


def test_the_image_has_stages_and_a_user() -> None:
    stages: dict[str, list[tuple[str, str]]] = {}
    source: dict[str, str] = {}
    for line in re.sub(r"\\\n", "", DOCKERFILE).splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            source[name] = base
            stages[name] = []
        elif word.isupper() and stages:
            stages[next(reversed(stages))].append((word, rest))
    [default] = re.findall(r"^ARG PYTHON=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", default)  # pinned: no `latest`, no bare 3.12
    assert list(stages)[-1] == "cpu"
    for name in ("cpu", "gpu"):
        assert stages[name][-1] == ("USER", "10001:10001")
        assert ("COPY", f"--from=build-{name} /venv /venv") in stages[name]
        assert source[name] == "run"  # nothing of the stages that build
        extras = re.findall(r"\.\[(.+)\]", dict(stages[f"build-{name}"])["RUN"])[0].split(",")
        assert set(extras) <= set(PROJECT["optional-dependencies"])
        assert name in extras
    assert dict(stages["run"])["ENTRYPOINT"] == '["tna-onnx"]'
    assert "PIP_CONSTRAINT" in dict(stages["build"])["ENV"]


def test_what_the_image_copies_is_not_ignored() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    for path in " ".join(copied).split():
        assert (ROOT / path).exists()
        assert f"!{path}" in lines


def test_the_recipe_asks_for_what_the_project_asks_for() -> None:
    jinja2 = pytest.importorskip("jinja2")
    text = (ROOT / "recipe/meta.yaml").read_text("utf-8")
    recipe = yaml.safe_load(jinja2.Template(text).render(PYTHON="python"))
    assert recipe["package"] == {"name": PROJECT["name"], "version": tna_onnx.__version__}

    def bounds(entries: list[str]) -> set[str]:
        return {re.sub(r"\s|;.*", "", entry) for entry in entries}

    asked = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["cpu"], f"python{PROJECT['requires-python']}"]
    assert bounds(recipe["requirements"]["run"]) == bounds(asked)
    assert recipe["build"]["entry_points"] == [f"{name} = {place}" for name, place in PROJECT["scripts"].items()]
    assert recipe["about"]["summary"] == PROJECT["description"]
    for command in recipe["test"]["commands"]:
        words = [sys.executable, "-m", "tna_onnx", *command.split()[1:]]
        assert subprocess.run(words, capture_output=True, cwd=ROOT, check=False).returncode == 0, command


# --- What the project says of itself: metadata of the package, the citation, the forms for issues


def test_the_workflow_runs_everything_on_every_version() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    [job] = workflow["jobs"].values()
    listed = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert job["strategy"]["matrix"]["python"] == listed
    [step] = [step for step in job["steps"] if "run" in step]
    assert step["run"] == ".ci/run"
    # uv, which installs most, reads no variable of pip
    script = (ROOT / ".ci/run").read_text("utf-8")
    assert all(re.search(rf"UV_\w+=\$\{{{name}:-\}}", script) for name in step["env"])
    assert (ROOT / ".ci/run").stat().st_mode & 0o100


def test_the_script_installs_groups_that_there_are() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    script = (ROOT / ".ci/run").read_text("utf-8")
    asked = " ".join(re.findall(r"groups\+?=\((.+?)\)", script)).split()
    assert {*asked} == {*pyproject["dependency-groups"]}
    extras = {name for line in re.findall(r"-e '\.\[(.+?)\]'", script) for name in line.split(",")}
    assert extras <= {*PROJECT["optional-dependencies"]}


def pictures() -> Any:
    """Return the script that makes the pictures of README.md."""
    pytest.importorskip("rich")
    spec = importlib.util.spec_from_file_location("make_pictures", ROOT / "docs/images/make_pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_terminal_is_what_the_demo_prints() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    [printed] = re.findall(r"<!-- output, in part -->\n```text\n(.*?)```", readme, re.DOTALL)
    drawn = (ROOT / "docs/images/terminal.svg").read_text("utf-8")
    again = pictures().terminal(printed.replace("models/digits/", ""))
    assert re.findall(r">([^<]+)</text>", drawn) == re.findall(r">([^<]+)</text>", again)


def test_the_readme_is_short_and_its_pictures_need_no_other_host() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert len(readme.splitlines()) < 150
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", readme)
    assert len(shown) == 5
    for name in shown:
        assert (ROOT / name).is_file()
        if name.endswith(".svg"):
            text = (ROOT / name).read_text("utf-8")
            assert set(re.findall(r"https?://[^\s\"<]+", text)) <= {
                "http://www.w3.org/2000/svg",
                "https://www.textualize.io",
            }
            assert "url(http" not in text
