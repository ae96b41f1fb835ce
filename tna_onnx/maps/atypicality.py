"""Atypicality-aware recalibration (AAR): the temperature depends on how unusual a sample's features are.

    s' = (p_2 a^2 + p_1 a + p_0) s + v        the result is log softmax(s')

with the atypicality a of `maps.feature_space` and one bias v per class. p and v minimise the mean NLL plus
1e-3 |v|^2 / C, a convex function (`maps.atypicality_loss`), by Newton steps from p = (1, 0, 0) and v = 0.
Source: Yuksekgonul et al. (2023), "Beyond Confidence: Reliable Models Should Also Consider Atypicality", section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.maps.atypicality_loss import AtypicalityLoss
from tna_onnx.maps.base import Reduce, without_features
from tna_onnx.maps.feature_space import FeatureSpace
from tna_onnx.numerics.convex import convex_minimum
from tna_onnx.numerics.ops import Ops

__all__ = ["AtypicalityAware"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AtypicalityAware:
    """Logits times a polynomial of the atypicality, plus a bias per class.

    Attributes:
        polynomial: (p_0, p_1, p_2).
        bias: (C,) v.
        space: where atypicality is measured.
    """

    polynomial: FloatArray
    bias: FloatArray
    space: FeatureSpace

    name: ClassVar[str] = "aar"
    # each class has a bias of its own
    keeps_order: ClassVar[bool] = False
    foldable: ClassVar[bool] = False
    needs_features: ClassVar[bool] = True
    binary: ClassVar[bool] = False
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {"space": ()}

    @property
    def brief(self) -> dict[str, Any]:
        """The polynomial (p_0, p_1, p_2), the bias, and the shrinkage of the covariance."""
        return {
            "polynomial": self.polynomial.tolist(),
            "bias": self.bias.tolist(),
            "shrinkage": self.space.shrinkage,
        }

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:
        """Return log softmax(s'), cut at the smallest normal number of the dtype."""
        a = self.space.atypicality(op, features)
        p0, p1, p2 = (op.const(float(p)) for p in self.polynomial)
        factor = op.add(op.mul(op.add(op.mul(a, p2), p1), a), p0)  # Horner
        p = op.softmax(op.add(op.mul(logits, factor), op.const(self.bias)))
        # law 1: logits again. A probability that underflowed keeps a finite logarithm
        return op.log(op.clip(p, op.tiny, 1.0))

    def folded(self) -> None:
        """Return None: every sample has a factor of its own."""

    @classmethod
    def fit(
        cls, reduce: Reduce, *, start: AtypicalityAware | None = None, space: FeatureSpace | None = None
    ) -> AtypicalityAware:
        """Fit the feature space, then p and v.

        Args:
            reduce: runs over chunks of (logits, labels, features).
            start: a map fitted on the same features; its space is taken over, its p and v are where the steps start.
            space: `FeatureSpace.of_training` of other samples' features, standardised here; without it, the space is
                fitted on these samples, and the atypicality of each is measured without itself.

        Raises:
            DataError: the features do not vary within the classes, or the fit does not end in finite values.
        """
        if start:
            space = start.space
        elif space:
            space = space.standardised(space.atypicalities(reduce))
        else:
            space = FeatureSpace.fit(reduce)
        atypicality = space.measured
        if atypicality is None:
            atypicality = space.atypicalities(reduce)
        objective = AtypicalityLoss.of(without_features(reduce), atypicality)
        first = np.r_[start.polynomial, start.bias] if start else objective.plain
        # the same for all samples: saturated probabilities hide where the loss falls
        refuge = objective.constant / objective.unit
        # steps in x = theta / unit: one tolerance then fits p and v
        theta = convex_minimum(objective.at, first / objective.unit, refuge=refuge) * objective.unit
        if not np.all(np.isfinite(theta)):
            raise DataError("aar: the fit does not end in finite values; use another map")
        return cls(theta[:3], theta[3:], space)
