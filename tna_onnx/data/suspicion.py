"""What looks wrong about samples although nothing fails: labels that disagree with the model, classes that are missing,
and pixels on another scale.

Let H be the confusion matrix, H[y, k] the number of samples of label y that are predicted as k, and N its sum.

- Accuracy is sum_c H[c, c] / N; chance is what the same labels and predictions would give if they were independent,
  sum_c (sum_k H[c, k]) (sum_y H[y, c]) / N^2.
- Near chance: accuracy is below chance + max(0.05 (1 - chance), 2 standard errors of chance).
- One class: accuracy is near chance, but 90 % of the predictions are one class, which most samples have. That is also
  true of a good model of a rare event; its predictions say nothing about the labels.
- Another order: the permutation p of the classes that maximises sum_c H[c, p(c)] (linear assignment) is found on one
  half of the samples and scored on the other, both ways round, so that it cannot profit from noise. It is reported if
  it is better by 5 points, and by 2.67 standard errors of the paired difference. By chance that happens in about one of
  100 data sets at most, where a model takes classes for one another as often as not. How many orders there are plays no
  part, as each half is compared under one. But with differences a and b of such classes in the halves, the sum of b
  where a > 0 and of a where b > 0 is what is compared, and its variance is 1 + 1/pi times that of the samples that
  move; so the 2.33 standard errors below which 99 % of a normal distribution lie are times the root of that.

- Labels drawn at random: a label that was drawn from all classes is any of the C - 1 that the model did not predict as
  often as any other, and as often where the model is sure; errors of the model are mostly its next best classes, and
  grow rare where it is sure. So let k of the m surest samples be wrong, and in h of them let the label be among the
  half of the classes that the model holds for least likely, b = floor(C/2) of them. A share h/m C/b of the labels is
  random, if h is no less than three quarters of what k random ones have there, k b / (C - 1). It is reported if it is
  5 % or more, by its lower bound (one-sided, 95 %), from 200 samples and five classes on.

A map with parameters of its own for each class learns from labels without a class that this class never occurs. If
classes are missing by chance, others are almost missing: of K equally frequent classes with lambda samples each on
average, K e^-lambda have none and lambda K e^-lambda have one. Cross-validation measures that cost, since samples of a
fold belong to classes that the other folds lack. If many more classes have none than one, they were left out of the
data, and nothing in the data can measure that cost. Good (1953) estimates the unseen share in the same way, from the
classes seen once.

Wrong preprocessing raises no error: the model runs, with a lower accuracy. So two cases are warnings:

1. Nobody has stated how a floating-point input is normalised, so pixels were scaled to 0 to 1.
2. Values are far from those of any usual preprocessing: normalised pixels lie within -3 to 3, plain ones in 0 to 255.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tna_onnx.data.source import InputSpec, Source, source_notes
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from tna_onnx.data.images.preprocess import Recipe
    from tna_onnx.data.source import AnyArray, IntArray

_NEAR = 0.05  # of the way from chance to 1: a 10-class model below 14.5 %, a 1,000-class model below 5.1 %
# Another order must be better by both. The first leaves out what is not worth a warning. With the second, 0 to 1.2 %
# of data sets were reported where no order is better (2 to 50 classes, 60 to 1,000 samples), and 2 of 27,000 where the
# accuracy was 60 to 95 %; and 98 % of those with two of ten classes swapped (100 samples, an accuracy of 85 %).
_MIN_GAIN = 0.05
_MIN_ERRORS = 2.33 * math.sqrt(1 + 1 / math.pi)
_ONE_CLASS = 0.9  # of all predictions
_MAX_CLASSES = 4096  # above, the assignment takes minutes and the matrix more than 130 MB
_MAX_EXAMPLES = 3


@dataclass(frozen=True)
class Confusion:
    """Of the `total` samples labelled `label`, `count` are predicted as `predicted`, more than as any other class."""

    label: int
    predicted: int
    count: int
    total: int


@dataclass(frozen=True)
class Suspicion:
    """Why the labels may be wrong."""

    # "chance", the labels have next to nothing to do with the predictions; "one class", nor could they, as the model
    # predicts one class nearly always; or "order", another order of the classes fits much better
    kind: Literal["chance", "one class", "order"]
    accuracy: float  # share of samples predicted as labelled
    chance: float  # what labels and predictions would give if they were independent
    # accuracy after the permutation, on samples that it was not found on; None if no order is better
    reordered: float | None
    confusions: tuple[Confusion, ...]  # the most frequent wrong predictions of a class, largest share first

    @property
    def discredits_labels(self) -> bool:
        """Whether it speaks against the labels, so that nothing should rest on them."""
        return self.kind != "one class"

    def text(self, class_names: Sequence[str] | None = None) -> str:
        """Describe the suspicion, where it shows and what to check, in one sentence or two."""
        if self.kind == "one class":
            observation = f"accuracy is {self.accuracy:.1%}, what the model's most frequent prediction gives by itself"
            advice = "if the model should predict other classes more often, check the preprocessing and the labels"
        elif self.reordered is None:
            observation = f"accuracy is {self.accuracy:.1%}, near chance ({self.chance:.1%})"
            advice = (
                "check the labels, the order of the classes, and that samples are what the model was trained on "
                "(images: scale, normalisation and order of the channels; tables: order and scaling of the columns; "
                "text: the tokenizer)"
            )
        else:
            observation = f"accuracy is {self.accuracy:.1%}, but {self.reordered:.1%} with the classes in another order"
            advice = (
                "the labels seem to follow another order than the model's output; give the model's class names in "
                "its order (--classes FILE), or correct the indices"
            )
        return f"{'; '.join([observation, *self._examples(class_names)])}: {advice}"

    def _examples(self, class_names: Sequence[str] | None) -> list[str]:
        def name(index: int) -> str:
            if class_names:
                return f"{index} ({class_names[index]})"
            return str(index)

        return [
            f"{c.count:,} of {c.total:,} samples labelled {name(c.label)} are predicted as {name(c.predicted)}"
            for c in self.confusions
        ]


def label_suspicion(predicted: IntArray, labels: IntArray, n_classes: int) -> Suspicion | None:
    """Return why the labels look wrong; None if they look right.

    `predicted`: predicted classes (N,) int, in [0, C); `labels`: class indices (N,), likewise.

    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 10, 1000)
    >>> label_suspicion(labels, labels, 10) is None
    True
    >>> label_suspicion((labels + 1) % 10, labels, 10).reordered
    1.0
    """
    if not len(labels):
        raise ValueError("no samples")
    hits = _confusion(predicted, labels, n_classes)
    n_samples = int(hits.sum())
    accuracy = float(np.trace(hits)) / n_samples
    # In float64: the sum of products goes up to N^2, which leaves int64 from 3e9 samples on.
    chance = float(hits.sum(axis=0, dtype=np.float64) @ hits.sum(axis=1, dtype=np.float64)) / n_samples**2
    # The order goes first: where the classes are only in another order, the accuracy is near chance too.
    reordered = _reordered(predicted, labels, n_classes)
    if reordered is not None:
        return Suspicion("order", accuracy, chance, reordered, _confusions(hits))
    # The second term keeps small data sets from a warning that is noise.
    margin = max(_NEAR * (1 - chance), 2 * math.sqrt(chance * (1 - chance) / n_samples))
    if accuracy >= chance + margin:
        return None
    kind: Literal["chance", "one class"] = "chance"
    usual = int(hits.sum(axis=0).argmax())
    # a model that says one class of samples of many is fed with something else than it was trained on
    if hits[:, usual].sum() >= _ONE_CLASS * n_samples and hits[usual].sum() >= n_samples / 2:
        kind = "one class"
    return Suspicion(kind, accuracy, chance, None, _confusions(hits))


def warnings_of(suspicion: Suspicion | None, class_names: Sequence[str] | None) -> tuple[str, ...]:
    """Return a suspicion as a list of report notes; empty without one."""
    if suspicion is None:
        return ()
    return (suspicion.text(class_names),)


def checked_warnings(
    suspicion: Suspicion | None, class_names: Sequence[str] | None, where: str, *, trusted: bool
) -> tuple[str, ...]:
    """Return the suspicion as report notes, if it does not discredit the labels or the user trusts them."""
    warnings = warnings_of(suspicion, class_names)
    if suspicion is not None and suspicion.discredits_labels and not trusted:
        raise DataError(f"{where}: {warnings[0]}; --trust-labels writes the model all the same")
    return warnings


def below_expectation(accuracy: float, n_samples: int, expected: float) -> str | None:
    """Return a message if an accuracy is more than two standard errors below the expected one, else None.

    The standard error is that of a share of `n_samples`, sqrt(p (1 - p) / N) with p the expected accuracy.

    >>> below_expectation(0.75, 10000, 0.76)
    'accuracy is 75.00 % on 10,000 samples; expected 76.00 %, or at least 75.15 % (two standard errors below)'
    >>> below_expectation(0.752, 10000, 0.76) is None
    True
    """
    min_accuracy = expected - 2 * math.sqrt(expected * (1 - expected) / n_samples)
    if accuracy >= min_accuracy:
        return None
    return (
        f"accuracy is {100 * accuracy:.2f} % on {n_samples:,} samples; expected {100 * expected:.2f} %, or at least "
        f"{100 * min_accuracy:.2f} % (two standard errors below)"
    )


def _confusion(predicted: IntArray, labels: IntArray, n_classes: int) -> IntArray:
    """Return H (C, C); with very many classes, only those that occur, which leaves trace and sums unchanged."""
    if n_classes > _MAX_CLASSES:
        present, at = np.unique(np.concatenate([labels, predicted]), return_inverse=True)
        n_classes = len(present)
        predicted = at[len(labels) :]
        labels = at[: len(labels)]
    flat = np.bincount(labels * n_classes + predicted, minlength=n_classes**2)
    return flat.reshape(n_classes, n_classes).astype(np.int64)


def _reordered(predicted: IntArray, labels: IntArray, n_classes: int) -> float | None:
    """Return the accuracy of the best permutation on samples it was not fitted on; None if not clearly better."""
    if n_classes > _MAX_CLASSES:
        return None
    # every other sample: data are often sorted by class
    halves = [_confusion(predicted[half::2], labels[half::2], n_classes) for half in (0, 1)]
    # no order has more right than the largest of each row, or of each column: that mostly spares the assignment
    most = sum(min(int(hits.max(axis=1).sum()), int(hits.max(axis=0).sum())) for hits in halves)
    if most - np.count_nonzero(labels == predicted) < _MIN_GAIN * len(labels):
        return None
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - heavy

    mapped = np.empty_like(labels)
    for half, hits in enumerate(halves):
        _, permutation = linear_sum_assignment(hits, maximize=True)
        mapped[1 - half :: 2] = permutation[labels[1 - half :: 2]]
    # A paired comparison: samples that both orders get right, or both wrong, say nothing. The standard error of
    # better - worse is sqrt(better + worse).
    better = int(np.count_nonzero((mapped == predicted) & (labels != predicted)))
    worse = int(np.count_nonzero((mapped != predicted) & (labels == predicted)))
    gain = (better - worse) / len(labels)
    if gain >= _MIN_GAIN and better - worse >= _MIN_ERRORS * math.sqrt(better + worse):
        return float(np.mean(mapped == predicted))
    return None


def _confusions(hits: AnyArray) -> tuple[Confusion, ...]:
    """Return the most frequent wrong predictions: for each label its most frequent class, the largest shares first."""
    totals = hits.sum(axis=1)
    predicted = hits.argmax(axis=1)
    counts = hits[np.arange(len(hits)), predicted]
    wrong = [label for label in np.flatnonzero(counts).tolist() if predicted[label] != label and totals[label] > 1]
    # A share of few samples tells less: 1 - 1/n takes 2 of 2 below 99 of 100.
    wrong.sort(key=lambda label: (-counts[label] / totals[label] * (1 - 1 / totals[label]), label))
    return tuple(Confusion(at, int(predicted[at]), int(counts[at]), int(totals[at])) for at in wrong[:_MAX_EXAMPLES])


_FEWEST_SAMPLES = 200
_FEWEST_CLASSES = 5
_RANDOM = 0.05
_EVEN = 0.75
_ONE_SIDED = 1.645


def random_label_share(surest: int, ranks: IntArray, samples: int, n_classes: int) -> float | None:
    """Return the share of labels that look as if drawn from all classes; None where it does not show.

    `surest`: how many of the `samples` the model is surest of, about a quarter; `ranks`: of those of them that it gets
    wrong, how many classes are likelier than the label, 1 to C - 1.

    Of 1,816 draws of right labels (5 to 50 classes, 200 to 1,500 samples, models of digits, images and made-up tables,
    with noise on the inputs of some) it shows in 14. With 10, 20, 30 and 50 % random labels, it shows in 20, 44, 56 and
    73 %, and is 19, 27, 36 and 54 % on average where it does.
    """
    if samples < _FEWEST_SAMPLES or n_classes < _FEWEST_CLASSES:
        return None
    half = n_classes // 2
    unlikely = int(np.count_nonzero(ranks >= n_classes - half))
    share = unlikely / surest
    low = share - _ONE_SIDED * math.sqrt(share * (1 - share) / surest)
    if low * n_classes / half < _RANDOM or unlikely < _EVEN * len(ranks) * half / (n_classes - 1):
        return None
    return min(1.0, share * n_classes / half)


FEW = 5
"""A class with fewer samples is named."""

# So many times as many classes have no sample as have one: left out, not missed by chance. A hundredth of the classes
# at least, as counts of two or three classes tell little, and little depends on them.
_LEFT_OUT = 2
_SHARE = 0.01

_MAX_NAMES = 8


@dataclass(frozen=True)
class Coverage:
    """How labels cover C classes."""

    classes: int  # number of classes C
    unseen: tuple[int, ...]  # classes without a sample
    scarce: tuple[int, ...]  # classes with fewer than `FEW` samples, but with one at least
    left_out: bool  # whether classes are missing that sampling alone would not miss

    @classmethod
    def of(cls, labels: IntArray, n_classes: int) -> Coverage:
        """Count labels (N,) in [0, C).

        >>> Coverage.of(np.array([0, 0, 1, 1, 1, 1, 1]), 3)
        Coverage(classes=3, unseen=(2,), scarce=(0,), left_out=True)
        """
        counts = np.bincount(labels, minlength=n_classes)
        unseen = np.flatnonzero(counts == 0)
        scarce = np.flatnonzero((counts > 0) & (counts < FEW))
        missed = _LEFT_OUT * int(np.count_nonzero(counts == 1))
        left_out = len(unseen) > max(missed, _SHARE * n_classes)
        return cls(n_classes, tuple(unseen.tolist()), tuple(scarce.tolist()), left_out)

    def text(self, subject: str, class_names: Sequence[str] | None = None) -> str:
        """Name the classes that lack samples, in one sentence; empty if none do.

        >>> Coverage.of(np.array([0] * 9), 2).text("the calibration data", ["cat", "dog"])
        'the calibration data have no sample of 1 of 2 classes (dog)'
        """
        parts = []
        if self.unseen:
            parts.append(f"no sample of {self._listed(self.unseen, class_names)}")
        if self.scarce:
            parts.append(f"fewer than {FEW} of {self._listed(self.scarce, class_names)}")
        if not parts:
            return ""
        return f"{subject} have {' and '.join(parts)}"

    def _listed(self, classes: tuple[int, ...], names: Sequence[str] | None) -> str:
        return f"{len(classes):,} of {self.classes:,} classes ({_named(classes, names)})"


def marks_text(marks: IntArray, subject: str, names: Sequence[str] | None = None) -> str:
    """Name the labels that hold for no sample, for few, or for nearly all, in one sentence; empty if there are none.

    `marks`: (N, C) of 0 and 1.

    >>> marks_text(np.array([[1, 0]] * 5 + [[0, 0]] * 5), "the data", ["cat", "dog"])
    'the data have no sample with 1 of 2 labels (dog)'
    """
    positives = marks.sum(axis=0)
    parts = []
    for count, word in ((positives, "with"), (len(marks) - positives, "without")):
        none = np.flatnonzero(count == 0)
        rare = np.flatnonzero((count > 0) & (count < FEW))
        for group, how in ((none, "no sample"), (rare, f"fewer than {FEW} samples")):
            if len(group):
                listed = _named(tuple(group.tolist()), names)
                parts.append(f"{how} {word} {len(group):,} of {len(positives):,} labels ({listed})")
    if not parts:
        return ""
    return f"{subject} have {' and '.join(parts)}"


def _named(classes: tuple[int, ...], names: Sequence[str] | None) -> str:
    """List classes by name, or by number."""
    listed = [str(c) for c in classes[:_MAX_NAMES]]
    if names:
        listed = [names[c] for c in classes[:_MAX_NAMES]]
    if len(classes) > _MAX_NAMES:
        listed.append(f"{len(classes) - _MAX_NAMES:,} more")
    return ", ".join(listed)


_MAX_PIXEL = 255.0
_NORMALISED = 16.0  # normalised pixels lie within 3, and even a small --std keeps them below
_PROBED = 32  # samples: what is wrong with the scale of a data set is wrong with each of them
_MIN_SIDE = 8  # smaller ones are no images


def preprocessing_notes(source: Source, inputs: Sequence[InputSpec], stated: Recipe | str | Path | None) -> list[str]:
    """Return a source's notes, one line on the preprocessing of its images, and the warnings."""
    recipe = source.recipe()
    notes = [*source_notes(source)]
    if recipe is not None:
        notes.append(f"preprocessing: {recipe_text(recipe)}")
    return [*notes, *preprocessing_warnings(source, inputs, stated)]


