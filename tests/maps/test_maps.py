"""TS and ETS: the laws of `maps/base.py` over one table of maps, and each fit against independent solvers."""

import functools
import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize, special

from tests.maps.faces import on_numpy, with_faces
from tests.maps.samples import drawn, huge, nll, reduce_of, without
from tests.support import pairwise
from tna_onnx.errors import DataError
from tna_onnx.maps import MAPS
from tna_onnx.maps.base import CalibrationMap, Reduce, apply_map
from tna_onnx.maps.temperature import EnsembleTemperature, Temperature

Array = NDArray[Any]

# ---- the table ----

TABLE: dict[str, Callable[[int], CalibrationMap]] = {
    "ts 1.7": lambda _: Temperature(1.7),
    "ts 0.4": lambda _: Temperature(0.4),
    "ts 1000": lambda _: Temperature(1000.0),
    "ets mixed": lambda classes: EnsembleTemperature(1.7, (0.6, 0.3, 0.1), classes),
    "ets sharp": lambda classes: EnsembleTemperature(0.5, (0.9, 0.0, 0.1), classes),
    "ets scaled only": lambda classes: EnsembleTemperature(2.5, (1.0, 0.0, 0.0), classes),
    "ets plain only": lambda classes: EnsembleTemperature(2.5, (0.0, 1.0, 0.0), classes),
}


def by_definition(fitted: CalibrationMap, logits: Array, tiny: float) -> Array:
    """Calibrated log-probabilities in float64, from the formulas in the papers, cut where the dtype ends."""
    s = logits.astype(np.float64)
    if isinstance(fitted, Temperature):
        return special.log_softmax(s / fitted.temperature, axis=1)
    assert isinstance(fitted, EnsembleTemperature)
    scaled, plain, uniform = fitted.weights
    p = scaled * special.softmax(s / fitted.temperature, axis=1) + plain * special.softmax(s, axis=1)
    return np.log(np.clip(p + uniform / s.shape[1], tiny, 1.0))


def normal(classes: int, scale: float, n: int = 64) -> Array:
    return scale * np.random.default_rng([classes, n]).normal(size=(n, classes))


LOGITS: dict[str, Array] = {
    "ten classes": normal(10, 4.0),
    "two classes": normal(2, 3.0),
    "thousand classes": normal(1000, 2.0, 20),
    "one sample": normal(5, 2.0, 1),
    "small": normal(7, 1e-3),
    "equal": np.ones((3, 4)),
    "huge": np.array([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [-1e4, -1e4, -1e4], [1e4, 1e4 - 1, 5.0]]),
}


def size_of(fitted: CalibrationMap, logits: Array) -> float:
    """Largest argument of the exponentials."""
    largest = float(np.abs(logits).max())
    if isinstance(fitted, Temperature):
        return largest / fitted.temperature
    assert isinstance(fitted, EnsembleTemperature)
    return largest * max(1.0, 1 / fitted.temperature)


def assert_calibrated(fitted: CalibrationMap, logits: Array, result: Array) -> None:
    """Compare softmax(result) with the definition, as logarithms.

    With u = 2^-24 (2^-53): 1/T is rounded, and so are its product with s and the difference s - max; exp turns errors
    of its argument into relative ones of p: 4 u max |s/T| (s itself for the plain part). Softmax, sums and log add at
    most 16 u relative, and log p itself one u of up to 88 (709).
    """
    eps = float(np.finfo(result.dtype).eps) / 2
    expected = by_definition(fitted, logits, float(np.finfo(result.dtype).tiny))
    bound = (4 * size_of(fitted, logits) + 16 + np.abs(expected)) * eps
    assert result.shape == logits.shape
    assert np.all(np.isfinite(result))
    actual = result.astype(np.float64)
    if isinstance(fitted, Temperature):
        actual = special.log_softmax(actual, axis=1)
    assert np.all(np.abs(actual - expected) <= bound), float(np.max(np.abs(actual - expected) / bound))


# ---- laws ----


