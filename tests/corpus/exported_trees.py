"""Boosted trees, written by onnxmltools: no linear head, and with XGBoost no standard operator set either."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.corpus.case import Case, quiet

_FEATURES = 8


def _fitted(library: str, classes: int) -> Any:
    rng = np.random.default_rng(7)
    y = rng.integers(0, classes, 300)
    x = rng.standard_normal((300, _FEATURES)) + 0.8 * rng.standard_normal((classes, _FEATURES))[y]
    if library == "xgboost":
        from xgboost import XGBClassifier

        return XGBClassifier(n_estimators=5, n_jobs=1).fit(x, y)
    from lightgbm import LGBMClassifier

    return LGBMClassifier(n_estimators=5, n_jobs=1, verbose=-1).fit(x, y)


def write(library: str, classes: int, folder: Path) -> Path:
    """Write fitted trees as onnxmltools does by default."""
    path = folder / "model.onnx"
    with quiet():
        import onnx
        import onnxmltools
        from onnxmltools.convert.common.data_types import FloatTensorType

        convert = getattr(onnxmltools, f"convert_{library}")
        types = [("input", FloatTensorType([None, _FEATURES]))]
        onnx.save(convert(_fitted(library, classes), initial_types=types), path)
    return path


def _feeds(n: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    return {"input": rng.standard_normal((n, _FEATURES)).astype(np.float32)}


CASES: tuple[Case, ...] = tuple(
    Case(
        f"trees/{library}-{classes}", "trees", partial(write, library, classes), None, reason="TreeEnsemble",
        feeds=_feeds, needs=("onnxmltools", library),
    )
    for library in ("xgboost", "lightgbm")
    for classes in (2, 3)
)  # fmt: skip
