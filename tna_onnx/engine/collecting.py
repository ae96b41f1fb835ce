"""Which engine collects features: this process, or workers that write into the store themselves."""

from __future__ import annotations

from tna_onnx.data.options import Data
from tna_onnx.engine import local
from tna_onnx.engine.choice import engine_of
from tna_onnx.extraction.spreading import Spread, require_openable

__all__ = ["spread_on"]


def spread_on(engine: str, data: Data) -> Spread | None:
    """Return how workers collect features of samples; None where this process does.

    Args:
        engine: as the command line has it.
        data: the samples.

    Raises:
        UsageError: no such engine, or samples that workers cannot open by themselves.
    """
    chosen = engine_of(engine)
    if chosen is local:
        return None
    require_openable(data, engine)
    return Spread(chosen.map_chunks, data)