@pytest.mark.parametrize(
    ("name", "logits", "dtype", "face"), with_faces(TABLE, LOGITS, dtypes=(np.float32, np.float64))
)
def test_every_face_runs_the_same_formula(name: str, logits: str, dtype: Any, face: Any) -> None:
    s = LOGITS[logits].astype(dtype)
    fitted = TABLE[name](s.shape[1])
    result = face(fitted, s)
    assert result.dtype == dtype
    assert_calibrated(fitted, s, result)
    # the softmax of the result is the calibrated distribution
    p = special.softmax(result.astype(np.float64), axis=1)
    expected = np.exp(by_definition(fitted, s, float(np.finfo(dtype).tiny)))
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=0, atol=1e-12)  # at most 1000 terms of float64
    # as in assert_calibrated, with p <= 1: 6e-3 of p in float32 where logits of 2.5e4 are rounded, elsewhere 1e-5
    eps = float(np.finfo(dtype).eps) / 2
    np.testing.assert_allclose(p, expected, rtol=0, atol=(4 * size_of(fitted, s) + 32) * eps)
    if isinstance(fitted, EnsembleTemperature):  # log p, and not only up to a constant per row
        # p is rounded a few times in the dtype; its logarithm is, by 2^-24 of itself
        np.testing.assert_allclose(np.exp(result.astype(np.float64)).sum(axis=1), 1, rtol=0, atol=128 * eps)
    # the largest logit stays the largest
    top = np.take_along_axis(result, s.argmax(axis=1)[:, None], axis=1)[:, 0]
    np.testing.assert_array_equal(top, result.max(axis=1))


@pytest.mark.parametrize("make", TABLE.values(), ids=TABLE.keys())
@given(
    rows=st.lists(st.lists(st.floats(-1e4, 1e4, width=32), min_size=3, max_size=3), min_size=1, max_size=8),
    near=st.booleans(),
)
def test_predictions_do_not_change(make: Any, rows: list[list[float]], near: bool) -> None:
    logits = np.array(rows, np.float32)
    if near:  # neighbours in float32
        logits[:, 1] = np.nextafter(logits[:, 0], np.float32(np.inf))
    result = on_numpy(make(3), logits)
    top = np.take_along_axis(result, logits.argmax(axis=1)[:, None], axis=1)[:, 0]
    np.testing.assert_array_equal(top, result.max(axis=1))
    ordered = np.sort(logits.astype(np.float64), axis=1)
    # scaled by 0.001 (T = 1000) a gap must still show beside a logit of 1e4 (float32: 1e-3 steps) and in log p near 1
    clear = ordered[:, -1] - ordered[:, -2] > 1.0
    np.testing.assert_array_equal(result[clear].argmax(axis=1), logits[clear].argmax(axis=1))


@pytest.mark.parametrize("make", TABLE.values(), ids=TABLE.keys())
def test_rows_do_not_know_each_other(make: Any) -> None:
    fitted, logits = make(10), LOGITS["ten classes"].astype(np.float32)
    whole = on_numpy(fitted, logits)
    for a, b in itertools.pairwise([0, 1, 7, 40, len(logits)]):
        np.testing.assert_array_equal(on_numpy(fitted, logits[a:b]), whole[a:b])


# ---- fits: laws ----

# The maps that scale all logits of a sample by one temperature: they share what they refuse, and keep every prediction.
SCALING: dict[str, type[Temperature] | type[EnsembleTemperature]] = {"ts": Temperature, "ets": EnsembleTemperature}


def squared_error(p: Array, labels: Array) -> float:
    return float(np.mean(np.sum((p - np.eye(p.shape[1])[labels]) ** 2, axis=1)))


def fit_from(name: str, temperature: float, reduce: Reduce) -> Temperature | EnsembleTemperature:
    """Fit, trying a temperature first."""
    if name == "ts":
        return Temperature.fit(reduce, start=Temperature(temperature))
    return EnsembleTemperature.fit(reduce, start=EnsembleTemperature(temperature, (1.0, 0.0, 0.0), 2))


def values_of(fitted: CalibrationMap) -> Array:
    return np.concatenate([np.atleast_1d(value) for value in vars(fitted).values()])


