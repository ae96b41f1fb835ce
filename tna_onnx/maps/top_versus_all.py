"""Top-versus-all isotonic regression (TvA): one non-decreasing function of the largest probability.

    p = softmax(s / T)        t = max_c p_c        d(t) = log-odds of f(t) less log-odds of t

f is the isotonic regression of "the prediction is right" on t (`numerics.isotonic`). The largest logit moves by d(t),
which gives it the probability f(t); the other classes share the rest in proportion. With h_c = (max s - s_c) / T, and
no word for "the largest", all logits move by

    clip(d - 8 h_c, 0, 100) - clip(-d - h_c / 2, 0, 100)

which is d where h_c = 0. Of classes that are closer than d/8 or 2|d| a part moves along, so that the order stays: the
difference of two logits keeps its sign, and at least half of its size.
Source: Le Coz, Herbin & Adjed (2024), "Confidence calibration of classifiers with many classes".
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tna_onnx.maps.base import Reduce
from tna_onnx.maps.ramps import Knots, chain
from tna_onnx.numerics.isotonic import CENTRES, isotonic_log_odds, thinned
from tna_onnx.numerics.ops import ArrayOps, Ops, to_host

__all__ = ["TopVersusAll"]

# A class that is this many times d/8 below the largest logit does not move up with it.
_UP = 8.0

# Half: what comes down keeps half of its lead.
_DOWN = 0.5

# Far more than log-odds of 9 can be off.
_MOST = 100.0


@dataclass(frozen=True)
class TopVersusAll:
    """Logits over `temperature`, the largest moved by a function of its probability.

    Attributes:
        knots: the pair (t, d).
        temperature: T.
    """

    knots: Knots
    temperature: float = 1.0

    name: ClassVar[str] = "irova"
    # not said, though true of this one: the map of the same name for few classes does not keep it
    keeps_order: ClassVar[bool] = False
    foldable: ClassVar[bool] = False
    needs_features: ClassVar[bool] = False
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @property
    def brief(self) -> dict[str, Any]:
        """The temperature, how many knots there are, and that all classes share them."""
        return {"temperature": self.temperature, "knots": len(self.knots[0]), "top_versus_all": 1}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:  # noqa: ARG002
        """Return log p' up to a constant of each row."""
        scaled = op.mul(logits, op.const(1 / self.temperature))
        top = op.mul(op.min(op.mul(op.softmax(scaled), op.const(-1.0))), op.const(-1.0))
        below = op.add(scaled, op.min(op.mul(scaled, op.const(-1.0))))  # -h_c
        d = chain(op, top, [self.knots])
        up = op.clip(op.add(op.mul(below, op.const(_UP)), d), 0.0, _MOST)
        down = op.clip(op.add(op.mul(below, op.const(_DOWN)), op.mul(d, op.const(-1.0))), 0.0, _MOST)
        return op.add(op.add(scaled, up), op.mul(down, op.const(-1.0)))

    def folded(self) -> None:
        """Return None: the formula needs nodes of its own."""

    @classmethod
    def fit(cls, reduce: Reduce, temperature: float) -> TopVersusAll:
        """Fit f to the tempered logits by pooling adjacent violators."""
        tops = reduce(functools.partial(_Tops.of, temperature))
        log_odds = isotonic_log_odds(tops.probability, tops.hit)
        x, d = thinned(log_odds, log_odds - CENTRES)
        return cls((tuple(x.tolist()), tuple(d.tolist())), temperature)


@dataclass(frozen=True, eq=False)
class _Tops:
    """Largest tempered probability and whether its class is the label, (N,) each; `+` joins."""

    probability: NDArray[np.float64]
    hit: NDArray[np.bool_]

    @classmethod
    def of(cls, temperature: float, logits: Any, labels: NDArray[np.int64], *_: Any) -> _Tops:
        xp = array_api_compat.array_namespace(logits)
        p = xp.max(ArrayOps(logits).softmax(logits * (1 / temperature)), axis=1)
        return cls(np.asarray(to_host(p), np.float64), to_host(xp.argmax(logits, axis=1)) == labels)

    def __add__(self, other: _Tops) -> _Tops:
        return _Tops(np.concatenate([self.probability, other.probability]), np.concatenate([self.hit, other.hit]))
