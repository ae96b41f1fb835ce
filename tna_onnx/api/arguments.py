"""Arguments of the public functions: their checks, and how keywords join the dataclasses that hold all other settings.

`map="ts"` is `settings=Settings(map="ts")`. None is a keyword that was not given. A field that is given both ways is
refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.data.options import Data
from tna_onnx.errors import UsageError, writing
from tna_onnx.fields import annotated, check_batch_size, check_type, plain_type, settings_of
from tna_onnx.files import is_url, name_problem, resolved, write_file
from tna_onnx.pipeline.settings import Settings
from tna_onnx.progress import Progress, silent
from tna_onnx.results.gates import Gates

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tna_onnx.pipeline.job import ModelJob

P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V", bound="DataclassInstance")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that checks the names, types and ranges of its arguments.

    A keyword that it does not have is a TypeError, which names the dataclass with that field.
    """
    parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for keyword in kwargs:
            if keyword not in parameters:
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {_hint(function, keyword)}")
        hints = annotated(function, function.__globals__)
        for name, value in inspect.signature(function).bind_partial(*args, **kwargs).arguments.items():
            check_type(name, value, hints[name])
        check_batch_size(kwargs.get("batch_size", 1))
        shared: dict[str, Any] = {name: kwargs[name] for name in ("bins", "confidence_level") if name in kwargs}
        Settings(**shared)  # where they have their range
        return function(*args, **kwargs)

    return call


def _hint(function: Callable[..., Any], keyword: str) -> str:
    """Return an unknown keyword, and what to type in place of it."""
    holders = holders_of(function)
    places = [f"{name}=tna_onnx.{cls.__name__}" for name, cls in holders.items() if keyword in settings_of(cls)]
    if places:
        return f"'{keyword}'; it is a field of a dataclass: give {' or '.join(places)}(..., {keyword}=...)"
    words = {*inspect.signature(function).parameters}.union(*map(settings_of, holders.values()))
    close = difflib.get_close_matches(keyword, sorted(words), n=1)
    return f"'{keyword}'" + "".join(f"; did you mean '{name}'?" for name in close)


def holders_of(function: Callable[..., Any]) -> dict[str, type]:
    """Return the dataclasses of settings that a function takes, by the names of their parameters."""
    function = inspect.unwrap(function)
    hints = annotated(function, function.__globals__)
    hints.pop("return", None)
    if "data" in hints:  # samples by themselves, or with what there is to say of them
        hints["data"] = Data
    holders: dict[str, type] = {}
    for name, hint in hints.items():
        kind = plain_type(hint)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and settings_of(kind):
            holders[name] = kind
    return holders


