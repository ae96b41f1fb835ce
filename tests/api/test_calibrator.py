"""`Calibrator`: the choice and the numbers of the command, in the shape of a scikit-learn estimator."""

import inspect
import pickle
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

import tna_onnx
from tests.support import outputs_of, with_options
from tna_onnx import Calibrator, DataError, UsageError
from tna_onnx.graph.nodes import scores_model

N, C = 600, 4


def samples(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return overconfident logits and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, C, N)
    return (4 * (np.eye(C)[labels] + 0.8 * rng.standard_normal((N, C)))).astype(np.float32), labels


@pytest.fixture(scope="module")
def fitted() -> Calibrator:
    return Calibrator().fit(*samples())


def test_the_choice_and_the_numbers_are_those_of_the_command(fitted: Calibrator) -> None:
    logits, labels = samples()
    data = {"scores": logits, "labels": labels}
    words = {"search": "none", "device": "cpu", "output_kind": "logits"}
    report = with_options(tna_onnx.calibrate, scores_model(C), data, **words)
    assert (fitted.method_, fitted.parameters_) == (report.method, report.parameters)
    assert fitted.report_.comparison == report.comparison


def test_a_temperature_is_what_it_says() -> None:
    logits, labels = samples()
    made = Calibrator(map="ts").fit(logits, labels)
    expected = softmax(logits / made.parameters_["temperature"], axis=1)
    np.testing.assert_allclose(made.predict_proba(logits), expected, atol=1e-6)
    np.testing.assert_array_equal(made.predict(logits), logits.argmax(axis=1))
    assert made.score(logits, labels) == np.mean(logits.argmax(axis=1) == labels)


def test_state_travels(fitted: Calibrator) -> None:
    logits, _ = samples(1)
    expected = fitted.predict_proba(logits)
    copy = pickle.loads(pickle.dumps(fitted))
    assert (copy.method_, copy.get_params()) == (fitted.method_, fitted.get_params())
    np.testing.assert_array_equal(copy.predict_proba(logits), expected)


def test_the_file_stands_alone(fitted: Calibrator) -> None:
    logits, _ = samples(2)
    (calibrated,) = outputs_of(fitted.to_onnx(), logits).values()
    np.testing.assert_allclose(softmax(calibrated.astype(np.float64), axis=1), fitted.predict_proba(logits), atol=1e-6)


def test_labels_that_are_names_and_two_classes_as_one_column() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, N)
    score = (5 * (y - 0.5) + 3 * rng.standard_normal(N)).astype(np.float32)
    made = Calibrator(map="ts").fit(score, np.array(["no", "yes"])[y])
    assert made.classes_.tolist() == ["no", "yes"]
    both = np.stack([np.zeros_like(score), score], axis=1)
    np.testing.assert_array_equal(made.predict_proba(score), made.predict_proba(both))
    assert set(made.predict(score)) == {"no", "yes"}


@pytest.mark.parametrize(
    ("words", "x", "y", "message"),
    [
        ({}, np.zeros((5, 3)), [0, 1, 2], "one label a row"),
        ({}, np.zeros((3, 3)), ["a", "b", "a"], "2 distinct labels for 3 columns"),
        ({}, np.full((3, 3), np.nan), [0, 1, 2], "row 0"),
        ({}, [["a", "b"]], [0], "numbers"),
        ({}, np.zeros((0, 3)), [], "one row"),
        ({"scores": "probabilities"}, np.full((3, 3), 0.9), [0, 1, 2], "add up to 1"),
    ],
)
def test_what_does_not_fit_together(words: dict[str, Any], x: Any, y: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Calibrator(**words).fit(np.asarray(x), np.asarray(y))


def test_what_is_not_used_is_refused(fitted: Calibrator) -> None:
    logits, labels = samples()
    with pytest.raises(DataError, match="row 3"):
        Calibrator().fit(logits, labels, sample_weight=np.where(np.arange(len(labels)) == 3, -1, 1))
    with pytest.raises(UsageError, match="logits or probabilities"):
        Calibrator(scores="odds").fit(logits, labels)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="3 features"):
        fitted.predict_proba(logits[:, :3])


def test_conventions_of_scikit_learn() -> None:
    """Of `check_estimator`, those that feed no random columns: ours are scores, one a class."""
    sklearn = pytest.importorskip("sklearn")
    from sklearn.base import clone, is_classifier
    from sklearn.exceptions import NotFittedError
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer
    from sklearn.utils import estimator_checks as checks
    from sklearn.utils.validation import check_is_fitted

    assert sklearn
    for check in (
        checks.check_no_attributes_set_in_init,
        checks.check_parameters_default_constructible,
        checks.check_get_params_invariance,
        checks.check_set_params,
        checks.check_estimator_cloneable,
        checks.check_estimator_repr,
    ):
        check("Calibrator", Calibrator())
    logits, labels = samples()
    before = logits.copy()
    original = Calibrator(map="ts", seed=3)
    with pytest.raises(NotFittedError):
        original.predict_proba(logits)
    with pytest.raises(NotFittedError):
        original.predict(logits)
    copy = clone(original)
    assert copy.get_params() == original.get_params()
    pipeline = make_pipeline(FunctionTransformer(), copy).fit(logits, labels)
    check_is_fitted(copy)
    assert is_classifier(copy)
    np.testing.assert_array_equal(pipeline.predict_proba(logits), original.fit(logits, labels).transform(logits))
    np.testing.assert_array_equal(logits, before)


