"""Images that are run under several recipes, twice as many each time, to compare what a model makes of them.

With d the differences of two recipes' NLLs, each at its own temperature, and z the mean of d in its standard errors, a
recipe is dropped where z > 3 and sum d > log(20,000). It loses clearly

- where z > 3: one in 700 by chance;
- or where z > 2 and sum d > log(1000): by chance in one of 1,000 cases at most (Royall 1997, section 1.4).

Others are tied. A tie is harmless where the inputs hardly differ, or only the resizing, or the NLL could hardly be
worse.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.choices import Color
from tna_onnx.data.images.known_recipes import NamedRecipe, RecipeScore
from tna_onnx.data.images.preprocess import Recipe, ResolvedRecipe
from tna_onnx.data.source import Batch, InputSpec
from tna_onnx.data.sources.image_files import ImageSource
from tna_onnx.data.suspicion import Suspicion, label_suspicion
from tna_onnx.errors import DataError
from tna_onnx.graph.readout import ClassOutput, require_rows
from tna_onnx.numerics.fitting import increasing_root
from tna_onnx.runtime import Session

FloatArray = NDArray[np.float64]
Change = Callable[[NDArray[Any], int], NDArray[Any]]  # of a batch with the axis of its channels

USUAL = (0.45, 0.25)  # mean and standard deviation of photographs, of pixels of 0 to 1
START = 8  # images of the first round: enough to leave out recipes that make nonsense of them
FIRST = 32  # images that tell something of a mean
ENOUGH = 64  # images after which a recipe that is stated, and the best, needs no more
SAMPLES = 256  # images after which recipes are compared
_MOST = 1024  # images where recipes are tied
_BATCH = 32
# images, each under one recipe, that a race may run; what it leaves, and once more as many, may be run outside it
MOST_RUNS = 4000
CLEAR = 3.0  # standard errors by which a recipe loses clearly
_RIGHT, _GUESSED = 3 / 4, 0.8  # of the mean confidence, and of the NLL of guessing
_WORSE = 5
_LEAST = -1e6  # nats: a probability that is 0 in floats is taken for this
_LIKELY = 2.0  # standard errors beside a likelihood ratio: one image alone decides nothing
_RATIO = math.log(1000)
_DROPPED = math.log(20_000)

_EQUAL = 1e-4  # nats: rounding, as of a model that normalises by itself
_HARMLESS = 0.005  # nats: half a per cent of the probability of the right class

# Root mean square of the difference of two inputs, in their standard deviation, for pixels of 0 to 1 as photographs
# have them. ImageNet, CLIP and CIFAR statistics are 0.1 to 0.3 apart, all others 0.6 and more.
_HARDLY = 1 / 3
_GREY = 0.05  # of the pixels' standard deviation: how much channels differ where there are no colours

_MIN_BETA, _MAX_BETA = 1e-4, 1e4  # inverse temperatures


@dataclass(eq=False)
class Trial:
    """A recipe, and what a model makes of the images that were run under it."""

    named: NamedRecipe
    resolved: ResolvedRecipe
    logs: FloatArray = field(
        default_factory=lambda: np.zeros((0, 0))
    )  # log-probabilities (n, C), up to a constant each
    losses: FloatArray = field(default_factory=lambda: np.zeros(0))  # the NLL of each image at the best temperature
    labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    change: Change | None = None  # of prepared images, before they go in

    @functools.cached_property
    def pixels(self) -> ResolvedRecipe:
        """The same resizing, crop and layout, but with pixels of 0 to 255 that are not normalised."""
        color: Color = "L" if self.resolved.color == "L" else "RGB"
        plain = tuple(0.0 for _ in self.resolved.mean)
        unit = tuple(1.0 for _ in plain)
        pixel = np.dtype(np.float32)
        return replace(self.resolved, scale=1.0, mean=plain, std=unit, color=color, dtype=pixel, per_image=False)

    @property
    def n_classes(self) -> int:
        """How many classes the model has."""
        return int(self.logs.shape[1])

    @property
    def channel_axis(self) -> int:
        """The axis of the channels in a batch."""
        return 1 if self.resolved.layout == "NCHW" else 3

    def __len__(self) -> int:
        return len(self.losses)

    @property
    def nll(self) -> float:
        """The NLL at the recipe's own temperature, nats."""
        return float(np.mean(self.losses))

    @property
    def plain_nll(self) -> float:
        """The NLL at the model's own temperature, nats."""
        return nll_of(self.logs, self.labels)

    def behind(self, best: Trial) -> tuple[float, float]:
        """Return how much larger the NLL is than another's on the same images, nats, and its standard error.

        Nothing is behind losses of which one is infinite.
        """
        n = min(len(self), len(best))
        if not np.isfinite(best.losses[:n]).all():
            return 0.0, 0.0
        difference = self.losses[:n] - best.losses[:n]
        if not np.isfinite(difference).all():
            return math.inf, 0.0
        return float(np.mean(difference)), float(np.std(difference) / math.sqrt(n))

    def z(self, best: Trial) -> float:
        """Return `behind` in standard errors; 0 where the NLLs are equal but for rounding."""
        mean, error = self.behind(best)
        if abs(mean) <= _EQUAL:
            return 0.0
        return mean / error if error else math.copysign(math.inf, mean)

    def loses_clearly(self, best: Trial) -> bool:
        """Whether its NLL is larger than another's by more than chance explains (module docstring)."""
        z = self.z(best)
        mean, _ = self.behind(best)
        return z > CLEAR or (z > _LIKELY and mean * min(len(self), len(best)) > _RATIO)

    def is_dropped(self, best: Trial) -> bool:
        """Whether no more images need to be run under it, as it is so far behind (module docstring)."""
        mean, _ = self.behind(best)
        return self.z(best) > CLEAR and mean * min(len(self), len(best)) > _DROPPED

    @property
    def suspicion(self) -> Suspicion | None:
        """Why predictions under this recipe look unrelated to the labels; None if they do not."""
        return label_suspicion(self.logs.argmax(axis=1), self.labels, self.n_classes)

    @property
    def accuracy(self) -> float:
        """Share of right predictions."""
        return float(np.mean(self.logs.argmax(axis=1) == self.labels))

    @property
    def confidence(self) -> float:
        """Mean confidence at the model's own temperature, a fraction."""
        return float(np.mean(1 / np.exp(self.logs).sum(axis=1)))  # the largest of each row is 0

    @property
    def is_rarely_right(self) -> bool:
        """Whether the model is right far less often than it says, and hardly better than guessing in NLL."""
        return self.accuracy < _RIGHT * self.confidence and self.plain_nll > _GUESSED * math.log(self.n_classes)

    @property
    def leaves_nothing_to_gain(self) -> bool:
        """Whether no other recipe can be clearly more accurate on these images."""
        return leaves_nothing_to_gain(self.logs, self.labels)

    def score(self, best: Trial) -> RecipeScore:
        """Return what reports show of this recipe, compared with the best one."""
        behind = min(self.z(best), 99.0)
        return RecipeScore(self.named.name, self.named.flags, len(self), self.accuracy, self.nll, behind)


