"""scikit-learn classifiers, fitted on small random data, written by skl2onnx.

A binary linear classifier has one vector w in scikit-learn. The file scores it as w or as the pair -w, w; where a
Sigmoid follows, the classes differ by w, so the truth is [0, w]. The pair with a Softmax or as raw scores is [-w, w].
(For linear discriminant analysis that Softmax is not scikit-learn's probability; the truth is about the file.)
"""

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.corpus.case import Case, class_vectors, normal_feeds, quiet

Array = NDArray[Any]
FEATURES = 8


def classifier(path: str, *parts: Callable[[], Any], **settings: Any) -> Callable[[], Any]:
    """Return what makes a classifier, of parts that are made before it; its library is imported then."""

    def make() -> Any:
        module, _, name = path.rpartition(".")
        return getattr(import_module(module), name)(*(part() for part in parts), **settings)

    return make


logistic = classifier("sklearn.linear_model.LogisticRegression", C=2.0)
_sgd = classifier("sklearn.linear_model.SGDClassifier", loss="log_loss", random_state=0)
_hinge = classifier("sklearn.linear_model.SGDClassifier", loss="hinge", random_state=0)
linear_svc = classifier("sklearn.svm.LinearSVC", random_state=0)
_ridge = classifier("sklearn.linear_model.RidgeClassifier")
_perceptron = classifier("sklearn.linear_model.Perceptron", random_state=0)
_lda = classifier("sklearn.discriminant_analysis.LinearDiscriminantAnalysis")
_qda = classifier("sklearn.discriminant_analysis.QuadraticDiscriminantAnalysis")
_naive_bayes = classifier("sklearn.naive_bayes.GaussianNB")
forest = classifier("sklearn.ensemble.RandomForestClassifier", n_estimators=5, max_depth=3, random_state=0)
boosting = classifier("sklearn.ensemble.GradientBoostingClassifier", n_estimators=3, random_state=0)
_neighbours = classifier("sklearn.neighbors.KNeighborsClassifier", n_neighbors=3)
_kernel_svc = classifier("sklearn.svm.SVC", kernel="rbf", probability=True, random_state=0)
mlp = classifier("sklearn.neural_network.MLPClassifier", hidden_layer_sizes=(16,), max_iter=20, random_state=0)
_one_vs_rest = classifier("sklearn.multiclass.OneVsRestClassifier", logistic)
_multi_output = classifier("sklearn.multioutput.MultiOutputClassifier", logistic)
# Platt scaling on top: every class has a sigmoid of its own.
_calibrated = classifier("sklearn.calibration.CalibratedClassifierCV", logistic, ensemble=False)

_PIPELINE = "sklearn.pipeline.make_pipeline"
_scaler = classifier("sklearn.preprocessing.StandardScaler")
_pca = classifier("sklearn.decomposition.PCA", n_components=6, random_state=0)
scaled = classifier(_PIPELINE, _scaler, logistic)
_scaled_pca = classifier(_PIPELINE, _scaler, _pca, logistic)
_selected = classifier(_PIPELINE, classifier("sklearn.feature_selection.SelectKBest", k=5), logistic)


class _Sure:
    """A logistic regression whose probabilities saturate in float32, as on data that separate well."""

    def fit(self, x: Array, y: Array) -> Any:
        model = logistic().fit(x, y)
        model.coef_ *= 30
        model.intercept_ *= 30
        return model


