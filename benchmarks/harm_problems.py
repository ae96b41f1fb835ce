"""The problems of the harm benchmark: tables, the classifiers trained on them, and random splits of what these score.

Tables are made or shipped by scikit-learn; a pool is what calibration and test samples are drawn from, its features in
units of the training data's deviations. Classifiers give features and a linear head, or logits alone. Binary models
with one score z get the two logits (-z/2, z/2). Votes of trees and neighbours, which may be zero for a class, get one
more vote that all classes share. Pools are kept on disk.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harm_pairs import Pair
from numpy.typing import NDArray
from problems import open_head
from scipy.special import expit, log_softmax, softmax
from sklearn import datasets
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC

from tna_onnx.data.images.preprocess import Recipe

# The largest calibration set, 5,000, and a test set beside it.
POOL = 10_000

# The rarest class of a shifted pool is kept with this probability, the first with 1.
_RAREST = 0.1

# Deviation of the noise that is added to a shifted pool's features, in deviations of the feature.
_NOISE = 0.5

# Samples that lie next to each other in a pool with groups share noise of this deviation.
_GROUP = 10
_GROUP_NOISE = 0.7

# Near copies: every sample this often, and the noise between them, in deviations of the feature.
_TIMES = 4
_COPY_NOISE = 0.02

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


def _ranked(classes: int, shares: Sequence[float] | None = None) -> Callable[[int], Arrays]:
    """Return a maker of Friedman's function in noise, cut into classes of equal or given shares by its value."""
    cuts = np.cumsum(shares or [1 / classes] * classes)[:-1]

    def make(samples: int) -> Arrays:
        x, value = datasets.make_friedman1(samples, noise=1.5, random_state=classes)
        return x, np.searchsorted(np.quantile(value, cuts), value)

    return make


def _shells(classes: int, rarest: float = 1.0) -> Callable[[int], Arrays]:
    """Return a maker of shells of one Gaussian, the last of which occurs `rarest` times as often as the first."""

    def make(samples: int) -> Arrays:
        x, y = datasets.make_gaussian_quantiles(n_samples=6 * samples, n_features=8, n_classes=classes, random_state=1)
        rng = np.random.default_rng(classes)
        kept = np.flatnonzero(rng.random(len(y)) < rarest ** (y / (classes - 1)))
        kept = rng.permutation(kept)[:samples]
        return x[kept] + 0.3 * rng.standard_normal((len(kept), 8)), y[kept]

    return make


def _circles(samples: int) -> Arrays:
    x, y = datasets.make_circles(samples, noise=0.3, factor=0.5, random_state=0)
    return x, y


def _hastie(samples: int) -> Arrays:
    x, y = datasets.make_hastie_10_2(samples, random_state=0)
    return x, (y > 0).astype(np.int64)


def _checker(samples: int) -> Arrays:
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 4, (samples, 2))
    return np.hstack([x + 0.2 * rng.standard_normal(x.shape)]), np.floor(x).sum(axis=1).astype(np.int64) % 3


def _tags(samples: int) -> Arrays:
    x, marks = datasets.make_multilabel_classification(
        samples, n_features=20, n_classes=8, n_labels=2, allow_unlabeled=True, random_state=0
    )
    return x, marks


# Frequencies that fall by a factor in each class; the last is just above 1 %.
_TAIL = 3 ** (-np.arange(12) / 4)