def _only_class(label: int) -> tuple[Array, Array]:
    logits, labels = drawn(n=4000)
    return logits[labels == label], labels[labels == label]


SAMPLES: dict[str, Callable[[], tuple[Array, Array]]] = {
    "overconfident": drawn,
    "underconfident": lambda: drawn(temperature=0.3),
    "two classes": lambda: drawn(classes=2),
    "hundred classes": lambda: drawn(classes=100, n=600),
    "absent class": lambda: without(3),
    "one label only": lambda: _only_class(3),
    "huge": huge,
    "few": lambda: drawn(n=40),
}


@pytest.mark.parametrize("data", SAMPLES.values(), ids=SAMPLES.keys())
@pytest.mark.parametrize("name", SCALING)
class TestFits:
    def test_float32_and_torch_give_the_fit_of_float64(self, name: str, data: Any) -> None:
        logits, labels = data()
        single = logits.astype(np.float32)
        expected = values_of(SCALING[name].fit(reduce_of(single.astype(np.float64), labels)))
        # Each term is rounded by a few 2^-24 of itself, on average over 1500 (40) samples to no side; a logit of 40 is
        # 2^-24 * 40 in the exponent. The weights are a ratio of differences of such sums, ten times as sensitive.
        np.testing.assert_allclose(
            values_of(SCALING[name].fit(reduce_of(single, labels))), expected, rtol=1e-5, atol=1e-4
        )
        torch = pytest.importorskip("torch", reason="torch is in the extra 'gpu'")
        for dtype, bound in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
            tensor = torch.from_numpy(single).to(dtype)
            fitted = SCALING[name].fit(reduce_of(tensor, labels))
            np.testing.assert_allclose(values_of(fitted), expected, rtol=bound, atol=bound)

    def test_a_warm_start_gives_the_same_map(self, name: str, data: Any) -> None:
        logits, labels = data()
        cold = SCALING[name].fit(reduce_of(logits, labels))
        for temperature in (1e-3, 0.5, cold.temperature, 40.0, 1e5):
            warm = fit_from(name, temperature, reduce_of(logits, labels))
            np.testing.assert_allclose(values_of(warm), values_of(cold), rtol=1e-9, atol=1e-9)  # roots: 1e-10

    def test_the_fit_is_no_worse_on_its_own_data(self, name: str, data: Any) -> None:
        logits, labels = data()
        after = apply_map(SCALING[name].fit(reduce_of(logits, labels)), logits)
        if name == "ts":
            assert nll(after, labels) <= nll(logits, labels) + 1e-12  # 1500 terms of float64
        else:
            before = squared_error(special.softmax(logits, axis=1), labels)
            assert squared_error(special.softmax(after, axis=1), labels) <= before + 1e-12  # the same


def _right() -> tuple[Array, Array]:
    logits = normal(5, 2.0, 200)
    return logits, logits.argmax(axis=1)


REFUSING = (*SCALING, "bias", "svs", "sms")


@pytest.mark.parametrize(
    ("name", "dtype", "scale"), pairwise(REFUSING, [np.float32, np.float64], [1e-3, 1.0, 30.0, 1e4])
)
class TestRefusals:
    def test_all_right(self, name: str, dtype: Any, scale: float) -> None:
        """Far enough down every exponential underflows, and the slope of the NLL with it: that is no minimum."""
        logits, labels = _right()
        starts = (1e-3, 1.0, 50.0) if name in SCALING else ()
        for fit in (MAPS[name].fit, *(functools.partial(fit_from, name, start) for start in starts)):
            with pytest.raises(DataError, match="every calibration sample is classified right"):
                fit(reduce_of((scale * logits).astype(dtype), labels))

    def test_worse_than_guessing(self, name: str, dtype: Any, scale: float) -> None:
        logits, _ = _right()
        with pytest.raises(DataError, match="check the labels"):
            MAPS[name].fit(reduce_of((scale * logits).astype(dtype), logits.argmin(axis=1)))