def preprocessing_warnings(
    source: Source, inputs: Sequence[InputSpec], stated: Recipe | str | Path | None
) -> list[str]:
    """Return the warnings alone; see `preprocessing_notes`."""
    recipe = source.recipe()
    if recipe is None:
        return _array_warnings(source, inputs)
    if not str(recipe.get("dtype")).startswith("float"):
        return []
    if _says_nothing(stated):
        return [
            "WARNING: nothing says how the model's images are normalised, so pixels went in as 0 to 1, without mean "
            "and std; give --preset, --preprocessing or --mean and --std, or --scale 0.00392157 if this is right"
        ]
    # what pixels of 0 and 255 become, over all channels
    ends = (np.array([[0.0], [_MAX_PIXEL]]) * recipe["scale"] - np.array(recipe["mean"])) / np.array(recipe["std"])
    low, high = float(ends.min()), float(ends.max())
    if max(-low, high) > _MAX_PIXEL:
        return [
            f"WARNING: preprocessing takes pixels to {low:.4g} to {high:.4g}, which no usual recipe does; --mean and "
            "--std count in scaled pixels: with --scale 1 they must be 255 times as large"
        ]
    return []


def other_scale(values: np.ndarray[Any, Any]) -> float:
    """Return by what stored images may have to be multiplied; 1 where no other scale is plausible.

    Fractions may belong to a model of pixels of 0 to 255; values beyond those of normalised pixels to one of fractions.

    >>> [other_scale(np.array(values)) for values in ([0.0, 0.98], [-2.1, 2.6], [0.0, 249.9])]
    [255.0, 1.0, 0.00392156862745098]
    """
    low = float(values.min())
    high = float(values.max())
    if max(-low, high) > _NORMALISED:
        return 1 / _MAX_PIXEL
    if low >= 0 and 0 < high <= 1:
        return _MAX_PIXEL
    return 1.0


