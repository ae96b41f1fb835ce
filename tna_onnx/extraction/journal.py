"""What is done of the chunk in work: `journal.txt`, a line for each batch, so that a kill costs one batch at most.

A line is the place of the first row, the place behind the last one, and the checksum of the rows. It is written after
the rows and is not forced to the disk: a kill loses nothing that was written, and after a crash of the machine the
checksums tell which rows are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tna_onnx.data.files import open_regular
from tna_onnx.errors import DataError
from tna_onnx.extraction.own_files import open_own

__all__ = ["JOURNAL", "Done", "append_line", "clear", "read_lines"]

JOURNAL = "journal.txt"

_MAX_BYTES = 2**20  # a chunk has 1,024 batches at most, and a line a hundred bytes


@dataclass(frozen=True)
class Done:
    """Rows `start` to `stop` of a store, and their checksum."""

    start: int
    stop: int
    checksum: str

    def __str__(self) -> str:
        """Return the line."""
        return f"{self.start} {self.stop} {self.checksum}\n"


def read_lines(folder: Path) -> Iterator[Done]:
    """Yield what the journal of a store says, up to the first line that is not whole."""
    try:
        with open_regular(folder / JOURNAL, follow=False) as file:
            text = file.read(_MAX_BYTES).decode("ascii")
    except (OSError, ValueError, DataError):
        return
    for line in text.splitlines(keepends=True):
        parts = line.split()
        # the last one may be cut: the process was killed while it wrote
        if len(parts) != 3 or not line.endswith("\n") or not all(part.isdigit() for part in parts[:2]):
            return
        if max(map(len, parts[:2])) > 18:
            return
        yield Done(int(parts[0]), int(parts[1]), parts[2])


def append_line(folder: Path, done: Done) -> None:
    """Add a line.

    Raises:
        OSError: the file cannot be written.
    """
    with open_own(folder / JOURNAL) as file:
        file.seek(0, 2)
        file.write(str(done).encode("ascii"))


def clear(folder: Path) -> None:
    """Remove the journal.

    Raises:
        OSError: it cannot be removed.
    """
    (folder / JOURNAL).unlink(missing_ok=True)
