"""What results can do in a notebook: a page, pictures, plain values.

Drawing lies above the results, so it is loaded by name, and only when it is asked for.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from tna_onnx.results.as_json import to_json

__all__ = ["Shown"]

_RENDER = "tna_onnx.render.notebook"


class Shown:
    """A result that shows itself."""

    def to_dict(self) -> dict[str, Any]:
        """Return what `--json` writes, as plain values."""
        values: dict[str, Any] = json.loads(to_json(self))
        return values

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: tables and drawings, without scripts."""
        text: str = importlib.import_module(_RENDER).fragment(self)
        return text

    def plot(self) -> Any:
        """Return a matplotlib figure; of several studies one for each, by its name.

        Raises:
            UsageError: matplotlib is not installed; the message names the extra.
        """
        return importlib.import_module(_RENDER).figure(self)

    def save_html(self, path: str | Path) -> Path:
        """Write the page, one file with its drawings inside, and return its path.

        Raises:
            UsageError: it cannot be written.
        """
        written: Path = importlib.import_module(_RENDER).save_page(self, Path(path))
        return written
