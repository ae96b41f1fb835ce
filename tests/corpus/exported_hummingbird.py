"""scikit-learn, XGBoost and LightGBM models as tensors, which Hummingbird makes and torch's tracing exporter writes.

The truth of a linear model is scikit-learn's; a Sigmoid has [0, w]. Trees have no linear head, although Hummingbird
computes them with matrix products.
"""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.corpus.case import Case, quiet

Array = NDArray[Any]
_FEATURES = 8


@cache
def _data(classes: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(11)
    y = rng.integers(0, classes, 300)
    x = rng.standard_normal((300, _FEATURES)) + 0.8 * rng.standard_normal((classes, _FEATURES))[y]
    return x.astype(np.float32), y


def _logistic() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=2.0)


def _scaled() -> Any:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), _logistic())


def _linear_svc() -> Any:
    from sklearn.svm import LinearSVC

    return LinearSVC(random_state=0)


def _mlp() -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier((16,), max_iter=20, random_state=0)


def _forest() -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(5, max_depth=3, random_state=0)


def _tree() -> Any:
    from sklearn.tree import DecisionTreeClassifier

    return DecisionTreeClassifier(max_depth=3, random_state=0)


def _boosting() -> Any:
    from sklearn.ensemble import GradientBoostingClassifier

    return GradientBoostingClassifier(n_estimators=3, max_depth=3, random_state=0)


def _xgboost() -> Any:
    from xgboost import XGBClassifier

    return XGBClassifier(n_estimators=5, max_depth=3, n_jobs=1)


def _lightgbm() -> Any:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(n_estimators=5, max_depth=3, n_jobs=1, verbose=-1)


@cache
def _fitted(make: Callable[[], Any], classes: int) -> Any:
    with quiet():
        return make().fit(*_data(classes))


def write(make: Callable[[], Any], classes: int, folder: Path, **extra: Any) -> Path:
    """Write what Hummingbird's module computes, labels and probabilities; `extra` are its own settings.

    Its own ONNX backend leaves the choice of the exporter to torch, whose newer one cannot follow it.
    """
    path, x = folder / "model.onnx", _data(classes)[0][:3]
    with quiet():
        import torch
        from hummingbird.ml import convert

        module = convert(_fitted(make, classes), "torch", x, extra_config=extra).model
        torch.onnx.export(
            module.eval(), (torch.from_numpy(x),), str(path), input_names=["x"], output_names=["label", "probability"],
            dynamic_axes={"x": {0: "N"}}, opset_version=17, dynamo=False,
        )  # fmt: skip
    return path


def _pair(vectors: Array) -> Array:
    return np.concatenate([np.zeros_like(vectors), vectors]) if len(vectors) == 1 else vectors


def _coef(make: Callable[[], Any], classes: int) -> Array:
    model = _fitted(make, classes)
    return _pair(np.asarray((model.steps[-1][1] if hasattr(model, "steps") else model).coef_))


def _last_layer(classes: int) -> Array:
    return _pair(_fitted(_mlp, classes).coefs_[-1].T)


def _feeds(n: int, rng: np.random.Generator) -> dict[str, Array]:
    return {"x": rng.standard_normal((n, _FEATURES)).astype(np.float32)}


def _case(
    name: str,
    make: Callable[[], Any],
    classes: int,
    weight: Callable[[], Array] | None = None,
    reason: str = "",
    needs: tuple[str, ...] = (),
    **extra: Any,
) -> Case:
    return Case(
        name=f"hummingbird/{name}-{classes}", route="hummingbird",
        build=lambda folder: write(make, classes, folder, **extra), weight=weight, reason=reason, feeds=_feeds,
        needs=("hummingbird", "sklearn", "torch", *needs),
    )  # fmt: skip


def _trees(name: str, make: Callable[[], Any], classes: int, form: str, *needs: str) -> Case:
    """`form` is how trees become tensors: gemm, tree_trav or perf_tree_trav."""
    reason = "computed by|no linear layer lies before"
    return _case(f"{name}-{form}", make, classes, reason=reason, needs=needs, tree_implementation=form)


CASES: tuple[Case, ...] = (
    *(
        _case(name, make, classes, partial(_coef, make, classes))
        for name, make in (("logistic", _logistic), ("scaled-logistic", _scaled), ("linear-svc", _linear_svc))
        for classes in (2, 3)
    ),
    *(_case("mlp", _mlp, classes, partial(_last_layer, classes)) for classes in (2, 3)),
    *(_trees("forest", _forest, 3, form) for form in ("gemm", "tree_trav", "perf_tree_trav")),
    *(_trees("tree", _tree, classes, "gemm") for classes in (2, 3)),
    *(_trees("boosting", _boosting, classes, "tree_trav") for classes in (2, 3)),
    *(
        _trees(library, make, classes, "gemm", library)
        for library, make in (("xgboost", _xgboost), ("lightgbm", _lightgbm))
        for classes in (2, 3)
    ),
)
