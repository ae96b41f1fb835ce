"""Wrong labels are told by the predictions; right ones are left alone."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from tna_onnx.data import suspicion
from tna_onnx.data.labels import FEW, Coverage
from tna_onnx.data.suspicion import label_suspicion

Ints = npt.NDArray[np.int64]


def predictions(n_samples: int, n_classes: int, accuracy: float, seed: int = 0) -> tuple[Ints, Ints]:
    """Labels, and predictions that are right with a probability and else another class, all alike."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n_samples)
    other = (labels + rng.integers(1, n_classes, n_samples)) % n_classes
    return np.where(rng.random(n_samples) < accuracy, labels, other), labels


@pytest.mark.parametrize(
    ("n_samples", "n_classes", "accuracy"),
    [
        (10, 2, 1.0),
        (200, 2, 0.7),
        (5000, 10, 0.3),
        (5000, 10, 0.95),
        (5000, 1000, 0.7),
        (500, 1000, 0.7),
        (2000, 5000, 0.5),
    ],
)
def test_right_labels(n_samples: int, n_classes: int, accuracy: float) -> None:
    assert label_suspicion(*predictions(n_samples, n_classes, accuracy), n_classes) is None


@pytest.mark.parametrize(("n_samples", "n_classes"), [(100, 2), (5000, 10), (5000, 1000), (5000, 5000)])
def test_labels_drawn_at_random(n_samples: int, n_classes: int) -> None:
    predicted, _ = predictions(n_samples, n_classes, 0.9)
    shuffled = np.random.default_rng(1).integers(0, n_classes, n_samples)
    found = label_suspicion(predicted, shuffled, n_classes)
    assert found is not None
    assert found.kind == "chance"
    assert found.reordered is None
    assert "near chance" in found.text()


@pytest.mark.parametrize(
    ("n_samples", "n_classes", "accuracy"), [(100, 3, 0.9), (5000, 10, 0.6), (5000, 100, 0.8), (10000, 1000, 0.76)]
)
@pytest.mark.parametrize("how", ["shifted", "shuffled", "two swapped"])
def test_another_order_of_the_classes(n_samples: int, n_classes: int, accuracy: float, how: str) -> None:
    predicted, labels = predictions(n_samples, n_classes, accuracy)
    order = {
        "shifted": np.roll(np.arange(n_classes), 1),
        "shuffled": np.random.default_rng(3).permutation(n_classes),
        "two swapped": np.r_[1, 0, 2:n_classes],
    }[how]
    found = label_suspicion(predicted, order[labels], n_classes)
    if how == "two swapped" and n_classes >= 100:
        assert found is None, "two classes of a hundred are less than five points"
        return
    assert found is not None
    assert found.kind == "order"
    # On half of the samples of a class, 5 of 1,000 classes, the best order is sometimes missed.
    assert found.reordered == pytest.approx(accuracy, abs=0.1)
    assert all(order[confusion.predicted] == confusion.label for confusion in found.confusions)


def test_two_swapped_classes_in_few_labels() -> None:
    """A fifth of 100 labels is wrong: a refit would learn it. Right labels of as many samples are left alone."""
    kinds = []
    for seed in range(50):
        predicted, labels = predictions(100, 10, 0.85, seed)
        assert label_suspicion(predicted, labels, 10) is None
        weak, right = predictions(100, 10, 0.3, seed)
        assert label_suspicion(weak, right, 10) is None
        found = label_suspicion(predicted, np.r_[1, 0, 2:10][labels], 10)
        kinds.append(found and found.kind)
    assert kinds.count("order") >= 45


@pytest.mark.parametrize(("n_classes", "alike"), [(2, 2), (10, 2), (10, 10), (50, 2)])
def test_classes_that_a_model_cannot_tell_apart_are_in_the_right_order(n_classes: int, alike: int) -> None:
    """One of 100 data sets is reported by chance, 5 of 500; more than 11 are three standard errors off."""
    kinds = []
    for seed in range(500):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, n_classes, 100)
        predicted = labels // alike * alike + rng.integers(0, alike, 100)
        found = label_suspicion(predicted, labels, n_classes)
        kinds.append(found and found.kind)
    assert kinds.count("order") <= 11


@given(st.integers(2, 5), st.integers(20, 60), st.floats(0, 1), st.integers(0, 999))
def test_accuracy_and_chance_against_their_definition(n_classes: int, n_samples: int, share: float, seed: int) -> None:
    predicted, labels = predictions(n_samples, n_classes, share, seed)
    found = label_suspicion(predicted, labels, n_classes)
    accuracy = sum(map(int, predicted == labels)) / n_samples
    chance = sum(int(a) == int(b) for a, b in itertools.product(predicted, labels)) / n_samples**2
    if found is None:
        assert accuracy >= chance + 0.05 * (1 - chance) - 1e-12
        return
    assert found.accuracy == pytest.approx(accuracy, abs=1e-12)
    assert found.chance == pytest.approx(chance, abs=1e-12)


