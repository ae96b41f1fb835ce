"""What is to be added to a model: scores, and the tensors that they read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tna_onnx.graph.outputs import ClassOutput
from tna_onnx.numerics.outliers import OutlierScore

__all__ = ["Guarded", "OutlierInput", "SetScore"]


@dataclass(frozen=True)
class SetScore:
    """How unlikely a class is: it is in the set where its score is at most the threshold.

    `lac` is 1 - p. `aps` is the sum of the probabilities down to the class, itself included; `raps` adds `weight` for
    each class behind the first `free` ones.

    Source: M. Sadinle, J. Lei, L. Wasserman, JASA 114 (2019), section 3; Y. Romano, M. Sesia, E. Candes, NeurIPS 2020,
    equation 5, without its random part; A. Angelopoulos et al., ICLR 2021, equation 4.

    Attributes:
        name: `lac`, `aps` or `raps`.
        free: classes without a penalty.
        weight: penalty for each class behind them.
        temperature: of the probabilities p^(1/T) that it is computed from; 1 for those of the output.
    """

    name: str = "lac"
    free: int = 0
    weight: float = 0.0
    temperature: float = 1.0

    def penalty(self, classes: int) -> NDArray[np.float64]:
        """Return what is added to the sum at each rank, (C,)."""
        return np.asarray(self.weight * np.maximum(np.arange(1, classes + 1) - self.free, 0))


@dataclass(frozen=True, eq=False)
class OutlierInput:
    """An outlier score and the tensors that it reads.

    Attributes:
        formula: of the score.
        logits: tensor of (N, C) logits, or empty.
        features: tensor of (N, n) features, or empty.
        width: n.
    """

    formula: OutlierScore
    logits: str
    features: str
    width: int


@dataclass(frozen=True, eq=False)
class Guarded:
    """What is to be added to a model.

    Attributes:
        output: the output that classifies.
        set_score: of the prediction sets; None without sets.
        outlier: the outlier score; None without one.
    """

    output: ClassOutput
    set_score: SetScore | None
    outlier: OutlierInput | None
