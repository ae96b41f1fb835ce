"""How results come to be drawn, although drawing lies above them: `tna_onnx/__init__.py` calls `draw_with`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Drawing(Protocol):
    """What draws results."""

    def fragment(self, result: Any, /) -> str:
        """Return HTML for the output of a notebook's cell."""

    def save_figures(self, result: Any, folder: Path, /) -> tuple[Path, ...]:
        """Write the figures of a result into a folder, and return their paths."""

    def save_page(self, result: Any, path: Path, /) -> Path:
        """Write the page of a result, and return its path."""


_loaders: list[Callable[[], Drawing]] = []


def draw_with(load: Callable[[], Drawing]) -> None:
    """Say what loads the drawing, which is called when something is to be drawn."""
    _loaders[:] = [load]


def drawing() -> Drawing:
    """Load what draws results."""
    (load,) = _loaders
    return load()