def recipe_text(recipe: Mapping[str, object]) -> str:
    """Write a resolved recipe.

    >>> recipe_text({"crop": [224, 224], "mean": [0.485], "resize": None})
    'crop (224, 224), mean (0.485)'
    """
    return ", ".join(f"{key} {_plain(value)}" for key, value in recipe.items() if value is not None)


def _says_nothing(stated: Recipe | str | Path | None) -> bool:
    if isinstance(stated, (str, Path)):
        return False
    return stated is None or (stated.mean, stated.std, stated.scale) == (None, None, None)


def _array_warnings(source: Source, inputs: Sequence[InputSpec]) -> list[str]:
    """Return a warning about the values of the first stored samples, for inputs that take images."""
    images = [spec.name for spec in inputs if takes_images(spec)]
    if not images or not len(source):
        return []
    rows = np.arange(min(_PROBED, len(source)))
    batch = next(iter(source.batches(len(rows), rows)))
    return [warning for name in images if (warning := _value_warnings(name, batch[name]))]


def takes_images(spec: InputSpec) -> bool:
    """Tell whether an input takes images of floats."""
    if spec.dtype.kind != "f" or len(spec.shape) != 4:
        return False
    sides = {1: spec.shape[2:], 3: spec.shape[1:3]}
    return any(
        spec.shape[axis] in (1, 3) and all(side is None or side >= _MIN_SIDE for side in sides[axis]) for axis in sides
    )


def _value_warnings(name: str, values: np.ndarray[Any, Any]) -> str:
    low = float(values.min())
    high = float(values.max())
    if max(-low, high) > _MAX_PIXEL:
        return (
            f"WARNING: {name!r} has values from {low:.4g} to {high:.4g}, which no usual preprocessing of images gives; "
            "store the samples as the model was trained on them"
        )
    if low >= 0 and high > _NORMALISED and np.array_equal(values, np.trunc(values)):
        return (
            f"{name!r} holds whole numbers from {low:g} to {high:g}, like pixels that nothing has normalised; this is "
            "right only for a model that does so by itself"
        )
    return ""


def _plain(value: object) -> str:
    """Write a value of the recipe: 0.485, (224, 224)."""
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(_plain(v) for v in value) + ")"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)
