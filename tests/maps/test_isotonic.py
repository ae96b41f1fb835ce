"""The smoothed isotonic map and TvA: definitions by SciPy and scikit-learn, few samples, many classes, float16."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, log_softmax, logit, softmax
from sklearn.isotonic import IsotonicRegression

import tna_onnx
from tests.conftest import Small
from tests.maps.faces import on_onnxruntime
from tests.maps.samples import reduce_of, sample
from tests.support import with_options
from tna_onnx.maps.base import apply_map
from tna_onnx.maps.isotonic import IsotonicOneVsAll, SmoothedIsotonic, TopVersusAll
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.isotonic import CENTRES, TOLERANCE, isotonic_log_odds

Array = np.ndarray
P = expit(CENTRES)


def more_nll(one: Array, other: Array, labels: Array) -> float:
    """Mean NLL of the first less that of the second, less three standard errors of the difference."""
    rows = np.arange(len(labels))
    terms = (log_softmax(other, axis=1) - log_softmax(one, axis=1))[rows, labels]
    return float(terms.mean() - 3 * terms.std() / np.sqrt(len(labels)))


def clusters(classes: int, each: int, held_out: int, n: int = 32) -> tuple[Array, Array, Array, Array]:
    """Logits and labels of a Bayes classifier of Gaussian clusters, twice too sharp: to fit on, and held out."""
    rng = np.random.default_rng(classes + each)
    means = rng.standard_normal((n, classes)).astype(np.float32)
    labels = np.r_[np.repeat(np.arange(classes), each), rng.integers(0, classes, held_out)]
    features = means.T[labels] + np.float32(1.5) * rng.standard_normal((len(labels), n), np.float32)
    logits = 2 / 1.5**2 * (features @ means - np.sum(means**2, axis=0) / 2)
    fitted = classes * each
    return logits[:fitted], labels[:fitted], logits[fitted:], labels[fitted:]


# One function a class


@pytest.mark.parametrize("classes", [2, 5, 20])
def test_it_is_each_class_by_its_own_function_and_renormalised(classes: int) -> None:
    logits, labels, _ = sample(classes=classes, size=3000)
    fitted = SmoothedIsotonic.fit(reduce_of(logits, labels))
    assert isinstance(fitted, SmoothedIsotonic)
    t = Temperature.fit(reduce_of(logits, labels)).temperature
    p = softmax(logits / t, axis=1)
    f = p.copy()
    for c in range(classes):
        if np.sum(labels == c) >= 25:
            values = isotonic_log_odds(p[:, c].astype(np.float32), labels == c)
            f[:, c] *= np.exp(np.interp(p[:, c], P, np.log(expit(values) / P)))
    # thinning moves each class's probability by up to its tolerance: that of one class, and of those beside it
    np.testing.assert_allclose(
        softmax(apply_map(fitted, logits), axis=1), f / f.sum(axis=1, keepdims=True), atol=3 * TOLERANCE
    )


def test_two_classes_are_scikit_learns_isotonic_regression() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(0, 2, 200_000)
    labels = (rng.random(len(z)) < 0.1 + 0.8 * expit(z) ** 3).astype(np.int64)
    logits = np.stack([np.zeros_like(z), z], axis=1)
    fitted = SmoothedIsotonic.fit(reduce_of(logits, labels))
    found = softmax(apply_map(fitted, logits), axis=1)[:, 1]
    expected = IsotonicRegression().fit(z, labels).predict(z)
    # cells are 0.0625 wide at most, blocks of some 1,000 samples off by 0.015, and steps become ramps
    assert np.mean(np.abs(found - expected)) < 0.01


def with_rare(classes: int, rare: int, size: int) -> tuple[Array, Array]:
    """Calibrated logits in which the first classes have about one sample in a thousand each."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(size, classes))
    logits[:, :rare] -= np.log(1000 / classes)
    return 2 * logits, np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)


def test_classes_with_few_samples_keep_the_temperature_and_are_named() -> None:
    logits, labels = with_rare(6, 2, 5000)
    fitted = SmoothedIsotonic.fit(reduce_of(logits, labels))
    assert isinstance(fitted, SmoothedIsotonic)
    assert fitted.left_alone == (0, 1)
    assert fitted.brief["classes_left_alone"] == [0, 1]
    np.testing.assert_allclose(apply_map(fitted, logits)[:, :2], logits[:, :2] / fitted.temperature, rtol=1e-12)
    assert "classes_left_alone" not in SmoothedIsotonic.fit(reduce_of(*sample(size=3000))).brief


