"""The figures of a report as files for papers and wikis, drawn by matplotlib from `Report.details`.

File names are stable: `reliability`, `confidence`, `risk-coverage`, `search`, `members` and `angles`, each with the
ending of its format. Runs without a search, a tilted weight or a plain linear head have fewer. Text stays text in SVG
and PDF. Nothing depends on colour: series differ by dashes and markers, areas by hatches. The same report gives the
same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tna_onnx.data.optional import optional
from tna_onnx.errors import UsageError
from tna_onnx.render.candidates import drawn_kinds, highest, looks, near
from tna_onnx.results.details import Bins, Details, Scored
from tna_onnx.results.report import Report

__all__ = ["require_matplotlib", "write_figures"]

# Inches; two panels fill the text width of a page.
_WIDTH, _HEIGHT = 6.6, 3.1
_STYLE = {
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "figure.constrained_layout.use": True,
    "font.size": 8,
    "grid.color": "#dddddd",
    "hatch.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 3,
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "svg.hashsalt": "tna-onnx",
}
_BAR = {"color": "#c8d4e6", "edgecolor": "#333333", "linewidth": 0.5}
_OVER = {"facecolor": "#f6c6bd", "edgecolor": "#a02c1c", "hatch": "////", "linewidth": 0.5}
_UNDER = {"facecolor": "#ffffff", "edgecolor": "#1d5c2f", "hatch": "....", "linewidth": 0.5}
_BEFORE = {"color": "#a02c1c", "linestyle": "--"}
_AFTER = {"color": "#1f4e9c", "linestyle": "-"}
# One marker and colour for each number of members, the last for all others; the kind of data has the dashes.
_MARKERS = ("o", "s", "^", "D", "v")
_COLORS = ("#1f4e9c", "#a02c1c", "#1d5c2f", "#7a4b9a", "#8a6d00")
_RING = {"marker": "o", "markersize": 8, "markerfacecolor": "none", "color": "#333333", "linestyle": "none"}
# Bins with their counts written in.
_MOST_COUNTED = 20
# Characters of a label of which three do not fit beside each other.
_LONG_LABEL = 32
_WEIGHTS = {"original": "original weight", "tilted": "one tilted weight", "averaged": "average of tilted weights"}
_LABELS = {"ece": "ECE, %", "adaece": "AdaECE, %", "nll": "NLL, nats"}


def require_matplotlib() -> None:
    """Check that figures can be drawn.

    Raises:
        UsageError: matplotlib cannot be imported; the message names the extra.
    """
    optional("matplotlib.figure", "plot", "drawing figures")


def write_figures(report: Report, folder: Path, formats: Sequence[str] = ("svg", "png", "pdf")) -> tuple[Path, ...]:
    """Write each figure in each format, and return the files.

    Args:
        report: made with details.
        folder: made if it is missing; files of the same names are replaced.
        formats: endings that matplotlib knows.

    Raises:
        ValueError: the report has no details.
        UsageError: matplotlib is missing, or a file cannot be written.
    """
    details = report.details
    if details is None:
        raise ValueError("the report has no details; call calibrate with details=True")
    matplotlib = optional("matplotlib", "plot", "drawing figures")
    make = optional("matplotlib.figure", "plot", "drawing figures").Figure
    written = []
    with matplotlib.rc_context(_STYLE):
        for name, draw in _figures(report, details).items():
            figure = make(figsize=(_WIDTH, _HEIGHT))
            draw(figure)
            for ending in formats:
                path = folder / f"{name}.{ending}"
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                    figure.savefig(path, metadata=_NO_DATE.get(ending))
                except OSError as error:
                    raise UsageError(f"{path}: cannot be written: {error.strerror}") from error
                written.append(path)
    return tuple(written)


# Entries of a file that would differ from run to run.
_NO_DATE = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def _figures(report: Report, details: Details) -> dict[str, Callable[[Any], None]]:
    """File name -> what draws on a figure."""
    found: dict[str, Callable[[Any], None]] = {
        "reliability": lambda figure: _reliability(figure, details),
        "confidence": lambda figure: _confidence(figure, details),
        "risk-coverage": lambda figure: _risk(figure, details),
    }
    if len(details.steps) > 1:
        found["search"] = lambda figure: _search(figure, report, details)
    if details.averages:
        found["members"] = lambda figure: _members(figure, details)
    if details.angles:
        found["angles"] = lambda figure: _angles(figure, details)
    return found


def _reliability(figure: Any, details: Details) -> None:
    """Accuracy of each bin and its gap to the confidence; below, the samples of each bin."""
    pairs = (("before", details.before), ("after", details.after))
    panels = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=[4, 1.2])
    for k, (word, bins) in enumerate(pairs):
        diagram, strip = panels[0][k], panels[1][k]
        _diagram(diagram, bins)
        diagram.set_title(f"{word}: ECE {100 * bins.ece:.2f} %")
        x, width = _places(bins)
        strip.bar(x, bins.count, width, **_BAR)
        strip.set(xlabel="confidence", ylim=(0, 1.9 * max(*details.before.count, *details.after.count, 1)))
        strip.grid(visible=False)
        for place, count in zip(x, bins.count, strict=True):
            if count and len(bins.count) <= _MOST_COUNTED:
                strip.annotate(f"{count}", (place, count), (0, 1.5), textcoords="offset points", ha="center",
                               va="bottom", rotation=90, fontsize=5.5)  # fmt: skip
    panels[0][0].set_ylabel("accuracy")
    panels[1][0].set_ylabel("samples")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)


def _diagram(axes: Any, bins: Bins) -> None:
    x, width = _places(bins)
    filled = [bool(count) for count in bins.count]
    axes.bar(x, bins.accuracy, width, label="accuracy", **_BAR)
    for label, look, sign in (("confidence too high", _OVER, 1), ("too low", _UNDER, -1)):
        rows = [j for j, f in enumerate(filled) if f and sign * (bins.confidence[j] - bins.accuracy[j]) > 0]
        heights = [bins.confidence[j] - bins.accuracy[j] for j in rows]
        axes.bar([x[j] for j in rows], heights, width, [bins.accuracy[j] for j in rows], label=label, **look)
    axes.plot((0, 1), (0, 1), color="#333333", linestyle="--", linewidth=0.9, label="confidence = accuracy")
    axes.set(xlim=(0, 1), ylim=(0, 1))


def _places(bins: Bins) -> tuple[list[float], float]:
    width = 1 / len(bins.count)
    return [(j + 0.5) * width for j in range(len(bins.count))], width


def _confidence(figure: Any, details: Details) -> None:
    """Share of the samples in each bin of confidence: right ones below, wrong ones on top."""
    panels = figure.subplots(1, 2, sharey=True)
    for axes, word, bins in zip(panels, ("before", "after"), (details.before, details.after), strict=True):
        x, width = _places(bins)
        total = max(1, sum(bins.count))
        right = [100 * n * a / total for n, a in zip(bins.count, bins.accuracy, strict=True)]
        wrong = [100 * n / total - r for n, r in zip(bins.count, right, strict=True)]
        axes.bar(x, right, width, label="right", **_BAR)
        axes.bar(x, wrong, width, right, label="wrong", **_OVER)
        axes.set(xlim=(0, 1), xlabel="confidence", title=word)
    panels[0].set_ylabel("samples, %")
    panels[0].legend(loc="upper left")


def _risk(figure: Any, details: Details) -> None:
    axes = figure.subplots()
    for word, curve, look in (("before", details.risk_before, _BEFORE), ("after", details.risk_after, _AFTER)):
        x, y = ([100 * value for value in values] for values in (curve.coverage, curve.risk))
        axes.plot(x, y, label=f"{word}: mean {100 * curve.area:.2f} %", **look)
    axes.set(xlim=(0, 100), xlabel="coverage: most confident share of the samples, %", ylabel="errors among them, %")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left")


def _search(figure: Any, report: Report, details: Details) -> None:
    """Objective and accuracy of the candidates over the angle, as far as the HTML report shows them."""
    scale = 1 if report.objective == "nll" else 100
    chosen = details.steps[details.chosen]

    def objective(scored: Scored) -> float:
        return scale * scored.objective

    panels = figure.subplots(1, 2)
    _curves(panels[0], details, objective)
    _curves(panels[1], details, lambda scored: 100 * scored.accuracy)
    allowed = 100 * (details.steps[0].calibration.accuracy - float(str(report.settings["max_accuracy_drop"])))
    panels[1].axhline(allowed, color="#333333", linestyle=":", linewidth=1, label="allowed on calibration data")
    for axes, label in zip(panels, (_LABELS[report.objective], "accuracy, %"), strict=True):
        axes.axvline(chosen.angle, color="#333333", linestyle="-.", linewidth=0.9, label=f"chosen: {chosen.angle:g}°")
        axes.set(xlabel="angle, degrees", ylabel=label)
    panels[0].set_ylim(0, highest(details, objective))
    handles, labels = panels[1].get_legend_handles_labels()
    columns = 3 if max(map(len, labels)) < _LONG_LABEL else 2
    figure.set_figheight(_HEIGHT + 0.13 * -(-len(labels) // columns))  # a line of the legend each
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def _curves(axes: Any, details: Details, value: Callable[[Scored], float]) -> None:
    """One line for each number of members and each kind of data; a ring around the choice."""
    ranks, last = looks(details, len(_MARKERS)), len(_MARKERS) - 1
    shared = list(ranks.values()).count(last) > 1
    named = set()
    for kind, of in reversed(drawn_kinds(details)):
        second = kind == "calibration" and details.held_out
        for size, k in sorted(ranks.items(), key=lambda item: item[1]):  # the others are last in the legend
            steps = sorted((s for s in near(details) if s.angle and s.members == size), key=lambda s: s.angle)
            steps = [details.steps[0], *steps] if size == next(iter(ranks)) else steps
            words = f"{size} members" if size else "limit of many"
            label = f"{kind}, {'other numbers of members' if shared and k == last else words}"
            axes.plot(
                [s.angle for s in steps],
                [value(of(s)) for s in steps],
                "--" if second else "-",
                marker=_MARKERS[k],
                color=_COLORS[k],
                markerfacecolor="white" if second else None,
                label="_" if label in named else label,  # no second entry in the legend
            )
            named.add(label)
        axes.plot(details.steps[details.chosen].angle, value(of(details.steps[details.chosen])), label="_", **_RING)


def _members(figure: Any, details: Details) -> None:
    axes = figure.subplots()
    members, accuracy = zip(*((a.members, 100 * a.accuracy) for a in details.averages), strict=True)
    axes.plot(members, accuracy, marker="o", label=f"at {details.steps[details.chosen].angle:g}°", **_AFTER)
    axes.axhline(100 * details.steps[0].shown.accuracy, label="original weight", **_BEFORE)
    axes.set_xscale("log", base=2)
    axes.set_xticks(members, [str(m) for m in members])
    axes.minorticks_off()
    axes.set(xlabel="members averaged", ylabel="accuracy before any map, %")
    axes.legend(loc="lower right")


def _angles(figure: Any, details: Details) -> None:
    styles = {"original": _BEFORE, "tilted": {"color": "#8a6d00", "linestyle": ":"}, "averaged": _AFTER}
    panels = figure.subplots(1, 2)
    for axes, title in zip(panels, ("predicted class", "other classes"), strict=True):
        for found in details.angles:
            shares = found.predicted if axes is panels[0] else found.others
            width = 180 / len(shares)
            filled = [j for j, share in enumerate(shares) if share > 0]
            rows = range(max(0, min(filled) - 1), min(len(shares), max(filled) + 2)) if filled else range(0)
            points = [((j + 0.5) * width, 100 * shares[j]) for j in rows]
            axes.plot(*zip(*points, strict=True), label=_WEIGHTS[found.weight], **styles[found.weight])
        axes.set(title=f"features and vector of the {title}", xlabel="angle, degrees")
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel(f"share per {180 / len(details.angles[0].predicted):g}°, %")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
