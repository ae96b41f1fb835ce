"""Outlier scores against their definitions, and their covariance against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp

from tna_onnx.numerics.ops import ArrayOps
from tna_onnx.numerics.outliers import Energy, Mahalanobis, Residual, shrunk_covariance


def drawn(n: int = 300, width: int = 7, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, n)
    means = 3 * rng.standard_normal((4, width))
    return means[labels] + rng.standard_normal((n, width)) @ rng.standard_normal((width, width)), labels


@pytest.mark.parametrize("n", [5, 40, 1000])
def test_covariance(n: int) -> None:
    oas = pytest.importorskip("sklearn.covariance").OAS
    x, _ = drawn(n)
    x = x - x.mean(axis=0)
    expected = oas(assume_centered=True).fit(x).covariance_
    np.testing.assert_allclose(shrunk_covariance(x), expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


def test_energy() -> None:
    s = np.random.default_rng(0).standard_normal((20, 5)) * 4
    found = Energy().score(ArrayOps(s), s, None)
    np.testing.assert_allclose(found[:, 0], -logsumexp(s, axis=1), atol=1e-12)


def test_mahalanobis() -> None:
    x, labels = drawn()
    new = 5 * np.random.default_rng(1).standard_normal((20, 7))
    found = Mahalanobis.fit(x, labels).score(ArrayOps(new), None, new)
    means = np.stack([x[labels == c].mean(axis=0) for c in range(4)])
    within = np.linalg.inv(shrunk_covariance(x - means[labels]))
    overall = np.linalg.inv(shrunk_covariance(x - x.mean(axis=0)))
    nearest = np.min([[(z - m) @ within @ (z - m) for m in means] for z in new], axis=1)
    background = [(z - x.mean(axis=0)) @ overall @ (z - x.mean(axis=0)) for z in new]
    np.testing.assert_allclose(found[:, 0], nearest - background, rtol=1e-9, atol=1e-9)


def test_residual() -> None:
    x, labels = drawn()
    x[:, 3:] = x[:, :3] @ np.ones((3, 4))  # all in three directions
    residual = Residual.fit(x, labels)
    assert residual.axes.shape == (7, 4)
    assert np.max(residual.score(ArrayOps(x), None, x)) < 1e-9 * np.max(x**2)
    off = x + np.random.default_rng(2).standard_normal(x.shape)
    assert np.min(residual.score(ArrayOps(off), None, off)) > 1e-4


def test_classes_without_samples_and_constant_features() -> None:
    x, labels = drawn()
    x[:, 2] = 1.0
    score = Mahalanobis.fit(x, 2 * labels)
    assert len(score.means) == 4
    assert np.all(np.isfinite(score.score(ArrayOps(x), None, x)))
