"""`Calibrator`: what `calibrate` chooses and fits, for logits or probabilities in arrays, as a scikit-learn estimator.

The scores go through an ONNX model that hands them on, so choice, report and file are the command's by construction.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.api.arguments import ProgressWord, check_targets, checked, combined, stated_in
from tna_onnx.data.foreign import any_array, plain_column
from tna_onnx.data.options import Data
from tna_onnx.data.sources.feature_files import ScoresWord, open_scores
from tna_onnx.errors import DataError, UsageError, in_words_of_python
from tna_onnx.graph.options import ModelOptions
from tna_onnx.pipeline.settings import FIT_SETTINGS, MapChoice, Predictions, Settings
from tna_onnx.results.report import Report

_ROUNDING = 1e-3  # of the sum of a row of probabilities


class ScoresError(DataError, ValueError):
    """Scores or labels that cannot be used; also what scikit-learn expects to be raised for them."""


class Calibrator:
    """Calibrates the scores of a classifier, whatever computed them.

    It follows scikit-learn's conventions (`fit`, `predict_proba`, `get_params`, cloning, pickling) and works in its
    pipelines, without importing it.

    Args:
        scores: what the columns are: `logits`, natural logarithms before a softmax, or `probabilities`. None takes
            rows that are not negative and add up to 1 for probabilities, and others for logits.
        map: a map's name, or `auto` for the choice by cross-validation, as in `tna_onnx.Settings`.
        predictions: `auto`, `keep` or `change`, as there.
        bins: of ECE and AdaECE.
        seed: of all random draws.
        trust_labels: calibrate although labels look wrong beside the predictions.

    Attributes:
        classes_: the labels in the order of the columns.
        n_features_in_: number of columns that `predict_proba` reads, C.
        scores_: what the columns are.
        method_: what was chosen, in a word.
        parameters_: what a reader wants to know of the fitted map.
        report_: the whole `Report`.

    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 3, 600)
    >>> logits = 6 * (np.eye(3)[y] + rng.standard_normal((600, 3)))
    >>> calibrator = Calibrator(map="ts").fit(logits, y)
    >>> calibrator.predict_proba(logits[:2]).shape
    (2, 3)
    """

    _estimator_type = "classifier"

    def __init__(
        self,
        *,
        scores: ScoresWord | None = None,
        map: str = "auto",  # noqa: A002 - the word of `Settings`
        predictions: str = "auto",
        bins: int = 15,
        seed: int = 0,
        trust_labels: bool = False,
    ) -> None:
        # scikit-learn clones by these names: nothing is checked or changed before `fit`
        self.scores = scores
        self.map = map
        self.predictions = predictions
        self.bins = bins
        self.seed = seed
        self.trust_labels = trust_labels

    @in_words_of_python
    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Calibrator:
        """Choose and fit a map.

        Args:
            X: scores (N, C); of two classes also (N,) or (N, 1), those of the second one.
            y: labels (N,): column numbers, or C distinct values, whose sorted order is that of the columns.
            sample_weight: how much each sample counts, (N,), zero or more; their unit does not matter.
            groups: which samples belong together, (N,) numbers or texts: folds and intervals are of groups then.

        Raises:
            UsageError: a setting that cannot be used.
            DataError: scores and labels do not fit together, or no map can be fitted on them.
        """
        self.scores_ = self.scores or _kind_of(X)
        values = checked_scores(X, self.scores_)
        labels, self.classes_ = column_numbers(y, values)
        self.n_features_in_ = int(values.shape[1])
        settings = {name: getattr(self, name) for name in ("map", "predictions", "bins", "seed", "trust_labels")}
        data = Data({"scores": values, "labels": labels}, groups=groups, weights=sample_weight)
        report = calibrated(data, self.scores_, settings)
        self.report_ = report
        self.method_ = report.method
        self.parameters_ = dict(report.parameters)
        self._model: bytes = report.recalibrated.SerializeToString()
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return calibrated probabilities (N, C) of scores (N, C).

        Raises:
            DataError: other columns than those of the fit.
        """
        self._require_fitted()
        values = checked_scores(X, self.scores_)
        if values.shape[1] != self.n_features_in_:
            raise ScoresError(
                f"X has {values.shape[1]} features, but Calibrator is expecting {self.n_features_in_} features as input"
            )
        from tna_onnx.numerics.ops import softmax
        from tna_onnx.runtime import open_session, parse_device

        session = open_session(self._model, "calibrator", parse_device("cpu"))
        calibrated = session.run(["calibrated"], {"scores": values})[0].astype(np.float64)
        if self.scores_ == "logits":
            return softmax(calibrated)
        return np.asarray(calibrated / calibrated.sum(axis=1, keepdims=True))

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return calibrated probabilities, as `predict_proba` does: for a step in the middle of a pipeline."""
        return self.predict_proba(X)

    def fit_transform(self, X: Any, y: Any) -> NDArray[np.float64]:
        """Fit, and return the calibrated probabilities of the same samples."""
        return self.fit(X, y).predict_proba(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the labels with the largest probabilities (N,)."""
        largest = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[largest])

    def score(self, X: Any, y: Any) -> float:
        """Return the accuracy, as classifiers of scikit-learn do."""
        return float(np.mean(self.predict(X) == np.asarray(y)))

    def to_onnx(self) -> Any:
        """Return a model by itself, an onnx.ModelProto: `scores` (N, C) -> `calibrated` (N, C), of the same kind."""
        self._require_fitted()
        from tna_onnx.graph.load import load_model

        return load_model(self._model).proto

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002 - scikit-learn's word
        """Return the settings by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Calibrator:
        """Change settings.

        Raises:
            ValueError: there is no such setting.
        """
        for name, value in params.items():
            if name not in self.get_params():
                raise ValueError(f"Calibrator has no parameter {name!r}; expected {', '.join(self.get_params())}")
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn wants to know of an estimator; called by it alone."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            transformer_tags=TransformerTags(),
            classifier_tags=ClassifierTags(),
            input_tags=InputTags(),
        )

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether `fit` has been called."""
        return hasattr(self, "_model")

    def __repr__(self) -> str:
        """Name the settings."""
        return f"Calibrator({', '.join(f'{name}={value!r}' for name, value in self.get_params().items())})"

    def _require_fitted(self) -> None:
        if hasattr(self, "_model"):
            return
        message = "this Calibrator is not fitted yet; call fit first"
        # scikit-learn's own error where it is loaded: its tools catch that
        exceptions = sys.modules.get("sklearn.exceptions")
        if exceptions is None:
            raise UsageError(message)
        raise exceptions.NotFittedError(message)


