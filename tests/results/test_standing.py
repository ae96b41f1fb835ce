"""The judgement of accuracy, NLL and ECE together: a table of every case, and the findings behind the rules."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Interval, Metrics
from tna_onnx.results.verdict import Standing, changed

BEFORE = Metrics(5000, 15, accuracy=0.811, ece=0.021, adaece=0.02, nll=0.5529, brier=0.27)
AFTER = Metrics(5000, 15, accuracy=0.83, ece=0.012, adaece=0.011, nll=0.4873, brier=0.25)


def moved(name: str, side: int, times: float = 10.0) -> Interval:
    """Return a sure change for the better (1) or worse (-1), in so many smallest effects; 0: open."""
    metric = METRICS[name]
    size = times * metric.smallest_effect / metric.factor
    d = side * metric.better * size
    if side == 0:
        return Interval(size, -size, 3 * size, 0.95)
    return Interval(d, d - size / 2, d + size / 2, 0.95)


def differences(**sides: int) -> dict[str, Interval]:
    return {name: moved(name, sides.get(name, 0)) for name in METRICS}


# (accuracy, NLL, ECE) -> word, written out by hand from the rules of the module's docstring
IMPROVED, SAME, WORSE = "improved", "no significant change", "worse"
TABLE = {
    (1, 1, 1): IMPROVED, (1, 1, 0): IMPROVED, (1, 1, -1): IMPROVED,
    (1, 0, 1): IMPROVED, (1, 0, 0): IMPROVED, (1, 0, -1): IMPROVED,
    (1, -1, 1): WORSE, (1, -1, 0): WORSE, (1, -1, -1): WORSE,
    (0, 1, 1): IMPROVED, (0, 1, 0): IMPROVED, (0, 1, -1): IMPROVED,
    (0, 0, 1): IMPROVED, (0, 0, 0): SAME, (0, 0, -1): WORSE,
    (0, -1, 1): WORSE, (0, -1, 0): WORSE, (0, -1, -1): WORSE,
    (-1, 1, 1): IMPROVED, (-1, 1, 0): IMPROVED, (-1, 1, -1): IMPROVED,
    (-1, 0, 1): WORSE, (-1, 0, 0): WORSE, (-1, 0, -1): WORSE,
    (-1, -1, 1): WORSE, (-1, -1, 0): WORSE, (-1, -1, -1): WORSE,
}  # fmt: skip


@pytest.mark.parametrize("sides", TABLE, ids=str)
def test_every_case(sides: tuple[int, int, int]) -> None:
    accuracy, nll, ece = sides
    standing = Standing.of(differences(accuracy=accuracy, nll=nll, ece=ece))
    assert standing.word == TABLE[sides]
    assert len(TABLE) == 27
    assert sorted(standing.better + standing.worse + standing.same) == ["accuracy", "ece", "nll"]


@pytest.mark.parametrize("objective", ["adaece", "brier"])
@pytest.mark.parametrize("side", [-1, 0, 1])
def test_an_objective_outside_of_the_three_is_judged_as_the_ece_is(objective: str, side: int) -> None:
    for accuracy, nll in itertools.product((-1, 0, 1), repeat=2):
        sides = {"accuracy": accuracy, "nll": nll, objective: side}
        assert Standing.of(differences(**sides), objective).word == TABLE[accuracy, nll, side]
    # and of the others it says nothing
    assert Standing.of(differences(**{objective: -1})).word == SAME


@given(st.sampled_from(list(METRICS)), st.sampled_from([-1, 1]), st.floats(0.01, 0.99))
def test_less_than_the_smallest_effect_never_counts(name: str, side: int, times: float) -> None:
    """However sure it is: on a million samples everything is."""
    assert changed(name, moved(name, side, times)) == 0
    assert changed(name, moved(name, side, 1 + times)) == side


def test_the_findings_behind_the_rules() -> None:
    def word(**values: float) -> str:
        return Standing.of({name: Interval(d, d - 1e-5, d + 1e-5, 0.95) for name, d in values.items()}).word

    # isotonic maps with few samples a class: a better ECE, bought with the NLL
    assert word(accuracy=0.0, nll=0.135, ece=-0.01) == WORSE
    # a last layer that was refitted: accuracy and NLL are worth more than a point of ECE
    assert word(accuracy=0.34, nll=-1.7, ece=0.01) == IMPROVED
    assert word(accuracy=0.37, nll=0.0, ece=0.0) == IMPROVED
    # a temperature on a model that is calibrated
    assert word(accuracy=0.0, nll=0.00016, ece=0.0003) == SAME
    # a tilt that costs accuracy, with the NLL of a temperature
    assert word(accuracy=-0.0042, nll=-0.001, ece=-0.01) == WORSE


def test_the_sentence_begins_with_its_word_and_names_each_metric_once() -> None:
    for sides in TABLE:
        d = differences(**dict(zip(("accuracy", "nll", "ece"), sides, strict=True)))
        standing = Standing.of(d)
        sentence = standing.sentence(BEFORE, AFTER, d)
        assert sentence.startswith(f"{standing.word}: ")
        for name in ("accuracy", "NLL", "ECE"):
            assert sentence.count(f"{name} ") == 1
        for word, names in ((IMPROVED, standing.better), (WORSE, standing.worse), (SAME, standing.same)):
            assert (f"{word}: " in sentence) == bool(names)


def test_the_sentence_has_values_and_intervals_in_the_units_of_the_table() -> None:
    d = {
        "nll": Interval(-0.0656, -0.0712, -0.0598, 0.95),
        "ece": Interval(0.009, 0.004, 0.014, 0.95),
        "accuracy": Interval(0.0002, -0.001, 0.0013, 0.95),
    }
    assert Standing.of(d).sentence(BEFORE, AFTER, d) == (
        "improved: NLL 0.5529 -> 0.4873 (-0.0712 to -0.0598); worse: ECE 2.10 % -> 1.20 % (+0.40 to +1.40 points); "
        "no significant change: accuracy 81.10 % -> 83.00 % (-0.10 to +0.13 points)"
    )
