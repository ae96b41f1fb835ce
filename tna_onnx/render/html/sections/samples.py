"""The worst over- and under-confident samples."""

from __future__ import annotations

from html import escape

from tna_onnx.render.html.sections.words import data_of
from tna_onnx.results.details import Details, Sample

__all__ = ["samples"]


def samples(details: Details) -> str:
    """Write the section; nothing if there are none."""
    parts = [
        ("Wrong, and confident", "Wrong predictions with the highest confidence after.", details.overconfident),
        ("Right, and unsure", "Right predictions with the lowest confidence after.", details.underconfident),
    ]
    shown = "".join(
        f'<h3>{title}</h3><p>{text}</p><ul class="samples">{"".join(map(_sample, found))}</ul>'
        for title, text, found in parts
        if found
    )
    return f"<p>{data_of(details)} Rows count from 0.</p>{shown}" if shown else ""


def _sample(sample: Sample) -> str:
    name = f"row {sample.row}" + (f", {sample.file}" if sample.file else "")
    image = f'<img src="{sample.thumbnail}" alt="Sample of {escape(name)}">' if sample.thumbnail else ""
    truth = "" if sample.label == sample.predicted else f", is <b>{escape(sample.label)}</b>"
    return (
        f"<li>{image}says <b>{escape(sample.predicted)}</b>{truth}<br>{100 * sample.before:.1f} % &rarr; "
        f'{100 * sample.after:.1f} %<br><span class="soft">{escape(name)}</span></li>'
    )