@pytest.mark.parametrize(("classes", "each"), [(10, 25), (10, 100), (4, 60), (2, 50)])
def test_on_new_data_it_is_not_far_from_one_temperature(classes: int, each: int) -> None:
    """The clusters need one temperature and nothing else: what is above it is noise."""
    logits, labels, new, truth = clusters(classes, each, 5000, n=8)
    fitted = SmoothedIsotonic.fit(reduce_of(logits, labels))
    assert isinstance(fitted, SmoothedIsotonic)
    scaled = Temperature.fit(reduce_of(logits, labels)).temperature
    # a class has about 20 cells that matter; each parameter costs half a unit of NLL over the N samples of its fit
    assert more_nll(apply_map(fitted, new), new / scaled, truth) < 10 * classes / len(labels)


# TvA


@pytest.mark.parametrize(("classes", "each"), [(100, 10), pytest.param(1000, 10, marks=pytest.mark.slow), (50, 60)])
def test_with_many_classes_no_nll_and_no_prediction_is_lost(classes: int, each: int) -> None:
    logits, labels, new, truth = clusters(classes, each, 4000)
    fitted = SmoothedIsotonic.fit(reduce_of(logits, labels))
    assert isinstance(fitted, TopVersusAll)
    mapped = apply_map(fitted, new)
    np.testing.assert_array_equal(mapped.argmax(axis=1), new.argmax(axis=1))
    # one function: about 20 cells that matter, half a unit of NLL each over the N samples of the fit
    assert more_nll(mapped, new / fitted.temperature, truth) < 10 / len(labels)


def test_few_samples_of_most_classes_share_one_function() -> None:
    logits, labels, _ = sample(classes=10, size=80)
    fitted = SmoothedIsotonic.fit(reduce_of(logits, labels))
    assert isinstance(fitted, TopVersusAll)
    assert fitted.brief["top_versus_all"] == 1


def test_the_top_gets_its_isotonic_probability_and_the_others_share_the_rest() -> None:
    logits, labels, new, _ = clusters(60, 50, 1000)
    fitted = SmoothedIsotonic.fit(reduce_of(logits, labels))
    assert isinstance(fitted, TopVersusAll)
    p = softmax(logits.astype(np.float64) / fitted.temperature, axis=1)
    values = isotonic_log_odds(p.max(axis=1), logits.argmax(axis=1) == labels)
    q = softmax(new.astype(np.float64) / fitted.temperature, axis=1)
    ordered = np.sort(q, axis=1)
    moved = np.interp(ordered[:, -1], P, values - CENTRES)
    clear = np.log(ordered[:, -1] / ordered[:, -2]) > 2 * np.abs(moved) + 0.2
    assert np.mean(clear) > 0.5
    found = softmax(apply_map(fitted, new.astype(np.float64)), axis=1)[clear]
    q, f = q[clear], expit(logit(ordered[clear, -1]) + moved[clear])
    np.testing.assert_allclose(found.max(axis=1), f, atol=TOLERANCE)
    top = q.argmax(axis=1)
    for values in (q, found):
        np.put_along_axis(values, top[:, None], 0, axis=1)
    np.testing.assert_allclose(found / found.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True), atol=1e-9)


@given(
    rows=st.lists(st.lists(st.floats(-50, 50, width=32), min_size=3, max_size=3), min_size=1, max_size=8),
    d=st.lists(st.floats(-8, 8), min_size=4, max_size=4),
    near=st.booleans(),
)
def test_the_order_of_any_two_logits_is_kept(rows: list[list[float]], d: list[float], near: bool) -> None:
    logits = np.array(rows, np.float32)
    if near:
        logits[:, 1] = np.nextafter(logits[:, 0], np.float32(np.inf))
    fitted = TopVersusAll(((0.2, 0.5, 0.9, 0.999), tuple(d)), 1.3)
    found = apply_map(fitted, logits.astype(np.float64))
    for a, b in ((0, 1), (0, 2), (1, 2)):
        before, after = logits[:, a].astype(np.float64) - logits[:, b], found[:, a] - found[:, b]
        # differences of float64 numbers of up to 50: 4e-14 with the roundings in between
        assert np.all(after * np.sign(before) >= np.abs(before) / 1.3 * 0.5 - 4e-14)
    single = apply_map(fitted, logits)
    top = np.take_along_axis(single, logits.argmax(axis=1)[:, None], axis=1)[:, 0]
    np.testing.assert_allclose(top, single.max(axis=1), rtol=0, atol=2e-5)  # float32 near 58 resolves 4e-6


