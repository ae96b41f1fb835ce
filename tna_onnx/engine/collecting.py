"""Which engine reads samples: this process, or workers that open them by themselves."""

from __future__ import annotations

from tna_onnx.data.options import Data
from tna_onnx.engine import local
from tna_onnx.engine.choice import engine_of
from tna_onnx.engine.protocol import Engine
from tna_onnx.extraction.spreading import Spread, require_openable

__all__ = ["reading_engine", "spread_on"]


def reading_engine(text: str, data: Data) -> Engine | None:
    """Return the engine whose workers read samples; None where this process does.

    Args:
        text: as the command line has it.
        data: the samples.

    Raises:
        UsageError: no such engine, or samples that workers cannot open by themselves.
    """
    engine = engine_of(text)
    if engine is local:
        return None
    require_openable(data, text)
    return engine


def spread_on(engine: str, data: Data) -> Spread | None:
    """Return how workers collect features of samples into a store; see `reading_engine`."""
    chosen = reading_engine(engine, data)
    return None if chosen is None else Spread(chosen.map_chunks, data)