@pytest.mark.parametrize("name", REFUSING)
def test_logits_that_say_nothing(name: str) -> None:
    with pytest.raises(DataError, match="do not differ"):
        MAPS[name].fit(reduce_of(np.ones((50, 4)), np.arange(50) % 4))


@pytest.mark.parametrize("name", SCALING)
def test_logits_that_hardly_differ(name: str) -> None:
    logits, labels = drawn(temperature=1e-8)
    with pytest.raises(DataError, match="hardly differ"):
        SCALING[name].fit(reduce_of(logits, labels))


# ---- temperature against other solvers ----


@pytest.mark.parametrize("data", SAMPLES.values(), ids=SAMPLES.keys())
def test_temperature_is_the_minimum_of_the_nll(data: Any) -> None:
    logits, labels = data()
    fitted = Temperature.fit(reduce_of(logits, labels)).temperature
    found = optimize.minimize_scalar(
        lambda u: nll(logits / math.exp(u), labels), bracket=(math.log(fitted) - 0.3, math.log(fitted) + 0.4), tol=1e-9
    )
    # a minimum of values known to 2^-52 is known to its square root, 1e-8, times sqrt(2 NLL / NLL'') of up to 10
    assert math.log(fitted) == pytest.approx(found.x, abs=3e-7)
    for other in (-1.0, -0.01, 0.01, 1.0):
        assert nll(logits / fitted, labels) < nll(logits / (fitted * math.exp(other)), labels)


@pytest.mark.parametrize(
    ("classes", "scale"), [(10, 2.5), (10, 0.3), (2, 2.5)], ids=["overconfident", "underconfident", "two classes"]
)
def test_temperature_of_netcal(classes: int, scale: float) -> None:
    with warnings.catch_warnings():  # of the libraries that netcal imports
        warnings.simplefilter("ignore")
        scaling = pytest.importorskip("netcal.scaling", reason="netcal is in the extra 'oracles'")
    logits, labels = drawn(classes, temperature=scale)
    p = special.softmax(logits, axis=1)
    with warnings.catch_warnings():  # deprecations between pyro and torch
        warnings.simplefilter("ignore")
        oracle = scaling.TemperatureScaling()
        oracle.fit(p if classes > 2 else p[:, 1], labels)  # float64: on float32 its temperature stays 1
    # it stops when a step gains less than 1e-9 of the NLL, which leaves 1e-4 of the temperature
    assert Temperature.fit(reduce_of(logits, labels)).temperature == pytest.approx(1 / oracle.temperature[0], rel=2e-4)


@pytest.mark.parametrize("scale", [2.5, 0.3])
def test_temperature_of_scikit_learn(scale: float) -> None:
    pytest.importorskip("sklearn", minversion="1.8", reason="temperature scaling came with scikit-learn 1.8")
    from sklearn import base, calibration, frozen

    logits, labels = drawn(temperature=scale)

    class Logits(base.ClassifierMixin, base.BaseEstimator):  # type: ignore[misc]
        """A fitted classifier whose features are its logits."""

        classes_ = np.arange(10)

        def fit(self, X: Array, y: Array) -> Any:
            return self

        def decision_function(self, X: Array) -> Array:
            return X

        def predict(self, X: Array) -> Array:
            return X.argmax(axis=1)

        def __sklearn_is_fitted__(self) -> bool:
            return True

    model = calibration.CalibratedClassifierCV(frozen.FrozenEstimator(Logits()), method="temperature", ensemble=False)
    fitted = model.fit(logits, labels)
    beta = float(fitted.calibrated_classifiers_[0].calibrators[0].beta_)
    # a minimum of values known to 2^-52: the square root, 1.5e-8, with a factor of up to 10
    assert Temperature.fit(reduce_of(logits, labels)).temperature == pytest.approx(1 / beta, rel=2e-7)


