"""Boosted trees, written by onnxmltools: no linear head, and with XGBoost no standard operator set either."""

from functools import partial
from pathlib import Path

from tests.corpus.case import Case, normal_feeds, quiet
from tests.corpus.exported_sklearn import FEATURES, classifier, fitted

_MAKERS = {
    "xgboost": classifier("xgboost.XGBClassifier", n_estimators=5, n_jobs=1),
    "lightgbm": classifier("lightgbm.LGBMClassifier", n_estimators=5, n_jobs=1, verbose=-1),
}


def write(library: str, classes: int, folder: Path) -> Path:
    """Write fitted trees as onnxmltools does by default."""
    path = folder / "model.onnx"
    with quiet():
        import onnx
        import onnxmltools
        from onnxmltools.convert.common.data_types import FloatTensorType

        convert = getattr(onnxmltools, f"convert_{library}")
        types = [("input", FloatTensorType([None, FEATURES]))]
        onnx.save(convert(fitted(_MAKERS[library], classes), initial_types=types), path)
    return path


CASES: tuple[Case, ...] = tuple(
    Case(
        f"trees/{library}-{classes}", "trees", partial(write, library, classes), None, reason="TreeEnsemble",
        feeds=normal_feeds("input", FEATURES), needs=("onnxmltools", library),
    )
    for library in _MAKERS
    for classes in (2, 3)
)  # fmt: skip
