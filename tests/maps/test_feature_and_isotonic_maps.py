"""Isotonic maps and AAR: the laws of `maps/base.py`, and AAR's oracles from scikit-learn, SciPy and the definition."""

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.covariance import oas

from tests.maps.faces import FACES, OPSETS
from tests.maps.samples import reduce_of, sample
from tna_onnx.errors import DataError
from tna_onnx.maps.atypicality import AtypicalityAware, FeatureSpace
from tna_onnx.maps.base import apply_map
from tna_onnx.maps.isotonic import SmoothedIsotonic
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.ops import ArrayOps

Array = np.ndarray
MAPS = {"isotonic": SmoothedIsotonic, "aar": AtypicalityAware}
# the smoothed one takes one function for all classes where there are many; here each class has samples for its own
CASES = {"isotonic": {}, "isotonic, many classes": {"classes": 60}, "aar": {}}


def softmax(logits: Array) -> Array:
    """Probabilities."""
    return np.exp(log_softmax(np.asarray(logits, np.float64), axis=1))


@pytest.fixture(scope="module", params=sorted(CASES))
def fitted(request: pytest.FixtureRequest) -> tuple[Any, tuple[Array, ...]]:
    """Return a map and the data that it was fitted on."""
    data = sample(**CASES[request.param])
    return MAPS[request.param.split(",")[0]].fit(reduce_of(*data)), data


@pytest.mark.parametrize("face", [*FACES, *OPSETS])
def test_all_faces_agree(fitted: tuple[Any, tuple[Array, ...]], face: Any) -> None:
    fitted_map, (logits, _, features) = fitted
    exact = softmax(apply_map(fitted_map, logits, features))
    np.testing.assert_allclose(exact.sum(axis=1), 1, atol=1e-12)
    found = face(fitted_map, logits.astype(np.float32), features.astype(np.float32))
    # float32 logits of about 30 resolve 2e-6
    np.testing.assert_allclose(softmax(found), exact, atol=2e-5)


@pytest.mark.parametrize("name", sorted(MAPS))
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_logits_of_any_size_give_finite_results(name: str, scale: float) -> None:
    logits, labels, features = sample(scale=scale)
    logits = logits.astype(np.float32)
    result = apply_map(MAPS[name].fit(reduce_of(logits, labels, features)), logits, features.astype(np.float32))
    assert np.all(np.isfinite(result))


@pytest.mark.parametrize("name", sorted(MAPS))
def test_overconfident_logits_become_calibrated(name: str) -> None:
    logits, labels, features = sample(size=4000)
    result = apply_map(MAPS[name].fit(reduce_of(logits, labels, features)), logits, features)
    rows = np.arange(len(labels))
    before, after = (-log_softmax(x, axis=1)[rows, labels].mean() for x in (logits, result))
    assert after < 0.75 * before
    p = softmax(result).max(axis=1)
    # 4,000 samples: the standard error of the mean hit rate is 0.8 points
    assert abs(p.mean() - np.mean(result.argmax(axis=1) == labels)) < 0.02


# AAR


def distances(features: Array, labels: Array, new: Array) -> Array:
    """Least squared Mahalanobis distance of new features to a class mean, from the definition."""
    means = {c: features[labels == c].mean(axis=0) for c in np.unique(labels)}
    centred = features - np.stack([means[c] for c in labels])
    covariance, _ = oas(centred, assume_centered=True)
    inverse = np.linalg.inv(covariance)
    return np.array([min((z - m) @ inverse @ (z - m) for m in means.values()) for z in new])


def left_out(features: Array, labels: Array) -> Array:
    """Each sample's distance from the other samples, with the shrinkage of all: the space is made again for each."""
    n_samples, n = features.shape
    centred = features - np.stack([features[labels == c].mean(axis=0) for c in labels])
    _, r = oas(centred, assume_centered=True)
    identity = r * np.trace(centred.T @ centred) / n_samples / n * np.eye(n)
    found = np.empty(n_samples)
    for i in range(n_samples):
        others = np.arange(n_samples) != i
        z, y = features[others], labels[others]
        means = {c: z[y == c].mean(axis=0) for c in np.unique(y)}
        scatter = z - np.stack([means[c] for c in y])
        inverse = np.linalg.inv((1 - r) * scatter.T @ scatter / n_samples + identity)
        found[i] = min((features[i] - m) @ inverse @ (features[i] - m) for m in means.values())
    return found


