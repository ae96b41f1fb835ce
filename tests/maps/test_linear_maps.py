"""Maps that are linear in the logits: the laws of `maps/base.py`; fits against SciPy and scikit-learn."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import check_grad, minimize
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.linear_model import LogisticRegression

from tests.maps.faces import with_faces
from tests.maps.samples import drawn, huge, nll, reduce_of, sample, without
from tests.support import pairwise
from tna_onnx.errors import DataError
from tna_onnx.maps import MAPS
from tna_onnx.maps.base import CalibrationMap, apply_map
from tna_onnx.maps.linear import MAX_CLASSES, Bias, MatrixScaling, NoiseFloor, VectorScaling, first_fit
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.multinomial import Diagonal, Scalar, _Objective, shape_of

Array = NDArray[Any]

# ---- samples ----


shifted = functools.partial(drawn, shift=0.7)


def far() -> tuple[Array, Array]:
    """A number added to all logits of a sample, which says nothing."""
    logits, labels = shifted()
    return logits + 300 * np.random.default_rng(0).normal(size=(len(labels), 1)), labels


SAMPLES: dict[str, Callable[[], tuple[Array, Array]]] = {
    "shifted": shifted,
    "underconfident": lambda: shifted(temperature=0.3),
    "two classes": lambda: shifted(classes=2),
    "fifty classes": lambda: shifted(classes=50, n=600),
    "absent class": lambda: without(3, shift=0.7),
    "huge": functools.partial(huge, shift=0.7),
    "far from zero": far,
    "few": lambda: shifted(classes=5, n=30),
}
NAMES = ("bias", "svs", "sms")


# ---- the formula ----


def drawn_map(name: str, classes: int) -> CalibrationMap:
    """A map with drawn parameters."""
    rng = np.random.default_rng(classes)
    bias = rng.normal(size=classes)
    if name == "bias":
        return Bias(1.7, bias)
    if name == "svs":
        return VectorScaling(1.7, 0.3 * rng.normal(size=classes), bias)
    return MatrixScaling(1.7, 0.3 * rng.normal(size=(classes, classes)) / np.sqrt(classes), bias)


def by_definition(fitted: CalibrationMap, logits: Array) -> Array:
    """Calibrated log-probabilities in float64, from the formulas."""
    s = logits.astype(np.float64)
    x = s - s.mean(axis=1, keepdims=True)
    match fitted:
        case Bias(temperature, bias):
            scores = s / temperature + bias
        case VectorScaling(temperature, vector, bias):
            scores = x / temperature @ np.diag(1 + vector) + bias
        case MatrixScaling(temperature, matrix, bias):
            scores = x / temperature @ (np.eye(len(bias)) + matrix).T + bias
    result: Array = log_softmax(scores, axis=1)
    return result


def assert_calibrated(fitted: CalibrationMap, logits: Array, result: Array) -> None:
    """Compare softmax(result) with the definition, as logarithms.

    Each score is a sum of C + 3 rounded terms at most, of which the largest are |s| and row sums of |matrix| |x|.
    """
    assert result.shape == logits.shape
    classes = logits.shape[1]
    eps = float(np.finfo(logits.dtype).eps)
    size = float(np.abs(logits).max(initial=1.0)) * (1 + np.sqrt(classes)) + 4
    found = log_softmax(result.astype(np.float64), axis=1)
    np.testing.assert_allclose(found, by_definition(fitted, logits), rtol=0, atol=4 * np.sqrt(classes) * eps * size)


@pytest.mark.parametrize(
    ("name", "classes", "dtype", "face"), with_faces(NAMES, (2, 10, 1000), dtypes=(np.float16, np.float32, np.float64))
)
def test_every_face_runs_it(name: str, classes: int, dtype: Any, face: Any) -> None:
    fitted = drawn_map(name, classes)
    # rounded to the dtype first: parameters and logits are then what the graph has
    logits = (3 * np.random.default_rng(1).normal(size=(20, classes))).astype(dtype)
    result = face(fitted, logits)
    assert result.dtype == dtype
    assert_calibrated(fitted, logits, result)


@pytest.mark.parametrize("name", NAMES[1:])  # a bias is not centred: softmax takes the common part out behind it
def test_a_large_common_part_costs_no_digits(name: str) -> None:
    """In float16 the numbers near 1000 are 0.5 apart; what is there is scaled as well as anywhere."""
    fitted = drawn_map(name, 10)
    logits = (np.round(8 * np.random.default_rng(3).normal(size=(50, 10))) + 1000).astype(np.float16)
    found = softmax(np.asarray(apply_map(fitted, logits), np.float64), axis=1)
    # the mean is off by 0.5 at most, and a common error of x moves scores by 0.5 times the row sums
    near = softmax(by_definition(fitted, logits), axis=1)
    assert np.abs(found - near).max() < 0.35


# ---- fits: laws ----


def close(one: CalibrationMap, other: CalibrationMap, logits: Array, atol: float) -> None:
    for a, b in zip(vars(one).values(), vars(other).values(), strict=True):
        assert np.shape(a) == np.shape(b)
    p, q = (softmax(np.asarray(apply_map(x, logits), np.float64), axis=1) for x in (one, other))
    np.testing.assert_allclose(p, q, rtol=0, atol=atol)


@pytest.mark.parametrize(("name", "data"), [(name, data) for name in NAMES for data in SAMPLES.values()])
class TestFits:
    def test_float32_and_torch_give_the_fit_of_float64(self, name: str, data: Any) -> None:
        logits, labels = data()
        single = logits.astype(np.float32)
        expected = MAPS[name].fit(reduce_of(single.astype(np.float64), labels))
        # float32: logits of 300 are known to 2e-5, those of 1e4 to 1e-3 before the temperature of 2500
        close(MAPS[name].fit(reduce_of(single, labels)), expected, single.astype(np.float64), 1e-3)
        torch = pytest.importorskip("torch", reason="torch is in the extra 'gpu'")
        for dtype, bound in ((torch.float64, 1e-5), (torch.float32, 1e-3)):
            tensor = torch.from_numpy(single).to(dtype)
            close(MAPS[name].fit(reduce_of(tensor, labels)), expected, single.astype(np.float64), bound)

    def test_a_warm_start_and_a_number_added_to_all_logits_change_nothing(self, name: str, data: Any) -> None:
        logits, labels = data()
        cold = MAPS[name].fit(reduce_of(logits, labels))
        for start in (cold, drawn_map(name, logits.shape[1])):
            close(MAPS[name].fit(reduce_of(logits, labels), start=start), cold, logits, 1e-5)
        close(MAPS[name].fit(reduce_of(logits + 8.0, labels)), cold, logits, 1e-5)


@pytest.mark.parametrize(
    ("name", "dtype"), [("bias", np.float32), ("bias", np.float64), ("svs", np.float32), ("sms", np.float64)]
)
class TestUglyEdges:
    @pytest.mark.parametrize("gap", [30.0, 300.0, 1e4])
    def test_saturated_rows_give_finite_values(self, name: str, dtype: Any, gap: float) -> None:
        """Logits far apart, one sample in twenty wrong."""
        rng = np.random.default_rng(0)
        top = rng.integers(0, 4, 400)
        logits = (gap * np.eye(4)[top]).astype(dtype)
        labels = np.where(np.arange(400) % 20 == 0, (top + 1) % 4, top)
        fitted = MAPS[name].fit(reduce_of(logits, labels))
        assert all(np.all(np.isfinite(value)) for value in vars(fitted).values())
        p = softmax(apply_map(fitted, logits).astype(np.float64), axis=1)
        assert p.max(axis=1).mean() == pytest.approx(0.95, abs=0.01)

    def test_an_absent_class_becomes_rare(self, name: str, dtype: Any) -> None:
        logits, labels = without(3, shift=0.7)
        fitted = MAPS[name].fit(reduce_of(logits.astype(dtype), labels))
        before = softmax(np.asarray(apply_map(Temperature.fit(reduce_of(logits, labels)), logits)), axis=1)[:, 3]
        assert softmax(np.asarray(apply_map(fitted, logits)), axis=1)[:, 3].mean() < 0.5 * before.mean()


def test_a_matrix_for_too_many_classes_is_refused() -> None:
    logits = np.zeros((3, MAX_CLASSES + 1), np.float32)
    with pytest.raises(DataError, match="use --map svs"):
        MatrixScaling.fit(reduce_of(logits, np.arange(3)))


def test_many_samples_repair_a_shift_of_the_classes() -> None:
    logits, labels = shifted(n=8000)
    train, test = slice(0, 4000), slice(4000, None)
    plain = nll(
        np.asarray(apply_map(Temperature.fit(reduce_of(logits[train], labels[train])), logits[test])), labels[test]
    )
    frequency = 0.7 * np.random.default_rng([10, 8000, 0]).normal(size=(8000 * 10 + 10))[-10:]
    best = nll(logits[test] / 2.5 + frequency, labels[test])
    assert best < plain - 0.05  # the shift matters
    for name in NAMES:
        found = nll(
            np.asarray(apply_map(MAPS[name].fit(reduce_of(logits[train], labels[train])), logits[test])), labels[test]
        )
        assert plain - found > 0.8 * (plain - best)


# ---- fits against other solvers ----


def bias_ridge(logits: Array, labels: Array) -> float:
    """N / (2 N tau^2) of the bias map, from the definition."""
    n, classes = logits.shape

    def loss(theta: Array) -> float:
        return nll(logits * theta[0] + theta[1:], labels) + 5 / n * float(theta[1:] @ theta[1:])

    first = minimize(loss, np.r_[0.4, np.zeros(classes)], method="BFGS", options={"gtol": 1e-8}).x
    q = softmax(logits * first[0], axis=1)
    g = (np.eye(classes)[labels] - q).mean(axis=0)
    h = (q * (1 - q)).mean(axis=0)
    variance = max((g @ g - h.sum() / n) / (h @ h), 1e-9)
    return float(np.clip(1 / (2 * variance), 0.5, 1000))


def penalised(name: str, logits: Array, labels: Array, temperature: float) -> Callable[[Array], float]:
    """The loss as a function of a flat (D, c), from the definition."""
    if name == "bias":
        ridge_of_bias = bias_ridge(logits, labels)
    n, classes = logits.shape
    x = (logits - logits.mean(axis=1, keepdims=True)) / temperature
    off = ~np.eye(classes, dtype=bool)

    def loss(theta: Array) -> float:
        d, c = theta[:-classes], theta[-classes:]
        if name == "bias":
            return nll(x * (1 + d[0]) + c, labels) + ridge_of_bias / n * float(c @ c)
        if name == "svs":
            return nll(x * (1 + d) + c, labels) + classes / n * float(d @ d + c @ c)
        m = d.reshape(classes, classes)
        ridge = classes / n * float(np.diag(m) @ np.diag(m) + c @ c)
        return nll(x + x @ m.T + c, labels) + ridge + classes * (classes - 1) / n * float(np.sum(m[off] ** 2))

    return loss


def flat(fitted: Any, temperature: float) -> Array:
    """(D, c) of a map, in the unit of the temperature."""
    if isinstance(fitted, Bias):
        return np.r_[temperature / fitted.temperature - 1, fitted.bias]
    return np.r_[np.ravel(fitted.vector if isinstance(fitted, VectorScaling) else fitted.matrix), fitted.bias]


@pytest.mark.parametrize(("name", "classes", "shift"), pairwise(NAMES, [2, 4], [0.0, 0.2, 0.7]))
def test_the_fit_is_the_minimum_of_the_penalised_nll(name: str, classes: int, shift: float) -> None:
    logits, labels = shifted(classes, 400, shift=shift)
    temperature = Temperature.fit(reduce_of(logits, labels)).temperature
    loss = penalised(name, logits, labels, temperature)
    fitted: Any = MAPS[name].fit(reduce_of(logits, labels))
    if name != "bias":
        assert fitted.temperature == temperature
    found = flat(fitted, temperature)
    best = minimize(loss, np.zeros(len(found)), method="BFGS", options={"gtol": 1e-7})
    assert loss(found) <= best.fun + 1e-10  # 400 terms of float64
    # numerical slopes are off by 1e-8, and the weakest curvature is the ridge's: 1 / 400
    np.testing.assert_allclose(found, best.x, rtol=0, atol=1e-5)


def test_bias_of_two_classes_is_scikit_learns_logistic_regression() -> None:
    """In a large unit the slope is free; the constant column g has g^2 / 2 = |c|^2, so ridge |c|^2 = g^2 / (2 C)."""
    logits, labels = shifted(2, 600)
    difference = logits[:, 1] - logits[:, 0]
    columns = np.stack([1e4 * difference, np.ones(600)], axis=1)
    strength = 1 / bias_ridge(logits, labels)
    oracle = LogisticRegression(C=strength, fit_intercept=False, tol=1e-10, solver="newton-cholesky")
    slope, gap = oracle.fit(columns, labels).coef_[0]
    fitted = Bias.fit(reduce_of(logits, labels))
    assert 1 / fitted.temperature == pytest.approx(1e4 * slope, rel=1e-5)
    assert fitted.bias[1] - fitted.bias[0] == pytest.approx(gap, rel=1e-5)


@pytest.mark.parametrize("cls", [Bias, VectorScaling, MatrixScaling])
def test_a_mask_that_leaves_the_others_no_digits_is_refused(cls: Any) -> None:
    """A class of the logit -10,000 changes nothing; far below that, float32 has no digits for the others."""
    logits, labels = shifted(3, 600)
    plain, masked = (
        cls.fit(reduce_of(values, labels))
        for values in (logits, np.pad(logits, ((0, 0), (0, 1)), constant_values=-1e4))
    )
    assert masked.temperature == pytest.approx(plain.temperature, rel=0.01)
    for mask in (-1e9, -3e38):
        with pytest.raises(DataError, match=r"below the others.*mask it with -10,000"):
            cls.fit(reduce_of(np.pad(logits.astype(np.float32), ((0, 0), (0, 1)), constant_values=mask), labels))


@pytest.mark.parametrize("name", NAMES[:2])  # a million parameters take a while: see the slow test
def test_thousand_classes(name: str) -> None:
    """The gradient vanishes, from the definition in float64."""
    logits, labels = shifted(1000, 2000)
    fitted = MAPS[name].fit(reduce_of(logits.astype(np.float32), labels))
    r = softmax(by_definition(fitted, logits), axis=1) - np.eye(1000)[labels]
    slope = r.mean(axis=0)
    bias: Array = fitted.bias  # type: ignore[attr-defined]
    # the ridge of the bias map follows from the samples: here it is what the slope says
    strength = -float(slope @ bias) / (2 * float(bias @ bias))
    if name == "svs":
        assert strength == pytest.approx(0.5, rel=1e-3)
    else:
        assert 0.5 / 2000 < strength < 1000 / 2000
    # the tolerance is 1e-7 times the root of the curvature, float32 probabilities are known to about 1e-6
    np.testing.assert_allclose(slope + 2 * strength * bias, 0, atol=3e-6)


@pytest.mark.slow
def test_a_matrix_for_thousand_classes() -> None:
    logits, labels = shifted(1000, 3000)
    fitted = MatrixScaling.fit(reduce_of(logits.astype(np.float32), labels))
    x = (logits - logits.mean(axis=1, keepdims=True)) / fitted.temperature
    r = softmax(by_definition(fitted, logits), axis=1) - np.eye(1000)[labels]
    strength = np.full((1000, 1000), 1000 * 999 / 3000)
    np.fill_diagonal(strength, 1000 / 3000)
    # as above; the curvature of M is 2 * 333
    np.testing.assert_allclose(r.T @ x / 3000 + 2 * strength * fitted.matrix, 0, atol=1e-5)


# --- Bias above a noise floor: against its definition and SciPy, and on labels of which some are wrong


def probabilities(logits: Array, temperature: float, bias: Array, share: float) -> Array:
    """p, from its definition."""
    return np.asarray((1 - share) * softmax(logits / temperature + bias, axis=1) + share / logits.shape[1])


def noisy(classes: int, size: int, noise: float, seed: int = 0) -> tuple[Array, Array, Array]:
    """Logits of sure predictions, their right labels, and labels of which a share is replaced at random."""
    logits, _, _ = sample(classes=classes, size=size)
    rng = np.random.default_rng(seed)
    logits = 3 * logits
    right = (logits / 3 + 0.5 * rng.gumbel(size=logits.shape)).argmax(axis=1)
    return logits, right, np.where(rng.random(size) < noise, rng.integers(0, classes, size), right)


@pytest.mark.parametrize(("classes", "size"), [(2, 300), (2, 20_000), (5, 400), (10, 900)])
def test_the_fit_is_a_minimum_of_the_penalised_loss(classes: int, size: int) -> None:
    logits, _, labels = noisy(classes, size, 0.15)
    reduce = reduce_of(logits, labels, None, (size // 3,))
    found = NoiseFloor.fit(reduce)
    expected = probabilities(logits, found.temperature, found.bias, found.share)
    np.testing.assert_allclose(np.exp(apply_map(found, logits)), expected, rtol=1e-9)
    _, _, ridge = first_fit(reduce)

    def loss(theta: Array) -> float:
        p = probabilities(logits, np.exp(theta[0]), theta[1:-1], expit(theta[-1]))
        prior = (log_expit(theta[-1]) + log_expit(-theta[-1])) / size
        return float(-np.log(p[np.arange(size), labels]).mean() + ridge * theta[1:-1] @ theta[1:-1] - prior)

    ours = np.r_[np.log(found.temperature), found.bias, np.log(found.share / (1 - found.share))]
    best = minimize(loss, ours, method="BFGS", options={"gtol": 1e-9})
    # two parameters may nearly stand for each other: the loss tells
    np.testing.assert_allclose(ours, best.x, atol=1e-2)
    assert loss(ours) <= best.fun + 1e-6


def test_a_fit_does_not_end_early_where_expected_curvatures_are_too_small() -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(300, 5)).astype(np.float32)
    logits[:, 1] = logits[:, 0]
    reduce = reduce_of(logits, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1))
    found = NoiseFloor.fit(reduce)
    size, _, ridge = first_fit(reduce)
    objective = _Objective.of(reduce, Scalar(), size, size.spread, (0.0, ridge))
    ours = np.r_[size.spread / found.temperature - 1, found.bias, np.log(found.share / (1 - found.share))]
    best = minimize(lambda theta: objective.loss_above_floor(theta)[:2], ours, jac=True, method="BFGS")
    assert objective.loss_above_floor(ours)[0] <= best.fun + 1e-6


@pytest.mark.parametrize("form", [Scalar(), Diagonal()])
def test_gradient_is_that_of_the_loss_and_curvature_the_fisher_information(form: Scalar | Diagonal) -> None:
    logits, _, labels = noisy(4, 200, 0.2)
    reduce = reduce_of(logits.astype(np.float64), labels)
    objective = _Objective.of(reduce, form, shape_of(reduce), 2.0, (0.1, 0.2))
    theta = np.random.default_rng(1).normal(0, 0.3, len(objective.ridge) + 1)
    error = check_grad(
        lambda at: objective.loss_above_floor(at)[0], lambda at: objective.loss_above_floor(at)[1], theta
    )
    assert error < 1e-6
    _, _, curvature = objective.loss_above_floor(theta)
    columns = np.stack([curvature.times(each) for each in np.eye(len(theta))])

    def p(at: Array) -> Array:
        d, c = at[:-5], at[-5:-1]
        x = (logits - logits.mean(axis=1, keepdims=True)) / 2.0
        return (1 - expit(at[-1])) * softmax(x + d * x + c, axis=1) + expit(at[-1]) / 4

    steps = 1e-5 * np.eye(len(theta))
    jacobian = np.stack([(p(theta + step) - p(theta - step)) / 2e-5 for step in steps])
    expected = np.einsum("inc,jnc->ij", jacobian / p(theta), jacobian) / 200 + np.diag(np.append(objective.ridge, 0))
    expected[-1, -1] += np.tanh(abs(theta[-1]) / 2) / abs(theta[-1]) / 200  # the prior's
    np.testing.assert_allclose(columns, expected, atol=1e-8)


def test_wrong_labels_are_taken_up_by_the_floor() -> None:
    logits, right, labels = noisy(10, 6000, 0.1)
    train, test = slice(0, 3000), slice(3000, None)
    reduce = reduce_of(logits[train], labels[train])
    floor, plain = NoiseFloor.fit(reduce), Bias.fit(reduce)
    assert floor.share == pytest.approx(0.1, abs=0.03)

    def nll(fitted: Any) -> float:
        p = softmax(apply_map(fitted, logits[test]), axis=1)
        return float(-np.log(p[np.arange(3000), labels[test]]).mean())

    assert nll(floor) < nll(plain) - 0.02
    # of labels that are right, next to nothing is noise
    assert NoiseFloor.fit(reduce_of(logits[train], right[train])).share < 0.01


def test_one_sample_that_is_sure_and_wrong_costs_little() -> None:
    """A new sample as none before: its loss has a bound, and that of a temperature has none."""
    logits, labels, _ = sample(classes=4, size=400)
    fitted = NoiseFloor.fit(reduce_of(logits, labels))
    assert fitted.share > 1 / 500
    wrong = np.array([[1e4, 0.0, 0.0, 0.0]])
    assert -float(apply_map(fitted, wrong)[0, 1]) < np.log(4 * 500)


def test_without_its_floor_the_fit_is_nearest_to_one_on_right_labels() -> None:
    logits, right, labels = noisy(10, 6000, 0.1)
    train, test = slice(0, 3000), slice(3000, None)

    def loss(name: str, observed: Array) -> float:
        fitted = MAPS[name].fit(reduce_of(logits[train], observed[train]))
        return float(-log_softmax(apply_map(fitted, logits[test]), axis=1)[np.arange(3000), right[test]].mean())

    best = loss("bias", right)
    robust, floor, plain = (loss(name, labels) - best for name in ("bias-robust", "bias-floor", "bias"))
    assert abs(robust) < floor / 2 < plain / 2
