"""Maps by label: the laws of `maps/base.py` with a sigmoid for the softmax, and each fit against other solvers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize, special

from tests.maps.faces import with_faces
from tests.maps.samples import reduce_of
from tna_onnx.errors import DataError
from tna_onnx.maps import MAPS
from tna_onnx.maps.base import CalibrationMap, apply_map
from tna_onnx.maps.temperature import Temperature
from tna_onnx.maps.two_classes import LabelIsotonic, LabelPlatt, LabelTemperature

Array = NDArray[Any]

LABELS_ONLY = tuple(name for name in MAPS if not MAPS[name].for_classes)


def drawn(n: int = 800, slopes: tuple[float, ...] = (2.0, 0.7, 1.0), shift: float = 0.0, seed: int = 0) -> Any:
    """Return logits that are `slopes` times too sharp, each label by its own, and off by a shift."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(n, len(slopes))) * 2
    labels = (rng.random(true.shape) < special.expit(true)).astype(np.int64)
    return true * np.array(slopes) + shift, labels


FITTED: dict[str, Callable[[], CalibrationMap]] = {
    "ts": lambda: Temperature(1.7),
    "label-ts": lambda: LabelTemperature((1.7, 0.4, 30.0), (2,)),
    "label-platt": lambda: LabelPlatt((0.5, 1.2, 2.0), (0.3, -4.0, 0.0)),
    "label-isotonic": lambda: MAPS["label-isotonic"].fit(reduce_of(*drawn())),
    "label-isotonic, one without knots": lambda: LabelIsotonic(
        (((-1.0, 2.0), (0.5, -0.5)), ((0.0,), (0.0,)), ((0.0, 1.0, 3.0), (0.0, 1.0, 0.2))), 1.3, (1,)
    ),
}


def by_definition(fitted: CalibrationMap, s: Array) -> Array:
    if isinstance(fitted, Temperature):
        return s / fitted.temperature
    if isinstance(fitted, LabelTemperature):
        return s / np.array(fitted.temperatures)
    if isinstance(fitted, LabelPlatt):
        return s * np.array(fitted.slopes) + np.array(fitted.intercepts)
    assert isinstance(fitted, LabelIsotonic)
    x = s / fitted.temperature
    return np.stack([x[:, c] + np.interp(x[:, c], *fitted.knots[c]) for c in range(s.shape[1])], axis=1)


@pytest.mark.parametrize(("name", "dtype", "face"), with_faces(FITTED, dtypes=(np.float32, np.float64)))
def test_every_face_computes_the_definition(name: str, dtype: Any, face: Any) -> None:
    fitted = FITTED[name]()
    logits = np.concatenate([drawn(50)[0], [[0.0, 0.0, 0.0], [1e4, -1e4, 80.0]]]).astype(dtype)
    result = face(fitted, logits)
    assert result.dtype == dtype
    expected = special.expit(by_definition(fitted, logits.astype(np.float64)))
    # sums of ramps round like numbers of the size of the logits; the steepest correction is 4 a unit of log-odds
    np.testing.assert_allclose(special.expit(result.astype(np.float64)), expected, atol=200 * np.finfo(dtype).eps)


@pytest.mark.parametrize("name", ["ts", "label-ts"])
@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_what_keeps_predictions_moves_none_across_a_half(name: str, seed: int) -> None:
    logits, labels = drawn(60, seed=seed)
    fitted = MAPS[name].fit(reduce_of(logits, labels))
    assert fitted.keeps_order
    np.testing.assert_array_equal(apply_map(fitted, logits) > 0, logits > 0)


def nll(s: Array, y: Array) -> float:
    return float(np.mean(np.logaddexp(0, np.where(y == 1, -s, s))))


def test_temperatures_are_those_of_a_scalar_minimiser() -> None:
    logits, labels = drawn()
    fitted = LabelTemperature.fit(reduce_of(logits, labels))
    for c, t in enumerate(fitted.temperatures):
        found = optimize.minimize_scalar(
            lambda log_t, c=c: nll(logits[:, c] / np.exp(log_t), labels[:, c]), bounds=(-3, 3), method="bounded"
        )
        assert np.log(t) == pytest.approx(found.x, abs=1e-4)
    together = Temperature.fit(reduce_of(logits, labels)).temperature
    found = optimize.minimize_scalar(
        lambda log_t: nll(logits / np.exp(log_t), labels), bounds=(-3, 3), method="bounded"
    )
    assert np.log(together) == pytest.approx(found.x, abs=1e-4)