@pytest.mark.parametrize("size", [15, 30, 400])
def test_atypicality_is_the_mahalanobis_distance(size: int) -> None:
    logits, labels, features = sample(size=size, n=20)
    labels[7] = labels.max() + 1  # the only one of its class
    logits = np.hstack([logits, logits[:, :2]])  # and one class without any
    features = features + 100.0  # far from the origin: sums of squares there would lose digits
    space = FeatureSpace.fit(reduce_of(logits, labels, features, cuts=(size // 3,)))
    unseen = left_out(features, labels)
    found = space.atypicality(ArrayOps(features), features)[:, 0]
    expected = (distances(features, labels, features) - unseen.mean()) / unseen.std()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert space.measured is not None
    np.testing.assert_allclose(space.measured, (unseen - unseen.mean()) / unseen.std(), atol=1e-6)


@pytest.mark.parametrize(("size", "n"), [(300, 100), (1000, 400), (3000, 20)])
def test_new_samples_have_mean_zero_and_standard_deviation_one(size: int, n: int) -> None:
    """With few samples for many features the samples of the fit are far closer to their own means than new ones."""
    rng = np.random.default_rng(size)
    mixing = rng.standard_normal((n, n))
    labels = rng.integers(0, 5, size + 4000)
    features = (rng.standard_normal((5, n))[labels] + rng.standard_normal((len(labels), n))) @ mixing
    logits = rng.standard_normal((size, 5))
    space = FeatureSpace.fit(reduce_of(logits, labels[:size], features[:size]))
    new = space.atypicality(ArrayOps(features), features[size:])[:, 0]
    # three standard errors of what `size` samples say about mean and deviation
    assert abs(new.mean()) < 3 / np.sqrt(size)
    assert abs(new.std() - 1) < 3 / np.sqrt(2 * size)
    same = space.atypicality(ArrayOps(features), features[:size])[:, 0]
    assert same.mean() < new.mean()


def test_few_samples_for_many_features_do_no_harm() -> None:
    """A classifier that needs one temperature: a polynomial of in-sample distances multiplied its NLL."""
    rng = np.random.default_rng(0)
    means = rng.standard_normal((200, 5)) / 4
    labels = rng.integers(0, 5, 4300)
    features = means.T[labels] + rng.standard_normal((len(labels), 200))
    logits = 3 * (features @ means - np.sum(means**2, axis=0) / 2)
    fitted_map = AtypicalityAware.fit(reduce_of(logits[:300], labels[:300], features[:300]))
    scaled = Temperature.fit(reduce_of(logits[:300], labels[:300])).temperature
    rows = np.arange(4000)
    after = -log_softmax(apply_map(fitted_map, logits[300:], features[300:]), axis=1)[rows, labels[300:]]
    tempered = -log_softmax(logits[300:] / scaled, axis=1)[rows, labels[300:]]
    # seven more parameters, half a unit of NLL each over 300 samples, and three standard errors
    assert (after - tempered).mean() < 3.5 / 300 + 3 * (after - tempered).std() / np.sqrt(4000)


def test_polynomial_and_bias_are_the_minimum_of_the_penalised_nll() -> None:
    logits, labels, features = sample(size=600, classes=4)
    fitted_map = AtypicalityAware.fit(reduce_of(logits, labels, features))
    a, rows = left_out(features, labels)[:, None], np.arange(600)
    a = (a - a.mean()) / a.std()

    def loss(theta: Array) -> float:
        scores = (theta[2] * a**2 + theta[1] * a + theta[0]) * logits + theta[3:]
        return float(-log_softmax(scores, axis=1)[rows, labels].mean() + 1e-3 * theta[3:] @ theta[3:] / 4)

    found = np.r_[fitted_map.polynomial, fitted_map.bias]
    best = minimize(loss, found + 0.05, method="Powell", options={"xtol": 1e-10, "ftol": 1e-14, "maxiter": 100_000})
    assert loss(found) <= best.fun + 1e-9
    np.testing.assert_allclose(found[:3], best.x[:3], atol=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_hundred_biases_end_where_the_gradient_vanishes(dtype: type) -> None:
    """One gradient from the definition, in float64; many blocks and, in float32, values too rough to compare."""
    logits, labels, features = sample(classes=100, size=3000)
    logits = logits.astype(dtype)
    fitted_map = AtypicalityAware.fit(reduce_of(logits, labels, features))
    assert fitted_map.space.measured is not None
    a = fitted_map.space.measured[:, None]
    q = softmax((a ** np.arange(3) @ fitted_map.polynomial)[:, None] * logits + fitted_map.bias)
    q[np.arange(3000), labels] -= 1
    by_class = q.mean(axis=0) + 2e-3 * fitted_map.bias / 100
    by_power = ((q * logits).sum(axis=1)[:, None] * a ** np.arange(3)).mean(axis=0)
    # the tolerance is 1e-7 times the root of the curvature: at most 0.1 for a class, about 10 for the polynomial;
    # probabilities of float32 are off by a few 2^-24 times logits of 60
    scale = 1.0 if dtype == np.float64 else 30.0
    assert np.abs(by_class).max() <= 1e-7 * scale
    assert np.abs(by_power).max() <= 1e-5 * scale


@pytest.mark.parametrize("name", sorted(MAPS))
def test_torch_gives_the_fit_of_numpy(name: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is in the extra 'gpu'")
    logits, labels, features = sample(size=400)
    expected = MAPS[name].fit(reduce_of(logits, labels, features))
    found = MAPS[name].fit(reduce_of(torch.from_numpy(logits), labels, torch.from_numpy(features)))
    # where Newton stops (1e-7), and the float32 in which isotonic maps keep probabilities
    np.testing.assert_allclose(
        softmax(apply_map(found, logits, features)), softmax(apply_map(expected, logits, features)), atol=1e-5
    )


@pytest.mark.parametrize("size", [12, 60, 2000])
def test_dead_and_repeated_features_are_fine(size: int) -> None:
    """Features of a ReLU that never fires, and of one that is there twice: OAS gives every direction some variance."""
    logits, labels, features = sample(size=size, n=6, classes=3)
    flat = np.hstack([features, np.zeros((size, 3)), features[:, :1], np.full((size, 1), 1e3)])
    space = FeatureSpace.fit(reduce_of(logits, labels, flat))
    assert np.all(np.isfinite(space.whitening))
    values = space.atypicality(ArrayOps(np.float32(flat)), np.float32(flat))
    exact = space.atypicality(ArrayOps(flat), flat)
    np.testing.assert_allclose(values, exact, atol=2e-4 * (1 + np.abs(exact).max()))


def test_features_without_variation_are_refused() -> None:
    logits, labels, features = sample()
    with pytest.raises(DataError, match="do not vary within the classes"):
        AtypicalityAware.fit(reduce_of(logits, labels, np.zeros_like(features)))


def test_aar_never_turns_the_order_round_beyond_its_samples() -> None:
    """Labels whose confidence falls with atypicality bend the parabola below zero."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(4, 6))
    classes = rng.integers(0, 4, 3000)
    z = means[classes] + np.exp(0.4 * rng.normal(size=3000))[:, None] * rng.normal(size=(3000, 6))
    logits = z @ means.T - (means**2).sum(axis=1) / 2
    trust = 1.2 * np.exp(-0.9 * np.maximum(((z[:, None] - means) ** 2).mean(axis=2).min(axis=1) - 0.5, 0))
    labels = (logits * trust[:, None] + rng.gumbel(size=logits.shape)).argmax(axis=1)

    def reduce(of, *aligned):
        return of(logits, labels, z, *aligned)

    bounded, published = AtypicalityAware.fit(reduce), AtypicalityAware.fit_published(reduce)
    far = 6 * rng.normal(size=(500, 6))
    far_logits = far @ means.T - (means**2).sum(axis=1) / 2
    a = bounded.space.atypicality(ArrayOps(far), far)
    assert np.max(a) > bounded.high
    factor = np.polynomial.polynomial.polyval(np.clip(a[:, 0], bounded.low, bounded.high), bounded.polynomial)
    factor = np.maximum(factor, bounded.least)
    assert factor.min() > 0
    scores = far_logits * factor[:, None] + bounded.bias
    expected = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    found = apply_map(bounded, far_logits, far)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    last = far_logits.argmin(axis=1)
    assert np.mean(found.argmax(axis=1) == last) < 0.02
    assert not np.isfinite(published.high)
    np.testing.assert_array_equal(published.polynomial, bounded.polynomial)
