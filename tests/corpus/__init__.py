"""Models as real exporters and tools write them, each with the truth about its head."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from tests.corpus.case import OUTCOMES, Case, Unavailable, mismatch, outcome

__all__ = ["ALL", "OUTCOMES", "Case", "Unavailable", "mismatch", "outcome"]

_MODULES = (
    "exported_torch", "exported_two_stage", "exported_transformers", "exported_sklearn", "exported_trees",
    "exported_keras", "exported_jax", "exported_flax", "exported_tensorflow",
    "exported_hummingbird", "optimized", "forms",
)  # fmt: skip

ALL: tuple[Case, ...] = tuple(
    case
    for module in _MODULES
    if find_spec(f"{__name__}.{module}") is not None
    for case in import_module(f"{__name__}.{module}").CASES
)
"""Every case; importing it imports no framework."""
