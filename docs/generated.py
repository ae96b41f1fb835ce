"""Pages of the reference that the package writes itself: commands, exit codes, the JSON of the results."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click

import tna_onnx
from tna_onnx import errors
from tna_onnx.cli.command import group
from tna_onnx.data.images.preprocess import ResolvedRecipe
from tna_onnx.fields import settings_of
from tna_onnx.pipeline.settings import RECORDED, Settings
from tna_onnx.results.as_json import SCHEMA
from tna_onnx.results.gates import Gates
from tna_onnx.results.inspection import Collection, Inspection, ModelDifference
from tna_onnx.results.measured import Evaluation, ModelComparison
from tna_onnx.results.outcomes import Guard, Shift
from tna_onnx.results.report import Report
from tna_onnx.results.study import Studies, Study
from tna_onnx.search.candidates import SearchSettings
from tna_onnx.studies.settings import StudySettings

__all__ = ["PAGES", "RESULTS", "field_lines", "json_fields"]


_GROUP = click.Context(group, info_name="tna-onnx")


def command_line() -> str:
    """The help of the group."""
    return f"```text\n{group.get_help(_GROUP)}\n```"


def command_page(name: str) -> str:
    """A command with its usage, its help and a table of its options, as click knows them."""
    return "\n".join(_command(name, group.commands[name]))


def _command(name: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=_GROUP)
    yield f"```text\n{command.get_usage(context)}\n```\n"
    for paragraph in re.split(r"\n\s*\n", command.help or ""):
        verbatim = paragraph.partition("\b\n")[2]  # click's sign for: do not rewrap
        yield f"```text\n{textwrap.dedent(verbatim)}\n```\n" if verbatim else f"{_cell(paragraph)}\n"
    yield "| option | meaning |\n|---|---|"
    for option in command.params:
        record = option.get_help_record(context)
        if record is not None and isinstance(option, click.Option):
            yield f"| `{_cell(record[0])}` | {_cell(record[1])} |"


def _cell(text: str) -> str:
    """One line of a table: what Markdown would take for marks stays as it is."""
    return re.sub(r"([|<])", r"\\\1", " ".join(text.split()))


def exit_codes() -> str:
    """The public errors of the package with the exit codes that they own."""
    public = [getattr(errors, name) for name in errors.__all__ if name in tna_onnx.__all__ and name != "TnaError"]
    public.sort(key=lambda error: error.exit_code)
    rows = [f"| {e.exit_code} | `tna_onnx.{e.__name__}` | {_cell(e.__doc__ or '')} |" for e in public]
    return "\n".join(["| code | exception in Python | raised for |", "|---|---|---|", *rows])


RESULTS = (
    Report, Evaluation, Collection, Inspection, ModelDifference, ModelComparison, Guard, Shift, Studies, Study,
)  # fmt: skip

_RUN = """What the run was asked for, and what the search used.

Attributes:
    ensemble_size_asked: tilted weights averaged, as asked for: a number, `auto`, or `inf` for the limit of many.
    device: device that was asked for.
    computed_on: what computed the search and the fits of maps, and where: NumPy on the CPU, or torch on a device.
    batch_size: samples in each run of the network.
    confidence_level: level of the intervals, per cent.
    gates: limits on the result.