class TrialImages:
    """Some of the images in random order, their labels, and the model to run them."""

    def __init__(self, source: ImageSource, spec: InputSpec, output: ClassOutput, session: Session) -> None:
        self.source = source
        self.spec = spec
        self.rows = np.random.default_rng(0).permutation(len(source))[:_MOST]
        self.labels = source.labels[self.rows]
        self._output = output
        self._session = session
        self._runs = [0]  # of these images and all that are taken from them by `after`

    @property
    def runs(self) -> int:
        """How many images were run so far, each under one recipe."""
        return self._runs[0]

    def after(self, count: int) -> TrialImages:
        """Return the images but the first ones."""
        rest = copy.copy(self)
        rest.rows, rest.labels = self.rows[count:], self.labels[count:]
        return rest

    def trial(self, named: NamedRecipe, change: Change | None = None) -> Trial:
        """Return a trial of a recipe, without any images yet."""
        return Trial(named, named.recipe.resolve(self.spec), change=change)

    def batches(self, resolved: ResolvedRecipe, start: int, end: int) -> Iterator[NDArray[Any]]:
        """Yield the images `start` to `end` of the random order, prepared by a recipe."""
        prepared = replace(self.source, preprocess=resolved)
        for batch in prepared.batches(_BATCH, self.rows[start:end]):
            yield batch[self.source.input_name]

    def fit(self, recipe: Recipe) -> bool:
        """Whether the first images have sizes under a recipe that the model takes, and one unless it takes several."""
        trial = self.trial(NamedRecipe("", recipe))
        shapes = set()
        try:
            for batch in self.batches(trial.pixels, 0, FIRST):
                # a network may declare an axis of any length, and take one
                if batch.shape[1:] not in shapes:
                    self._logs(trial.resolved.values(batch))
                shapes.add(batch.shape[1:])
        except DataError:
            return False
        return True

    def run(self, trials: Sequence[Trial], end: int) -> None:
        """Run the first `end` images under each recipe; those that were run before are not run again."""
        end = min(end, len(self.rows))
        groups: dict[tuple[ResolvedRecipe, int], list[Trial]] = {}
        for trial in trials:
            if len(trial) < end:
                groups.setdefault((trial.pixels, len(trial)), []).append(trial)
        for (pixels, start), group in groups.items():
            parts: list[list[FloatArray]] = [[] for _ in group]
            for batch in self.batches(pixels, start, end):
                for trial, logs in zip(group, parts, strict=True):
                    values = trial.resolved.values(batch)
                    if trial.change is not None:
                        changed = trial.change(values, trial.channel_axis)
                        values = np.ascontiguousarray(changed, values.dtype)
                    logs.append(self._logs(values))
            for trial, logs in zip(group, parts, strict=True):
                trial.logs = np.concatenate([trial.logs, *logs] if len(trial) else logs)
                trial.labels = self.labels[: len(trial.logs)]
                trial.losses = _losses(trial.logs, trial.labels)

    def _logs(self, values: NDArray[Any]) -> FloatArray:
        self._runs[0] += len(values)
        return log_scores(self._session, self._output, {self.source.input_name: values})


