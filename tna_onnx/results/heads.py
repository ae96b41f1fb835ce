"""The result of `calibrate_heads`: one file, and a report on each of its heads."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from pathlib import PurePath

from tna_onnx.results.report import Report
from tna_onnx.results.shown import Record, Shown

__all__ = ["HeadReports"]


@dataclass(frozen=True)
class HeadReports(Shown):
    """What `calibrate_heads` did.

    Attributes:
        model: path of the input.
        model_sha256: SHA-256 of the input file.
        output: path of the written file; empty if none was written.
        heads: a report on each head, by the graph output that it leads to, in the order in which they were named.
        dry_run: whether no file was written because of `dry_run`.
        missed: gates that a result missed, a line each, with the head; no file was written then.
    """

    model: str
    model_sha256: str
    output: str
    heads: dict[str, Report]
    dry_run: bool = False
    missed: tuple[str, ...] = ()

    @property
    def folders(self) -> dict[str, str]:
        """Names of folders for files about each head: its output, where that can be a name on every disk."""
        names = {output: re.sub(r"[^A-Za-z0-9_-]+", "-", output).strip("-") for output in self.heads}
        # some disks take letters of both cases for one
        distinct = {name.casefold() for name in names.values() if name}
        if len(distinct) == len(names):
            return names
        return {output: f"{name}-{k}" for k, (output, name) in enumerate(names.items())}

    def __repr__(self) -> str:
        """Say in one line what was done to each head."""
        done = "; ".join(f"{name}: {each.method}, {each.standing.word}" for name, each in self.heads.items())
        return f"<HeadReports on {PurePath(self.model).name}: {done}>"

    def records(self) -> list[Record]:
        """Return a row for each head and metric, before and after, with its unit."""
        return [{"head": name, **row} for name, each in self.heads.items() for row in each.records()]

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: one page after the other."""
        notebook = importlib.import_module("tna_onnx.render.notebook")
        return "".join(notebook.fragment(each) for each in self.heads.values())

    @property
    def verdict(self) -> str:
        """One sentence on each head."""
        return "\n".join(f"{name}: {each.verdict}" for name, each in self.heads.items())
