"""Words of `--batch-size`, apart from what probes for one: signatures name them."""

from __future__ import annotations

from typing import Literal, TypeAlias

__all__ = ["BatchSize"]

BatchSize: TypeAlias = int | Literal["auto"]
"""Samples per run of the network; `auto` finds them by a short probe."""
