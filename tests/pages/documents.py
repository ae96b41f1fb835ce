"""Reads README.md and the pages of docs/: their code blocks, and the remarks on them that stand in HTML comments.

A comment directly above a block says how it is to be run, and does not show on the page:

    <!-- not run: REASON -->   it cannot run here
    <!-- exit code: 1 -->      its last command ends so
    <!-- output -->            it is what the block before it printed, up to the digits of numbers
    <!-- output, numbers within 5 % -->   the numbers as well
    <!-- output, in part -->  some lines of an output that another page shows in full
    <!-- adding a KIND: PLACE -->   part of an example that `test_contributing.py` executes on a copy of the package
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

SHELL = ("sh", "bash")
"""Languages of the blocks that hold commands; README.md has its two set-up commands in `sh`, all others in `bash`."""

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

_FENCE = re.compile(
    r"(?:^<!-- (?P<remark>[^\n]*?) -->\n)?^(?P<fence>```+)(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block: page, line of its fence, language, text, and the remark above it."""

    page: str
    line: int
    language: str
    text: str
    remark: str

    @property
    def where(self) -> str:
        """Page and line, as editors take it."""
        return f"{self.page}:{self.line}"

    def remark_after(self, word: str) -> str | None:
        """What stands behind `word:` in the remark."""
        start, _, rest = self.remark.partition(":")
        return rest.strip() if start == word else None


def name_of(page: Path) -> str:
    """Path of a page from the root of the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start("fence")) + 1
        yield Block(name_of(page), line, found["language"].strip(), found["text"], found["remark"] or "")


def joined(text: str) -> str:
    """A text whose lines that end in a backslash are joined to the next."""
    return re.sub(r"\\\n\s*", "", text)


def commands(text: str) -> list[str]:
    """Commands of a shell block; no comments, no empty lines."""
    lines = joined(text).splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
