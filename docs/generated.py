"""Pages of the reference that the package writes itself: the command line, the exit codes, the JSON of the results."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import click

import tna_onnx
from tna_onnx import errors
from tna_onnx.api.schema import json_schema
from tna_onnx.cli.command import group

__all__ = ["PAGES"]


def command_line() -> str:
    """Every command with its usage, its help and a table of its options, as click knows them."""
    context = click.Context(group, info_name="tna-onnx")
    parts = [f"```text\n{group.get_help(context)}\n```"]
    for name, command in sorted(group.commands.items()):
        parts.append("\n".join(_command(name, command, context)))
    return "\n\n".join(parts)


def _command(name: str, command: click.Command, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent)
    yield f"## {name}\n\n```text\n{command.get_usage(context)}\n```\n"
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


def json_fields() -> str:
    """The kinds of results and what they are made of, from the JSON Schema that is shipped."""
    definitions = json_schema()["$defs"]
    return "\n\n".join("\n".join(_definition(name, entry)) for name, entry in definitions.items())


def _definition(name: str, entry: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}\n\n{_cell(entry.get('description', ''))}\n"
    properties = entry.get("properties", {})
    if properties:
        yield "| key | type | meaning |\n|---|---|---|"
    for key, value in properties.items():
        yield f"| `{key}` | {_type(value)} | {_cell(value.get('description', ''))} |"


def _type(value: dict[str, Any]) -> str:
    """Type of a value in words; other definitions as links."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name})"
    for word in ("anyOf", "oneOf"):
        if word in value:
            return " or ".join(_type(choice) for choice in value[word])
    if "const" in value or "enum" in value:
        return " or ".join(f"`{_cell(str(v))}`" for v in value.get("enum", [value.get("const")]))
    if "items" in value and isinstance(value["items"], dict):
        return f"array of {_type(value['items'])}"
    kind = value.get("type", "any")
    return " or ".join([kind] if isinstance(kind, str) else kind)


PAGES: dict[str, Callable[[], str]] = {
    "reference/cli": command_line,
    "reference/exit-codes": exit_codes,
    "reference/json": json_fields,
}
"""Page, without its suffix -> what stands in place of its `<!-- generated -->`."""
