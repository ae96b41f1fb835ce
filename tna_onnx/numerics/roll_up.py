"""Roll-up: the class of a sample where it is sure enough, else its genus, else its family (`RollUp`), and thresholds by
which the errors of each level are bounded (`level_thresholds`).

Level 0 are the C classes; each further level puts them into fewer groups. With P_g the sum of the probabilities of the
classes in group g, the answer is the likeliest group of the first level l at which the largest P_g reaches t_l.

Thresholds are chosen from level 0 up, each on the samples that the levels before it leave, as `accept` chooses its own
(`numerics.conformal`): of the answers at a level at most the risk are wrong, with certainty 1 - delta. What is left was
looked at before, when the thresholds of earlier levels ended where errors began; so the promise of later levels is
exact for fixed earlier thresholds, and measured for chosen ones (docs/how-to/thresholds.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.conformal import accept_above
from tna_onnx.numerics.operating_points import DecisionRule

Floats = NDArray[np.float32]

MAX_NUMBERS = 2**16
"""Of classes times levels: a file holds which group each class is in."""

_MAX_SUMS = 10_000_000  # classes times groups: the 0/1 matrix in the file

_NEVER = np.float32(2)  # no sum of probabilities reaches it


@dataclass(frozen=True, eq=False)
class RollUp:
    """A rule that answers with a class or a group of classes."""

    levels: tuple[str, ...]  # names of the L levels; level 0 are the classes
    # (L, C) number of the group that each class is in at each level. Groups are numbered through, level by level, by
    # their first class, so that level 0 has the numbers 0 to C - 1.
    groups: NDArray[np.int64]
    names: tuple[str, ...]  # of the groups behind the classes, by number from C on

    kind: ClassVar[str] = "roll-up"
    positive: ClassVar[int] = 0
    cost: ClassVar[Floats] = np.zeros((0, 0), np.float32)

    @classmethod
    def of(cls, levels: tuple[str, ...], members: list[list[str]]) -> RollUp:
        """Number the groups.

        `members`: for each level, the name of the group that each of the C classes is in.

        >>> RollUp.of(("species", "genus"), [["lion", "tiger", "wolf"], ["cat", "cat", "dog"]]).groups.tolist()
        [[0, 1, 2], [3, 3, 4]]
        """
        names = [name for level in members[1:] for name in dict.fromkeys(level)]
        return cls(levels, _numbered(members), tuple(names))

    @property
    def place(self) -> NDArray[np.int64]:
        """(G,) the level of each group."""
        return np.repeat(np.arange(len(self.levels)), [len(np.unique(row)) for row in self.groups])

    @property
    def sums(self) -> Floats:
        """(C, G - C) 0/1 matrix: probabilities times it are those of the groups behind the classes."""
        classes = self.groups.shape[1]
        matrix = np.zeros((classes, len(self.names)), np.float32)
        for row in self.groups[1:]:
            matrix[np.arange(classes), row - classes] = 1
        return matrix

    @property
    def lead(self) -> Floats:
        """(G,) what is added to sums that reach their threshold, so that the first such level has the largest."""
        return (2 * (len(self.levels) - self.place)).astype(np.float32)

    @property
    def wrong(self) -> str:
        """Why these are no levels of which each puts groups of the one before together; empty if they are."""
        if self.groups.ndim != 2 or self.groups.shape[0] != len(self.levels) or len(self.levels) < 2:
            return "expected the classes and at least one level of groups"
        if self.groups.size > MAX_NUMBERS or self.groups.shape[1] * len(self.names) > _MAX_SUMS:
            return f"{self.groups.shape[1]:,} classes and {len(self.names):,} groups are more than a file can hold"
        for level, pair in enumerate(zip(self.groups[:-1], self.groups[1:], strict=True)):
            if len({*zip(*(row.tolist() for row in pair), strict=True)}) > len(np.unique(pair[0])):
                return f"one {self.levels[level]} is in several groups of the level {self.levels[level + 1]}"
        numbered = np.array_equal(self.groups, _numbered(self.groups.tolist()))
        if numbered and self.groups.max() + 1 == self.groups.shape[1] + len(self.names):
            return ""
        return "wrong numbers"

    def decide(self, p: Floats, thresholds: Floats) -> NDArray[np.int64]:
        """Return numbers of groups (N,), -1 for none. `p`: (N, G) sums of probabilities; `thresholds`: (L,)."""
        reached = p >= thresholds[self.place]
        ranked = np.where(reached, p + self.lead, np.float32(0))
        return np.where(reached.any(axis=1), ranked.argmax(axis=1), -1)


Rule: TypeAlias = DecisionRule | RollUp
"""How probabilities become a decision."""


def _numbered(members: list[list[Any]]) -> NDArray[np.int64]:
    """Return the numbers (L, C) of groups, level by level, by their first class."""
    start = 0
    rows = []
    for row in members:
        number = {group: start + k for k, group in enumerate(dict.fromkeys(row))}
        start += len(number)
        rows.append([number[group] for group in row])
    return np.array(rows, np.int64)


def level_thresholds(
    rule: RollUp, p: Floats, labels: NDArray[np.int64], risk: float, delta: float
) -> tuple[Floats, list[int]]:
    """Return thresholds (L,), and how many samples each level has, which the ones before it left.

    `p`: (N, G) sums of probabilities; `labels`: (N,); `risk`: largest share of wrong answers at a level, in (0, 1);
    `delta`: probability with which a level may have more, in (0, 1).
    """
    thresholds = np.full(len(rule.levels), _NEVER)
    left = np.arange(len(p))
    counts = []
    for level, groups in enumerate(rule.groups):
        own = p[left][:, rule.place == level]
        largest, first = own.max(axis=1), own.argmax(axis=1) + groups.min()
        counts.append(len(left))
        threshold = accept_above(largest, first == groups[labels[left]], risk, delta)
        if threshold is not None:
            thresholds[level] = threshold
        if own.shape[1] == 1:
            thresholds[level] = 0  # a group of all classes is never wrong
        left = left[largest < thresholds[level]]
    return thresholds, counts