"""


def recorded_settings() -> type:
    """A dataclass with what `Report.settings` holds, which is a dictionary there."""
    stated, types = settings_of(Settings), get_type_hints(Settings)
    run = {"ensemble_size_asked": types["ensemble_size"], "device": str, "computed_on": str, "batch_size": int,
           "confidence_level": float, "gates": Gates}  # fmt: skip
    members = [*((name, types[name]) for name in RECORDED), *run.items()]
    fields = [(name, kind, dataclasses.field(default=None)) for name, kind in members]
    recorded = dataclasses.make_dataclass("RunSettings", fields, bases=(SearchSettings,), frozen=True)
    recorded.__doc__ = _RUN + "".join(f"    {name}: {stated[name][1].meaning}\n" for name in RECORDED)
    return recorded


# (dataclass, field) -> the dataclass that describes a plain dictionary; None stands for every dataclass.
_DESCRIBED: dict[tuple[type | None, str], Any] = {
    (None, "preprocessing"): ResolvedRecipe | None,
    (Report, "settings"): recorded_settings(),
    (Studies, "settings"): StudySettings,
    (ResolvedRecipe, "dtype"): str,
}


def json_fields() -> str:
    """The kinds of results and what they are made of: the fields of their dataclasses."""
    listed: dict[type, None] = dict.fromkeys(RESULTS)
    waiting: list[Any] = list(RESULTS)
    while waiting:
        hint = waiting.pop()
        waiting += get_args(hint)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            listed[hint] = None
            waiting += [kind for kind in field_types(hint).values() if kind not in listed]
    parts = sorted(listed.keys() - set(RESULTS), key=_anchor)
    return "\n\n".join("\n".join(_definition(kind)) for kind in (*RESULTS, *parts))


def field_types(cls: type) -> dict[str, Any]:
    """Field -> type of what JSON holds there; what is kept in memory alone (without a repr) is left out."""
    hints = get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls) if field.repr or field.name == "details"]
    return {name: _DESCRIBED.get((cls, name)) or _DESCRIBED.get((None, name)) or hints[name] for name in names}


def field_lines(cls: type) -> dict[str, str]:
    """Field -> its lines in the `Attributes:` of a dataclass and of those that it extends.

    Raises ValueError: a field has no line, or a line no field.
    """
    lines: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        section = re.search(r"^Attributes:\n((?:(?: .*)?\n?)+)", inspect.cleandoc(base.__doc__ or ""), re.MULTILINE)
        if section and dataclasses.is_dataclass(base):
            entries = re.findall(r"^    (\w+): (.+(?:\n {5,}.+)*)", section[1], re.MULTILINE)
            lines |= {name: " ".join(text.split()) for name, text in entries}
    if wrong := {field.name for field in dataclasses.fields(cls)} ^ set(lines):
        raise ValueError(f"{cls.__name__}: `Attributes:` and fields differ in {', '.join(sorted(wrong))}")
    return lines


def _definition(cls: type) -> Iterator[str]:
    lines = field_lines(cls)
    summary = inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0]
    yield f"### {_anchor(cls)}\n\n{_sentence(summary.partition('; made by')[0])}\n"
    yield "| key | type | meaning |\n|---|---|---|"
    if cls in RESULTS:
        yield f"| `schema` | `tna-onnx/{_anchor(cls)}/{SCHEMA}` | What this document is, and the version of its form. |"
        yield f"| `kind` | `{_anchor(cls)}` | What the result is. |"
    for name, hint in field_types(cls).items():
        yield f"| `{name}` | {_type(hint)} | {_sentence(lines[name])} |"
    if verdict := getattr(cls, "verdict", None):
        yield f"| `verdict` | string | {_sentence(inspect.cleandoc(verdict.__doc__))} |"


def _sentence(text: str) -> str:
    """A line as a sentence; JSON says null for None."""
    text = _cell(re.sub(r"\bNone\b", "null", text)).rstrip(".")
    return f"{text[0].upper()}{text[1:]}."


def _anchor(cls: type) -> str:
    """The name of a kind of result, and that of a part in snake case."""
    return cls.__name__.lower() if cls in RESULTS else re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


_WORDS: dict[Any, str] = {
    str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null", Any: "any",
}  # fmt: skip


def _type(hint: Any) -> str:
    """Type of a value in the words of JSON; parts of a result are links."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Literal:
        return " or ".join(f"`{value}`" for value in parts)
    if kind in (Union, types.UnionType):
        return " or ".join(map(_type, parts))
    if kind is tuple:
        return f"array of {_type(parts[0])}"
    if kind in (dict, Mapping):
        return "object" if parts[1] in (Any, object) else f"object of {_type(parts[1])}"
    return _WORDS.get(hint) or f"[{_anchor(hint)}](#{_anchor(hint)})"


PAGES: dict[str, Callable[[], str]] = {
    "reference/cli": command_line,
    "reference/exit-codes": exit_codes,
    "reference/json": json_fields,
    **{f"reference/commands/{name}": functools.partial(command_page, name) for name in group.commands},
}
"""Page, without its suffix -> what stands in place of its `<!-- generated -->`."""
