"""Maps for two classes: the laws of `maps/base.py`, and fits against scikit-learn, SciPy and netcal."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_expit
from sklearn.linear_model import LogisticRegression

from tests.maps.faces import on_numpy, on_onnxruntime, with_faces
from tests.maps.samples import reduce_of
from tna_onnx.errors import DataError
from tna_onnx.maps import MAPS
from tna_onnx.maps.base import CalibrationMap, apply_map
from tna_onnx.maps.two_classes import Beta, Platt
from tna_onnx.numerics.fitting import RIDGE

Array = NDArray[Any]
NAMES = tuple(name for name in MAPS if MAPS[name].binary)


def two(n: int = 1500, slope: float = 0.4, shift: float = 0.8, bend: float = 0.0, seed: int = 0) -> tuple[Array, Array]:
    """Logits whose log-odds d are drawn, and labels from slope d + shift + bend d^2."""
    rng = np.random.default_rng([n, seed])
    d = 4 * rng.normal(size=n) - 1
    common = rng.normal(size=n)
    labels = (rng.random(n) < expit(slope * d + shift + bend * d * d)).astype(np.int64)
    return np.stack([common, common + d], axis=1), labels


def log_odds(logits: Array) -> Array:
    s = np.asarray(logits, np.float64)
    return s[:, 1] - s[:, 0]


def mapped(fitted: CalibrationMap, logits: Array) -> Array:
    """Log-odds after the map."""
    return log_odds(np.asarray(apply_map(fitted, logits)))


def nll(z: Array, labels: Array) -> float:
    return float(-np.mean(log_expit(np.where(labels == 1, z, -z))))


SAMPLES: dict[str, Callable[[], tuple[Array, Array]]] = {
    "overconfident": two,
    "underconfident": lambda: two(slope=3.0),
    "rare": lambda: two(shift=-4.0),
    "bent": lambda: two(bend=0.06),
    "bent down": lambda: two(bend=-0.06),
    "huge": lambda: (2000 * two()[0], two()[1]),
    "tiny": lambda: (1e-4 * two()[0], two()[1]),
    "few": lambda: two(n=20),
}

# ---- the formula ----

TABLE: dict[str, CalibrationMap] = {
    "platt": Platt(0.6, -0.3),
    "beta": Beta(0.7, 1.2, 0.4),
    "beta one side": Beta(0.0, 1.2, 0.4),
}


def by_definition(fitted: CalibrationMap, logits: Array) -> Array:
    """Log-odds after the map, in float64, from the formulas."""
    d = log_odds(logits)
    match fitted:
        case Platt(slope, intercept):
            return slope * d + intercept
        case Beta(a, b, c):
            return np.asarray(a * log_expit(d) - b * log_expit(-d) + c)
    raise AssertionError(fitted)


@pytest.mark.parametrize(("name", "dtype", "face"), with_faces(TABLE, dtypes=(np.float16, np.float32, np.float64)))
def test_every_face_runs_it(name: str, dtype: Any, face: Any) -> None:
    logits = (2 * np.random.default_rng(1).normal(size=(50, 2))).astype(dtype)
    result = face(TABLE[name], logits)
    assert result.dtype == dtype
    assert result.shape == logits.shape
    # differences of logits of 5 and logarithms of p above exp(-10): roundings of 10 at most, times slopes near 1
    atol = 40 * float(np.finfo(dtype).eps)
    if isinstance(TABLE[name], Beta) and dtype == np.float16:
        atol = 0.05  # p is known to 5e-4 of itself; ln p of p near 1 to 1e-3
    np.testing.assert_allclose(log_odds(result), by_definition(TABLE[name], logits), rtol=0, atol=atol)


@pytest.mark.parametrize("name", TABLE)
def test_saturated_logits_stay_finite(name: str) -> None:
    for dtype, size in ((np.float16, 1e4), (np.float32, 1e4), (np.float64, 1e4)):
        logits = np.array([[size, -size], [-size, size], [0, 0], [size, size]], dtype)
        assert np.all(np.isfinite(on_numpy(TABLE[name], logits)))
        assert np.all(np.isfinite(on_onnxruntime(TABLE[name], logits)))


# ---- fits: laws ----


@pytest.mark.parametrize(("name", "data"), [(name, data) for name in NAMES for data in SAMPLES.values()])
class TestFits:
    def test_float32_and_torch_give_the_fit_of_float64(self, name: str, data: Any) -> None:
        logits, labels = data()
        single = logits.astype(np.float32)
        # Beta cuts ln p where the dtype ends, and knows ln p of p near 1/2 to 6e-8 only, where logits are 1e-4
        expected = expit(mapped(MAPS[name].fit(reduce_of(single.astype(np.float64), labels)), single))
        bound = 5e-3 if name == "beta" else 1e-5
        found = expit(mapped(MAPS[name].fit(reduce_of(single, labels)), single))
        if not (name == "beta" and np.abs(logits).max() > 80):
            np.testing.assert_allclose(found, expected, rtol=0, atol=bound)
        torch = pytest.importorskip("torch", reason="torch is in the extra 'gpu'")
        tensor = torch.from_numpy(single)
        there = expit(mapped(MAPS[name].fit(reduce_of(tensor, labels)), single))
        np.testing.assert_allclose(there, found, rtol=0, atol=bound)

    def test_it_never_falls(self, name: str, data: Any) -> None:
        logits, labels = data()
        fitted = MAPS[name].fit(reduce_of(logits, labels))
        span = np.ptp(log_odds(logits))
        d = np.linspace(log_odds(logits).min() - span, log_odds(logits).max() + span, 2001)
        z = mapped(fitted, np.stack([np.zeros_like(d), d], axis=1))
        assert np.all(np.diff(z) >= -1e-9 * np.abs(z).max())


@pytest.mark.parametrize("name", NAMES)
class TestUglyEdges:
    @pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_separable_data_give_sane_probabilities(self, name: str, dtype: Any, scale: float) -> None:
        logits, _ = two(300)
        labels = (log_odds(logits) > 0.5).astype(np.int64)
        logits = (scale * logits).astype(dtype)
        z = mapped(MAPS[name].fit(reduce_of(logits, labels)), logits)
        assert np.all(np.isfinite(z))
        p = expit(z)
        right = np.where(labels == 1, p, 1 - p)
        # sure, and no surer than some times N allows
        assert right.mean() > 0.8
        assert np.median(np.abs(z)) < 40

    def test_one_label_only(self, name: str) -> None:
        logits, _ = two(200)
        try:
            fitted = MAPS[name].fit(reduce_of(logits, np.ones(200, np.int64)))
        except DataError as error:
            assert "more probable" in str(error)  # noqa: PT017 - either outcome will do
            return
        z = mapped(fitted, logits)
        assert np.all(np.isfinite(z))
        assert expit(z).min() > 0.9

    def test_equal_logits_are_refused(self, name: str) -> None:
        with pytest.raises(DataError):
            MAPS[name].fit(reduce_of(np.ones((50, 2)), np.arange(50) % 2))

    def test_labels_the_other_way_round_are_refused(self, name: str) -> None:
        logits, labels = two()
        with pytest.raises(DataError, match="check the labels"):
            MAPS[name].fit(reduce_of(logits, 1 - labels))

    @given(n=st.integers(2, 40), scale=st.floats(-6, 9), seed=st.integers(0, 2**32 - 1))
    def test_any_data_are_fitted_or_refused(self, name: str, n: int, scale: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        logits = (np.exp(scale) * np.round(rng.normal(size=(n, 2)), 1)).astype(np.float32)
        try:
            fitted = MAPS[name].fit(reduce_of(logits, rng.integers(0, 2, n)))
        except DataError:
            return
        assert np.all(np.isfinite(mapped(fitted, logits)))


# ---- fits against other solvers ----


def standardised(columns: Array) -> tuple[Array, Array, Array]:
    """Columns with mean 0 and variance 1 behind a column of ones, the means, and the standard deviations."""
    mean, scale = columns.mean(axis=0), columns.std(axis=0)
    return np.hstack([np.ones((len(columns), 1)), (columns - mean) / scale]), mean, scale


def of_scikit_learn(columns: Array, labels: Array) -> Array:
    """Log-odds of a ridge regression on standardised columns; its C is 1 / (2 RIDGE)."""
    g, _, _ = standardised(columns)
    model = LogisticRegression(
        C=1 / (2 * RIDGE), fit_intercept=False, tol=1e-12, max_iter=1000, solver="newton-cholesky"
    )
    return np.asarray(g @ model.fit(g, labels).coef_[0])


def sides(d: Array) -> Array:
    return np.stack([log_expit(d), -log_expit(-d)], axis=1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [200, 3000])
def test_inside_the_bounds_the_fit_is_scikit_learns(name: str, n: int) -> None:
    logits, labels = two(n, slope=0.8, seed=2)
    d = log_odds(logits)
    columns = {"platt": d[:, None], "beta": sides(d)}[name]
    found = mapped(MAPS[name].fit(reduce_of(logits, labels)), logits)
    # both stop where the slope is about 1e-8
    np.testing.assert_allclose(found, of_scikit_learn(columns, labels), rtol=0, atol=1e-5)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("bend", [-0.1, 0.1])
def test_beta_is_the_minimum_within_its_bounds(bend: float, seed: int) -> None:
    logits, labels = two(300, slope=0.3, bend=bend, seed=seed)
    g, mean, scale = standardised(sides(log_odds(logits)))

    def loss(w: Array) -> float:
        return nll(g @ w, labels) + RIDGE / 300 * float(w @ w)

    best = minimize(loss, np.ones(3), method="L-BFGS-B", bounds=[(None, None), (0, None), (0, None)], tol=1e-14)
    fitted = Beta.fit(reduce_of(logits, labels))
    weights = np.array([fitted.a, fitted.b])
    assert weights.min() >= 0
    found = loss(np.r_[fitted.c + weights @ mean, weights * scale])
    assert found <= best.fun + 1e-10
    assert found == pytest.approx(best.fun, abs=1e-8)  # numerical slopes


@pytest.mark.parametrize("slope", [0.4, 0.9])
def test_beta_of_netcal(slope: float) -> None:
    with warnings.catch_warnings():  # of the libraries that netcal imports
        warnings.simplefilter("ignore")
        scaling = pytest.importorskip("netcal.scaling", reason="netcal is in the extra 'oracles'")
    logits, labels = two(3000, slope=slope)
    with warnings.catch_warnings():  # deprecations between pyro and torch
        warnings.simplefilter("ignore")
        oracle = scaling.BetaCalibration()
        p = expit(log_odds(logits))
        theirs = oracle.fit(p, labels).transform(p)
    ours = expit(mapped(Beta.fit(reduce_of(logits, labels)), logits))
    assert nll(log_odds(np.log(np.stack([1 - ours, ours], 1))), labels) == pytest.approx(
        nll(log_odds(np.log(np.stack([1 - theirs, theirs], 1))), labels), abs=1e-3
    )
    # it stops when a step gains less than 1e-9 of the NLL or so, and has no ridge
    assert np.abs(ours - theirs).max() < 0.01
