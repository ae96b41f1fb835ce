"""Writes `terminal.svg`, the demo in a terminal, and the badges of README.md.

`python docs/images/make_pictures.py`

Run it in a copy of the repository that has the package installed. The files load nothing from other hosts.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.style import Style
from rich.terminal_theme import MONOKAI
from rich.text import Text

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COLUMNS = 104
SHOWN = "tna-onnx calibrate model.onnx calib.npz --eval test.npz"
# Pixels of a character of the badges' font, and around a text.
_CHARACTER = 6.6
_MARGIN = 6
# First words of the lines of a table that are shown, besides its head.
_TABLE = ("arrays", "accuracy", "ECE", "NLL, nats")

BADGE = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{left}: {right}">
<title>{left}: {right}</title>
<rect width="{middle}" height="20" rx="3" fill="#444"/>
<rect x="{middle}" width="{rest}" height="20" rx="3" fill="#1f4e9c"/>
<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="{at_left}" y="14">{left}</text>
<text x="{at_right}" y="14">{right}</text>
</g>
</svg>
"""


def badges(project: dict[str, Any]) -> dict[str, str]:
    """Return file name -> badge, from the metadata of the package."""
    versions = [entry.rpartition(" ")[2] for entry in project["classifiers"] if re.search(r":: 3\.\d+$", entry)]
    texts = {
        "badge-license.svg": ("license", project["license"]),
        "badge-python.svg": ("python", f"{versions[0]} to {versions[-1]}"),
        "badge-runs-on.svg": ("runs on", "ONNX Runtime"),
    }
    return {name: _badge(*words) for name, words in texts.items()}


def _badge(left: str, right: str) -> str:
    middle = round(len(left) * _CHARACTER) + 2 * _MARGIN
    rest = round(len(right) * _CHARACTER) + 2 * _MARGIN
    return BADGE.format(
        left=left, right=right, width=middle + rest, middle=middle, rest=rest,
        at_left=middle / 2, at_right=middle + rest / 2,
    )  # fmt: skip


def terminal(printed: str) -> str:
    """Return what the demo prints as a picture of a terminal: the sentence, the table, and the file."""
    lines = printed.splitlines()
    table = [line for line in lines[2:] if line.startswith((*_TABLE, " "))]
    wrote = [line for line in lines if line.startswith("wrote")]
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.assemble(("$ ", Style(color="green")), (SHOWN, Style(bold=True))))
    console.print(Text(lines[0], Style(color="green")))
    console.print(Text("\n".join(["", *table, "", *wrote])))
    drawn = console.export_svg(title="tna-onnx", theme=MONOKAI, unique_id="terminal")
    # the fonts of the picture would come from another host; a monospaced one is on every machine
    return re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)


def demo() -> str:
    """Run the demo in a folder of its own, and return what it prints."""
    source = ROOT / "models/digits"
    with tempfile.TemporaryDirectory() as folder:
        for name in ("model.onnx", "calib.npz", "test.npz"):
            Path(folder, name).symlink_to(source / name)
        words = [sys.executable, "-m", "tna_onnx", *SHOWN.split()[1:], "--device", "cpu"]
        return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True).stdout  # noqa: S603 - words of this file


def main() -> None:
    """Write all pictures."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for name, text in badges(project).items():
        (HERE / name).write_text(text, "utf-8")
    (HERE / "terminal.svg").write_text(terminal(demo()), "utf-8")


if __name__ == "__main__":
    main()