def grouped(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a function for single values by name, such as the options of a command.

    Values that are fields of a dataclass that the function takes come in that dataclass.
    """
    arguments = dict(values)
    for name, cls in holders_of(function).items():
        stated = settings_of(cls)
        fields = {key: arguments.pop(key) for key in stated if key in arguments}
        if not any(_differs(value, stated[key][0]) for key, value in fields.items()):
            continue
        if name in arguments:
            fields["samples"] = arguments[name]
        arguments[name] = cls(**fields)
    return arguments


def stated_in(value: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a dataclass that are not as by default."""
    plain = type(value)()
    stated = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        # the value that a default stands for may depend on other fields
        if _differs(item, field.default) and _differs(item, getattr(plain, field.name)):
            stated[field.name] = item
    return stated


def _differs(value: Any, default: Any) -> bool:
    if default is None:  # arrays are compared by element
        return value is not None
    return bool(value != default)


def combined(value: V | None, cls: type[V], **keywords: Any) -> V:
    """Return a dataclass with single fields from keywords.

    Raises UsageError: a field is given both ways.
    """
    fields: dict[str, Any] = {}
    if value is not None:
        fields = stated_in(value)
    by_keyword = {name: item for name, item in keywords.items() if item is not None}
    for name in by_keyword:
        if name in fields:
            raise UsageError(f"{name} is given twice, as a keyword and in {cls.__name__}({name}=...); give it once")
    return cls(**fields, **by_keyword)


def gates_of(gates: Gates | None, settings: Settings) -> Gates:
    """Return the gates; the largest loss of accuracy is that of the settings, unless the gates say another."""
    # `max_accuracy_drop` is a field of both: a limit of the search, and a gate on its result
    gates = gates or Gates()
    if gates.max_accuracy_drop is None:
        gates = dataclasses.replace(gates, max_accuracy_drop=settings.max_accuracy_drop)
    return gates


def limits_of(gates: Gates | None, command: str, *names: str) -> Gates:
    """Return gates of a command that knows some of them.

    Raises UsageError: another is given.
    """
    gates = gates or Gates()
    for name in stated_in(gates):
        if name not in names:
            raise UsageError(f"{command} has no gate {name}; expected {', '.join(names)}")
    return gates


def reading_of(data: Data | None, **keywords: Any) -> dict[str, Any]:
    """Return what is said of samples beside themselves, by the names of the fields of `Data`."""
    if data is not None and data.samples is not None:
        raise UsageError("data says how samples are read, and holds some; give them as calib and eval")
    return stated_in(combined(data, Data, **keywords))


def samples_of(samples: Any, reading: Mapping[str, Any]) -> Data:
    """Return labelled samples: of a `Data`, or of a path, arrays and so on.

    Raises UsageError: there are none, or the `Data` and what else is said have the same field.
    """
    if not isinstance(samples, Data):
        samples = Data(samples)
    data: Data = combined(samples, Data, **reading)
    if data.samples is None:
        raise UsageError("no samples: expected a path, a URL, arrays, batches, or a tna_onnx.Data that holds them")
    return data


def held_out_of(samples: Any, calib: Data, reading: Mapping[str, Any]) -> Data | None:
    """Return held-out samples: they are read like the calibration data, but for what a `Data` of their own says."""
    if samples is None:
        return None
    for keyword in ("groups", "weights", "by"):
        values = getattr(calib, keyword)
        if not (values is None or isinstance(values, str)) and getattr(samples, keyword, None) is None:
            raise UsageError(
                f"{keyword} are those of the calibration data; give those of eval too: eval=Data(..., {keyword}=...)"
            )
    if not isinstance(samples, Data):
        # the accuracy that the user expects is measured once, on the calibration data
        return dataclasses.replace(calib, samples=samples, labels=None, expect_accuracy=None)
    # these are about the calibration data, unless they are names of columns
    of_calib = {"labels", "groups", "weights", "expect_accuracy"}
    if not isinstance(reading.get("by"), str):
        of_calib.add("by")
    stated = stated_in(samples)
    return Data(**{**{name: value for name, value in reading.items() if name not in of_calib}, **stated})


def beside_of(samples: Any, calib: Data, reading: Mapping[str, Any]) -> Data | None:
    """Return further samples that are read like the calibration data, but for labels, groups and weights of those."""
    nothing = dict.fromkeys(("groups", "group_column", "by", "weights", "weight_column", "class_prior"))
    plain = dataclasses.replace(calib, **nothing)  # type: ignore[arg-type]  # None is the default of each
    return held_out_of(samples, plain, {name: value for name, value in reading.items() if name not in nothing})


PresetWord = Recipe | str | Path | None
"""Preprocessing of images: a recipe, the name of one in `PRESETS`, or the path of a file with one."""

ClassNames = Sequence[str] | str | Path | None
"""Class names in the model's order, or a file with them."""

ProgressWord = Progress | bool | None
"""A callback that gets (stage, done, total); True for bars on standard error; None and False for nothing."""

J = TypeVar("J", bound="ModelJob")


@contextlib.contextmanager
def progress_callback(progress: ProgressWord) -> Iterator[Progress]:
    """Give the callback that a word for progress stands for."""
    if progress is not True:
        yield progress or silent
        return
    from tna_onnx.render.progress_bars import progress_shown

    with progress_shown() as callback:
        yield callback


_READ = ("samples", "labels", "classes", "preprocessing")  # of `Data`, which may be files


def check_targets(*targets: str | Path | None, in_use: Iterable[Any] = ()) -> None:
    """Refuse names that no file can have, targets that cannot be written, and one that is another file of the call.

    `in_use`: what is read, and what else is written; what is no path, nor `Data` of one, is passed over.
    """
    sources: list[Any] = []
    for source in in_use:
        if isinstance(source, Data):
            sources += [getattr(source, name) for name in _READ]
        else:
            sources.append(source)
    paths = [path for path in sources if isinstance(path, (str, Path)) and not is_url(str(path))]
    files = [target for target in targets if target is not None]
    for problem in map(name_problem, (*paths, *files)):
        if problem:
            raise UsageError(problem)
    used = {resolved(path) for path in paths}
    for target in files:
        file = Path(target).absolute()
        if not file.parent.is_dir():
            raise UsageError(f"{target}: folder {file.parent} does not exist; create it or choose another")
        if file.is_dir():
            raise UsageError(f"{target}: is a folder; expected the name of a file")
        if resolved(file) in used:
            raise UsageError(f"{target}: is one of the other files of this call; choose another name")
        used.add(resolved(file))


def write_text(path: str | Path, text: str) -> None:
    """Write a text."""
    with writing(path):
        write_file(Path(path), text.encode())


def save_json(path: str | Path | None, result: R) -> R:
    """Write a result as JSON, if that is wanted, and return it."""
    if path is not None:
        from tna_onnx.results.as_json import to_json

        write_text(path, to_json(result, details=getattr(result, "details", None) is not None))
    return result


def files_of(job: ModelJob) -> list[Any]:
    """Return what a job reads and writes, folders included."""
    samples = [value for value in vars(job).values() if isinstance(value, Data)]
    return [job.model, job.output, getattr(job, "cache", None), getattr(job, "folder", None), *samples]


def run_with_progress(run: Callable[[J, Progress], R], job: J, progress: ProgressWord, json: str | Path | None) -> R:
    """Run a job with its progress shown, and write its result as JSON if that is asked for."""
    check_targets(json, in_use=files_of(job))
    check_targets(job.output, in_use=[value for value in vars(job).values() if isinstance(value, Data)])
    with progress_callback(progress) as advance:
        result = run(job, advance)
    return save_json(json, result)
