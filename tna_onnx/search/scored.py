"""Candidates with the scores of all samples: each is made and scored once, whichever samples a search looks at.

Searches without a fold of the samples look at nearly the same candidates, and scores of single samples do not depend on
which others there are. So the walks and the products of the first search serve the others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from tna_onnx.numerics.averages import LIMIT, Average, Ensemble, TurnedWeight
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.search.candidates import Candidate, candidate_of

__all__ = ["Score", "Scored"]


Score = Callable[[Sequence[Any]], Sequence[SampleScores]]
"""Scores all samples with each of some (C, n) weights; together, so that the features are read once for all."""


# Bytes of the weights that are scored together; a larger weight is scored alone.
_STACK_BYTES = 2**25

# Bytes of the scores that are kept for another search: 13 a sample and candidate.
_KEPT_BYTES = 2**28
_SAMPLE_BYTES = 13


class Scored:
    """What a search asks for.

    Args:
        ensemble: members of the weight that is searched around.
        score: scores all samples with weights.
        score_scaled: scores all samples with the original weight times a factor; `score` does by default.
        turned: whether `score` takes a `TurnedWeight` too, where there are many classes.
        original: scores of the original weight, if they are known; else they are asked for.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        score: Score,
        score_scaled: Callable[[float], SampleScores] | None = None,
        *,
        turned: bool = False,
        original: SampleScores | None = None,
    ) -> None:
        self.ensemble = ensemble
        self._score = score
        self._score_scaled = score_scaled or self._scaled
        self._turned = turned
        self._kept: dict[tuple[float, int], Candidate] = {}
        self._limits: dict[float, SampleScores] = {}
        self._original = original

    @property
    def original(self) -> SampleScores:
        """Scores of the original weight."""
        if self._original is None:
            self._original = self._score([self.ensemble.weight])[0]
        return self._original

    def limit(self, angle: float) -> SampleScores:
        """Scores of the limit of many members at an angle in degrees, without a product."""
        scores = self._limits.get(angle)
        if scores is None:
            scores = self._score_scaled(math.cos(math.radians(angle)))
            if self._has_room(scores):
                self._limits[angle] = scores
        return scores

    def candidates(self, angles: Sequence[float], members: int) -> Iterator[list[Candidate]]:
        """Yield the candidates at some angles in degrees, ascending, as far as paths reach; some at a time.

        Those that are new have their weight, but for those of the limit of many, which take no product.
        """
        if members == LIMIT:
            yield [Candidate(angle, LIMIT, 0.0, self.limit(angle), reached=angle) for angle in angles]
            return
        for known, group in itertools.groupby(angles, key=lambda angle: (angle, members) in self._kept):
            if known:
                yield [self._kept[angle, members] for angle in group]
                continue
            wanted = [*group]
            made = 0
            for stack in self._stacks(self.ensemble.averages(wanted, members)):
                yield self._scored(stack, members)
                made += len(stack)
            # paths end before
            if made < len(wanted):
                return

    def _scored(self, stack: Sequence[Average], members: int) -> list[Candidate]:
        found = []
        for average, scores in zip(stack, self._score([self._given(average) for average in stack]), strict=True):
            candidate = candidate_of(average, members, scores)
            found.append(candidate)
            if self._has_room(scores):
                # weights are large, and can be made again
                self._kept[average.angle, members] = replace(candidate, weight=None)
        return found

    def _given(self, average: Average) -> NDArray[Any] | TurnedWeight:
        return average.made if self._turned else average.weight

    def _stacks(self, made: Iterator[Average]) -> Iterator[list[Average]]:
        """Cut into lists of weights that fit into memory together."""
        while stack := list(itertools.islice(made, max(1, _STACK_BYTES // self._bytes))):
            yield stack

    @property
    def _bytes(self) -> int:
        """Bytes of a weight, as it is scored."""
        return self.ensemble.average_bytes if self._turned else int(self.ensemble.weight.nbytes)

    def _has_room(self, scores: SampleScores) -> bool:
        count = len(self._kept) + len(self._limits)
        return (count + 1) * scores.hit.size * _SAMPLE_BYTES <= _KEPT_BYTES

    def _scaled(self, factor: float) -> SampleScores:
        return self._score([self.ensemble.weight * self.ensemble.weight.dtype.type(factor)])[0]
