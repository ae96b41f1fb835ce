"""The judgement of accuracy, NLL and ECE together: a table of every case, and the findings behind the rules."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Interval, Metrics
from tna_onnx.numerics.operating_points import Recalls
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.results.verdict import Recall, Standing, changed, result_sentence, samples_needed

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


def test_every_case() -> None:
    assert len(TABLE) == 27
    for (accuracy, nll, ece), word in TABLE.items():
        standing = Standing.of(differences(accuracy=accuracy, nll=nll, ece=ece))
        assert standing.word == word, (accuracy, nll, ece)
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


@pytest.mark.parametrize(("errors", "counts"), [(9, 0), (10, 1), (None, 1)])
def test_nothing_counts_with_few_errors(errors: int | None, counts: int) -> None:
    d = {name: replace(interval, errors=errors) for name, interval in differences(nll=1, ece=1, accuracy=1).items()}
    standing = Standing.of(d)
    assert (len(standing.better), standing.word) == ((3, IMPROVED) if counts else (0, SAME))
    assert standing.few_errors == (None if counts else 9)
    assert ("(9)" in standing.sentence(BEFORE, AFTER, d)) == (not counts)


def test_a_likelihood_ratio_counts_as_an_interval_does() -> None:
    likelier = {**differences(), "nll": Interval(-0.1, -0.3, 0.1, 0.95, errors=10, likelier=True)}
    assert Standing.of(likelier).better == ("nll",)
    assert Standing.of({**likelier, "nll": replace(likelier["nll"], errors=9)}).word == SAME
    assert not likelier["nll"].holding(differences()["nll"]).likelier


@pytest.mark.parametrize(
    ("n", "nll", "needed"),
    [
        (20, Interval(0.0, 0.0, 0.0, 0.95, errors=1), 200),  # 10 errors of 1 in 20
        (300, Interval(0.0, 0.0, 0.0, 0.95, errors=2), 2000),  # 1500, to one digit
        (80, Interval(-0.02, -0.08, 0.04, 0.95, errors=12), 800),  # the half width 0.06 is to be 0.02: 9 times as many
        (80, Interval(0.02, -0.04, 0.08, 0.95, errors=12), 200),  # nothing to go by
    ],
)
def test_how_many_samples_would_tell(n: int, nll: Interval, needed: int) -> None:
    assert samples_needed(replace(BEFORE, n=n), nll) == needed


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


# --- Recall in a report: intervals, the class that loses, and the gates that limit it


Array = NDArray[Any]

LABELS = np.repeat([0, 1, 2], [500, 300, 200])
NAMES = ("cat", "dog", "fox")


def scored(hit: Array, labels: Array | None = None) -> SampleScores:
    values = np.zeros(len(hit), np.float32)
    return SampleScores(values, hit, values, values, labels=labels)


def hits(*right: int) -> Array:
    """Hits of so many samples of each class, its first ones."""
    starts = np.searchsorted(LABELS, LABELS)
    return np.arange(1000) - starts < np.array(right)[LABELS]


def recall(before: Array, after: Array, **fields: Any) -> Recall:
    return Recall.of(scored(before, LABELS), scored(after), NAMES, **fields)


SILENT = recall(hits(400, 200, 100), hits(480, 200, 20))


def test_the_class_that_loses_is_named_with_its_interval() -> None:
    worst = SILENT.worst
    assert worst.name == "fox"
    assert worst.text().startswith("fox: recall 50.0 % -> 10.0 % (-4")
    assert worst.difference.low < worst.difference.difference == -0.4 < worst.difference.high < 0
    assert SILENT.balanced_before == pytest.approx((0.8 + 2 / 3 + 0.5) / 3)
    assert SILENT.balanced.difference == pytest.approx((0.96 + 2 / 3 + 0.1) / 3 - SILENT.balanced_before)


def test_a_loss_that_may_be_chance_is_not_named_as_one() -> None:
    """Three of 200: the interval of an adjusted Wald test holds zero."""
    found = recall(hits(400, 200, 100), hits(400, 200, 97))
    assert found.worst is None
    assert found.lowest.name == "fox"


def test_of_many_classes_the_worst_of_chance_is_not_named() -> None:
    """Nothing changes on average in 60 classes: the worst of them loses by chance, in one interval of 40 or so."""
    named = plain = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 60, 3000)
        before, after = (rng.random(3000) < 0.7 for _ in range(2))
        names = [str(c) for c in range(60)]
        found = Recall.of(scored(before, labels), scored(after), names)
        named += found.worst is not None
        plain += any(each.difference.high < 0 for each in found.classes)
    assert plain > 20
    assert named <= 4


def test_an_interval_that_holds_another_keeps_its_values_and_names_a_class_that_loses_in_both() -> None:
    before = hits(400, 200, 100)
    one, other = recall(before, hits(480, 200, 20)), recall(before, before)
    assert one.worst is not None
    both = one.holding(other)
    assert both.worst is None
    for mine, each, also in zip(both.classes, one.classes, other.classes, strict=True):
        assert (mine.after, mine.difference.difference) == (each.after, each.difference.difference)
        assert mine.difference.low == min(each.difference.low, also.difference.low)
        assert mine.difference.high == max(each.difference.high, also.difference.high)
    assert both.balanced.low == one.balanced.low


# --- The sentence for readers who know no metric says what the verdict says


def metrics(accuracy: float = 0.9, ece: float = 0.05) -> Metrics:
    return Metrics(1000, 15, accuracy, ece, ece, 0.3, 0.1)


@pytest.mark.parametrize(
    ("sides", "after", "expected"),
    [
        ({"ece": 1, "nll": 1}, metrics(0.9, 0.01), ["better: ", "now 1.0", "stays at 90.0 %"]),
        ({"nll": 1}, metrics(0.901, 0.055), ["more closely", "no clear change", "90.1 %, which may be chance"]),
        (
            {"ece": -1, "nll": -1, "accuracy": -1},
            metrics(0.85, 0.1),
            ["worse than the original", "grows from 5.0 to 10.0 points", "falls from 90.0 % to 85.0 %"],
        ),
        ({"nll": -1}, metrics(), ["worse than the original", "less closely", "no clear change"]),
        ({"accuracy": 1}, metrics(0.95), ["better: ", "no clear change", "rises from 90.0 % to 95.0 %"]),
    ],
)
def test_the_sentence(sides: dict[str, int], after: Metrics, expected: list[str]) -> None:
    found = differences(**sides)
    sentence = result_sentence(Standing.of(found).word, metrics(), after, found)
    assert [words for words in expected if words not in sentence] == []


def test_a_metric_that_is_worse_is_named_though_the_others_are_better() -> None:
    found = differences(ece=1, nll=1) | {"brier": Interval(0.0014, 0.0004, 0.0024, 0.95)}
    sentence = result_sentence("improved", metrics(), metrics(0.9, 0.01), found, chance=0.012)
    assert "Brier 0.1000 -> 0.1000 (+0.0004 to +0.0024) is worse" in sentence
    assert "now 1.0 (by chance alone 1.2)" in sentence
    better = differences(ece=1, nll=1) | {"brier": Interval(-0.0014, -0.0024, -0.0004, 0.95)}
    assert "is worse" not in result_sentence("improved", metrics(), metrics(0.9, 0.01), better)


def test_a_class_of_few_groups_loses_beyond_what_their_spread_explains() -> None:
    """12 groups and 5 classes: 3.1 standard errors of Student's distribution, where the normal one has 2.6."""
    zero = np.zeros(600, np.float32)
    near = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        labels, groups = np.repeat(np.arange(5), 120), np.tile(np.arange(12), 50)
        hit = rng.random(600) < 0.9
        before = SampleScores(zero, hit, zero, zero, groups, labels=labels)
        lost = rng.random(600) < 0.15 * rng.random(12)[groups]
        after = SampleScores(zero, hit & ~lost, zero, zero)
        bounds = {z: Recalls.of(before, after).ends(z)[1] < 0 for z in (stats.norm.ppf(0.995), stats.t.ppf(0.995, 11))}
        normal, student = bounds.values()
        near += np.count_nonzero(normal & ~student)
        assert [one.loses for one in Recall.of(before, after, "abcde").classes] == student.tolist()
    assert near
