"""The result in one sentence for readers who know no metric: better or worse, by how much, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping

from tna_onnx.numerics.metrics import Interval, Metrics
from tna_onnx.results.standing import Word, changed

__all__ = ["copied_sentence", "result_sentence"]

_OPENINGS: dict[Word, str] = {
    "improved": "The new model's probabilities are better",
    "no significant change": "The new model's probabilities are neither better nor worse, as far as these samples tell",
    "worse": "The new model is worse than the original",
}


_CLASS = ("confidence", "accuracy")
_LABEL = ("a label's probability", "its frequency")


def copied_sentence(before: Metrics, *, labels: bool = False) -> str:
    """Say that the original needs nothing; `labels` are several a sample."""
    said, true = _LABEL if labels else ("its confidence", "its accuracy")
    return (
        f"The model needs no recalibration, as far as these samples tell: {said} is "
        f"{_points(before.ece)} away from {true} on average"
    )


def result_sentence(
    word: Word, before: Metrics, after: Metrics, differences: Mapping[str, Interval], *, labels: bool = False
) -> str:
    """Say what a result comes to; the word is that of the verdict, so that both say the same.

    Where `labels` are several a sample, the distance is that of a label's probability and its frequency.

    >>> old, new = (Metrics(100, 15, 0.9, ece, 0.1, 0.3, 0.1) for ece in (0.05, 0.01))
    >>> same = Interval(0.0, -0.01, 0.01, 0.95)
    >>> d = {"accuracy": same, "nll": same, "ece": Interval(-0.04, -0.05, -0.03, 0.95)}
    >>> result_sentence("improved", old, new, d).partition(": ")[2]
    'confidence and accuracy were 5.0 points apart on average, now 1.0; accuracy stays at 90.0 %'
    """
    gap = changed("ece", differences["ece"])
    fit = changed("nll", differences["nll"])
    parts = [
        _gap(gap, before, after, " and ".join(_LABEL if labels else _CLASS)),
        _accuracy(before, after, differences["accuracy"]),
    ]
    # the distance alone would not explain the verdict
    if word == "improved" and fit == 1 and gap != 1:
        parts.insert(0, "they fit the labels more closely")
    if word == "worse" and fit == -1 and gap != -1:
        parts.insert(0, "its probabilities fit the labels less closely")
    return f"{_OPENINGS[word]}: {'; '.join(parts)}"


def _gap(side: int, before: Metrics, after: Metrics, pair: str) -> str:
    if side == 1:
        return f"{pair} were {_points(before.ece)} apart on average, now {100 * after.ece:.1f}"
    if side == -1:
        return f"the average distance of {pair} grows from {100 * before.ece:.1f} to {_points(after.ece)}"
    return f"the average distance of {pair}, {_points(before.ece)}, shows no clear change"


def _accuracy(before: Metrics, after: Metrics, difference: Interval) -> str:
    old = f"{100 * before.accuracy:.1f} %"
    new = f"{100 * after.accuracy:.1f} %"
    verb = {1: "rises", 0: "moves", -1: "falls"}[changed("accuracy", difference)]
    if old == new:
        return f"accuracy stays at {new}"
    sentence = f"accuracy {verb} from {old} to {new}"
    if verb == "moves":
        # a change that may be chance is neither praised nor blamed
        sentence += ", which may be chance"
    return sentence


def _points(fraction: float) -> str:
    return f"{100 * fraction:.1f} points"