_OUR_COLUMNS = "columns are the scores of one class each: as many as classes"
_OUR_SAMPLES = "as many samples outside of a fold as bins"
_OTHER_THAN_SCIKIT_LEARNS = {
    "check_estimators_overwrite_params": _OUR_COLUMNS,
    "check_estimators_fit_returns_self": _OUR_COLUMNS,
    "check_readonly_memmap_input": _OUR_COLUMNS,
    "check_estimators_nan_inf": _OUR_COLUMNS,
    "check_classifiers_classes": _OUR_COLUMNS,
    "check_classifiers_train": _OUR_COLUMNS,
    "check_estimators_empty_data_messages": _OUR_COLUMNS,
    "check_fit2d_predict1d": "one column is that of two classes",
    "check_fit2d_1feature": _OUR_SAMPLES,
    "check_fit2d_1sample": _OUR_SAMPLES,
    "check_n_features_in_after_fitting": _OUR_SAMPLES,
    "check_classifier_data_not_an_array": _OUR_SAMPLES,
    "check_classifiers_one_label": "one class tells nothing of others",
    "check_classifiers_one_label_sample_weights": "one class tells nothing of others",
    "check_dtype_object": "numbers only",
    "check_supervised_y_2d": "labels have one axis",
    "check_requires_y_none": "another message",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_checks_of_scikit_learn() -> None:
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    if "on_fail" not in inspect.signature(checks.check_estimator).parameters:
        pytest.skip("this scikit-learn stops at the first check that fails")
    results = checks.check_estimator(Calibrator(trust_labels=True), on_fail=None)
    failed = {result["check_name"]: str(result["exception"]) for result in results if result["status"] == "failed"}
    weights = {name for name in failed if "sample_weight" in name}
    assert set(failed) - set(_OTHER_THAN_SCIKIT_LEARNS) - weights == set(), failed


@pytest.mark.slow
def test_probabilities_are_told_from_logits() -> None:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 4, 800)
    logits = 5 * (np.eye(4)[labels] + rng.standard_normal((800, 4)))
    given = Calibrator(scores="probabilities", map="ts").fit(softmax(logits, axis=1), labels)
    found = Calibrator(map="ts").fit(softmax(logits, axis=1), labels)
    assert (found.scores_, Calibrator(map="ts").fit(logits, labels).scores_) == ("probabilities", "logits")
    rows = softmax(logits[:7], axis=1)
    np.testing.assert_array_equal(found.predict_proba(rows), given.predict_proba(rows))


@pytest.mark.slow
def test_masked_labels_are_missing_and_tensors_leave_their_graph() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    logits = 4 * (np.eye(3)[y] + rng.standard_normal((300, 3)))
    with pytest.raises(DataError, match="y holds NaN"):
        Calibrator(map="ts").fit(logits, np.ma.array(y, mask=y == 1))
    torch = pytest.importorskip("torch")
    same = Calibrator(map="ts").fit(torch.tensor(logits, requires_grad=True), torch.tensor(y))
    assert same.parameters_ == Calibrator(map="ts").fit(logits, y).parameters_


def test_messages_name_no_flags() -> None:
    y = np.arange(300) % 3
    with pytest.raises(DataError, match=r"accuracy is 0\.0 %") as refusal:
        Calibrator(map="ts").fit(4 * np.eye(3)[(y + 1) % 3], y)
    assert "--" not in str(refusal.value)


@pytest.mark.slow
def test_one_column_of_shares_is_the_probability_of_the_second_class() -> None:
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 2, 500)
    second = 1 / (1 + np.exp(-6 * (labels - 0.5 + 0.5 * rng.standard_normal(500))))
    fitted = Calibrator(map="ts").fit(second, labels)
    assert fitted.scores_ == "probabilities"
    assert fitted.predict_proba(second)[labels == 1, 1].mean() > 0.7


@pytest.mark.slow
def test_twenty_samples_claim_nothing_in_one_sentence() -> None:
    y = np.arange(20) % 3
    logits = 6 * np.eye(3)[y] + np.random.default_rng(0).standard_normal((20, 3))
    logits[0] = logits[0][::-1]
    report = Calibrator().fit(logits, y).report_
    assert report.comparison.differences["nll"].errors == 1
    assert report.undecided
    assert report.summary.startswith("20 samples with 1 error cannot tell")
    assert "200" in report.summary
    assert sum("could not be fitted" in note for note in report.notes) == 1
