"""The `reduce` that a map's fit asks for, over the chunks of logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.maps.base import Reduce

if TYPE_CHECKING:
    from tna_onnx.engine.logits import Logits

__all__ = ["Reduction"]


@dataclass(frozen=True, eq=False)
class Reduction:
    """The `reduce` of some samples.

    Attributes:
        logits: of all samples.
        rows: (N,) mask of those that count; None for all.
        features: whether the functions read features.
    """

    logits: Logits
    rows: NDArray[np.bool_] | None
    features: bool

    def __call__(self, of: Callable[..., Any], *aligned: NDArray[Any]) -> Any:
        """Return the sum over chunks; see `Reduce`."""
        return self.logits.engine.sum_chunks(*self.logits.sent(of, self.rows, self.features, aligned))

    @property
    def bare(self) -> Reduce:
        """The same without features (`maps.base.without_features`)."""
        return replace(self, features=False)
