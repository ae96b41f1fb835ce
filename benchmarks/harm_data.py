"""Labelled tables for the harm benchmark, all made or shipped by packages: training samples, and a pool of others.

A pool is what calibration and test data are drawn from. Features are in units of the training data's deviations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets

__all__ = ["DATA", "POOL", "Table", "make_table", "shift"]

# The largest calibration set, 5,000, and a test set beside it.
POOL = 10_000

# The rarest class of a shifted pool is kept with this probability, the first with 1.
_RAREST = 0.1

# Deviation of the noise that is added to a shifted pool's features, in deviations of the feature.
_NOISE = 0.5

Arrays = tuple[NDArray[Any], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Table:
    """Samples to train on, and a pool of others."""

    train: Arrays
    pool: Arrays


def _classes(classes: int, flip: float, **fields: Any) -> Callable[[int], Arrays]:
    """Return a maker of Gaussian clusters on the corners of a cube, with a share of random labels."""
    given = {"n_features": 24, "n_informative": 16, "n_redundant": 4, "class_sep": 1.2} | fields

    def make(samples: int) -> Arrays:
        x, y = datasets.make_classification(samples, n_classes=classes, flip_y=flip, random_state=classes, **given)
        return x, y

    return make


def _like(load: Callable[..., Any]) -> Callable[[int], Arrays]:
    """Return a maker of samples of Gaussians with the means and covariances of a small data set's classes."""

    def make(samples: int) -> Arrays:
        x, y = load(return_X_y=True)
        rng = np.random.default_rng(len(x))
        labels = rng.choice(y, samples)
        drawn = np.empty((samples, x.shape[1]))
        for label in np.unique(y):
            rows = labels == label
            own = x[y == label]
            drawn[rows] = rng.multivariate_normal(own.mean(0), np.cov(own.T), rows.sum())
        return drawn, labels

    return make


def _blobs(samples: int) -> Arrays:
    x, y = datasets.make_blobs(samples, n_features=8, centers=10, cluster_std=5.0, random_state=0)
    return x, y


def _moons(samples: int) -> Arrays:
    x, y = datasets.make_moons(samples, noise=0.35, random_state=0)
    return x, y


def _shipped(load: Callable[..., Any]) -> Callable[[int], Arrays]:
    """Return a maker that gives all samples of a data set, however many were asked for."""

    def make(_samples: int) -> Arrays:
        x, y = load(return_X_y=True)
        rows = np.random.default_rng(len(x)).permutation(len(x))
        return x[rows], y[rows]

    return make


# name -> (maker, training samples); few enough that a large network learns them by heart
DATA: dict[str, tuple[Callable[[int], Arrays], int]] = {
    "binary": (_classes(2, 0.1, class_sep=0.7), 500),
    "binary-rare": (_classes(2, 0.02, weights=[0.95], class_sep=0.9), 1000),
    "classes-5": (_classes(5, 0.1), 1000),
    "classes-5-rare": (_classes(5, 0.05, weights=[0.6, 0.2, 0.1, 0.06, 0.04]), 1000),
    "classes-10": (_classes(10, 0.05), 1000),
    "classes-20": (_classes(20, 0.05), 2000),
    "classes-50": (_classes(50, 0.0, n_clusters_per_class=1), 2500),
    "classes-100": (_classes(100, 0.0, n_clusters_per_class=1), 4000),
    "iris-like": (_like(datasets.load_iris), 60),
    "wine-like": (_like(datasets.load_wine), 60),
    "blobs": (_blobs, 300),
    "moons": (_moons, 200),
    "cancer": (_shipped(datasets.load_breast_cancer), 149),
    "digits": (_shipped(datasets.load_digits), 397),
}


def make_table(name: str, moved: str, seed: int) -> Table:
    """Make a data set, its features in units of the training data, and move its pool."""
    maker, train = DATA[name]
    # a pool whose classes are thinned out has to be larger before
    x, y = maker(train + POOL * (3 if moved == "prior" else 1))
    deviation = x[:train].std(0)
    # a pixel at the border is the same everywhere
    deviation[deviation == 0] = 1
    x = (x - x[:train].mean(0)) / deviation
    labels = y.astype(np.int64)
    pool_x, pool_y = shift(x[train:], labels[train:], moved, np.random.default_rng(seed))
    return Table((x[:train], labels[:train]), (pool_x[:POOL], pool_y[:POOL]))


def shift(x: NDArray[Any], y: NDArray[np.int64], moved: str, rng: np.random.Generator) -> Arrays:
    """Return a pool with other class frequencies (`prior`), with noise on its features (`noise`), or as it is."""
    if moved == "noise":
        return x + _NOISE * rng.standard_normal(x.shape), y
    if moved == "prior":
        share = _RAREST ** (np.arange(y.max() + 1) / y.max())
        kept = rng.random(len(y)) < share[y]
        return x[kept], y[kept]
    return x, y