class SeveralLabels:
    """A classifier of several labels a sample: its class, and whether the first feature is positive."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def fit(self, x: Array, y: Array) -> Any:
        return self.model.fit(x, np.column_stack([y == 0, y > 1, x[:, 0] > 0]).astype(np.int64))


_labels_mlp = classifier(f"{__name__}.SeveralLabels", mlp)
_labels_one_vs_rest = classifier(f"{__name__}.SeveralLabels", _one_vs_rest)
_labels_multi_output = classifier(f"{__name__}.SeveralLabels", _multi_output)


def data(classes: int, names: bool = False) -> tuple[Array, Array]:
    """Return features (300, 8) around class means, and labels: numbers or names."""
    rng = np.random.default_rng(7)
    y = rng.integers(0, classes, 300)
    x = rng.standard_normal((300, FEATURES)) + 0.8 * rng.standard_normal((classes, FEATURES))[y]
    return x.astype(np.float32), np.array([f"class {k}" for k in range(classes)])[y] if names else y


@cache
def fitted(make: Callable[[], Any], classes: int, names: bool = False) -> Any:
    """Return a fitted classifier; the same one every time."""
    with quiet():
        return make().fit(*data(classes, names))


def write(
    make: Callable[[], Any], classes: int, folder: Path, names: bool = False, opset: int = 17, **options: Any
) -> Path:
    """Write a fitted classifier with skl2onnx; `options` are its own."""
    model, path = fitted(make, classes, names), folder / "model.onnx"
    with quiet():
        from skl2onnx import to_onnx

        final = model.steps[-1][1] if hasattr(model, "steps") else model
        proto = to_onnx(
            model, data(classes)[0][:1], target_opset=opset, options={id(final): options} if options else None
        )
    path.write_bytes(proto.SerializeToString())
    return path


def coef(make: Callable[[], Any], classes: int, names: bool = False) -> Array:
    model = fitted(make, classes, names)
    final = model.steps[-1][1] if hasattr(model, "steps") else model
    return class_vectors(np.asarray(final.coef_))


def _mirrored(make: Callable[[], Any], classes: int) -> Array:
    """Two scores -s and s that no Sigmoid follows."""
    vector = fitted(make, classes).coef_
    return np.concatenate([-vector, vector])


def last_layer(make: Callable[[], Any], classes: int) -> Array:
    return class_vectors(fitted(make, classes).coefs_[-1].T)


def _case(
    name: str,
    make: Callable[[], Any],
    classes: int,
    weight: Callable[[], Array] | None,
    reason: str = "",
    **options: Any,
) -> Case:
    return Case(
        name=f"sklearn/{name}",
        route="sklearn",
        build=lambda folder: write(make, classes, folder, **options),
        weight=weight,
        reason=reason,
        feeds=normal_feeds("X", FEATURES),
        needs=("sklearn", "skl2onnx"),
    )


def _linear(name: str, make: Callable[[], Any], classes: int, **options: Any) -> Case:
    return _case(name, make, classes, partial(coef, make, classes, bool(options.get("names"))), **options)


def _refused(name: str, make: Callable[[], Any], reason: str, classes: int = 3, **options: Any) -> Case:
    return _case(name, make, classes, None, reason, **options)


_ARRAY: dict[str, Any] = {"zipmap": False}
_RAW: dict[str, Any] = {"zipmap": False, "raw_scores": True}
_TREE = "TreeEnsemble"

CASES: tuple[Case, ...] = (
    _linear("logistic-3", logistic, 3, **_ARRAY),
    _linear("logistic-3-zipmap", logistic, 3),
    _linear("logistic-3-raw", logistic, 3, **_RAW),
    _linear("logistic-3-names", logistic, 3, names=True, **_ARRAY),
    _linear("logistic-3-names-zipmap", logistic, 3, names=True),
    _linear("logistic-3-opset11", logistic, 3, opset=11, **_ARRAY),
    _linear("logistic-2", logistic, 2, **_ARRAY),
    _linear("logistic-2-zipmap", logistic, 2),
    _linear("logistic-2-names", logistic, 2, names=True, **_ARRAY),
    _case("logistic-2-raw", logistic, 2, partial(_mirrored, logistic, 2), **_RAW),
    _linear("logistic-2-saturated", _Sure, 2, **_ARRAY),
    _linear("logistic-2-saturated-zipmap", _Sure, 2),
    _linear("scaler-logistic-3", scaled, 3, **_ARRAY),
    _linear("scaler-logistic-3-zipmap", scaled, 3),
    _linear("scaler-logistic-2", scaled, 2, **_ARRAY),
    _linear("scaler-pca-logistic-3", _scaled_pca, 3, **_ARRAY),
    _linear("select-logistic-3", _selected, 3, **_ARRAY),
    _linear("sgd-log-2", _sgd, 2, **_ARRAY),
    _linear("sgd-log-3-raw", _sgd, 3, **_RAW),
    _linear("sgd-hinge-3", _hinge, 3, **_ARRAY),
    _linear("perceptron-3", _perceptron, 3, **_ARRAY),
    _linear("linear-svc-3", linear_svc, 3),
    _linear("ridge-3", _ridge, 3),
    _linear("lda-3", _lda, 3, **_ARRAY),
    _case("lda-2", _lda, 2, partial(_mirrored, _lda, 2), **_ARRAY),
    _case("mlp-3", mlp, 3, partial(last_layer, mlp, 3), **_ARRAY),
    _case("mlp-3-zipmap", mlp, 3, partial(last_layer, mlp, 3)),
    _case("mlp-2", mlp, 2, partial(last_layer, mlp, 2), **_ARRAY),
    _case("mlp-2-zipmap", mlp, 2, partial(last_layer, mlp, 2)),
    _case("labels-mlp", _labels_mlp, 3, partial(last_layer, _labels_mlp, 3), **_ARRAY),
    _case("labels-mlp-zipmap", _labels_mlp, 3, partial(last_layer, _labels_mlp, 3)),
    # A classifier for each label, side by side: a map goes behind them. Or in a sequence, where none can.
    _refused("labels-one-vs-rest", _labels_one_vs_rest, "Concat", **_ARRAY),
    _refused("labels-multi-output", _labels_multi_output, "SequenceConstruct", **_ARRAY),
    # One score without a Sigmoid.
    _refused("linear-svc-2", linear_svc, r"ArrayFeatureExtractor|\b(1|one)\b", 2),
    _refused("ridge-2", _ridge, r"ArrayFeatureExtractor|\b(1|one)\b", 2),
    # One column of probabilities an output: none of them is a classifier's output.
    _refused("logistic-3-columns", logistic, "Slice|Normalizer|one class", zipmap="columns"),
    # One-vs-rest in plain arithmetic: 1 / (1 + exp(-s)) over its sum over classes.
    _refused("sgd-log-3", _sgd, "Div|Reciprocal|Exp|one-vs-rest", **_ARRAY),
    # A classifier for each class, concatenated.
    _refused("one-vs-rest-3", _one_vs_rest, "LpNormalization|Concat|one-vs-rest", **_ARRAY),
    _refused("calibrated-logistic-3", _calibrated, "Div|Concat|calibrat", **_ARRAY),
    _refused("qda-3", _qda, "Concat|Div|Exp", **_ARRAY),
    _refused("naive-bayes-3", _naive_bayes, "Exp|Sub", **_ARRAY),
    _refused("forest-3", forest, _TREE, **_ARRAY),
    _refused("forest-3-zipmap", forest, _TREE),
    _refused("boosting-3", boosting, _TREE, **_ARRAY),
    _refused("boosting-2", boosting, _TREE, 2, **_ARRAY),
    _refused("neighbours-3", _neighbours, "Concat|Div|ReduceSum", **_ARRAY),
    _refused("kernel-svc-3", _kernel_svc, "SVM", **_ARRAY),
)
