"""A page from its template: one HTML file with style, script, drawings and pictures inside.

Nothing is loaded, and without JavaScript all of it can be read. Python makes plain values; markup is in `templates/`
alone, where autoescape is on. The only text that is not escaped is this package's own style sheet and script.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tna_onnx.printable import printable

__all__ = ["Section", "environment", "render_page"]


@dataclass(frozen=True)
class Section:
    """A section of a page.

    Attributes:
        name: its id behind the prefix.
        title: its heading.
        template: below `templates/`; it finds `values` under the name `it`.
        values: what it shows; None leaves the section out.
        prefix: of ids, where a page has a section of that name for each of several parts.
    """

    name: str
    title: str
    template: str
    values: object
    prefix: str = ""

    @property
    def place(self) -> str:
        """Its id, which links lead to."""
        return f"{self.prefix}{self.name}"


def render_page(title: str, sections: Sequence[Section], version: str) -> str:
    """Return a whole page.

    Args:
        title: of the page.
        sections: in their order; the first is the result.
        version: of this package, for the last line.
    """
    # Style and script are read here, not at import: a run without a page does not need them.
    folder = files("tna_onnx.render.html")
    return (
        environment()
        .get_template("page.html")
        .render(
            title=title,
            sections=[section for section in sections if section.values is not None],
            version=version,
            style=folder.joinpath("page.css").read_text("utf-8"),
            script=folder.joinpath("page.js").read_text("utf-8"),
        )
    )


def _finalized(value: Any) -> Any:
    """Escape text that came from anywhere; markup is this package's own."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value, lines=True)
    return value


@cache
def environment() -> Environment:
    """Return the environment of the templates; a name that a template gets wrong is an error."""
    templates = Environment(
        loader=PackageLoader("tna_onnx.render.html"),
        # names, paths and notes come from outside
        autoescape=True,
        # a change of the writing direction in a name would act on the rest of the line
        finalize=_finalized,
        # a name that is wrong would otherwise print nothing
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # A page holds the bins of every class as JSON: spaces would be a fifth of it.
    templates.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return templates
