"""`tna-onnx study`: its files, its page, and what it refuses."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import tna_onnx
from tests.conftest import Small
from tests.results.test_json import valid
from tests.support import cli, ok
from tna_onnx.results.study import Chart, Column, Footnote, Line, Study
from tna_onnx.studies.run import to_csv, write_study

QUICK = ["--only", "angles,rotations", "--repeats", "2", "--device", "cpu"]


def command(small: Small, out: Path) -> list[object]:
    return ["study", small.model, "--calib", small.calib, "--eval", small.test, "--out", out]


@pytest.fixture(scope="module")
def folder(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study") / "out"
    ok(*command(small, out), *QUICK, "--json", out.parent / "all.json")
    return out


def test_every_study_has_its_files(folder: Path) -> None:
    names = {f"{name}.{ending}" for name in ("angles", "rotations") for ending in ("csv", "json", "svg")}
    assert {path.name for path in folder.iterdir()} == names | {"index.html"}


def test_files_agree_with_each_other(folder: Path) -> None:
    whole = valid((folder.parent / "all.json").read_text())
    for k, name in enumerate(("rotations", "angles")):
        own = valid((folder / f"{name}.json").read_text())
        rows = list(csv.reader((folder / f"{name}.csv").read_text().splitlines()))
        assert rows[0] == [column["name"] for column in own["columns"]]
        assert len(rows) - 1 == len(own["rows"])
        assert float(rows[1][3]) == pytest.approx(own["rows"][0][3])
        assert {**whole["studies"][k]} == {key: own[key] for key in whole["studies"][k]}


def test_the_page_has_a_section_for_each(folder: Path) -> None:
    page = (folder / "index.html").read_text()
    assert re.findall(r'<section id="([a-z]+)"', page) == ["overview", "rotations", "angles"]
    assert page.count('<svg class="chart"') == 5
    assert 'href="angles.csv"' in page


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--only", "tables"], 2, "'tables' is not one of"),
        (["--repeats", "1"], 2, "1 is not in the range x>=2"),
        (["--protocol", "papre"], 2, "'papre' is not one of"),
        (["--eval", "none.npz"], 2, "none.npz"),
        (["--bins", "9999"], 4, "9999"),
    ],
)
def test_bad_arguments(small: Small, tmp_path: Path, words: list[str], code: int, message: str) -> None:
    result = cli(*command(small, tmp_path / "out"), *words)
    assert result.exit_code == code
    assert message in " ".join(result.stderr.split())
    assert not (tmp_path / "out").exists()


def test_from_python_it_is_the_same(small: Small, folder: Path) -> None:
    studies = tna_onnx.study(small.model, small.calib, eval=small.test, only=["angles"], repeats=2, device="cpu")
    assert studies["angles"].to_dict() == valid((folder / "angles.json").read_text())
    assert [study.name for study in studies] == ["angles"]
    assert len(repr(studies["angles"])) < 300
    assert studies["angles"].to_dict()["kind"] == "study"
    assert "<iframe" in studies["angles"]._repr_html_()
    with pytest.raises(KeyError):
        studies["table"]
    with pytest.raises(tna_onnx.UsageError, match="study 'tables' is not known"):
        tna_onnx.study(small.model, small.calib, eval=small.test, only=["tables"])
    with pytest.raises(tna_onnx.UsageError, match="repeats must be at least 2"):
        tna_onnx.study(small.model, small.calib, eval=small.test, repeats=1)
    with pytest.raises(tna_onnx.UsageError, match="eval is missing"):
        tna_onnx.study(small.model, small.calib, eval=None)


NASTY = Study(
    "table",
    "Title & more",
    "main table",
    "A sentence.",
    (
        Column("method", "Method_%"),
        Column("ece", "ECE, %", 100, 2, -1, ("ece_sd",)),
        Column("ece_sd", "SD", 100, 2, hidden=True),
    ),
    (
        ("=1+1", 0.0123, 0.001),
        ("+a", 0.02, None),
        ("-b", None, None),
        ("@c<script>", 0.0123, 0.002),
        ("plain", 0.5, 0.1),
    ),
    (Chart("t", "x", "y", (Line("<b>", (1.0, 2.0), (0.0, 1.0)),)),),
)


def test_cells_do_not_act_in_a_spreadsheet() -> None:
    cells = [row[0] for row in csv.reader(to_csv(NASTY).splitlines())]
    assert cells == ["method", "'=1+1", "'+a", "'-b", "'@c<script>", "plain"]
    # numbers stay numbers, negative ones too
    negative = Study("x", "x", "x", "x.", (Column("v", "v"),), ((-0.5,),))
    assert to_csv(negative) == "v\n-0.5\n"


def test_a_barred_row_is_marked_everywhere_and_never_the_best(tmp_path: Path) -> None:
    study = replace(
        NASTY, footnotes=(Footnote("†", (0, 2), "loses 5 % of it.", barred=True), Footnote("‡", (0,), "b."))
    )
    ece = study.columns[1]
    assert study.best(ece) == (3,)
    rows = list(csv.DictReader(to_csv(study).splitlines()))
    assert [row["footnotes"] for row in rows] == ["loses 5 % of it. b.", "", "loses 5 % of it.", "", ""]
    page = study.save_html(tmp_path / "p.html").read_text()
    assert "=1+1 †‡" in page
    assert "† loses 5 % of it." in page
    write_study(tmp_path, study)
    assert json.loads((tmp_path / "table.json").read_text())["footnotes"][1]["text"] == "b."
