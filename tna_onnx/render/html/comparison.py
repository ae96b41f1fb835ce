"""The result of `compare` as one HTML file, like a recalibration's: nothing is loaded, script is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tna_onnx.numerics.metric import METRICS
from tna_onnx.render.html.blocks import (
    Code,
    Raw,
    Text,
    bullets,
    dash,
    document,
    figure,
    key,
    legend,
    more,
    plain,
    table,
    terms,
)
from tna_onnx.render.html.svg import MARKERS, Series, interval_bar, line_chart, reliability_diagram
from tna_onnx.results.comparison import ComparedModel, ModelComparison, label, number, standing
from tna_onnx.results.details import Bins

__all__ = ["comparison_page"]

# Colours of the style sheet for lines; twice as many lines can be told apart, by dashes.
_COLOURS = 5
# Bins with fewer samples jump about in the overlay; they are in the diagrams and tables.
_LEAST_SHOWN = 10


def comparison_page(found: ModelComparison, command: str = "") -> str:
    """Write a comparison as a page.

    Args:
        found: result of `compare`.
        command: command line that made it, if there was one.
    """
    sections = [
        ("result", "Result", _result(found)),
        ("differences", "Differences", _differences(found)),
        ("reliability", "Reliability", _reliability(found)),
        ("run", "How it was made", _run(found, command)),
    ]
    version = escape(found.versions.get("tna-onnx", ""))
    footer = f"Written by tna-onnx {version}. Bins hold j/B &lt; confidence &le; (j+1)/B."
    return document(f"Comparison of {len(found.models)} models", sections, footer)


def _result(found: ModelComparison) -> str:
    m = found.models[0].metrics
    rows = []
    for model in found.models:
        values = [number(metric, getattr(model.metrics, metric)) for metric in METRICS]
        same = "baseline" if model.name == found.baseline else f"{100 * model.agreement:.2f}"
        rows.append([model.name, *values, same])
    heads = ["model", *map(_head, METRICS), "Agreement, %"]
    notes = bullets(found.notes)
    return (
        f"{''.join(_verdict(model) for model in found.others)}"
        f"{table(heads, rows, f'{found.data}: N = {m.n:,}, {m.bins} bins')}"
        "<p>All models saw the same samples in the same order. ECE and AdaECE are the mean gap between confidence and "
        "accuracy, over bins of equal width and of equal mass; even a perfectly calibrated model shows some on finite "
        "data. Agreement: share of the samples for which a model predicts the class that "
        f"{escape(found.baseline)} predicts.</p>"
        f"{f'<h3>Notes</h3>{notes}' if notes else ''}"
    )


def _verdict(model: ComparedModel) -> str:
    """Colour it only where all that is significant points the same way."""
    sides = {standing(metric, d) for metric, d in model.differences.items()} - {0}
    look = "open" if len(sides) != 1 else "better" if 1 in sides else "worse"
    # each in a block of its own: the style sheet makes the second of two neighbours smaller
    return f'<div><p class="verdict {look}">{escape(model.name)}: {escape(model.verdict)}</p></div>'


def _head(metric: str) -> str:
    text = label(metric)
    return text[:1].upper() + text[1:]


def _differences(found: ModelComparison) -> str:
    """One table, the models of a metric below each other and on one scale."""
    rows = []
    for metric in METRICS:
        intervals = [model.differences[metric] for model in found.others]
        reach = 1.05 * max(1e-12, *(max(abs(d.low), abs(d.high), abs(d.difference)) for d in intervals))
        sign = -1 if metric == "accuracy" else 1  # so that left and green are better in every row
        for model, d in zip(found.others, intervals, strict=True):
            low, high = sorted((sign * d.low, sign * d.high))
            word = {1: "better", 0: "no significant difference", -1: "worse"}[standing(metric, d)]
            rows.append(
                [
                    _head(metric),
                    Text(model.name),
                    number(metric, d.difference, "+"),
                    f"{number(metric, d.low, '+')} to {number(metric, d.high, '+')}",
                    Raw(f'{interval_bar(sign * d.difference, low, high, reach)}<span class="unseen">{word}</span>'),
                ]
            )
    heads = ["metric", Text("model"), "difference", f"{found.confidence_level:g}% interval", "better | worse"]
    return (
        f"<p>Each model minus {escape(found.baseline)}, paired by sample, with a bootstrap interval. An interval on "
        " one side of zero is a significant difference. The bars of one metric have one scale; left is better.</p>"
        f"{table(heads, rows, f'Differences to {found.baseline}', 'metrics')}"
    )


def _reliability(found: ModelComparison) -> str:
    figures = "".join(
        figure(
            reliability_diagram(model.reliability, f"Reliability of {model.name}"),
            f"{model.name}: ECE {100 * model.metrics.ece:.2f} %",
        )
        for model in found.models
    )
    shown = found.models[: 2 * _COLOURS]
    lines = [
        Series(model.name, points, f"m{k % _COLOURS}" + (" dashed" if k >= _COLOURS else ""), MARKERS[k % len(MARKERS)])
        for k, model in enumerate(shown)
        if (points := _points(model.reliability))
    ]
    diagonal = Series("confidence is accuracy", ((0.0, 0.0), (1.0, 1.0)), "key dashed")
    overlay = line_chart(
        [diagonal, *lines],
        "Reliability of all models",
        "mean confidence",
        "accuracy",
        x_range=(0.0, 1.0),
        y_range=(0.0, 1.0),
    )
    left_out = f" The first {len(shown)} models are drawn." if len(shown) < len(found.models) else ""
    numbers = "".join(_bins_table(model) for model in found.models)
    return (
        "<p>Each bar is the accuracy of the predictions whose confidence falls into the bin. On the dashed line, "
        "confidence is accuracy. The strip below counts the samples of each bin.</p>"
        f"{legend(key('accuracy', 'accuracy'), key('over', 'confidence too high'), key('under', 'too low'))}"
        f'<div class="pair">{figures}</div>'
        f"<h3>All in one</h3><p>A point for each bin with at least {_LEAST_SHOWN} samples; below the dashed line "
        f"confidence is too high.{left_out}</p>"
        f"{legend(*(dash(line.look, line.name) for line in lines), dash('key dashed', 'confidence is accuracy'))}"
        f"{figure(overlay)}{more('Numbers of all diagrams', numbers)}"
    )


def _points(bins: Bins) -> tuple[tuple[float, float], ...]:
    rows = zip(bins.count, bins.confidence, bins.accuracy, strict=True)
    return tuple((confidence, accuracy) for count, confidence, accuracy in rows if count >= _LEAST_SHOWN)


def _bins_table(model: ComparedModel) -> str:
    bins = model.reliability
    width = 1 / len(bins.count)
    rows = [
        [f"{j * width:.3f} to {(j + 1) * width:.3f}", f"{n:,}", *((f"{c:.4f}", f"{a:.4f}") if n else ("", ""))]
        for j, (n, c, a) in enumerate(zip(bins.count, bins.confidence, bins.accuracy, strict=True))
    ]
    return table(["bin", "samples", "mean confidence", "accuracy"], rows, f"Bins of {model.name}")


def _run(found: ModelComparison, command: str) -> str:
    listed = [
        ("Command", Code(command)),
        ("Data", found.data),
        ("Versions", ", ".join(f"{name} {version}" for name, version in found.versions.items())),
    ]
    each = "".join(f"<h3>{escape(model.name)}</h3>{terms(_model_terms(model))}" for model in found.models)
    return terms(listed if command else listed[1:]) + each


def _model_terms(model: ComparedModel) -> Sequence[tuple[str, str]]:
    recipe = model.preprocessing
    used = "none, used as stored"
    if recipe is not None:
        used = ", ".join(f"{name} {plain(value)}" for name, value in recipe.items() if value is not None)
    return [
        ("File", model.model),
        ("SHA-256", Code(model.model_sha256)),
        ("Output", f"{model.output} ({model.output_kind.replace('_', ' ')})"),
        ("Preprocessing", used),
        ("Provider obtained", model.provider),
    ]
