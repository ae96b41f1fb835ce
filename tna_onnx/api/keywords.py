"""Types of keywords. Written by `python -m tests.api.make_keywords`, of the fields of the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from tna_onnx.data.choices import Format, Frequencies, Limits, Position
from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.graph.options import ModelLimits, OutputKind
from tna_onnx.guarding.guard_settings import OodScore, SetScoreName
from tna_onnx.numerics.metric import Objective
from tna_onnx.pipeline.settings import EtsLoss, MapChoice, MapObjective, Method, Predictions, QuantizedHead, Search
from tna_onnx.shifting.shift_settings import Estimator


class DataWords(TypedDict, total=False):
    """Settings of `Data`."""

    labels: Any
    format: Format | None
    preprocessing: Recipe | str | Path | None
    classes: Sequence[str] | str | Path | None
    label_column: str | None
    group_column: str | None
    groups: Any
    weight_column: str | None
    weights: Any
    class_prior: Frequencies | None
    by: Any
    columns: Sequence[str]
    drop_columns: Sequence[str]
    tokenizer: str | Path | None
    skip_bad: bool
    expect_accuracy: float | None
    data_root: str | Path | None
    limits: Limits
    ignore_label: int | None
    position: Position | None


class EngineWords(TypedDict, total=False):
    """Settings of `EngineFields`."""

    engine: str
    ray_options: Mapping[str, Any] | None


class SampleWords(TypedDict, total=False):
    """Which samples `features` takes."""

    max_samples: int | None
    stratify: bool


class FitWords(TypedDict, total=False):
    """Settings of `Settings` that scores alone need."""

    map: MapChoice
    predictions: Predictions
    map_objective: MapObjective
    bins: int
    seed: int
    trust_labels: bool
    confidence_level: float


class ModelWords(TypedDict, total=False):
    """Settings of `ModelOptions`."""

    head: str | None
    output_name: str | None
    output_kind: OutputKind | None
    isolate: bool
    model_limits: ModelLimits


class SettingsWords(TypedDict, total=False):
    """Settings of `Settings`."""

    method: Method
    search: Search
    map: MapChoice
    predictions: Predictions
    keep_decision: bool
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
    interval: Literal["debiased", "bootstrap"]
    confidence_level: float


class LimitWords(TypedDict, total=False):
    """Limits of `Gates`."""

    max_ece: float | None
    max_nll: float | None
    min_accuracy: float | None


class ChangeWords(TypedDict, total=False):
    """Gates on a change."""

    max_recall_drop: float | None
    min_balanced_accuracy: float | None
    min_recall: Mapping[str, float] | None
    require_improvement: bool
    fail_if_worse: bool


class DecisionWords(TypedDict, total=False):
    """Settings of `GuardSettings` that `Settings` has not."""

    add: Sequence[str]
    decide: str
    positive: str
    coverage: float
    set_score: SetScoreName
    set_temperature: float | Literal["auto"]
    allow_empty: bool
    per_class: bool
    if_unreachable: Literal["omit", "fail"]
    risk: float
    delta: float
    ood_score: OodScore
    false_alarm: float
    dials: bool
    prefix: str


class ShiftSettingsWords(TypedDict, total=False):
    """Settings of `ShiftSettings`."""

    target_prior: Frequencies | None
    source_prior: Frequencies | None
    only: Sequence[str]
    estimator: Estimator
    draws: int
    trust_shift: bool
    seed: int
    trust_labels: bool
    confidence_level: float
