"""What a calibration map is.

Laws, which one test runs over every map:

1. softmax(forward(...)) is the calibrated distribution: every map takes logits and gives logits (log-probabilities
   up to a constant per row), so that a Softmax, LogSoftmax or ArgMax behind it keeps working.
2. `fit` needs the data only through `reduce`: the fit of chunks is the fit of the whole.
3. `forward` is written in the words of `numerics.ops` alone: NumPy, torch and ONNX nodes run the same formula.
4. `from_parameters(parameters)` gives the map back, through JSON too.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from numpy.typing import NDArray

from tna_onnx.numerics.ops import ArrayOps, Ops

__all__ = ["CalibrationMap", "Reduce", "apply_map"]


class Reduce(Protocol):
    """Reduce over chunks of samples, in order."""

    def __call__(self, of: Any, *aligned: NDArray[Any]) -> Any:
        """Return the sum over chunks of of(logits, labels, features, *slices).

        Logits are (B, C), labels (B,), features (B, n), or None for a map that says it needs none; `aligned` are arrays
        of all N samples, cut like the chunks.
        """


class CalibrationMap(Protocol):
    """A fitted map, a frozen value."""

    needs_features: ClassVar[bool]
    """Whether the formula reads the features."""

    @property
    def parameters(self) -> dict[str, Any]:
        """Fitted values by name, JSON-able."""

    @property
    def brief(self) -> dict[str, Any]:
        """What a reader wants to know of the parameters, JSON-able."""

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:
        """Return calibrated logits (N, C), written in the words of `op`."""


def apply_map(fitted: CalibrationMap | None, logits: Any, features: Any = None) -> Any:
    """Run a map on arrays, (N, C) -> (N, C); None is the identity."""
    return logits if fitted is None else fitted.forward(ArrayOps(logits), logits, features)