def log_scores(session: Session, output: ClassOutput, feeds: Batch) -> FloatArray:
    """Run a batch; return the log-probabilities of its samples, up to a constant each, the largest of each 0."""
    raw = session.run([output.name], feeds)[0]
    require_rows(raw, len(next(iter(feeds.values()))), f"output '{output.name}'")
    if output.kind in ("logits", "log_probabilities", "positive_logit"):
        logs = np.asarray(output.class_logits(output.in_order(raw)), np.float64)
    else:
        with np.errstate(divide="ignore", invalid="ignore"):
            # a probability that is 0 in float32 is less than the smallest number of that type
            logs = np.log(np.maximum(output.probabilities(raw), np.finfo(np.float32).tiny))
    with np.errstate(invalid="ignore"):  # of an infinite logit; such a recipe is far behind all others
        shifted: FloatArray = logs - np.max(logs, axis=1, keepdims=True)
    return shifted


def _losses(logs: FloatArray, labels: NDArray[np.int64]) -> FloatArray:
    """Return the NLL of each sample at the temperature that makes their mean least; infinite where one is no number."""
    if not np.isfinite(logs).all():
        return np.full(len(logs), math.inf)
    of_label = logs[np.arange(len(logs)), labels]

    def slope(beta: float) -> tuple[float, float, float]:
        p = np.exp(beta * logs)
        p /= p.sum(axis=1, keepdims=True)
        mean = np.sum(p * logs, axis=1, keepdims=True)
        centred = logs - mean
        variance, third = (float(np.mean(np.sum(p * centred**power, axis=1))) for power in (2, 3))
        return float(np.mean(mean[:, 0] - of_label)), variance, third

    beta = increasing_root(slope, _MIN_BETA, _MAX_BETA, tolerance=1e-6).value
    losses: FloatArray = np.log(np.sum(np.exp(beta * logs), axis=1)) - beta * of_label
    return losses