def calibrated(data: Data, scores: ScoresWord, settings: Mapping[str, Any], **keywords: Any) -> Report:
    """Choose and fit a map for scores, as `calibrate` does for a model that hands them on.

    `data`: of arrays `scores` (N, C) and `labels` (N,), column numbers. `scores`: what the values are. `settings`:
    fields of `Settings`. `keywords`: those of `calibrate`, whose errors it raises.
    """
    from tna_onnx.api.calibrate import calibrate
    from tna_onnx.graph.nodes import scores_model

    model = scores_model(data.samples["scores"].shape[1])
    run_settings = Settings(**{**settings, "search": "none"})
    options = ModelOptions(output_kind=scores)
    return calibrate(model, data, settings=run_settings, model_options=options, device="cpu", **keywords)


def checked_scores(X: Any, scores: str, name: str = "X") -> NDArray[np.float32]:
    """Return scores as (N, C) float32; `name` is what an error calls them.

    Raises ScoresError: another shape, values that are NaN or infinite, or no probabilities.
    """
    if scores not in ("logits", "probabilities"):
        raise UsageError(f"scores {scores!r} are not known; expected logits or probabilities")
    if hasattr(X, "toarray"):
        raise ScoresError(f"{name} is sparse; sparse input is not supported: give {name}.toarray()")
    values = any_array(X)
    if values.dtype.kind == "c":
        raise ScoresError(f"Complex data not supported; {name} must hold real numbers")  # scikit-learn's words
    if values.dtype.kind not in "iuf":
        raise ScoresError(f"{name} must hold numbers, got {values.dtype}")
    values = values.astype(np.float32, copy=False)
    if values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1):
        second = values.reshape(-1, 1)
        first = 1 - second
        if scores == "logits":
            first = np.zeros_like(second)
        values = np.concatenate([first, second], axis=1)
    if values.ndim != 2 or not len(values):
        raise ScoresError(f"{name} must have shape (N, C), one column a class, and at least one row; got {np.shape(X)}")
    if not np.all(np.isfinite(values)):
        row = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
        raise ScoresError(f"{name}: row {row} holds NaN or infinite values")
    sums = values.sum(axis=1, dtype=np.float64)
    if scores == "probabilities" and (values.min() < 0 or np.any(np.abs(sums - 1) > _ROUNDING)):
        how = "--scores logits"
        if name == "X":
            how = "scores='logits'"
        raise ScoresError(f"{name}: rows are no probabilities, which add up to 1; for logits: {how}")
    return values


