"""Piecewise linear functions as a chain of ramps, for the maps that need one.

A function with knots (x_k, y_k), linear between them and constant outside, is

    y_0 + sum_k clip(a_k x + b_k, 0, 1) d_k,        a = 1 / (x_{k+1} - x_k), b = -a x_k, d = y_{k+1} - y_k

With one function a column, all constants are vectors of shape [C]; a function with fewer knots has ramps of height
zero. Rounding x by a relative u moves the result by u times the slope d a of the function, however steep a ramp is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tna_onnx.numerics.ops import Ops

__all__ = ["Knots", "chain", "knot_counts"]

Knots = tuple[tuple[float, ...], tuple[float, ...]]
"""(x, y), K values each, x ascending, K >= 1."""


def knot_counts(functions: Sequence[Knots], of: str) -> dict[str, int]:
    """Return how many knots there are, and how many one has at most of what has a function each: a class, a label."""
    sizes = [len(x) for x, _ in functions]
    return {"knots": sum(sizes), f"most_knots_of_a_{of}": max(sizes)}


def chain(op: Ops, x: Any, functions: Sequence[Knots]) -> Any:
    """Return the value of each column's function at x, (N, C) with C functions or (N, 1) with one.

    Functions of one knot each are constants: then the value has the shape [C].
    """
    columns = len(functions)
    total = op.const(np.array([y[0] for _, y in functions]))
    for k in range(max(len(knots) for knots, _ in functions) - 1):
        slope = np.zeros(columns)
        offset = np.zeros(columns)
        height = np.zeros(columns)
        for c, (knots, y) in enumerate(functions):
            if k + 1 < len(knots):
                slope[c] = 1 / (knots[k + 1] - knots[k])
                offset[c] = -slope[c] * knots[k]
                height[c] = y[k + 1] - y[k]
        ramp = op.clip(op.add(op.mul(x, op.const(slope)), op.const(offset)), 0.0, 1.0)
        total = op.add(total, op.mul(ramp, op.const(height)))
    return total
