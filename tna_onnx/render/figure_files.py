"""How all figures look, and how one becomes a file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from tna_onnx.errors import UsageError
from tna_onnx.files import write_file

__all__ = ["STYLE", "save_figure"]

STYLE: dict[str, Any] = {
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "figure.constrained_layout.use": True,
    "font.size": 8,
    "grid.color": "#dddddd",
    "hatch.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 3,
    "pdf.fonttype": 42,  # TrueType, so that text stays text
    "savefig.dpi": 200,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "tna-onnx",  # no random ids: the same report gives the same bytes
}
"""Settings of matplotlib."""

# Entries of a file that would differ from run to run.
_NO_DATE = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def save_figure(figure: Any, path: Path) -> None:
    """Write a matplotlib figure in the format of the path's ending; its folder is made if it is missing.

    Raises:
        UsageError: it cannot be written.
    """
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:], metadata=_NO_DATE.get(path.suffix[1:]))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, drawn.getvalue())
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error
