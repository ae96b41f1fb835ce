"""Keywords of the public functions: their types, and the values that they make.

A keyword is a field of `Data`, `ModelOptions`, `Settings` or `Gates`. The functions take whole values too; a keyword
beside one replaces that field.
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from tna_onnx.calibration.settings import (
    Anchor,
    EtsLoss,
    MapChoice,
    MapObjective,
    Method,
    Predictions,
    QuantizedHead,
    Search,
    Settings,
)
from tna_onnx.data import Format, Recipe
from tna_onnx.data.limits import Limits
from tna_onnx.data.options import Data
from tna_onnx.data.words import Position
from tna_onnx.errors import UsageError
from tna_onnx.graph.limits import ModelLimits
from tna_onnx.graph.options import ModelOptions, OutputKind
from tna_onnx.guarding.settings import GuardSettings, OodScore, SetScoreName
from tna_onnx.numerics.checks import check_numbers
from tna_onnx.numerics.metric import Objective
from tna_onnx.results.gates import Gates
from tna_onnx.shifting.settings import Estimator, Frequencies, ShiftSettings

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "CalibrateWords",
    "DataModelWords",
    "DataWords",
    "DecisionWords",
    "EvaluateWords",
    "GuardWords",
    "ModelWords",
    "ShiftWords",
    "StudyWords",
    "Unpack",
    "added_settings_of",
    "data_of",
    "gates_of",
    "guard_settings_of",
    "held_out_of",
    "limits_of",
    "model_options_of",
    "refuse_unknown",
    "settings_of",
    "shift_settings_of",
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


V = TypeVar("V", bound="DataclassInstance")


def settings_of(words: Mapping[str, Any], given: Settings | None = None) -> Settings:
    """Make the settings.

    Raises:
        UsageError: a value of the wrong type or out of its range.
    """
    return _with(given or Settings(), words)


def guard_settings_of(words: Mapping[str, Any], given: GuardSettings | None = None) -> GuardSettings:
    """Make the settings of `guard`.

    Raises:
        UsageError: a value of the wrong type or out of its range.
    """
    settings = _with(given or GuardSettings(), words)
    return dataclasses.replace(settings, add=tuple(settings.add))


def shift_settings_of(words: Mapping[str, Any], given: ShiftSettings | None = None) -> ShiftSettings:
    """Make the settings of `shift`.

    Raises:
        UsageError: a value of the wrong type or out of its range.
    """
    return _with(given or ShiftSettings(), words)


def added_settings_of(words: Mapping[str, Any]) -> GuardSettings | None:
    """Make the settings of the decisions that `calibrate` adds; None where none is to be added.

    Raises:
        UsageError: a value of the wrong type or out of its range, or of a decision where none is added.
    """
    if words.get("add"):
        return guard_settings_of(words)
    plain = GuardSettings()
    for name in DecisionWords.__annotations__:
        if name != "add" and words.get(name, getattr(plain, name)) != getattr(plain, name):
            raise UsageError(f"{name} is about decisions, and none is added; say which, with --add")
    return None


def limits_of(words: Mapping[str, Any]) -> Gates:
    """Make gates of limits on metrics alone.

    Raises:
        UsageError: a value of the wrong type or out of its range.
    """
    return _with(Gates(), words)


def gates_of(words: Mapping[str, Any], settings: Settings, given: Gates | None = None) -> Gates:
    """Make the gates; the largest loss of accuracy is that of the settings, unless gates are given that say another.

    Raises:
        UsageError: a value of the wrong type or out of its range.
    """
    # `max_accuracy_drop` is a field of both: a limit of the search, and a gate on its result
    gates = _with(given or Gates(), words)
    if gates.max_accuracy_drop is None:
        gates = dataclasses.replace(gates, max_accuracy_drop=settings.max_accuracy_drop)
    return gates


def model_options_of(words: Mapping[str, Any]) -> ModelOptions:
    """Make the options on head and output."""
    return _with(ModelOptions(), words)


def data_of(samples: Any, words: Mapping[str, Any]) -> Data:
    """Make labelled samples: of a `Data`, or of a path, arrays and so on.

    Raises:
        UsageError: a value of the wrong type.
    """
    check_numbers("a number or None", expect_accuracy=words.get("expect_accuracy"))
    return _with(samples if isinstance(samples, Data) else Data(samples), words)


def held_out_of(samples: Any, calib: Data, words: Mapping[str, Any]) -> Data | None:
    """Make held-out samples: they are read like the calibration data, unless they are a `Data` of their own.

    Raises:
        UsageError: a value of the wrong type.
    """
    if samples is None:
        return None
    labels = words.get("eval_labels")
    if not isinstance(samples, Data):
        # the accuracy that the user expects is measured once, on the calibration data
        return dataclasses.replace(calib, samples=samples, labels=labels, expect_accuracy=None)
    # these two are about the calibration data
    own = {name: word for name, word in words.items() if name not in ("labels", "expect_accuracy")}
    if labels is not None:
        own["labels"] = labels
    return data_of(samples, own)


def refuse_unknown(function: str, words: Mapping[str, Any], known: type) -> None:
    """Refuse keywords that a function does not have, as Python does for plain signatures.

    Raises:
        TypeError: such a keyword.
    """
    # a TypedDict's annotations hold those that it inherits
    names = [*known.__annotations__]
    for word in words:
        if word not in names:
            close = difflib.get_close_matches(word, names, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            raise TypeError(f"{function}() got an unexpected keyword argument '{word}'{hint}")


def _with(value: V, words: Mapping[str, Any]) -> V:
    """Replace those fields of a value that are named by words."""
    fields = {field.name for field in dataclasses.fields(value)}
    return dataclasses.replace(value, **{name: word for name, word in words.items() if name in fields})