def test_one_predicted_class_of_many() -> None:
    """So does a model whose inputs are 255 times too large: what it says has nothing to do with the samples."""
    found = label_suspicion(np.zeros(100, np.int64), np.arange(100) % 4, 4)
    assert found is not None
    assert (found.kind, found.accuracy, found.chance) == ("chance", 0.25, 0.25)


def test_a_rare_event() -> None:
    """A model that never sees it is right 99 times of 100; its predictions say nothing about the labels."""
    labels = (np.arange(1000) % 100 == 0).astype(np.int64)
    found = label_suspicion(np.zeros(1000, np.int64), labels, 2)
    assert found is not None
    assert found.kind == "one class"
    assert found.text().startswith("accuracy is 99.0 %, what the model's most frequent prediction gives by itself")


@pytest.mark.parametrize("accuracy", [0.3, 0.6, 0.9, 0.99])
def test_the_bound_that_spares_the_assignment_changes_no_answer(
    accuracy: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it spares has no better order: without the bound the answer is the same."""
    rng = np.random.default_rng(0)
    for seed in range(40):
        classes = int(rng.integers(2, 12))
        labels = rng.integers(0, classes, 300)
        order = rng.permutation(classes) if seed % 2 else np.arange(classes)
        right = rng.random(300) < accuracy
        predicted = np.where(right, order[labels], rng.integers(0, classes, 300))
        found = suspicion._reordered(predicted, labels, classes)
        hits = [suspicion._confusion(predicted[half::2], labels[half::2], classes) for half in (0, 1)]
        best = [linear_sum_assignment(each, maximize=True)[1] for each in hits]
        mapped = np.empty_like(labels)
        for half in (0, 1):
            mapped[1 - half :: 2] = best[half][labels[1 - half :: 2]]
        better = int(np.sum((mapped == predicted) & (labels != predicted)))
        worse = int(np.sum((mapped != predicted) & (labels == predicted)))
        expected = (better - worse) / 300 >= 0.05 and better - worse >= 4 * np.sqrt(better + worse)
        assert (found is not None) == expected


# ---- Classes that labels do not cover


def test_classes_are_named_by_their_counts() -> None:
    labels = np.repeat([0, 1, 3], [FEW, FEW - 1, 20])
    found = Coverage.of(labels, 5)
    assert (found.unseen, found.scarce, found.left_out) == ((2, 4), (1,), True)
    assert found.text("the data") == (
        "the data have no sample of 2 of 5 classes (2, 4) and fewer than 5 samples of 1 of 5 classes (1)"
    )
    assert found.text("the data", list("abcde")).startswith("the data have no sample of 2 of 5 classes (c, e) and")


@pytest.mark.parametrize("size", [1000, 2000, 5000, 8000])
def test_classes_that_sampling_misses_are_not_left_out(size: int) -> None:
    """A thousand classes, equally frequent or not: what the sample lacks, it nearly lacks of many others."""
    rng = np.random.default_rng(size)
    weights = rng.dirichlet(np.ones(1000))
    for p in (None, weights):
        assert not Coverage.of(rng.choice(1000, size, p=p), 1000).left_out


@pytest.mark.parametrize("size", [40, 1000, 20_000])
def test_half_of_the_classes_is_left_out(size: int) -> None:
    assert Coverage.of(np.random.default_rng(size).integers(0, 5, size), 10).left_out


@pytest.mark.parametrize("biased", [False, True])
def test_a_model_that_ranks_well_is_not_suspected_where_one_class_dominates(*, biased: bool) -> None:
    """Of a rare event that is never likeliest; of a model that says "positive" too often, as naive Bayes may."""
    rng = np.random.default_rng(0)
    labels = (rng.random(2000) < 0.1).astype(np.int64)
    p = 1 / (1 + np.exp(-(2 * labels + rng.standard_normal(2000) + (1 if biased else -4))))
    predicted = (p > 0.5).astype(np.int64)
    confidence = np.maximum(p, 1 - p)
    suspicion = label_suspicion(predicted, labels, 2)
    assert suspicion is not None
    assert suspicion.kind == ("order" if biased else "one class")
    assert label_suspicion(predicted, labels, 2, lambda: confidence) is None
    # ranks that say the opposite, or nothing, excuse no model
    assert label_suspicion(1 - predicted, labels, 2, lambda: confidence) is not None or not biased
    noise = rng.permutation(confidence)
    assert label_suspicion(predicted, rng.permutation(labels), 2, lambda: noise) is not None
