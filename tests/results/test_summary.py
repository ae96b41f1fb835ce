"""The sentence for readers who know no metric says what the verdict says."""

from __future__ import annotations

import pytest

from tna_onnx.numerics.metrics import Interval, Metrics
from tna_onnx.results.verdict import Standing, result_sentence

CLEAR = 0.05


def metrics(accuracy: float = 0.9, ece: float = 0.05) -> Metrics:
    return Metrics(1000, 15, accuracy, ece, ece, 0.3, 0.1)


def differences(**sides: float) -> dict[str, Interval]:
    """Clear changes where a side is given, else none."""
    found = {}
    for name in ("accuracy", "ece", "nll"):
        change = CLEAR * sides.get(name, 0)
        found[name] = Interval(change, change - 0.01, change + 0.01, 0.95)
    return found


@pytest.mark.parametrize(
    ("sides", "after", "expected"),
    [
        (
            {"ece": -1, "nll": -1},
            metrics(0.9, 0.01),
            "better: confidence and accuracy were 5.0 points apart on average, now 1.0; accuracy stays at 90.0 %",
        ),
        (
            {"nll": -1},
            metrics(0.901, 0.055),
            "better: they fit the labels more closely; the average distance of confidence and accuracy, 5.0 points, "
            "shows no clear change; accuracy moves from 90.0 % to 90.1 %, which may be chance",
        ),
        (
            {"ece": 1, "nll": 1, "accuracy": -1},
            metrics(0.85, 0.1),
            "worse than the original: the average distance of confidence and accuracy grows from 5.0 to 10.0 points; "
            "accuracy falls from 90.0 % to 85.0 %",
        ),
        (
            {"nll": 1},
            metrics(0.9, 0.05),
            "worse than the original: its probabilities fit the labels less closely; the average distance of "
            "confidence and accuracy, 5.0 points, shows no clear change; accuracy stays at 90.0 %",
        ),
        (
            {"accuracy": 1},
            metrics(0.95),
            "better: the average distance of confidence and accuracy, 5.0 points, shows no clear change; accuracy "
            "rises from 90.0 % to 95.0 %",
        ),
    ],
)
def test_the_sentence(sides: dict[str, float], after: Metrics, expected: str) -> None:
    found = differences(**sides)
    assert result_sentence(Standing.of(found).word, metrics(), after, found).endswith(expected)


def test_a_metric_that_is_worse_is_named_though_the_others_are_better() -> None:
    found = differences(ece=-1, nll=-1) | {"brier": Interval(0.0014, 0.0004, 0.0024, 0.95)}
    sentence = result_sentence("improved", metrics(), metrics(0.9, 0.01), found, chance=0.012)
    assert "Brier 0.1000 -> 0.1000 (+0.0004 to +0.0024) is worse" in sentence
    assert "now 1.0 (by chance alone 1.2)" in sentence
    better = differences(ece=-1, nll=-1) | {"brier": Interval(-0.0014, -0.0024, -0.0004, 0.95)}
    assert "is worse" not in result_sentence("improved", metrics(), metrics(0.9, 0.01), better)