def race(images: TrialImages, trials: Sequence[Trial]) -> list[Trial]:
    """Run more and more images under recipes, dropping those that are far behind; return the others, best first.

    Where few are, only the best go on: a round takes half of the runs that are left, and the last rounds two recipes.
    """
    running = list(trials)
    count = START
    while True:
        images.run(running, count)
        best = best_of(running)
        running = [trial for trial in running if not trial.is_dropped(best)]
        if count >= min(SAMPLES, len(images.rows)) or len(running) == 1:
            break
        places = max(2, (MOST_RUNS - sum(map(len, trials))) // (2 * count))
        ahead = sorted(running, key=lambda trial: (trial is not best, trial.nll))[:places]
        running = [trial for trial in running if trial in ahead]  # of equal ones the first counts
        count *= 2
    if len(running) == 1:  # it has seen fewer images than its numbers are to rest on
        images.run(running, SAMPLES)
    return sorted(running, key=lambda trial: (trial is not best, trial.nll))


def nll_of(logs: FloatArray, labels: NDArray[np.int64]) -> float:
    """Return the NLL, nats, of log-probabilities up to a constant each, (n, C)."""
    shifted = np.maximum(logs - logs.max(axis=1, keepdims=True), _LEAST)
    sums = np.log(np.exp(shifted).sum(axis=1))
    return float(np.mean(sums - shifted[np.arange(len(shifted)), labels]))


def worse_than_guessing(nll: float, reference: float, n_classes: int) -> bool:
    """Tell whether an NLL at the model's own temperature is none of a trained model, and another one is.

    Overconfident models lose a few times what guessing loses, log C; where pixels are 255 times too large, so are
    logits, as the layers of most networks are nearly linear that far out, and the accuracy may be as it was.
    """
    guess = math.log(n_classes)
    return nll > _WORSE * guess and reference < guess


def leaves_nothing_to_gain(logs: FloatArray, labels: NDArray[np.int64]) -> bool:
    """Whether no other recipe can be clearly more accurate on these images, and the NLL is that of a trained model.

    One that is right wherever this one is wrong, on a share w of n images, gains w, with a standard error of
    sqrt(w (1 - w) / n): sqrt(n w / (1 - w)) of them, and one that gains less, fewer.
    """
    w = float(np.mean(logs.argmax(axis=1) != labels))
    nonsense = worse_than_guessing(nll_of(logs, labels), 0.0, logs.shape[1])
    return not nonsense and len(labels) * w <= CLEAR**2 * (1 - w)


def best_of(trials: Sequence[Trial]) -> Trial:
    """Return the recipe of the least NLL; of equal ones the first."""
    least = min(trials, key=lambda trial: trial.nll)
    return next(trial for trial in trials if trial.z(least) == 0)


def is_harmless(images: TrialImages, trial: Trial, best: Trial) -> bool:
    """Whether it hardly matters which of two tied recipes is taken."""
    mean, error = trial.behind(best)
    return mean + CLEAR * error <= _HARMLESS or within_noise(images, trial, best)


def within_noise(images: TrialImages, first: Trial, second: Trial) -> bool:
    """Whether two recipes differ little in what they make of pixels, in whatever size."""
    alike = _distance(first.resolved, second.resolved) <= _HARDLY
    if first.resolved.color == second.resolved.color or not alike:
        return alike
    # colours in another order: whether the first images have any to speak of
    pixels = next(images.batches(first.pixels, 0, FIRST))
    between = float(np.sqrt(np.mean((pixels - np.flip(pixels, first.channel_axis)) ** 2)))
    return between <= _GREY * float(np.std(pixels))


def _distance(first: ResolvedRecipe, second: ResolvedRecipe) -> float:
    """Return the root mean square of the difference that two recipes make of usual pixels, in standard deviations."""
    if first.per_image != second.per_image:
        return math.inf
    mean, deviation = USUAL
    squares, spreads = [], []
    for k in range(len(first.mean)):
        slopes, offsets = zip(*((r.scale * 255 / r.std[k], r.mean[k] / r.std[k]) for r in (first, second)), strict=True)
        slope, offset = slopes[0] - slopes[1], offsets[0] - offsets[1]
        squares.append((slope * mean - offset) ** 2 + (slope * deviation) ** 2)
        spreads.append(sum(map(abs, slopes)) / 2 * deviation)
    return math.sqrt(float(np.mean(squares))) / float(np.mean(spreads))