# low precision


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_float16_and_bfloat16_move_probabilities_by_their_rounding(classes: int) -> None:
    logits, labels, _ = sample(classes=classes, size=3000, scale=2.0)
    fitted = SmoothedIsotonic.fit(reduce_of(logits, labels))
    half = logits.astype(np.float16)
    exact = softmax(apply_map(fitted, half.astype(np.float64)), axis=1)
    # logits up to 32 are rounded by 2^-7 of one, probabilities by a quarter of what two logits move by; functions with
    # a slope of up to 4 magnify that
    for result in (on_onnxruntime(fitted, half), apply_map(fitted, half)):
        assert np.all(np.isfinite(result))
        np.testing.assert_allclose(softmax(result.astype(np.float64), axis=1), exact, atol=4 * 2.0**-7)
    torch = pytest.importorskip("torch", reason="torch is in the extra 'gpu'")
    coarse = torch.from_numpy(logits).to(torch.bfloat16)
    exact = softmax(apply_map(fitted, coarse.double().numpy()), axis=1)
    result = apply_map(fitted, coarse).double().numpy()
    # eight bits: logits of 32 are rounded by 1/8, those of most samples by far less
    error = np.abs(softmax(result, axis=1) - exact).max(axis=1)
    assert np.mean(error) < 0.02
    assert np.max(error) < 0.25


# --- IROvA as published: scikit-learn's isotonic regression of each class, and what rounding and small samples do


def published(logits: np.ndarray, labels: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Probabilities as in the code of Zhang et al., normalised."""
    p, q = softmax(logits, axis=1), softmax(new, axis=1)
    for c in range(p.shape[1]):
        fitted = IsotonicRegression(out_of_bounds="clip").fit(p[:, c], labels == c)
        q[:, c] = fitted.predict(q[:, c]) + 1e-9 * q[:, c]
    return q / q.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("classes", [2, 5, 60])
@pytest.mark.parametrize("size", [50, 3000])
def test_it_is_isotonic_regression_of_each_class(classes: int, size: int) -> None:
    logits, labels, _ = sample(classes=classes, size=size)
    new = sample(classes=classes, size=1000, seed=5)[0]
    fitted = IsotonicOneVsAll.fit(reduce_of(logits, labels))
    for z in (logits, new):
        found = softmax(apply_map(fitted, z.astype(np.float64)), axis=1)
        expected = published(logits, labels, z)
        # a step between samples that lie closer than a ramp is wide, or in the rounding of float32, comes early or late
        assert np.mean(np.abs(found - expected).max(axis=1) > 1e-3) < 0.02
        assert np.abs(found - expected).mean() < 1e-4


def test_a_class_without_samples_is_never_the_answer_where_another_may_be() -> None:
    logits, labels, _ = sample(size=2000)
    labels = np.where(labels == 2, 1, labels)
    fitted = IsotonicOneVsAll.fit(reduce_of(logits, labels))
    log_p = log_softmax(apply_map(fitted, logits.astype(np.float64)), axis=1)
    assert log_p[:, 2].max() < -9
    assert np.isfinite(log_p).all()


def test_samples_of_one_probability_are_one() -> None:
    logits = np.log(np.array([[0.3, 0.7]] * 10 + [[0.8, 0.2]] * 10))
    labels = np.r_[np.repeat([0, 1], [4, 6]), np.repeat([0, 1], [7, 3])]
    fitted = IsotonicOneVsAll.fit(reduce_of(logits, labels))
    found = softmax(apply_map(fitted, logits), axis=1)
    np.testing.assert_allclose(found[[0, 10], 0], [0.4, 0.7], atol=1e-6)


@pytest.mark.parametrize("search", ["none", "sparse"])
def test_the_file_gives_what_was_fitted(small: Small, search: str, tmp_path: Path) -> None:
    """Blocks are many and ramps steep: the check of the written file allows for that, and for no more."""
    words = {"search": search, "map": "irova", "device": "cpu"}
    report = with_options(
        tna_onnx.calibrate, small.model, small.calib, eval=small.test, output=tmp_path / "m.onnx", **words
    )
    assert report.verification.max_difference < 0.02
    assert tna_onnx.verify(small.model, tmp_path / "m.onnx").intact