def test_platt_is_scikit_learns_logistic_regression() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    logits, labels = drawn(shift=0.8)
    fitted = LabelPlatt.fit(reduce_of(logits, labels))
    for c in range(3):
        # without a ridge; ours is a thousandth of what the data say
        other = linear.LogisticRegression(C=1e6).fit(logits[:, [c]], labels[:, c])
        assert fitted.slopes[c] == pytest.approx(other.coef_[0, 0], rel=0.01)
        assert fitted.intercepts[c] == pytest.approx(other.intercept_[0], abs=0.01)


def test_platt_is_that_of_a_calibrated_classifier() -> None:
    """CalibratedClassifierCV regresses on the decision function with Platt's changed labels: (n + 1) / (n + 2)."""
    calibration = pytest.importorskip("sklearn.calibration")
    logits, labels = drawn(4000, shift=0.8)
    fitted = LabelPlatt.fit(reduce_of(logits, labels))
    for c in range(3):
        other = calibration._SigmoidCalibration().fit(logits[:, c], labels[:, c])
        p = special.expit(by_definition(fitted, logits)[:, c])
        # labels changed by 1 / 2000 move no probability by more
        np.testing.assert_allclose(p, other.predict(logits[:, c]), atol=0.003)


def test_isotonic_follows_scikit_learns_where_there_are_many_samples() -> None:
    isotonic = pytest.importorskip("sklearn.isotonic")
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(20_000, 2)) * 2
    true = special.expit(np.where(logits > 0, 3 * logits - 1, 0.3 * logits - 1))
    labels = (rng.random(true.shape) < true).astype(np.int64)
    fitted = LabelIsotonic.fit(reduce_of(logits, labels))
    mapped = special.expit(apply_map(fitted, logits))
    for c in range(2):
        p = special.expit(logits[:, c])
        steps = isotonic.IsotonicRegression(out_of_bounds="clip").fit_transform(p, labels[:, c])
        # a block of the steps has a thousand samples or so, whose frequency has a standard error of up to 0.016
        assert np.mean(np.abs(mapped[:, c] - steps)) < 0.016
        assert np.mean(np.abs(mapped[:, c] - true[:, c])) < np.mean(np.abs(steps - true[:, c])) + 0.002


# ---- labels that say too little


@pytest.mark.parametrize("name", LABELS_ONLY)
@pytest.mark.parametrize("side", [0, 1])
def test_a_label_of_one_side_has_the_shared_temperature(name: str, side: int) -> None:
    logits, labels = drawn()
    labels[:, 1] = side
    fitted: Any = MAPS[name].fit(reduce_of(logits, labels))
    assert fitted.shared == (1,)
    together = Temperature.fit(reduce_of(logits, labels))
    np.testing.assert_allclose(apply_map(fitted, logits)[:, 1], apply_map(together, logits)[:, 1], rtol=1e-6)
    assert fitted.brief["labels_shared"] == [1]


@pytest.mark.parametrize(("name", "enough"), [("label-ts", 5), ("label-platt", 5), ("label-isotonic", 25)])
def test_fewer_samples_than_named_are_too_few(name: str, enough: int) -> None:
    for positives in (enough - 1, enough):
        logits, labels = drawn(400, seed=5)
        labels[:, 2] = 0
        # not all of them where the model expects them, or no temperature would fit
        labels[np.argsort(-logits[:, 2])[::3][:positives], 2] = 1
        fitted: Any = MAPS[name].fit(reduce_of(logits, labels))
        assert (2 in fitted.shared) == (positives < enough)
        if name == "label-platt" and positives < enough:
            mean = special.expit(apply_map(fitted, logits)[:, 2]).mean()
            assert mean == pytest.approx((positives + 0.5) / (400 + 1), rel=1e-5)


@pytest.mark.parametrize("name", ["label-ts", "label-platt"])
def test_a_label_that_the_model_ranks_the_wrong_way_has_the_shared_temperature(name: str) -> None:
    logits, labels = drawn()
    # so little that the labels together still have a temperature
    logits[:, 0] *= -0.1
    fitted: Any = MAPS[name].fit(reduce_of(logits, labels))
    assert fitted.shared == (0,)


@pytest.mark.parametrize("name", LABELS_ONLY)
def test_one_class_a_sample_is_refused(name: str) -> None:
    logits, labels = drawn(100)
    with pytest.raises(DataError, match="several labels a sample"):
        MAPS[name].fit(reduce_of(logits, labels.argmax(axis=1)))
