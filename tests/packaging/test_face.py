"""What the project says of itself: metadata of the package, the citation, the forms for issues."""

from __future__ import annotations

import re

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
