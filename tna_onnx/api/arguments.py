"""Keyword arguments of the public functions, and the values and jobs that are made of them; progress, JSON and files
that a function writes besides its result.

A keyword is a field of `Data`, `ModelOptions`, `Settings` or `Gates`; `api.keywords` has their types. The functions
take whole values too; a keyword beside one replaces that field.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tna_onnx.api.keywords import (
    ChangeWords,
    DataWords,
    DecisionWords,
    EngineWords,
    LimitWords,
    ModelWords,
    SampleWords,
    SettingsWords,
    ShiftSettingsWords,
)
from tna_onnx.data.options import Data
from tna_onnx.errors import UsageError, writing
from tna_onnx.fields import annotated, check_type
from tna_onnx.files import name_problem, write_file
from tna_onnx.graph.options import ModelOptions
from tna_onnx.guarding.guard_settings import GuardSettings, refuse_unused
from tna_onnx.pipeline.settings import Settings
from tna_onnx.progress import Progress, silent
from tna_onnx.results.gates import Gates

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tna_onnx.pipeline.job import ModelJob


class DataModelWords(DataWords, ModelWords, total=False):
    """Fields of `Data` and `ModelOptions`."""


class FeatureWords(DataModelWords, EngineWords, SampleWords, total=False):
    """Which samples, and what computes their features."""


class StudyWords(DataModelWords, total=False):
    """Fields of `Data` and `ModelOptions`, and the labels of the held-out data, if they are stored apart."""

    eval_labels: Any


class VerifyWords(DataModelWords, LimitWords, total=False):
    """Limits of `Gates`, too."""


class EvaluateWords(VerifyWords, EngineWords, total=False):
    """What runs the model, too."""


class ShiftWords(StudyWords, ShiftSettingsWords, total=False):
    """Fields of `ShiftSettings` too, and the labels of the held-out data."""


class CalibrateWords(StudyWords, SettingsWords, LimitWords, ChangeWords, DecisionWords, total=False):
    """Fields of `Settings`, `Gates` and `GuardSettings` too; those that two of them have are for both."""


class GuardWords(StudyWords, DecisionWords, total=False):
    """Fields of `GuardSettings` too, and the labels of the held-out data."""

    seed: int
    trust_labels: bool
    confidence_level: float


V = TypeVar("V", bound="DataclassInstance")


def with_words(value: V, keywords: Mapping[str, Any]) -> V:
    """Replace those fields of a value that are named by words."""
    fields = {field.name for field in dataclasses.fields(value)}
    return dataclasses.replace(
        value, **{name: value_of_field for name, value_of_field in keywords.items() if name in fields}
    )


def guard_settings_of(keywords: Mapping[str, Any], settings: GuardSettings | None = None) -> GuardSettings:
    """Make the settings of `guard`."""
    if settings is None:
        # not of the defaults: what is added without a word depends on whether there is a decision
        names = {field.name for field in dataclasses.fields(GuardSettings)}
        settings = GuardSettings(**{name: value for name, value in keywords.items() if name in names})
    else:
        settings = with_words(settings, keywords)
    refuse_unused(settings)
    return settings


def gates_of(keywords: Mapping[str, Any], settings: Settings, gates_given: Gates | None = None) -> Gates:
    """Make the gates; the largest loss of accuracy is that of the settings, unless gates are given that say another."""
    # `max_accuracy_drop` is a field of both: a limit of the search, and a gate on its result
    gates = with_words(gates_given or Gates(), keywords)
    if gates.max_accuracy_drop is None:
        gates = dataclasses.replace(gates, max_accuracy_drop=settings.max_accuracy_drop)
    return gates


def beside_of(samples: Any, calib: Data, keywords: Mapping[str, Any]) -> Data | None:
    """Make further samples that are read like the calibration data, but for labels, groups and weights of those."""
    nothing: dict[str, Any] = dict.fromkeys(("groups", "group_column", "by", "weights", "weight_column", "class_prior"))
    return held_out_of(samples, dataclasses.replace(calib, **nothing), {**keywords, **nothing, "eval_labels": None})


def model_options_of(keywords: Mapping[str, Any]) -> ModelOptions:
    """Make the options on head and output."""
    for keyword in ("head", "output_name"):
        value = keywords.get(keyword)
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{keyword}: expected one name, got {value!r}")
    return with_words(ModelOptions(), keywords)


def data_of(samples: Any, keywords: Mapping[str, Any]) -> Data:
    """Make labelled samples: of a `Data`, or of a path, arrays and so on."""
    return with_words(samples if isinstance(samples, Data) else Data(samples), keywords)


def held_out_of(samples: Any, calib: Data, keywords: Mapping[str, Any]) -> Data | None:
    """Make held-out samples: they are read like the calibration data, unless they are a `Data` of their own."""
    if samples is None:
        return None
    labels = keywords.get("eval_labels")
    for keyword in ("groups", "weights", "by"):
        values = getattr(calib, keyword)
        if not (values is None or isinstance(values, str)) and getattr(samples, keyword, None) is None:
            raise UsageError(
                f"{keyword} are those of the calibration data; give those of eval too: eval=Data(..., {keyword}=...)"
            )
    if not isinstance(samples, Data):
        # the accuracy that the user expects is measured once, on the calibration data
        return dataclasses.replace(calib, samples=samples, labels=labels, expect_accuracy=None)
    # these are about the calibration data, unless they are names of columns
    of_calib = {"labels", "groups", "weights", "expect_accuracy"}
    if not isinstance(keywords.get("by"), str):
        of_calib.add("by")
    keywords_of_eval = {name: keyword for name, keyword in keywords.items() if name not in of_calib}
    if labels is not None:
        keywords_of_eval["labels"] = labels
    return data_of(samples, keywords_of_eval)


def check_call(function: Callable[..., Any], values: Mapping[str, Any], allowed: type) -> None:
    """Refuse keywords that a function does not have, as Python does for plain signatures, and values of a wrong type.

    `values`: the function's arguments by name, with all others as `keywords`, which are those of a TypedDict.
    """
    keywords = values["keywords"]
    hints = typing.get_type_hints(allowed)
    for keyword in keywords:
        if keyword not in hints:
            close = difflib.get_close_matches(keyword, hints, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument '{keyword}'{hint}")
    hints |= annotated(function, function.__globals__)
    for name, value in {**values, **keywords}.items():
        check_type(name, value, hints[name])


ProgressWord = Progress | bool | None
"""A callback that gets (stage, done, total); True for bars on standard error; None and False for nothing."""

J = TypeVar("J", bound="ModelJob")
R = TypeVar("R")


@contextlib.contextmanager
def progress_callback(progress: ProgressWord) -> Iterator[Progress]:
    """Give the callback that a word for progress stands for."""
    if progress is not True:
        yield progress or silent
        return
    from tna_onnx.render.progress_bars import progress_shown  # noqa: PLC0415 - rich loads only where bars are wanted

    with progress_shown() as callback:
        yield callback


_READ = ("samples", "labels", "classes", "preprocessing")  # of `Data`, which may be files


def check_targets(*targets: str | Path | None, others: Iterable[Any] = ()) -> None:
    """Refuse files that cannot be written, or that stand for another file of the call, before the work.

    `others`: what is read, and what else is written; what is no path, nor `Data` of one, is passed over.
    """
    described = [[getattr(o, name) for name in _READ] if isinstance(o, Data) else [o] for o in others]
    paths = [path for part in described for path in part if isinstance(path, (str, Path)) and not name_problem(path)]
    taken = {Path(path).resolve() for path in paths}
    for target in (target for target in targets if target is not None):
        if problem := name_problem(target):
            raise UsageError(problem)
        file = Path(target).absolute()
        if not file.parent.is_dir():
            raise UsageError(f"{target}: folder {file.parent} does not exist; create it or choose another")
        if file.is_dir():
            raise UsageError(f"{target}: is a folder; expected the name of a file")
        if file.resolve() in taken:
            raise UsageError(f"{target}: is one of the other files of this call; choose another name")
        taken.add(file.resolve())


def write_text(path: str | Path, text: str) -> None:
    """Write a text."""
    write_bytes(path, text.encode())


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a result."""
    with writing(path):
        write_file(Path(path), content)


def save_json(path: str | Path | None, result: R) -> R:
    """Write a result as JSON, if that is wanted, and return it."""
    if path is not None:
        from tna_onnx.results.as_json import to_json  # noqa: PLC0415 - heavy

        write_text(path, to_json(result, details=getattr(result, "details", None) is not None))
    return result


def files_of(job: ModelJob) -> list[Any]:
    """Return what a job reads and writes."""
    return [job.model, job.output, *(value for value in vars(job).values() if isinstance(value, Data))]


def run_shown(run: Callable[[J, Progress], R], job: J, progress: ProgressWord, json: str | Path | None) -> R:
    """Run a job with its progress shown, and write its result as JSON if that is asked for."""
    check_targets(json, others=files_of(job))
    with progress_callback(progress) as advance:
        result = run(job, advance)
    return save_json(json, result)
