"""The worst over- and under-confident samples."""

from __future__ import annotations

from dataclasses import dataclass

from tna_onnx.render.html.sections.phrases import data_text
from tna_onnx.results.details import Details, Sample

__all__ = ["Samples", "samples"]


@dataclass(frozen=True)
class Card:
    """One sample; `truth` is empty where the prediction is right, `thumbnail` where there is no picture."""

    name: str
    thumbnail: str
    predicted: str
    truth: str
    before: str
    after: str


@dataclass(frozen=True)
class Group:
    """Samples of one kind."""

    title: str
    text: str
    cards: tuple[Card, ...]


@dataclass(frozen=True)
class Samples:
    """What the section shows."""

    shown_data: str
    groups: tuple[Group, ...]


def samples(details: Details) -> Samples | None:
    """Return the values of the section; None if there are no such samples."""
    kinds = (
        (
            "Wrong, and confident",
            "Wrong predictions with the highest confidence after recalibration.",
            details.overconfident,
        ),
        (
            "Right, and unsure",
            "Right predictions with the lowest confidence after recalibration.",
            details.underconfident,
        ),
    )
    groups = tuple(Group(title, text, tuple(map(_card, worst))) for title, text, worst in kinds if worst)
    # a section without cards would be an empty heading
    if not groups:
        return None
    return Samples(data_text(details), groups)


def _card(sample: Sample) -> Card:
    name = f"row {sample.row}"
    if sample.file:
        name = f"{name}, {sample.file}"
    truth = ""
    if sample.label != sample.predicted:
        truth = sample.label
    before = f"{100 * sample.before:.1f}"
    after = f"{100 * sample.after:.1f}"
    return Card(name, sample.thumbnail, sample.predicted, truth, before, after)
