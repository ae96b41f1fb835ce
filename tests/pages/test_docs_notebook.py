"""The notebook has the cells of its page, and ran to its end."""

from __future__ import annotations

import json

from tests.conftest import ROOT
from tests.pages.documents import blocks

FOLDER = ROOT / "docs/how-to"


def test_the_notebook_has_the_cells_of_the_page() -> None:
    cells = json.loads((FOLDER / "notebook.ipynb").read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code == [block.text.strip() for block in blocks(FOLDER / "notebook.md") if block.language == "python"]


def test_every_cell_ran() -> None:
    cells = json.loads((FOLDER / "notebook.ipynb").read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert {output["output_type"] for cell in code for output in cell["outputs"]} == {"stream"}
