"""Keywords of the public functions: their types.

A keyword is a field of `Data`, `ModelOptions`, `Settings` or `Gates`. The functions take whole values too; a keyword
beside one replaces that field.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from tna_onnx.calibration.settings import (
    Anchor,
    EtsLoss,
    MapChoice,
    MapObjective,
    Method,
    Predictions,
    QuantizedHead,
    Search,
)
from tna_onnx.data import Format, Recipe
from tna_onnx.data.limits import Limits
from tna_onnx.data.words import Position
from tna_onnx.graph.limits import ModelLimits
from tna_onnx.graph.options import OutputKind
from tna_onnx.guarding.settings import OodScore, SetScoreName
from tna_onnx.numerics.metric import Objective
from tna_onnx.shifting.settings import Estimator, Frequencies

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

__all__ = [
    "CalibrateWords",
    "DataModelWords",
    "DataWords",
    "DecisionWords",
    "EvaluateWords",
    "GuardWords",
    "ModelWords",
    "SearchWords",
    "ShiftWords",
    "StudyWords",
    "Unpack",
]


class DataWords(TypedDict, total=False):
    """Fields of `Data` besides the samples."""

    labels: Any
    format: Format | None
    preprocessing: Recipe | str | Path | None
    classes: Sequence[str] | str | Path | None
    label_column: str | None
    columns: Sequence[str]
    tokenizer: str | Path | None
    skip_bad: bool
    expect_accuracy: float | None
    data_root: str | Path | None
    limits: Limits
    ignore_label: int | None
    position: Position | None


class ModelWords(TypedDict, total=False):
    """Fields of `ModelOptions`."""

    head: str | None
    output_name: str | None
    output_kind: OutputKind | None
    isolate: bool
    model_limits: ModelLimits


class DataModelWords(DataWords, ModelWords, total=False):
    """Fields of `Data` and `ModelOptions`."""


class StudyWords(DataModelWords, total=False):
    """The labels of the held-out data too."""

    eval_labels: Any


class EvaluateWords(DataModelWords, total=False):
    """Limits of `Gates` too."""

    max_ece: float | None
    max_nll: float | None
    min_accuracy: float | None


class SearchWords(DataModelWords, total=False):
    """Fields of `Settings` and `Gates` too, and the labels of the held-out data."""

    eval_labels: Any
    method: Method
    search: Search
    map: MapChoice
    anchor: Anchor
    predictions: Predictions
    fold: bool
    ets_loss: EtsLoss
    map_objective: MapObjective
    objective: Objective
    max_accuracy_drop: float
    ensemble_size: int | Literal["auto", "inf"]
    max_ensemble_size: int
    antithetic: bool
    tilt_bias: bool
    angle_step: float
    adaptive: bool
    alpha: float
    beta: float
    theta_s: float
    n_t: int
    bins: int
    seed: int
    trust_labels: bool
    quantized_head: QuantizedHead
    confidence_level: float
    max_ece: float | None
    max_nll: float | None
    min_accuracy: float | None
    require_improvement: bool
    fail_if_worse: bool


class ShiftWords(DataModelWords, total=False):
    """Fields of `ShiftSettings` too, and the labels of the held-out data."""

    eval_labels: Any
    target_prior: Frequencies | None
    source_prior: Frequencies | None
    estimator: Estimator
    draws: int
    trust_shift: bool
    seed: int
    confidence_level: float


class DecisionWords(TypedDict, total=False):
    """Fields of `GuardSettings` that `Settings` has not."""

    add: Sequence[str]
    coverage: float
    set_score: SetScoreName
    set_temperature: float | Literal["auto"]
    per_class: bool
    risk: float
    delta: float
    ood_score: OodScore
    false_alarm: float
    dials: bool
    prefix: str


class CalibrateWords(SearchWords, DecisionWords, total=False):
    """Fields of `GuardSettings` too; those that `Settings` has are for both."""


class GuardWords(DataModelWords, DecisionWords, total=False):
    """Fields of `GuardSettings` too, and the labels of the held-out data."""

    eval_labels: Any
    seed: int
    confidence_level: float
