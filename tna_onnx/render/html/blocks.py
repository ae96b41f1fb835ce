"""Building blocks of a page as HTML text: the document, tables, figures, lists. Text is escaped unless it is `Raw`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from tna_onnx.render.html.svg import marker_path

__all__ = [
    "Code",
    "Raw",
    "Text",
    "bullets",
    "dash",
    "document",
    "figure",
    "key",
    "legend",
    "more",
    "plain",
    "table",
    "terms",
]


class Raw(str):
    """HTML that is not to be escaped."""


class Code(str):
    """Text in the font of code."""


class Text(str):
    """Text of a cell that may wrap, and stands at the left."""


def document(title: str, sections: Sequence[tuple[str, str, str]], footer: str) -> str:
    """Write a whole page, style and script inside.

    Args:
        title: of the page, plain text.
        sections: (id, title, body as HTML); one without a body is left out. The first is the result.
        footer: HTML.
    """
    shown = [(name, escape(head), body) for name, head, body in sections if body]
    links = "".join(f'<li><a href="#{name}">{head}</a></li>' for name, head, _ in shown)
    bodies = "".join(
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{head}</h2>{body}</section>\n'
        for name, head, body in shown
    )
    style, script = (
        files("tna_onnx.render.html").joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js")
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>\n{style}</style></head><body>'
        f'<a class="skip" href="#{shown[0][0]}">Skip to the result</a><header><h1>{escape(title)}</h1>'
        f'<nav aria-label="Contents"><ul>{links}</ul></nav></header>\n<main>{bodies}</main>\n'
        f'<footer class="soft">{footer}</footer>'
        f"<script>\n{script}</script></body></html>\n"
    )


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str, look: str = "", chosen: int | None = None
) -> str:
    """Return a table whose first column names the rows; it scrolls sideways on its own.

    Args:
        heads: of the columns.
        rows: cells; `Raw` and `Text` are told apart.
        caption: also the name of the region that scrolls.
        look: class of the style sheet.
        chosen: row to stand out.
    """
    head = "".join(map(_head, heads))
    body = []
    for k, (first, *rest) in enumerate(rows):
        row = '<tr class="chosen">' if k == chosen else "<tr>"
        body.append(f'{row}<th scope="row">{escape(first)}</th>{"".join(map(_cell, rest))}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table class="{look}">'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _head(text: str) -> str:
    look = ' class="text"' if isinstance(text, Text) else ""
    return f'<th scope="col"{look}>{escape(text)}</th>' if text else "<td></td>"


def _cell(text: str) -> str:
    if isinstance(text, Raw):
        return f"<td>{text}</td>"
    return f'<td class="text">{escape(text)}</td>' if isinstance(text, Text) else f"<td>{escape(text)}</td>"


def figure(drawing: str, caption: str = "") -> str:
    """Put a caption above a drawing."""
    return f"<figure>{f'<figcaption>{escape(caption)}</figcaption>' if caption else ''}{drawing}</figure>"


def more(summary: str, body: str) -> str:
    """Hide HTML until it is asked for."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def terms(pairs: Iterable[tuple[str, str]]) -> str:
    """List names and what they stand for; `Code` is told apart."""
    items = (
        f"<dt>{escape(name)}</dt><dd>{f'<code>{escape(text)}</code>' if isinstance(text, Code) else escape(text)}</dd>"
        for name, text in pairs
    )
    return f"<dl>{''.join(items)}</dl>"


def bullets(texts: Iterable[str]) -> str:
    """List texts; nothing for none."""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def legend(*items: str) -> str:
    """List what `key` and `dash` give."""
    return f'<ul class="legend">{"".join(f"<li>{item}</li>" for item in items)}</ul>'


def key(look: str, text: str) -> str:
    """Explain an area."""
    return (
        f'<svg viewBox="0 0 28 12" aria-hidden="true"><rect class="{look}" width="28" height="12"/></svg>{escape(text)}'
    )


def dash(look: str, text: str, marker: str = "") -> str:
    """Explain a line, and the marker of its points."""
    line = f'<line class="line {look}" x1="0" x2="28" y1="6" y2="6"/>'
    line += f'<path class="dot {look}" d="{marker_path(marker, 14, 6)}"/>' if marker else ""
    return f'<svg viewBox="0 0 28 12" aria-hidden="true">{line}</svg>{escape(text)}'


def plain(value: object) -> str:
    """Write a setting: 0.485, (224, 224)."""
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(map(plain, value)) + ")"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
