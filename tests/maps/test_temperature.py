"""Temperatures: by other metrics than the NLL, and where probabilities are saturated."""

import functools
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.maps.samples import reduce_of, sample
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.metrics import metric_value
from tna_onnx.numerics.scores import SampleScores

# --- A temperature that minimises another metric than the NLL: against scans of this test's own


Array = NDArray[Any]


def value_of(objective: Any, logits: Array, labels: Array, temperature: float, bins: int = 15) -> float:
    """A metric at a temperature; `tests/numerics/test_metrics.py` tests it against its definition."""
    return metric_value(SampleScores.of_logits(logits / temperature, labels), objective, bins)


OBJECTIVES = ("ece", "adaece", "brier")

# confidences are scored as float32
ROUNDING = 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(("size", "classes", "seed"), [(300, 5, 0), (900, 5, 1), (900, 2, 2), (400, 30, 3)])
def test_no_worse_than_a_scan(objective: Any, size: int, classes: int, seed: int) -> None:
    logits, labels, _ = sample(classes=classes, size=size, seed=seed)
    value = functools.partial(value_of, objective, logits, labels)
    reduce = reduce_of(logits, labels)
    found = value(Temperature.fit(reduce, objective=objective).temperature)
    centre = Temperature.fit(reduce).temperature
    assert found <= value(centre) + ROUNDING
    # the same reach, as finely as the first of its own scans
    steps = centre * np.geomspace(1 / 3, 3, 33)
    assert found <= min(map(value, steps)) + ROUNDING
    # thirty times finer. An error of calibration has dips of noise in between, not deeper than the error of a frequency
    noise = 0.0 if objective == "brier" else math.sqrt(0.25 / size)
    steps = centre * np.geomspace(1 / 3, 3, 961)
    assert found <= min(map(value, steps)) + noise + ROUNDING


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_chunks_give_what_the_whole_gives(objective: Any) -> None:
    logits, labels, _ = sample(size=300)
    whole, cut = (
        Temperature.fit(reduce_of(logits, labels, None, cuts), objective=objective) for cuts in ((), (7, 100, 260))
    )
    # the centre of the scan is the root of sums in another order
    assert cut.temperature == pytest.approx(whole.temperature, rel=1e-9)


@pytest.mark.parametrize("bins", [2, 40])
def test_the_bins_are_those_asked_for(bins: int) -> None:
    logits, labels, _ = sample(classes=5, size=900, seed=1)
    reduce = reduce_of(logits, labels)
    found = Temperature.fit(reduce, objective="ece", bins=bins).temperature
    steps = Temperature.fit(reduce).temperature * np.geomspace(1 / 3, 3, 33)
    value = functools.partial(value_of, "ece", logits, labels, bins=bins)
    assert value(found) <= min(map(value, steps)) + ROUNDING
    assert found != Temperature.fit(reduce, objective="ece").temperature


# --- Subnormal slopes


@pytest.mark.parametrize("gap", [1.0, 300.0, 700.0, 720.0, 735.0, 740.0, 745.0, 746.0, 760.0])
def test_a_temperature_where_the_slope_underflows(gap: float) -> None:
    """Two samples of three are right: p = 2/3, so T = gap / ln 2."""
    logits, labels = np.array([[gap, 0.0]] * 3), np.array([0, 0, 1])
    assert Temperature.fit(reduce_of(logits, labels, None)).temperature == pytest.approx(gap / np.log(2), rel=1e-6)
