"""scikit-learn, XGBoost and LightGBM models as tensors, which Hummingbird makes and torch's tracing exporter writes.

The truth of a linear model is scikit-learn's; a Sigmoid has [0, w]. Trees have no linear head, although Hummingbird
computes them with matrix products.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.corpus import exported_sklearn as sk
from tests.corpus.case import Case, normal_feeds, quiet

_tree = sk.classifier("sklearn.tree.DecisionTreeClassifier", max_depth=3, random_state=0)
_xgboost = sk.classifier("xgboost.XGBClassifier", n_estimators=5, max_depth=3, n_jobs=1)
_lightgbm = sk.classifier("lightgbm.LGBMClassifier", n_estimators=5, max_depth=3, n_jobs=1, verbose=-1)


def write(make: Callable[[], Any], classes: int, folder: Path, **extra: Any) -> Path:
    """Write what Hummingbird's module computes, labels and probabilities; `extra` are its own settings.

    Its own ONNX backend leaves the choice of the exporter to torch, whose newer one cannot follow it.
    """
    path, x = folder / "model.onnx", sk.data(classes)[0][:3]
    with quiet():
        import torch
        from hummingbird.ml import convert

        module = convert(sk.fitted(make, classes), "torch", x, extra_config=extra).model
        torch.onnx.export(
            module.eval(), (torch.from_numpy(x),), str(path), input_names=["x"], output_names=["label", "probability"],
            dynamic_axes={"x": {0: "N"}}, opset_version=17, dynamo=False,
        )  # fmt: skip
    return path


def _case(
    name: str,
    make: Callable[[], Any],
    classes: int,
    weight: Callable[[], sk.Array] | None = None,
    reason: str = "",
    needs: tuple[str, ...] = (),
    **extra: Any,
) -> Case:
    return Case(
        f"hummingbird/{name}-{classes}", "hummingbird", lambda folder: write(make, classes, folder, **extra), weight,
        reason, normal_feeds("x", sk.FEATURES), needs=("hummingbird", "sklearn", "torch", *needs),
    )  # fmt: skip


def _trees(name: str, make: Callable[[], Any], classes: int, form: str, *needs: str) -> Case:
    """`form` is how trees become tensors: gemm, tree_trav or perf_tree_trav."""
    reason = "computed by|no linear layer lies before"
    return _case(f"{name}-{form}", make, classes, reason=reason, needs=needs, tree_implementation=form)


CASES: tuple[Case, ...] = (
    *(
        _case(name, make, classes, partial(sk.coef, make, classes))
        for name, make in (("logistic", sk.logistic), ("scaled-logistic", sk.scaled), ("linear-svc", sk.linear_svc))
        for classes in (2, 3)
    ),
    *(_case("mlp", sk.mlp, classes, partial(sk.last_layer, sk.mlp, classes)) for classes in (2, 3)),
    *(_trees("forest", sk.forest, 3, form) for form in ("gemm", "tree_trav", "perf_tree_trav")),
    *(_trees("tree", _tree, classes, "gemm") for classes in (2, 3)),
    *(_trees("boosting", sk.boosting, classes, "tree_trav") for classes in (2, 3)),
    *(
        _trees(library, make, classes, "gemm", library)
        for library, make in (("xgboost", _xgboost), ("lightgbm", _lightgbm))
        for classes in (2, 3)
    ),
)
