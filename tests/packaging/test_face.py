"""What the project says of itself: metadata of the package, the citation, the forms for issues."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.packaging.test_pipelines import PROJECT

yaml = pytest.importorskip("yaml")


def test_the_workflow_runs_everything_on_every_version() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    [job] = workflow["jobs"].values()
    listed = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert job["strategy"]["matrix"]["python"] == listed
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert (ROOT / ".ci/run").stat().st_mode & 0o100


def test_the_script_installs_groups_that_there_are() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    script = (ROOT / ".ci/run").read_text("utf-8")
    asked = {name for line in re.findall(r"^ *groups (.+) > ", script, re.MULTILINE) for name in line.split()}
    assert asked == {*pyproject["dependency-groups"]}
    extras = {name for line in re.findall(r"-e '\.\[(.+?)\]'", script) for name in line.split(",")}
    assert extras <= {*PROJECT["optional-dependencies"]}


def pictures() -> Any:
    """Return the script that makes the pictures of README.md."""
    pytest.importorskip("rich")
    spec = importlib.util.spec_from_file_location("make_pictures", ROOT / "docs/images/make_pictures.py")
    assert spec is not None
    assert spec.loader is not None
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