@given(
    classes=st.integers(2, 6),
    n=st.integers(3, 40),
    scale=st.floats(-5, 5).map(math.exp),
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_temperature_is_found_or_refused(classes: int, n: int, scale: float, seed: int, dtype: Any) -> None:
    """On any data: at the temperature found the slope of the NLL changes its sign, otherwise it never does."""
    rng = np.random.default_rng(seed)
    logits, labels = (scale * rng.normal(size=(n, classes))).astype(dtype), rng.integers(0, classes, n)
    s = logits.astype(np.float64)
    own = s[np.arange(n), labels]
    least, most = float(np.mean(s.mean(axis=1) - own)), float(np.mean(s.max(axis=1) - own))

    def slope(temperature: float) -> float:
        return float(np.mean(np.sum(special.softmax(s / temperature, axis=1) * s, axis=1) - own))

    try:
        t = Temperature.fit(reduce_of(logits, labels)).temperature
    except DataError:
        # no root in [1e-6, 1e6]: its limits have one sign, or it lies outside (n terms of the dtype near zero)
        assert most == 0 or least >= -1e-6 * scale or slope(1e6) >= 0 or slope(1e-6) <= 0
        return
    step = 1e-9 if dtype == np.float64 else 1e-4  # as in test_float32_and_torch_give_the_fit_of_float64, fewer samples
    noise = 4 * np.finfo(dtype).eps * float(np.max(np.abs(s)))  # of a slope, which hardly changes where T is large
    assert slope(t * (1 + step)) <= noise
    assert slope(t * (1 - step)) >= -noise


# ---- ensemble temperature against other solvers ----


@pytest.mark.parametrize("data", SAMPLES.values(), ids=SAMPLES.keys())
def test_ensemble_has_the_temperature_of_temperature_scaling(data: Any) -> None:
    reduce = reduce_of(*data())
    assert EnsembleTemperature.fit(reduce).temperature == Temperature.fit(reduce).temperature


@pytest.mark.parametrize("data", SAMPLES.values(), ids=SAMPLES.keys())
def test_ensemble_weights_minimise_the_squared_error(data: Any) -> None:
    logits, labels = data()
    fitted = EnsembleTemperature.fit(reduce_of(logits, labels))
    assert fitted.n_classes == logits.shape[1]
    parts = np.stack(
        [
            special.softmax(logits / fitted.temperature, axis=1),
            special.softmax(logits, axis=1),
            np.full(logits.shape, 1 / logits.shape[1]),
        ]
    )

    def error(w: Any) -> float:
        return squared_error(np.tensordot(np.asarray(w), parts, 1), labels)

    starts = [np.full(3, 1 / 3), *np.eye(3), np.array([0.5, 0.5, 0.0])]
    constraint = {"type": "eq", "fun": lambda w: w.sum() - 1}
    best = min(
        (
            optimize.minimize(error, x, method="SLSQP", bounds=[(0, 1)] * 3, constraints=constraint, tol=1e-13)
            for x in starts
        ),
        key=lambda found: found.fun,
    )
    weights = np.array(fitted.weights)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1, abs=1e-15)  # three roundings
    assert error(weights) <= best.fun + 1e-12  # 1500 terms of float64
    # SLSQP differentiates numerically, with steps of 1e-8: the gradient has an error of 1e-8, and the value its square
    # over the curvature, which is above 1e-4 here
    assert error(weights) == pytest.approx(best.fun, abs=1e-9)
    gram = np.einsum("kic,lic->kl", parts, parts) / len(labels)
    curvature = float(np.linalg.eigvalsh(gram)[0])
    np.testing.assert_allclose(weights, best.x, rtol=0, atol=math.sqrt(1e-9 / curvature))


def test_ensemble_finds_the_mixture_that_made_the_labels() -> None:
    """A tenth of the labels is uniform noise, the others are nearly certain: p = 0.9 softmax(s) + 0.1 / C."""
    rng = np.random.default_rng(1)
    logits = 20 * rng.normal(size=(20_000, 10))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    noisy = np.where(rng.random(len(labels)) < 0.1, rng.integers(0, 10, len(labels)), labels)
    weights = EnsembleTemperature.fit(reduce_of(logits, noisy)).weights
    # the share of noise in 20,000 labels is known to sqrt(0.09 / 20,000) = 0.002; the scaled part may trade a little
    np.testing.assert_allclose(weights, [0, 0.9, 0.1], rtol=0, atol=0.03)