# name -> (maker, training samples); few enough that a large network learns them by heart
DATA: dict[str, tuple[Callable[[int], Arrays], int]] = {
    "binary": (_classes(2, 0.1, class_sep=0.7), 500),
    "binary-1": (_classes(2, 0.005, weights=[0.985], class_sep=0.9), 2000),
    "binary-rare": (_classes(2, 0.02, weights=[0.95], class_sep=0.9), 1000),
    "classes-5": (_classes(5, 0.1), 1000),
    "classes-5-rare": (_classes(5, 0.05, weights=[0.6, 0.2, 0.1, 0.06, 0.04]), 1000),
    "classes-10": (_classes(10, 0.05), 1000),
    "classes-10-rare": (_classes(10, 0.02, weights=[0.5, 0.2, 0.1, 0.06, 0.05, 0.03, 0.02, 0.02, 0.01, 0.01]), 1500),
    "classes-20": (_classes(20, 0.05), 2000),
    "classes-50": (_classes(50, 0.0, n_clusters_per_class=1), 2500),
    "classes-100": (_classes(100, 0.0, n_clusters_per_class=1), 4000),
    "iris-like": (_like(datasets.load_iris), 60),
    "wine-like": (_like(datasets.load_wine), 60),
    "blobs": (_blobs, 300),
    "moons": (_moons, 200),
    "cancer": (_shipped(datasets.load_breast_cancer), 149),
    "digits": (_shipped(datasets.load_digits), 397),
    "quantiles-6": (_shells(6), 600),
    "quantiles-8-rare": (_shells(8, rarest=0.03), 2500),
    "friedman-4": (_ranked(4), 400),
    "friedman-5-rare": (_ranked(5, [0.55, 0.3, 0.12, 0.018, 0.012]), 1500),
    "friedman-7": (_ranked(7), 1500),
    "circles": (_circles, 150),
    "hastie": (_hastie, 800),
    "classes-12-rare": (_classes(12, 0.03, weights=_TAIL / _TAIL.sum(), class_sep=1.0), 1500),
    "checker-3": (_checker, 800),
    "tags-8": (_tags, 700),
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
    """Return a pool that differs from the training data.

    Args:
        x: (N, d) features.
        y: (N,) labels.
        moved: `prior`, other class frequencies; `noise` on the features; `groups` of samples with noise in common;
            `labels-PERCENT`, wrong labels drawn from all classes; or any other word: nothing.
        rng: what is drawn from.
    """
    if moved == "noise":
        return x + _NOISE * rng.standard_normal(x.shape), y
    if moved == "groups":
        number = np.arange(len(x)) // _GROUP
        return x + _GROUP_NOISE * rng.standard_normal((number[-1] + 1, x.shape[1]))[number], y
    if moved == "prior":
        share = _RAREST ** (np.arange(y.max() + 1) / y.max())
        kept = rng.random(len(y)) < share[y]
        return x[kept], y[kept]
    if moved.startswith("labels-"):
        wrong = rng.random(len(y)) < int(moved.removeprefix("labels-")) / 100
        return x, np.where(wrong, rng.integers(0, y.max() + 1, len(y)), y)
    return x, y


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


# As many as the largest calibration set: an ECE compares only between equal numbers of samples.
_TEST = 5_000
_DEMO = Path(__file__).resolve().parent.parent / "models" / "digits"
_CIFAR10 = Recipe(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


@dataclass(frozen=True, eq=False)
class Part:
    """Samples to calibrate or to test on.

    Attributes:
        features: (N, n) float32; the logits (N, C) of a model without a head.
        logits: (N, C) float32.
        labels: (N,) int64; (N, L) of several labels a sample.
    """

    features: NDArray[np.float32]
    logits: NDArray[np.float32]
    labels: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Problem:
    """One split of a pair.

    Attributes:
        weight: (C, n) float32 of the head; None for a model without one.
        bias: (C,) float32 of the head; None for a model without one.
        calibration: samples to fit on.
        test: others.
        seed: for what is drawn in a method.
    """

    weight: NDArray[np.float32] | None
    bias: NDArray[np.float32] | None
    calibration: Part
    test: Part
    seed: int

    @property
    def several(self) -> bool:
        """Whether a sample has several labels."""
        return self.test.labels.ndim == 2


def probabilities(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return softmax(logits) in float64, (N, C); none is zero, as some calibrators take the logarithm."""
    p = np.maximum(softmax(logits.astype(np.float64), axis=1), np.finfo(np.float64).eps)
    normalised: NDArray[np.float64] = p / p.sum(1, keepdims=True)
    return normalised


def probabilities_of(problem: Problem, logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return probabilities (N, C) of the classes, or of each of several labels, without 0."""
    if problem.several:
        p: NDArray[np.float64] = np.clip(expit(logits.astype(np.float64)), 1e-15, 1 - 1e-15)
        return p
    return probabilities(logits)


def seed_of(name: str) -> int:
    """Return a number that depends on a name only, in every process."""
    return zlib.crc32(name.encode())


def build(pair: Pair, work: Path, cifar10: Path | None) -> Path:
    """Train the model of a pair and score its pool, unless that is on disk already; return the file."""
    path = work / "pools" / f"{pair.source}.npz"
    if path.exists():
        return path
    scored, labels = _scored(pair, work, cifar10)
    arrays: dict[str, Any] = {"features": scored.features, "labels": labels}
    if scored.weight is not None and scored.bias is not None:
        arrays |= {"weight": scored.weight, "bias": scored.bias}
    path.parent.mkdir(parents=True, exist_ok=True)
    # beside it first: whoever interrupts leaves no half of a file
    beside = path.with_suffix(".part.npz")
    np.savez(beside, **arrays)
    beside.replace(path)
    return path


def split(pair: Pair, path: Path, number: int) -> Problem:
    """Split a pool at random; a group is in one part."""
    with np.load(path) as kept:
        features, labels = kept["features"], kept["labels"]
        weight, bias = (kept.get(name) for name in ("weight", "bias"))
    rng = np.random.default_rng([seed_of(pair.name), number])
    if pair.drawn:
        # the largest of log p plus Gumbel noise is a draw from p
        logits = _logits(features, weight, bias).astype(np.float64)
        labels = np.argmax(log_softmax(logits, axis=1) + rng.gumbel(size=logits.shape), axis=1)
    group = np.arange(len(labels)) // (_GROUP if pair.moved == "groups" else 1)
    order = np.argsort(rng.permutation(group[-1] + 1)[group], kind="stable")
    first, second = order[: pair.calibration], order[pair.calibration :]
    # in random order: a part of the test data is a random part
    second = rng.permutation(second)[:_TEST]
    calibrating = features[first]
    if pair.moved == "copies":
        first = np.repeat(first[: pair.calibration // _TIMES], _TIMES)
        noise = _COPY_NOISE * features.std(0) * rng.standard_normal((len(first), features.shape[1]))
        calibrating = (features[first] + noise).astype(np.float32)
    calibration, test = (
        Part(z, _logits(z, weight, bias), labels[rows])
        for z, rows in ((calibrating, first), (features[second], second))
    )
    return Problem(weight, bias, calibration, test, number)


def _logits(features: NDArray[Any], weight: NDArray[Any] | None, bias: NDArray[Any] | None) -> NDArray[Any]:
    logits: NDArray[Any] = features if weight is None else features @ weight.T + bias
    return logits


def _scored(pair: Pair, work: Path, cifar10: Path | None) -> tuple[Scored, NDArray[np.int64]]:
    if pair.data == "demo":
        return _of_file(pair, _DEMO / "model.onnx", _DEMO / "calib.npz", _DEMO / "test.npz", None, work)
    if pair.data == "cifar10":
        if cifar10 is None:
            raise ValueError(f"{pair.name}: needs the folder of CIFAR-10")
        return _of_file(pair, cifar10 / f"{pair.model}.onnx", cifar10 / "calib", cifar10 / "test", _CIFAR10, work)
    seed = seed_of(pair.source)
    table = make_table(pair.data, pair.moved, seed)
    x, y = table.pool
    return fit(pair.model, *table.train, seed % 2**31)(x), y


def _of_file(
    pair: Pair, model: Path, calib: Path, test: Path, recipe: Recipe | None, work: Path
) -> tuple[Scored, NDArray[np.int64]]:
    """Collect the features of both data sets of a model in a file, as `tna-onnx calibrate` does."""
    task, head = open_head(model, calib, test, recipe, cache=work / "features")
    assert task.held_out is not None
    tables = [task.calibration.table, task.held_out.table]
    features, labels = (np.concatenate([getattr(table, name) for table in tables]) for name in ("features", "labels"))
    features, labels = shift(features, labels, pair.moved, np.random.default_rng(seed_of(pair.source)))
    return Scored(features, head.weight, head.bias), labels
