"""Keyword arguments of the public functions, and the values and jobs that are made of them; progress, JSON and files
that a function writes besides its result.

A keyword is a field of `Data`, `ModelOptions`, `Settings` or `Gates`; `api.keywords` has their types. The functions
take whole values too; a keyword beside one replaces that field.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from tna_onnx.api.keywords import (
    ChangeWords,
    DataWords,
    DecisionWords,
    EngineWords,
    LimitWords,
    ModelWords,
    SettingsWords,
    ShiftSettingsWords,
)
from tna_onnx.data.choices import EngineFields
from tna_onnx.data.options import Data
from tna_onnx.errors import ResultError, UsageError
from tna_onnx.fields import check_settings
from tna_onnx.files import name_problem, write_file
from tna_onnx.graph.options import ModelOptions
from tna_onnx.guarding.settings import GuardSettings
from tna_onnx.numerics.checks import check_numbers
from tna_onnx.pipeline.settings import Settings
from tna_onnx.progress import Progress, silent
from tna_onnx.results.as_json import to_json
from tna_onnx.results.gates import GateMissed, Gates
from tna_onnx.shifting.settings import ShiftSettings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tna_onnx.graph.options import ModelSource
    from tna_onnx.pipeline.job import Job

__all__ = [
    "CalibrateWords",
    "DataModelWords",
    "DataWords",
    "DecisionWords",
    "EvaluateWords",
    "FeatureWords",
    "GuardWords",
    "ModelWords",
    "ProgressWord",
    "SearchWords",
    "ShiftWords",
    "StudyWords",
    "Unpack",
    "added_settings_of",
    "beside_of",
    "check_targets",
    "data_of",
    "engine_fields_of",
    "gates_of",
    "guard_settings_of",
    "held_out_of",
    "job_of",
    "kept",
    "limits_of",
    "model_options_of",
    "refuse_unknown",
    "run_shown",
    "settings_of",
    "shift_settings_of",
    "shown",
    "with_json",
    "write_bytes",
    "write_text",
]


class DataModelWords(DataWords, ModelWords, total=False):
    """Fields of `Data` and `ModelOptions`."""


class FeatureWords(DataModelWords, EngineWords, total=False):
    """Which samples, and what computes their features."""


class _WithHeldOut(DataModelWords, total=False):
    """The labels of the held-out data too, if they are stored apart."""

    eval_labels: Any


class StudyWords(_WithHeldOut, total=False):
    """Fields of `Data` and `ModelOptions`, and the labels of the held-out data."""


class EvaluateWords(DataModelWords, LimitWords, total=False):
    """Limits of `Gates` too."""


class SearchWords(_WithHeldOut, SettingsWords, LimitWords, ChangeWords, total=False):
    """Fields of `Settings` and `Gates` too, and the labels of the held-out data."""


class ShiftWords(_WithHeldOut, ShiftSettingsWords, total=False):
    """Fields of `ShiftSettings` too, and the labels of the held-out data."""


class CalibrateWords(SearchWords, DecisionWords, total=False):
    """Fields of `GuardSettings` too; those that `Settings` has are for both."""


class GuardWords(_WithHeldOut, DecisionWords, total=False):
    """Fields of `GuardSettings` too, and the labels of the held-out data."""

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
    if given is not None:
        return _with(given, words)
    # not of the defaults: what is added without a word depends on whether there is a decision
    names = {field.name for field in dataclasses.fields(GuardSettings)}
    fields = {name: word for name, word in words.items() if name in names}
    return GuardSettings(**{**fields, "add": tuple(fields.get("add", ()))})


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
    if words.get("add") or words.get("decide"):
        return guard_settings_of(words)
    plain = GuardSettings()
    for name in DecisionWords.__annotations__:
        if name != "add" and words.get(name, getattr(plain, name)) != getattr(plain, name):
            raise UsageError(f"{name} applies to decisions, and none is added; add one with --add or --decide")
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


def job_of(
    model: ModelSource,
    calib: Any,
    held_out: Any,
    settings: Settings | None,
    gates: Gates | None,
    words: Mapping[str, Any],
    **run: Any,
) -> Job:
    """Make a recalibration, of one head or of several.

    Args:
        model: as for `calibrate`.
        calib: calibration data, likewise.
        held_out: data for the report, likewise.
        settings: as one value; single ones are in `words`.
        gates: likewise.
        words: single fields by name.
        **run: further fields of the job, as they are.

    Raises:
        UsageError: a value of the wrong type or out of its range.
    """
    # the work loads with the first call, so that the names of the functions are there at once
    from tna_onnx.pipeline.job import Job  # noqa: PLC0415

    chosen = settings_of(words, settings)
    calibration = data_of(calib, words)
    return Job(
        model=model,
        calib=calibration,
        held_out=held_out_of(held_out, calibration, words),
        options=model_options_of(words),
        settings=chosen,
        gates=gates_of(words, chosen, gates),
        **run,
    )


def engine_fields_of(words: Mapping[str, Any]) -> EngineFields:
    """Make the settings on what computes features, and of which samples.

    Raises:
        UsageError: a value of the wrong type or out of its range.
    """
    fields = _with(EngineFields(), words)
    check_settings(fields)
    if fields.max_samples is not None and fields.max_samples < 1:
        raise UsageError(f"max_samples must be at least 1, got {fields.max_samples}")
    if fields.stratify and fields.max_samples is None:
        raise UsageError("--stratify needs --max-samples, the number of samples to choose")
    return dataclasses.replace(fields, ray_options=fields.ray_options or None)


def beside_of(samples: Any, calib: Data, words: Mapping[str, Any]) -> Data | None:
    """Make further samples that are read like the calibration data; labels that lie apart are not theirs, nor groups.

    Raises:
        UsageError: a value of the wrong type.
    """
    apart = {**words, "eval_labels": None, "groups": None, "group_column": None, "by": None}
    return held_out_of(samples, dataclasses.replace(calib, groups=None, group_column=None, by=None), apart)


def model_options_of(words: Mapping[str, Any]) -> ModelOptions:
    """Make the options on head and output.

    Raises:
        UsageError: a head or output that is not one name.
    """
    for word in ("head", "output_name"):
        value = words.get(word)
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{word}: expected one name, got {value!r}")
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
    if calib.groups is not None and getattr(samples, "groups", None) is None:
        raise UsageError("groups are those of the calibration data; give those of eval too: eval=Data(..., groups=...)")
    if not isinstance(samples, Data):
        # the accuracy that the user expects is measured once, on the calibration data
        return dataclasses.replace(calib, samples=samples, labels=labels, expect_accuracy=None)
    # these are about the calibration data
    own = {name: word for name, word in words.items() if name not in ("labels", "groups", "expect_accuracy")}
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


ProgressWord = Progress | bool | None
"""A callback that gets (stage, done, total); True for bars on standard error; None and False for nothing."""

J = TypeVar("J")
R = TypeVar("R")


@contextlib.contextmanager
def shown(progress: ProgressWord) -> Iterator[Progress]:
    """Give the callback that a word for progress stands for."""
    if progress is not True:
        yield progress or silent
        return
    from tna_onnx.render.progress import progress_shown  # noqa: PLC0415 - rich loads only where bars are wanted

    with progress_shown() as callback:
        yield callback


def check_targets(*paths: str | Path | None) -> None:
    """Refuse files that cannot be written, before the work.

    Raises:
        UsageError: a folder is missing, or the path is a folder.
    """
    for path in paths:
        if path is None:
            continue
        if problem := name_problem(path):
            raise UsageError(problem)
        file = Path(path).absolute()
        if not file.parent.is_dir():
            raise UsageError(f"{path}: folder {file.parent} does not exist; create it or choose another")
        if file.is_dir():
            raise UsageError(f"{path}: is a folder; expected the name of a file")


def write_text(path: str | Path, text: str) -> None:
    """Write a text.

    Raises:
        ResultError: it cannot be written.
    """
    write_bytes(path, text.encode())


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a result.

    Raises:
        ResultError: it cannot be written.
    """
    try:
        write_file(Path(path), content)
    except OSError as error:
        raise ResultError(f"{path}: cannot be written: {error.strerror}") from error


def kept(path: str | Path | None, result: R) -> R:
    """Write a result as JSON, if that is wanted, and return it.

    Raises:
        ResultError: the file cannot be written.
    """
    if path is not None:
        write_text(path, to_json(result, details=getattr(result, "details", None) is not None))
    return result


def run_shown(run: Callable[[J, Progress], R], job: J, progress: ProgressWord, json: str | Path | None) -> R:
    """Run a job with its progress shown, and write its result as JSON if that is asked for.

    Raises:
        TnaError: of the job; or `json` cannot be written.
    """
    with shown(progress) as advance:
        return with_json(json, lambda: run(job, advance))


def with_json(path: str | Path | None, run: Callable[[], R], write: Callable[[Any], None] | None = None) -> R:
    """Run, and write the result as JSON; also that of a run that missed gates.

    Args:
        path: of the JSON; None for none.
        run: gives the result.
        write: writes what else is wanted of the result.

    Raises:
        ResultError: a file cannot be written.
    """

    def finish(result: Any) -> None:
        kept(path, result)
        if write is not None:
            write(result)

    check_targets(path)
    try:
        result = run()
    except GateMissed as missed:
        finish(missed.result)
        raise
    finish(result)
    return result
