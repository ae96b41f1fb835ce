"""Writes `notebook.ipynb` from the cells of `notebook.md`, as Jupyter executes them.

`python docs/how-to/make_notebook.py`

Needs nbclient and ipykernel. Run it in a copy of the repository that has the package installed.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def main() -> None:
    """Execute the cells in a folder that has the demo, and keep their outputs."""
    page = (HERE / "notebook.md").read_text("utf-8")
    cells = []
    for text, code in re.findall(r"(.*?)```python\n(.*?)```\n", page, re.DOTALL):
        if text.strip():
            cells.append(nbformat.v4.new_markdown_cell(text.strip()))
        cells.append(nbformat.v4.new_code_cell(code.strip()))
    notebook = nbformat.v4.new_notebook(cells=cells)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # by default random: the same page would give another file
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(HERE.parents[1] / "models", Path(folder, "models"))
        NotebookClient(notebook, record_timing=False, resources={"metadata": {"path": folder}}).execute()
    nbformat.write(notebook, HERE / "notebook.ipynb")


if __name__ == "__main__":
    main()
