"""Studies as text for a terminal or a pipe."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from tna_onnx.printable import printable
from tna_onnx.results.study import Studies

__all__ = ["study_text"]


def study_text(studies: Studies) -> RenderableType:
    """Say what each study found, and where the files are."""
    calibration, held_out = studies.samples
    head = (
        f"{studies.model}: n = {studies.features:,}, {studies.classes:,} classes; {calibration:,} calibration and "
        f"{held_out:,} held-out samples"
    )
    width = max(len(study.name) for study in studies.studies)
    lines = [f"{study.name:<{width}}  {study.sentence}" for study in studies.studies]
    notes = [f"note: {note}" for note in studies.notes]
    wrote = [f"wrote {studies.folder}: index.html"] if studies.folder else []
    return Text("\n".join(printable(line) for line in [head, "", *lines, *notes, *wrote]))
