"""The words that decisions need besides those of maps, as ONNX nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tna_onnx.graph.nodes import PREFIX, NodeOps

__all__ = ["DecisionOps"]


class DecisionOps(NodeOps):
    """The words of maps, and those that decisions need besides."""

    def cast(self, a: str) -> str:
        """Write a tensor as float32."""
        return self._node("Cast", [a], to=TensorProto.FLOAT)

    def largest(self, a: str) -> str:
        """Write the maximum over axis 1, (N,)."""
        return self.reshape(self._reduced("ReduceMax", a), [-1])

    def compared(self, op_type: str, a: str, b: str) -> str:
        """Write Less or Greater."""
        return self._node(op_type, [a, b])

    def negated(self, op_type: str, a: str, b: str) -> str:
        """Write a comparison that does not hold: LessOrEqual and GreaterOrEqual are younger than Greater and Less."""
        return self._node("Not", [self._node(op_type, [a, b])])

    def both(self, p: str) -> str:
        """Write (1 - p, p) of the probability (N, 1) of the second class."""
        return self._node("Concat", [self.add(self.const(1.0), self.mul(p, self.const(-1.0))), p], axis=1)

    def all_or_none(self, p: str, classes: int) -> str:
        """Write rows (N, C) in which one entry that is no number makes all of them none."""
        # a maximum may pass over such entries
        total = self.matmul(p, self.const(np.ones((classes, 1))))
        return self.add(p, self.mul(total, self.const(0.0)))

    def exp(self, a: str) -> str:
        """Write Exp."""
        return self._node("Exp", [a])

    def summed_down(self, p: str, penalty: NDArray[Any]) -> str:
        """Write the sum of the probabilities from the largest down to each class, and a penalty by rank."""
        classes = len(penalty)
        name = f"{PREFIX}/topk_{len(self.nodes)}"
        values, places = f"{name}_values", f"{name}_places"
        count = self.integers([classes])
        self.nodes.append(helper.make_node("TopK", [p, count], [values, places], name=name, axis=1))
        sums = self._node("CumSum", [values, self.integers(1)])
        if penalty.any():
            sums = self.add(sums, self.const(penalty))
        # back to the order of the classes; every place of p is replaced
        return self._node("ScatterElements", [p, places, sums], axis=1)

    def integers(self, value: Any) -> str:
        """Write whole numbers."""
        name = f"{PREFIX}/integers_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.array(value, np.int64), name))
        return name
