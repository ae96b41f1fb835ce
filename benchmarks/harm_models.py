"""Classifiers that scikit-learn ships, as the harm benchmark needs them: features and a linear head, or logits alone.

Binary models with one score z get the two logits (-z/2, z/2). Votes of trees and neighbours, which may be zero for a
class, get one more vote that all classes share.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC

__all__ = ["MODELS", "Scored", "fit"]

_TREES = 100
_NEIGHBOURS = 15


@dataclass(frozen=True, eq=False)
class Scored:
    """What a model makes of N samples.

    Attributes:
        features: (N, n) float32; the logits (N, C) of a model without a head.
        weight: (C, n) float32 of the head; None without one.
        bias: (C,) float32 of the head; None without one.
    """

    features: NDArray[np.float32]
    weight: NDArray[np.float32] | None = None
    bias: NDArray[np.float32] | None = None


Model = Callable[[NDArray[Any]], Scored]
"""Scores samples (N, d)."""


def fit(name: str, x: NDArray[Any], y: NDArray[np.int64], seed: int) -> Model:
    """Train a model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # networks are stopped after a number of epochs, converged or not
        return MODELS[name](x, y, seed)


def _network(width: int) -> Callable[..., Model]:
    """Return a trainer of a network with one hidden layer, long and without any regularisation."""

    def train(x: NDArray[Any], y: NDArray[np.int64], seed: int) -> Model:
        net = MLPClassifier((width,), alpha=0, max_iter=300, tol=0, random_state=seed).fit(x, y)
        first, last = net.coefs_
        below, bias = net.intercepts_
        return lambda z: _head(np.maximum(z @ first + below, 0), last.T, bias)

    return train


def _linear(x: NDArray[Any], y: NDArray[np.int64], _seed: int) -> Model:
    model = LogisticRegression(max_iter=1000).fit(x, y)
    return lambda z: _head(z, model.coef_, model.intercept_)


def _head(features: NDArray[Any], weight: NDArray[Any], bias: NDArray[Any]) -> Scored:
    """Return features and head, of one score both logits."""
    if len(weight) == 1:
        weight, bias = (np.concatenate([-half, half]) for half in (weight / 2, bias / 2))
    return Scored(*(np.ascontiguousarray(values, np.float32) for values in (features, weight, bias)))


def _boosting(x: NDArray[Any], y: NDArray[np.int64], seed: int) -> Model:
    model = HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=15, random_state=seed).fit(x, y)

    def score(z: NDArray[Any]) -> Scored:
        scores = model.decision_function(z)
        # one score: of the second class against the first
        if scores.ndim == 1:
            scores = np.stack([-scores / 2, scores / 2], axis=1)
        return Scored(scores.astype(np.float32))

    return score


def _forest(x: NDArray[Any], y: NDArray[np.int64], seed: int) -> Model:
    model = RandomForestClassifier(_TREES, min_samples_leaf=2, random_state=seed).fit(x, y)
    return lambda z: _votes(model.predict_proba(z), _TREES)


def _neighbours(x: NDArray[Any], y: NDArray[np.int64], _seed: int) -> Model:
    model = KNeighborsClassifier(_NEIGHBOURS).fit(x, y)
    return lambda z: _votes(model.predict_proba(z), _NEIGHBOURS)


def _votes(shares: NDArray[Any], votes: int) -> Scored:
    """Return logarithms of shares of votes, with one more vote for all classes together."""
    return Scored(np.log((votes * shares + 1 / shares.shape[1]) / (votes + 1)).astype(np.float32))


def _bayes(x: NDArray[Any], y: NDArray[np.int64], _seed: int) -> Model:
    model = GaussianNB().fit(x, y)
    return lambda z: Scored(model.predict_log_proba(z).astype(np.float32))


def _vectors(x: NDArray[Any], y: NDArray[np.int64], _seed: int) -> Model:
    # with probabilities as scikit-learn makes them: a sigmoid on the scores of folds
    model = CalibratedClassifierCV(SVC(), ensemble=False).fit(x, y)
    return lambda z: Scored(np.log(np.maximum(model.predict_proba(z), 1e-12)).astype(np.float32))


MODELS: dict[str, Callable[..., Model]] = {
    "logistic": _linear,
    "mlp-32": _network(32),
    "mlp-64": _network(64),
    "mlp-128": _network(128),
    "mlp-256": _network(256),
    "boosting": _boosting,
    "forest": _forest,
    "neighbours": _neighbours,
    "naive-bayes": _bayes,
    "svc": _vectors,
}
