"""What the project says of itself: metadata of the package, the citation, the forms for issues."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from typing import Any

import pytest

import tna_onnx
from tests.conftest import ROOT
from tests.packaging.test_pipelines import PROJECT

yaml = pytest.importorskip("yaml")


def test_the_citation_names_the_tool_and_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == tna_onnx.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"]
    [paper] = citation["references"]
    assert [author["family-names"] for author in paper["authors"]] == ["Cho", "Youn"]
    assert paper["year"] == 2024


def test_the_metadata_are_whole() -> None:
    oldest = re.search(r"3\.\d+", PROJECT["requires-python"])
    assert oldest is not None
    assert f"Programming Language :: Python :: {oldest[0]}" in PROJECT["classifiers"]
    assert len(PROJECT["description"]) < 100
    assert (ROOT / PROJECT["readme"]).is_file()
    assert all((ROOT / file).is_file() for file in PROJECT["license-files"])


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


def test_the_forms_for_issues_are_whole() -> None:
    forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    assert len(forms) >= 3
    for path in forms:
        form = yaml.safe_load(path.read_text("utf-8"))
        if path.name == "config.yml":
            continue
        assert form["name"]
        assert form["description"]
        ids = [field["id"] for field in form["body"]]
        assert len(ids) == len(set(ids))
        assert all(field["attributes"]["label"] for field in form["body"])


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
