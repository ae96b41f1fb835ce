"""Cross-fitting along a path of fits, and the choice that each fold makes without its own samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from tests.pipeline.crossfits import BIAS, SEED, Array, N, logits_of, plain
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline.crossfit import Fit, Scores, chosen_per_fold, cross_scores, folds, nested
from tna_onnx.pipeline.methods import FOLDS, INPUT, Method, Rule

# --- paths

SCALES = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 8.0)


def refit(step: int) -> Method:
    return Method(tilted=False, map="refit", step=step)


class Path:
    """A path of temperatures, best at 2, which keeps how far it was asked for."""

    def __init__(self, best: Iterable[float] = (2.0,) * FOLDS) -> None:
        self.logits = logits_of()
        self.best = tuple(best)
        self.reached = [0] * FOLDS

    def __call__(self, k: int, train: Array) -> Iterator[tuple[Method, Iterator[Fit]]]:
        yield refit(0), self._steps(k)

    def _steps(self, k: int) -> Iterator[Fit]:
        for step, scale in enumerate(SCALES):
            self.reached[k] = step
            yield refit(step), self.logits, Temperature(scale * 2 / self.best[k])


def test_a_path_is_left_once_it_has_got_worse() -> None:
    path = Path()
    scores = cross_scores(N, SEED, path)
    fold = folds(N, SEED)
    for k in range(FOLDS):
        held = fold == k
        values = [
            float(np.mean(path.logits.mapped_scores(Temperature(scale), held).nll, dtype=np.float64))
            for scale in SCALES
        ]
        worse = [j for j in range(1, len(SCALES)) if values[j] > values[j - 1]]
        assert path.reached[k] == worse[0] < len(SCALES) - 1
    assert list(scores) == [refit(step) for step in range(min(path.reached) + 1)]


def test_only_steps_that_all_folds_share_stay() -> None:
    """In one fold the same steps go twice as far, so that it is left earlier."""
    path = Path((2.0, 2.0, 1.0, 2.0, 2.0))
    scores = cross_scores(N, SEED, path)
    assert path.reached[2] < min(path.reached[:2] + path.reached[3:])
    assert list(scores) == [refit(step) for step in range(path.reached[2] + 1)]
    for each in scores.values():
        assert len(each) == N


# --- the choice


def spoilt(scores: Scores, fold: int) -> Scores:
    """The same scores but those of one fold, which are drawn at random."""
    rng = np.random.default_rng(fold)
    held = folds(N, SEED) == fold
    changed = {}
    for method, each in scores.items():
        nll, hit = each.nll.copy(), each.hit.copy()
        nll[held] = rng.gamma(2, 5, int(held.sum()))
        hit[held] = rng.random(int(held.sum())) < 0.1
        changed[method] = SampleScores(each.confidence, hit, nll, each.brier)
    return changed


@pytest.mark.parametrize("fold", range(FOLDS))
def test_scores_of_a_fold_have_no_part_in_its_choice(fold: int) -> None:
    scores = plain().scores()
    before = scores[INPUT]
    chosen = chosen_per_fold(scores, before, Rule(), SEED)
    changed = spoilt(scores, fold)
    assert chosen_per_fold(changed, changed[INPUT], Rule(), SEED)[fold] == chosen[fold]


def test_each_fold_takes_what_the_others_say() -> None:
    """`bias` is better but in fold 3, where it is much worse: fold 3 takes it, and the others see that and do not."""
    fold = folds(N, SEED)
    flat = logits_of().scores()
    nll = np.full(N, 1.0, np.float32)
    before = SampleScores(flat.confidence, flat.hit, nll, flat.brier)
    better = np.where(fold == 3, 9.0, 0.5).astype(np.float32)
    scores = {INPUT: before, BIAS: SampleScores(flat.confidence, flat.hit, better, flat.brier)}
    assert chosen_per_fold(scores, before, Rule(), SEED) == [BIAS if k == 3 else INPUT for k in range(FOLDS)]
    honest = nested(scores, before, Rule(), SEED)
    # and this is what the estimate has to say: it would have cost 8 nats there
    np.testing.assert_array_equal(honest.nll, np.where(fold == 3, 9.0, 1.0).astype(np.float32))