def _kind_of(X: Any) -> ScoresWord:
    """Return what scores (N, C) look like; one column alone is that of a logit, unless it lies within 0 to 1."""
    values = any_array(X)
    if values.dtype.kind not in "iuf" or not values.size or values.min() < 0 or values.max() > 1:
        return "logits"
    in_columns = values.ndim == 2 and values.shape[1] > 1
    if in_columns and np.any(np.abs(values.sum(axis=1, dtype=np.float64) - 1) > _ROUNDING):
        return "logits"
    return "probabilities"


def column_numbers(y: Any, values: NDArray[Any], name: str = "y") -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return column numbers (N,), and what label each column is; `name` is what an error calls the labels.

    Raises ScoresError: there are not as many labels as rows, or as columns.
    """
    labels = any_array(y)
    if labels.dtype == object:
        labels = plain_column(labels)
    columns = values.shape[1]
    if labels.ndim != 1 or len(labels) != len(values):
        raise ScoresError(f"{name} must have shape ({len(values)},), one label a row of scores; got {labels.shape}")
    if labels.dtype.kind == "f" and not np.all(np.isfinite(labels)):
        raise ScoresError(f"{name} holds NaN or infinite values")
    if labels.dtype.kind == "f" and np.any(labels != np.round(labels)):
        raise ScoresError(f"Unknown label type: continuous; {name} must hold classes")  # scikit-learn's words
    if labels.dtype.kind in "iu" and labels.min() >= 0 and labels.max() < columns:
        return labels.astype(np.int64), np.arange(columns)
    classes, indices = np.unique(labels, return_inverse=True)
    if len(classes) != columns:
        raise ScoresError(
            f"{name} has {len(classes)} distinct labels for {columns} columns of scores; expected one for each, or "
            f"labels from 0 to {columns - 1}"
        )
    return indices.astype(np.int64), classes


@checked
def fit(
    data: Any,
    output: str | Path | None = None,
    *,
    scores: ScoresWord | None = None,
    map: MapChoice | None = None,  # noqa: A002 - the word of `Settings`
    predictions: Predictions | None = None,
    seed: int | None = None,
    settings: Settings | None = None,
    json: str | Path | None = None,
    progress: ProgressWord = None,
) -> Report:
    """Choose and fit a map for logits or probabilities in files, and write it as a model by itself.

    The model has one input, `scores` (N, C), and one output, `calibrated` (N, C), of the same kind. `Calibrator` does
    the same for arrays.

    Args:
        data: `.npz` file, Parquet or Arrow files (a file, a folder, a pattern, a URL), or a mapping of arrays, with
            `logits` or `probabilities` (N, C), and labels; or a `tna_onnx.Data` of one, which names the columns of
            labels, groups and weights, or the class frequencies.
        output: file to write; None for none: the model is `Report.recalibrated`.
        scores: which of the two, where the data hold both.
        map: a map's name, or `auto`, as in `tna_onnx.Settings`.
        predictions: `auto`, `keep` or `change`, as there.
        seed: of all random draws.
        settings: of these three, `map_objective`, `bins`, `trust_labels` and `confidence_level`.
        json, progress: as for `calibrate`.

    Raises:
        UsageError: a path or setting that cannot be used, is about a head to search, or is given both ways.
        DataError: there are no such scores or labels, or no map can be fitted on them.
        CheckFailed: the file does not verify.
    """
    stated = stated_in(combined(settings, Settings, map=map, predictions=predictions, seed=seed))
    for name in stated:
        if name not in (*FIT_SETTINGS, "map_objective", "confidence_level"):
            raise UsageError(f"{name} is about the head of a model, and fit has scores alone; leave it out")
    source = data if isinstance(data, Data) else Data(data)
    for name in stated_in(source):
        if name not in ("samples", "label_column", "group_column", "weight_column", "class_prior"):
            raise UsageError(f"fit does not use {name}, which is for the inputs of a model; leave it out")
    check_targets(output, json, in_use=[source])
    kind, stored, stored_labels, parts = open_scores(replace(source, class_prior=None), scores)
    place = ""
    if not isinstance(source.samples, Mapping):
        place = f"{source.samples}: "
    values = checked_scores(stored, kind, f"{place}{kind}")
    labels, _ = column_numbers(stored_labels, values, f"{place}labels")
    samples = Data(
        {"scores": values, "labels": labels},
        groups=parts.get("group"),
        weights=parts.get("weight"),
        class_prior=source.class_prior,
    )
    return calibrated(samples, kind, stated, output=output, json=json, progress=progress)
